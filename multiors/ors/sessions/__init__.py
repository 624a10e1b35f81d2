"""Sessions on ORS servers: the event loop they live on, their limits, their servers, their calls and their end.

The files read from the ground up: `runtime` (one background loop per process), `limits` (how much at once), `servers`
(which of several equal servers), `calls` (one tool call on the wire), `session` (one open session). Nothing here knows
a source, a rollout or a trainer.
"""

from __future__ import annotations

__all__: list[str] = []
