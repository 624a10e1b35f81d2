"""Per-source statistics of scored batches, as values to log. Arithmetic only.

The trainer averages what it is given over rollouts, logging steps and processes. So what is logged is one value per
rollout, never a count or a mean of one process, and a source without rollouts logs nothing: the mean of nothing is no
number (rule 7 of the semantics).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from multiors.records import RolloutRecord, StepRecord, UnscoredReason

__all__ = ["gradient_values", "metric_values", "share_values"]


def metric_values(source: str, records: Sequence[RolloutRecord]) -> dict[str, list[float]]:
    """What to log for a source's rollouts of one batch: under each metric's name, one value per rollout.

    `env/<source>/reward` has values for the scored rollouts only. Names without values are left out.
    """
    values = {
        "reward": [record.reward for record in records if record.reward is not None],
        "scored": [float(record.reward is not None) for record in records],
        "finished": [float(record.finished) for record in records],
        "tool_calls": [float(len(find_calls(record))) for record in records],
        "tool_errors": [float(_count_errors(record)) for record in records],
        "tokens": [float(record.num_tokens) for record in records if record.num_tokens is not None],
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


def gradient_values(groups: Iterable[tuple[str, Sequence[float | None]]]) -> dict[str, list[float]]:
    """For each source 1.0 for every group whose rewards differ, so that it has a gradient, and 0.0 for the others.

    Args:
        groups: Of a batch over all processes: the source of each, and its rollouts' rewards. None: unscored.
    """
    values: dict[str, list[float]] = {}
    for source, rewards in groups:
        scored = {reward for reward in rewards if reward is not None}
        values.setdefault(f"env/{source}/with_gradient", []).append(float(len(scored) > 1))
    return values


def find_calls(record: RolloutRecord) -> list[StepRecord]:
    """The tool calls of a rollout. Without a session no tool is called, whatever the policy tried."""
    return [step for step in record.steps if step.failure is not UnscoredReason.UNREACHABLE]


def _count_errors(record: RolloutRecord) -> int:
    return sum(step.failure is not None for step in find_calls(record))
