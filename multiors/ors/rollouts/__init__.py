"""One rollout of a source: what it needs, how its session opens, its calls, and the object TRL resets.

The files read in that order: `blueprint`, `opening`, `ahead` (calls made before the trainer asks), `environment`.
Nothing here knows a trainer or what a rollout is worth.
"""

from __future__ import annotations

__all__: list[str] = []
