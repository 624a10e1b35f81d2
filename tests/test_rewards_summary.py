"""What became of a run's rollouts, as sums and as a table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.records import RolloutRecord, StepRecord, UnscoredReason
from multiors.rewards import RunSummary, SourceSummary, add_summaries, summarize_source


def record(
    reward: float | None,
    reason: UnscoredReason | None = None,
    *,
    slot: int | None = 0,
    error: str | None = None,
    steps: tuple[StepRecord, ...] = (),
) -> RolloutRecord:
    """One rollout of task 7."""
    return RolloutRecord(
        "sort", 7, slot, 3, reward, reward, {}, reason, error, finished=reward is not None, steps=steps
    )


calls = st.builds(
    lambda tool, failure: StepRecord(tool, failure=failure),
    st.sampled_from("abcde"),
    st.sampled_from([None, UnscoredReason.BAD_CALL, UnscoredReason.TOOL_ERROR]),
)
records = st.builds(
    lambda reward, reason, slot, error, steps: record(
        reward, None if reward is not None else reason, slot=slot, error=error, steps=tuple(steps)
    ),
    st.none() | st.integers(-10, 10).map(float),
    st.sampled_from(UnscoredReason),
    st.none() | st.integers(0, 9),
    st.none() | st.text(max_size=3),
    st.lists(calls, max_size=3),
)


@given(st.lists(st.lists(records, max_size=4), max_size=4))
def test_summaries_add_up_however_the_rollouts_were_divided(parts: list[list[RolloutRecord]]) -> None:
    """Batches and processes do not show in the sum."""
    whole = summarize_source([rollout for part in parts for rollout in part])

    assert whole == add_summaries([summarize_source(part) for part in parts])


@pytest.mark.parametrize(("last_scored", "is_told"), [(6, False), (5, True)])
def test_a_source_that_is_scored_no_more_is_told(last_scored: int, is_told: bool) -> None:
    """From three steps at the end on; the table alone does not show when it happened."""
    rollouts = [replace(record(1.0), step=step) for step in range(last_scored + 1)]
    rollouts += [replace(record(None, UnscoredReason.UNREACHABLE), step=step) for step in range(last_scored + 1, 9)]
    told = str(RunSummary({"sort": summarize_source(rollouts)}))

    assert is_told == ("source 'sort': nothing was scored, and so nothing learned, from step 6 to 8, its last." in told)
    assert is_told == ("nothing" in told)


@given(st.permutations(range(4)))
def test_the_first_error_is_that_of_the_first_slot(order: list[int]) -> None:
    """Not the one that came in first."""
    rollouts = [record(None, UnscoredReason.TOOL_ERROR, slot=slot, error=f"error {slot}") for slot in order]

    first = summarize_source(rollouts).first_error

    assert first is not None
    assert (3, 0, "task 7: tool_error: error 0") == first


def test_the_table_shows_every_source_and_what_failed() -> None:
    """Means and fractions of nothing are shown as such, and remarks name reasons, tools and the first error."""
    failed = tuple(StepRecord(tool, failure=UnscoredReason.TOOL_ERROR) for tool in "aabcd")
    summary = RunSummary(
        {
            "sort": summarize_source([record(1.0), record(0.5), record(None, UnscoredReason.NO_SCORE)]),
            "heat": summarize_source([record(None, UnscoredReason.TOOL_ERROR, error="x" * 400, steps=failed)]),
            "echo": SourceSummary(),
        }
    )

    assert [
        "source  rollouts  scored  reward  finished  tool calls  failed calls",
        "------  --------  ------  ------  --------  ----------  ------------",
        "sort           3   66.7%    0.75     66.7%           0             0",
        "heat           1    0.0%       –      0.0%           5             5",
        "echo           0       –       –         –           0             0",
        "",
        "source 'sort': unscored: 1 no_score.",
        "source 'heat': no rollout was scored, so nothing was learned from it.",
        "source 'heat': unscored: 1 tool_error.",
        "source 'heat': failed calls: a 2, b 1, c 1, ….",
        f"source 'heat': the first error, in step 3, task 7: tool_error: {'x' * 280}…",
    ] == str(summary).splitlines()


def test_a_summary_is_json_with_none_intact() -> None:
    """The mean of nothing is null."""
    summary = RunSummary({"sort": summarize_source([record(None, UnscoredReason.TRUNCATED)])})

    read = json.loads(json.dumps(summary.to_json()))

    assert read["sort"]["mean_reward"] is None
    assert 1 == read["sort"]["unscored_by_reason"]["truncated"]


def test_a_mean_is_over_the_scored() -> None:
    """Unscored rollouts are no zeros."""
    summary = summarize_source([record(1.0), record(0.5), record(None, UnscoredReason.NO_SCORE)])

    assert 0.75 == pytest.approx(summary.mean_reward)
