"""The statistics of comparison, on numpy and scipy alone: no file, no server, no clock, no global random state.

The files read in the order of the data: `scores` (what is given), `means` (the arithmetic), `estimates` and
`pass_at_k` (one evaluation), `flips` and `pairs` (two of them), `runs` (several of each), `remarks` and `comparing`
(all together), `planning` (before anything is played).
"""

from __future__ import annotations

from multiors.evaluation.statistics.comparing import add_details, compare_arms, summarize_arm
from multiors.evaluation.statistics.planning import tasks_needed
from multiors.evaluation.statistics.scores import RunScores, SourceScores

__all__ = ["RunScores", "SourceScores", "add_details", "compare_arms", "summarize_arm", "tasks_needed"]
