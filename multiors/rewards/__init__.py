"""What a rollout is worth: step rewards → outcome → reward, and per-source statistics. Pure arithmetic, None intact."""

from __future__ import annotations

from multiors.rewards.composition import (
    GroupScore,
    RewardPart,
    SourceReward,
    as_source_reward,
    check_values,
    compose,
    naming,
)
from multiors.rewards.outcome import Outcome, decide_outcome, decide_value, find_failure, refine_reason
from multiors.rewards.reduction import Reduction
from multiors.rewards.statistics import gradient_values, metric_values, share_values
from multiors.rewards.summary import RunSummary, SourceSummary, add_summaries, summarize_source

__all__ = [
    "GroupScore",
    "Outcome",
    "Reduction",
    "RewardPart",
    "RunSummary",
    "SourceReward",
    "SourceSummary",
    "add_summaries",
    "as_source_reward",
    "check_values",
    "compose",
    "decide_outcome",
    "decide_value",
    "find_failure",
    "gradient_values",
    "metric_values",
    "naming",
    "refine_reason",
    "share_values",
    "summarize_source",
]
