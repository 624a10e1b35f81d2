"""Per-source statistics of scored batches: values to log, and one line of a table. Arithmetic only.

The trainer averages what it is given over rollouts, logging steps and processes. So what is logged is one value per
rollout, never a count or a mean of one process, and a source without rollouts logs nothing: the mean of nothing is no
number (rule 7 of the semantics).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from multiors.records import RolloutRecord, UnscoredReason

__all__ = ["SourceSummary", "metric_values", "share_values", "summarize_source"]


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """What became of some rollouts of one source."""

    num_rollouts: int
    num_scored: int

    mean_reward: float | None
    """Over the scored rollouts. None: none was scored."""

    scored_fraction: float | None
    """None: there are no rollouts."""

    finished_fraction: float | None
    """None: there are no rollouts."""

    unscored_by_reason: Mapping[UnscoredReason, int]
    """Unscored rollouts for each of the eight reasons; they sum to num_rollouts - num_scored."""

    num_tool_calls: int

    num_tool_errors: int
    """Calls that failed in any way: refused, raised, lost, or answered with a bad reward."""


def summarize_source(records: Sequence[RolloutRecord]) -> SourceSummary:
    """Summarize rollouts of one source."""
    rewards = [record.reward for record in records if record.reward is not None]
    return SourceSummary(
        num_rollouts=len(records),
        num_scored=len(rewards),
        mean_reward=_mean(rewards),
        scored_fraction=_mean([float(record.reward is not None) for record in records]),
        finished_fraction=_mean([float(record.finished) for record in records]),
        unscored_by_reason={reason: sum(record.reason is reason for record in records) for reason in UnscoredReason},
        num_tool_calls=sum(len(record.steps) for record in records),
        num_tool_errors=sum(map(_count_errors, records)),
    )


def metric_values(source: str, records: Sequence[RolloutRecord]) -> dict[str, list[float]]:
    """What to log for a source's rollouts of one batch: under each metric's name, one value per rollout.

    `env/<source>/reward` has values for the scored rollouts only. Names without values are left out.
    """
    values = {
        "reward": [record.reward for record in records if record.reward is not None],
        "scored": [float(record.reward is not None) for record in records],
        "finished": [float(record.finished) for record in records],
        "tool_calls": [float(len(record.steps)) for record in records],
        "tool_errors": [float(_count_errors(record)) for record in records],
    }
    for reason in UnscoredReason:
        values[f"unscored/{reason}"] = [float(record.reason is reason) for record in records]
    return {f"env/{source}/{name}": numbers for name, numbers in values.items() if numbers}


def share_values(environments: Sequence[str], sources: Sequence[str]) -> dict[str, list[float]]:
    """For each source, 1.0 for every rollout of the batch that is its own and 0.0 for the others: they average to the
    share it really got, over processes too.

    Args:
        environments: The source of each rollout of the batch.
        sources: Names of all sources of the mix.
    """
    return {
        f"env/{source}/share": [float(environment == source) for environment in environments]
        for source in sources
        if environments
    }


def _mean(values: Sequence[float]) -> float | None:
    return fsum(values) / len(values) if values else None


def _count_errors(record: RolloutRecord) -> int:
    return sum(step.failure is not None for step in record.steps)
