"""Policies played on environments outside training, and whether one is better than another.

The files read in the order of the data: `policies` (what is asked), `running` (episodes, many at once), `folder` (what
is kept), `statistics` (what it says), `comparison` (how it is shown). `results` are the values that the last two share.
This room knows no trainer.
"""

from __future__ import annotations

from multiors.evaluation.folder import EvaluationRun, read_evaluation

__all__ = ["EvaluationRun", "read_evaluation"]
