"""What every session of a source is opened with, apart from its server and its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from multiors.ors.sessions.secrets import Secrets, secret_values

__all__ = ["SessionOptions", "SessionTimeouts"]


@dataclass(frozen=True, slots=True)
class SessionTimeouts:
    """Deadlines in seconds; each covers all retries of its operation."""

    open_s: float = 600.0
    """From asking for a session to having its prompt, an environment's slow `setup` included; also for each thing
    asked of a server before training, because a platform may first have to start the environment."""

    call_s: float = 600.0
    """One tool call, from sending it to its last byte."""

    keepalive_s: float | None = None
    """Silence after which a session is pinged. None: 10 s on a platform, 30 s elsewhere."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How sessions of a source are opened; pickles."""

    split: str
    timeouts: SessionTimeouts = SessionTimeouts()
    has_messages: bool = False
    """Whether the environment gives its prompt as messages with roles."""

    toolset: str | None = None
    """Name of a toolset of the SDK's whose tools each session has as well. None: none."""

    env_overrides: Mapping[str, str] | None = field(default=None, repr=False)
    """Environment variables of the environment's container, on a platform. None: as its owner set them."""

    secrets: Secrets | None = field(default=None, repr=False)

    @property
    def hidden(self) -> list[str]:
        """Values that must not be shown."""
        return [*secret_values(self.secrets), *(self.env_overrides or {}).values()]
