"""What a policy is to the runner: something that answers conversations, many at once.

A policy knows how a reply is sampled and how tool calls are read from it. It knows no server, no task's worth and no
file; what becomes of its calls is decided by the runner. Everything here runs on one event loop: what takes long, a
policy does elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from multiors.errors import ConfigError, SessionError

__all__ = ["Conversation", "Message", "Policy", "PolicyError", "Reply", "Sampling", "Start"]

Message = Mapping[str, Any]
"""A chat message as TRL has it: `role`, `content`, and of an assistant `tool_calls`, each {"type": "function",
"function": {"name": str, "arguments": dict}}."""


class PolicyError(SessionError):
    """A reply could not be had: the endpoint is away, refused the request, or answered with no reply.

    It says nothing about what the policy is worth: the episode is not recorded, and is played when the evaluation goes
    on.
    """


@dataclass(frozen=True, slots=True)
class Sampling:
    """How replies are sampled."""

    temperature: float = 1.0
    """0 is greedy."""

    top_p: float = 1.0
    """0 < top_p <= 1."""

    top_k: int | None = None
    """None: all tokens."""

    max_tokens: int = 1024
    """Tokens of one reply, at most."""

    def __post_init__(self) -> None:
        """Refuse what no server could do.

        Raises:
            ConfigError: A value is out of its range.
        """
        bounds = {
            "temperature": (math.isfinite(self.temperature) and self.temperature >= 0, "0 (greedy) or more"),
            "top_p": (0 < self.top_p <= 1, "more than 0 and at most 1"),
            "top_k": (self.top_k is None or self.top_k >= 1, "1 or more, or None for all tokens"),
            "max_tokens": (self.max_tokens >= 1, "1 or more"),
        }

        for name, (is_right, range_) in bounds.items():
            if not is_right:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it is {range_}.")


@dataclass(frozen=True, slots=True)
class Start:
    """What an episode begins with."""

    source: str
    task_index: int
    task: Any
    """The task's specification, decoded. None: it was not fetched."""

    tools: Sequence[Mapping[str, Any]]
    """As JSON schemas: {"type": "function", "function": {"name", "description", "parameters"}}."""

    seed: int
    """Of everything random in this episode, 0 <= seed < 2**63; the same for every policy that is compared."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the policy wrote in one turn."""

    message: Message
    """The assistant's message. Thoughts are in `reasoning_content`, if anywhere; they are recorded."""

    num_prompt_tokens: int | None = None
    """Tokens it read for this reply: the whole conversation so far. None: not known."""

    num_sampled_tokens: int | None = None
    is_truncated: bool = False
    """Whether the reply ended because its tokens were used up, or the conversation is too long for the model."""

    malformed_calls: Sequence[str] = field(default_factory=tuple)
    """Calls that the policy meant to make and that cannot be read, each with one line on what is wrong with it."""


class Conversation(Protocol):
    """One episode as the policy sees it."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """The policy's next message.

        Args:
            messages: What is new since the last reply: at first the prompt, then the results of its calls
                (`role` "tool", with `name`, `content`, and `tool_call_id` where the call had an `id`).

        Raises:
            PolicyError: There is none.
        """

    async def end(self) -> None:
        """The episode is over; called once, whatever happened."""


class Policy(Protocol):
    """Something that can be evaluated."""

    name: str
    """For people: a model's name, or a folder's."""

    max_concurrent_replies: int
    """More at once make it no quicker; the runner plays at least so many episodes at once."""

    sees_images: bool
    """Whether messages may hold images."""

    secrets: Sequence[str]
    """Keys that it holds, which no record may show: an environment or an endpoint may print them."""

    def describe(self) -> Mapping[str, Any]:
        """What it is, as JSON-ready values without keys or secrets: two evaluations of the same are the same."""

    async def open(self) -> None:
        """Make ready; called before the first episode.

        Raises:
            ConfigError: It cannot be used.
        """

    def start(self, start: Start) -> Conversation:
        """Begin an episode."""

    async def close(self) -> None:
        """Let go of what it holds; called once, whatever happened."""
