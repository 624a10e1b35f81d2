"""Environments as a server of one's own: the user's classes, the quickstart's, and the generators of reasoning-gym.

`multiors serve` starts `python -m multiors.serving` in its place, with a `ServePlan`. The server itself is
openreward's; here it is decided what it serves, and what is done with answers that nobody has to trust.
"""

from __future__ import annotations

from multiors.serving.plan import DEFAULT_NUM_TASKS, MAX_NUM_TASKS, MAX_SEED, ServePlan

__all__ = ["DEFAULT_NUM_TASKS", "MAX_NUM_TASKS", "MAX_SEED", "ServePlan"]
