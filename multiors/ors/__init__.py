"""One ORS environment as a source: its address, tasks, tools, sessions and the per-rollout environment.

The files read in the order of the data: `target` (where), `sessions` (the event loop, its servers, sessions and calls),
`discovery` (environments and tasks of a server), `probing` and `tools` (its tools as typed methods), `rollouts` (the
object TRL resets), `rows` (a source used alone), `source` (the face of the room), `preparation` (many sources at once).

This room knows no weights and no trainer.
"""

from __future__ import annotations

from multiors.ors.source import ORSSource

__all__ = ["ORSSource"]
