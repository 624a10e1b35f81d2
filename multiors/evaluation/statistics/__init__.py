"""The statistics of comparison, on numpy and scipy alone: no file, no server, no clock, no global random state."""

from __future__ import annotations

from multiors.evaluation.statistics.scores import RunScores, SourceScores

__all__ = ["RunScores", "SourceScores"]
