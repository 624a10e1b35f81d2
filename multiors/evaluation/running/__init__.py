"""Episodes, many at once, each with a record at its end.

The files read in the order of the data: `choice` (which tasks, with which luck), `sources` (what is asked of servers
before), `episode` (one), `runner` (all).
"""

from __future__ import annotations

from multiors.evaluation.running.episode import Limits
from multiors.evaluation.running.runner import Watcher, evaluate

__all__ = ["Limits", "Watcher", "evaluate"]
