"""GRPO training on many ORS environments at once, on top of TRL.

    from multiors import MultiOpenRewardSpec, ORSSource

Public names load when they are first used, so that `import multiors` costs nothing: the trainer and the ORS client take
seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiors.checks import CheckReport, check
    from multiors.errors import (
        ComparisonError,
        ConfigError,
        MultiORSError,
        RewardError,
        RoutingError,
        SessionError,
        SourceError,
    )
    from multiors.mixing import CircuitBreaker
    from multiors.ors import ORSSource
    from multiors.pictures import draw_run
    from multiors.records import RolloutRecord, StepRecord, UnscoredReason
    from multiors.rewards import GroupScore, RewardPart, SourceReward
    from multiors.rollout_log import RolloutLog, read_rollouts
    from multiors.spec import MultiOpenRewardSpec
    from multiors.training.concurrent import ConcurrentGRPOTrainer, ConcurrentRollouts
    from multiors.training.others import TRLSource
    from multiors.training.upload import RolloutUpload

__all__ = [
    "CheckReport",
    "CircuitBreaker",
    "ComparisonError",
    "ConcurrentGRPOTrainer",
    "ConcurrentRollouts",
    "ConfigError",
    "GroupScore",
    "MultiORSError",
    "MultiOpenRewardSpec",
    "ORSSource",
    "RewardError",
    "RewardPart",
    "RolloutLog",
    "RolloutRecord",
    "RolloutUpload",
    "RoutingError",
    "SessionError",
    "SourceError",
    "SourceReward",
    "StepRecord",
    "TRLSource",
    "UnscoredReason",
    "check",
    "draw_run",
    "read_rollouts",
]

_MODULE_BY_NAME = {
    "CircuitBreaker": "multiors.mixing",
    "CheckReport": "multiors.checks",
    "ConcurrentGRPOTrainer": "multiors.training.concurrent",
    "ConcurrentRollouts": "multiors.training.concurrent",
    "MultiOpenRewardSpec": "multiors.spec",
    "ORSSource": "multiors.ors",
    "GroupScore": "multiors.rewards",
    "RewardPart": "multiors.rewards",
    "RolloutLog": "multiors.rollout_log",
    "RolloutUpload": "multiors.training.upload",
    "SourceReward": "multiors.rewards",
    "TRLSource": "multiors.training.others",
    "check": "multiors.checks",
    "draw_run": "multiors.pictures",
    "read_rollouts": "multiors.rollout_log",
    **dict.fromkeys(("RolloutRecord", "StepRecord", "UnscoredReason"), "multiors.records"),
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
