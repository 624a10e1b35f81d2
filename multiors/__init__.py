"""GRPO training on many ORS environments at once, on top of TRL.

    from multiors import MultiOpenRewardSpec, ORSSource

Public names load when they are first used, so that `import multiors` costs nothing: the trainer and the ORS client take
seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiors.errors import (
        ComparisonError,
        ConfigError,
        MultiORSError,
        RewardError,
        RoutingError,
        SessionError,
        SourceError,
    )
    from multiors.ors import ORSSource
    from multiors.records import Episode, RolloutRecord, StepRecord, UnscoredReason
    from multiors.rewards import RewardPart, SourceReward
    from multiors.spec import MultiOpenRewardSpec
    from multiors.training.concurrent import ConcurrentGRPOTrainer, ConcurrentRollouts

__all__ = [
    "ComparisonError",
    "ConcurrentGRPOTrainer",
    "ConcurrentRollouts",
    "ConfigError",
    "Episode",
    "MultiORSError",
    "MultiOpenRewardSpec",
    "ORSSource",
    "RewardError",
    "RewardPart",
    "RolloutRecord",
    "RoutingError",
    "SessionError",
    "SourceError",
    "SourceReward",
    "StepRecord",
    "UnscoredReason",
]

_MODULE_BY_NAME = {
    "ConcurrentGRPOTrainer": "multiors.training.concurrent",
    "ConcurrentRollouts": "multiors.training.concurrent",
    "MultiOpenRewardSpec": "multiors.spec",
    "ORSSource": "multiors.ors",
    "RewardPart": "multiors.rewards",
    "SourceReward": "multiors.rewards",
    **dict.fromkeys(("Episode", "RolloutRecord", "StepRecord", "UnscoredReason"), "multiors.records"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("multiors")

    if name not in __all__:
        raise AttributeError(f"module 'multiors' has no attribute {name!r}")

    return getattr(import_module(_MODULE_BY_NAME.get(name, "multiors.errors")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
