"""Planners for tests: a mix by its shares and task counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multiors.mixing import BatchPlanner, CircuitBreaker, MixRules
from multiors.mixing.curricula import SourceTasks

__all__ = ["planner_of", "tasks_of"]


def tasks_of(num_tasks: Mapping[str, int]) -> list[SourceTasks]:
    """Sources of which nothing is known but how many tasks they have."""
    return [SourceTasks(name, count) for name, count in num_tasks.items()]


def planner_of(
    shares: Mapping[str, float],
    num_tasks: Sequence[int],
    *,
    prompts_per_batch: int = 8,
    seed: int = 0,
    lag: int = 2,
    breaker: CircuitBreaker | None = None,
) -> BatchPlanner:
    """A planner that has planned nothing."""
    return BatchPlanner(
        shares,
        tasks_of(dict(zip(shares, num_tasks, strict=True))),
        prompts_per_batch=prompts_per_batch,
        seed=seed,
        lag=lag,
        rules=MixRules(breaker),
    )
