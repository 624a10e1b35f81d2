"""What a rollout is worth: step rewards → outcome → reward, and per-source statistics. Pure arithmetic, None intact."""

from __future__ import annotations

from multiors.rewards.composition import RewardPart, SourceReward, as_source_reward, check_values, compose
from multiors.rewards.outcome import Outcome, decide_outcome
from multiors.rewards.reduction import Reduction
from multiors.rewards.statistics import SourceSummary, metric_values, share_values, summarize_source

__all__ = [
    "Outcome",
    "Reduction",
    "RewardPart",
    "SourceReward",
    "SourceSummary",
    "as_source_reward",
    "check_values",
    "compose",
    "decide_outcome",
    "metric_values",
    "share_values",
    "summarize_source",
]
