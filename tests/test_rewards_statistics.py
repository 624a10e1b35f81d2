"""Per-source statistics."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.records import RolloutRecord, StepRecord, UnscoredReason
from multiors.rewards import SourceSummary, metric_values, share_values, summarize_source

CALL = StepRecord("move")
FAILED = StepRecord("move", failure=UnscoredReason.TOOL_ERROR)
NEVER_MADE = StepRecord("move", failure=UnscoredReason.UNREACHABLE)


def record(
    reward: float | None = None,
    reason: UnscoredReason | None = None,
    *,
    finished: bool = False,
    steps: tuple[StepRecord, ...] = (),
) -> RolloutRecord:
    """One rollout of the source 'sort'."""
    return RolloutRecord(
        source="sort",
        task_index=0,
        slot=0,
        step=0,
        reward=reward,
        outcome=reward,
        parts={},
        reason=reason,
        error=None,
        finished=finished,
        steps=steps,
    )


records = st.builds(
    lambda reward, reason, finished, steps: record(
        reward, None if reward is not None else reason, finished=finished, steps=tuple(steps)
    ),
    st.none() | st.floats(-10, 10),
    st.sampled_from(UnscoredReason),
    st.booleans(),
    st.lists(st.sampled_from([CALL, FAILED, NEVER_MADE]), max_size=3),
)


def test_a_summary_counts_what_happened() -> None:
    """The mean is over scored rollouts, fractions over all, reasons over the unscored, and calls are added up."""
    summary = summarize_source(
        [
            record(1.0, finished=True, steps=(CALL, FAILED)),
            record(0.0, finished=True, steps=(CALL,)),
            record(None, UnscoredReason.TOOL_ERROR, steps=(FAILED,)),
            record(None, UnscoredReason.NO_TOOL_CALL),
        ]
    )

    reasons = dict.fromkeys(UnscoredReason, 0) | {UnscoredReason.TOOL_ERROR: 1, UnscoredReason.NO_TOOL_CALL: 1}
    expected = SourceSummary(
        num_rollouts=4,
        num_scored=2,
        num_finished=2,
        total_reward=1.0,
        unscored_by_reason=reasons,
        num_tool_calls=4,
        failed_calls_by_tool={"move": 2},
        last_step=0,
        last_scored_step=0,
    )
    assert expected == summary
    assert (0.5, 0.5, 0.5, 2) == (
        summary.mean_reward,
        summary.scored_fraction,
        summary.finished_fraction,
        summary.num_tool_errors,
    )


def test_statistics_of_nothing_are_none() -> None:
    """The mean of nothing is None, never 0.0 or NaN."""
    empty = summarize_source([])
    unscored = summarize_source([record(None, UnscoredReason.TRUNCATED)])

    assert (None, None, None) == (empty.mean_reward, empty.scored_fraction, empty.finished_fraction)
    assert (None, 0.0) == (unscored.mean_reward, unscored.scored_fraction)


@given(st.lists(records, max_size=10))
def test_every_rollout_is_scored_or_has_a_reason(rollouts: list[RolloutRecord]) -> None:
    """Scored and unscored rollouts, by reason, add up to all."""
    summary = summarize_source(rollouts)

    assert summary.num_rollouts == summary.num_scored + sum(summary.unscored_by_reason.values())


@given(st.lists(records, min_size=1, max_size=10), st.integers(0, 10))
def test_logged_values_average_to_the_summary_over_processes(rollouts: list[RolloutRecord], cut: int) -> None:
    """Values of two processes put together average to the statistics of all rollouts, however they were divided."""
    parts = [metric_values("sort", rollouts[:cut]), metric_values("sort", rollouts[cut:])]
    summary = summarize_source(rollouts)

    mean = {name: fmean([value for part in parts for value in part.get(name, [])]) for name in {*parts[0], *parts[1]}}

    assert mean.get("env/sort/reward") == pytest.approx(summary.mean_reward)
    assert mean["env/sort/scored"] == pytest.approx(summary.scored_fraction)
    assert mean["env/sort/finished"] == pytest.approx(summary.finished_fraction)
    assert mean["env/sort/tool_calls"] == pytest.approx(summary.num_tool_calls / len(rollouts))
    assert mean["env/sort/tool_errors"] == pytest.approx(summary.num_tool_errors / len(rollouts))
    for reason, count in summary.unscored_by_reason.items():
        assert mean[f"env/sort/unscored/{reason}"] == pytest.approx(count / len(rollouts))


@given(st.lists(records, max_size=10))
def test_logged_values_are_numbers(rollouts: list[RolloutRecord]) -> None:
    """Each list has one finite float per rollout, or per scored rollout, and no list is empty."""
    values = metric_values("sort", rollouts)

    num_scored = sum(rollout.reward is not None for rollout in rollouts)
    for name, numbers in values.items():
        assert (num_scored if name == "env/sort/reward" else len(rollouts)) == len(numbers) > 0
        assert all(float is type(number) and math.isfinite(number) for number in numbers)


def test_metrics_have_their_own_namespace() -> None:
    """The names are those of the documentation; a source without rollouts logs nothing."""
    scored: dict[str, Any] = metric_values("sort", [record(1.0)])
    unscored: dict[str, Any] = metric_values("sort", [record(None, UnscoredReason.NO_SCORE)])

    names = ["scored", "finished", "tool_calls", "tool_errors", *[f"unscored/{reason}" for reason in UnscoredReason]]
    assert {f"env/sort/{name}" for name in ["reward", *names]} == set(scored)
    assert {f"env/sort/{name}" for name in names} == set(unscored)
    assert "env/sort/unscored/no_score" in unscored
    assert {} == metric_values("sort", [])


def test_shares_average_to_what_each_source_got() -> None:
    """Every source has a value for every rollout of the batch, so that the mean is its share, also where it is 0."""
    values = share_values(["a", "b", "a", "a"], ["a", "b", "c"])

    assert {
        "env/a/share": [1.0, 0.0, 1.0, 1.0],
        "env/b/share": [0.0, 1.0, 0.0, 0.0],
        "env/c/share": [0.0, 0.0, 0.0, 0.0],
    } == values
    assert {} == share_values([], ["a", "b"])
