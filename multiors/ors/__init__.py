"""One ORS environment as a source: its address, tasks, tools, sessions and the per-rollout environment.

The files read in the order of the data: `target` (where), `runtime` (the event loop that all ORS traffic runs on),
`calls` and `session` (one tool call, one open session), `discovery` (environments and tasks of a server), `probing` and
`tools` (its tools as typed methods), `environment` (the object TRL resets), `source` (the face of the room).

This room knows no weights and no trainer.
"""

from __future__ import annotations

from multiors.ors.source import ORSSource

__all__ = ["ORSSource"]
