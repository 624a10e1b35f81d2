"""Everything needed to play one source: where its servers are, what its tools are, how long and how much at once.

A value: it pickles to the process of a rollout worker and plays there as here. Knows no session and no rollout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from multiors.ors.sessions.limits import Cap
from multiors.ors.sessions.options import SessionOptions
from multiors.ors.target import Endpoint
from multiors.ors.text import show
from multiors.ors.tools import BoundTool

__all__ = ["Blueprint", "Images", "TerminalTool"]

Images = Literal["auto", "show", "drop"]
"""Show them to the policy, drop them, or decide by the trainer's model and refuse where it takes none."""


@dataclass(frozen=True, slots=True)
class TerminalTool:
    """An environment's `@terminal` tool: the policy never sees it, its last message is submitted to it."""

    name: str
    """On the server."""

    argument: str | None
    """Under which name it takes the message. None: it takes none, and grades the state of the environment."""

    def take(self, message: str) -> dict[str, str]:
        """The arguments of its call."""
        return {} if self.argument is None else {self.argument: message}


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Everything needed to open sessions of one source, in this process or in one it is pickled to."""

    label: str
    """The source's name."""

    identity: str
    """Tells sources with equal settings apart; travels with the pickle."""

    endpoints: tuple[Endpoint, ...]
    """Equal servers, at least one; a session lives on one of them."""

    options: SessionOptions
    tools: tuple[BoundTool, ...]
    terminal: TerminalTool | None = None
    """None: the environment has none, and its tools score."""

    retries: int = 2
    """How often a session that failed to open is tried anew."""

    caps: tuple[Cap, ...] = ()
    """How much at once: the source's own cap, then that of its mix."""

    images: Images = "auto"
    """What is done with images of the environment's."""

    group_blocks: tuple[str, ...] | None = None
    """Kinds of blocks that the environment takes in a group's rollouts. None: it does not score groups."""

    def find_tool(self, name: str) -> BoundTool | None:
        """The tool that the policy knows by a name."""
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def hidden(self) -> list[str]:
        """This source's keys and secrets."""
        return [*(endpoint.api_key or "" for endpoint in self.endpoints), *self.options.hidden]

    def hide_secrets(self, text: str) -> str:
        """`text` on one line without this source's keys and secrets."""
        return show(text, self.hidden)
