"""When failures of an environment end the training: at the first, or after too many.

Decides nothing about one rollout: that it stays unscored was decided before. Counts over all processes, so that every
process stops at the same batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from multiors.errors import SessionError
from multiors.records import RolloutRecord, UnscoredReason

__all__ = ["FailureLimit", "FailureLimits", "ScoredRollout"]


class ScoredRollout(NamedTuple):
    """What other processes need to know of a rollout."""

    slot: int
    source: str
    task_index: int | None
    reward: float | None
    outcome: float | None
    reason: UnscoredReason | None
    error: str | None

    @classmethod
    def of(cls, record: RolloutRecord) -> ScoredRollout:
        """From the record of a training rollout, which has a slot."""
        slot = -1 if record.slot is None else record.slot
        return cls(slot, record.source, record.task_index, record.reward, record.outcome, record.reason, record.error)

    def find_score(self, *, has_range: bool) -> float | None:
        """What a curriculum is told: the outcome where its range is known, else the reward. None: unscored."""
        return None if self.reward is None else self.outcome if has_range else self.reward

    @property
    def is_failed(self) -> bool:
        """Whether it is unscored because the environment failed."""
        return self.reason is not None and self.reason.is_infrastructure

    def describe(self) -> str:
        """The task, and what happened in it."""
        return f"task {self.task_index} ({self.reason}: {self.error or 'no error was given'})"


@dataclass(frozen=True, slots=True)
class FailureLimit:
    """How many failures of one source are borne."""

    on_failure: Literal["unscored", "stop"] = "unscored"
    max_failing_rollouts: int | None = None
    """None: any number."""

    @classmethod
    def of(cls, source: Any) -> FailureLimit:
        """What a source was given."""
        return cls(source.on_failure, source.max_failing_rollouts)

    @property
    def is_set(self) -> bool:
        """Whether failures can end the training."""
        return self.on_failure == "stop" or self.max_failing_rollouts is not None


class FailureLimits:
    """Counts the failures of a run against the limits of its sources."""

    def __init__(self, limits: Mapping[str, FailureLimit]) -> None:
        self._limits = dict(limits)
        self._num_failed: Counter[str] = Counter()

    @property
    def limited(self) -> list[str]:
        """The sources whose failures can end the training."""
        return [name for name, limit in self._limits.items() if limit.is_set]

    def restart(self) -> None:
        """A training run begins, perhaps from a checkpoint: what failed before it does not count."""
        self._num_failed.clear()

    def check(self, rollouts: Iterable[ScoredRollout]) -> None:
        """Count the failures of a batch, over all processes and in slot order.

        Raises:
            SessionError: A source has had more of them than it may.
        """
        for rollout in rollouts:
            if rollout.is_failed:
                self._num_failed[rollout.source] += 1
                self._check_source(rollout)

    def _check_source(self, rollout: ScoredRollout) -> None:
        limit, num_failed = self._limits[rollout.source], self._num_failed[rollout.source]

        if limit.on_failure == "stop":
            raise SessionError(
                f"source {rollout.source!r}: a rollout failed, and on_failure='stop' ends the training at the first: "
                f"{rollout.describe()}. Repair the environment and resume from the last checkpoint, or pass "
                f"on_failure='unscored' to train on without such rollouts."
            )

        if limit.max_failing_rollouts is not None and num_failed > limit.max_failing_rollouts:
            raise SessionError(
                f"source {rollout.source!r}: {num_failed} rollouts failed since the training began, which is more than "
                f"max_failing_rollouts={limit.max_failing_rollouts}; the last: {rollout.describe()}. Repair the "
                f"environment and resume from the last checkpoint, or raise the limit."
            )
