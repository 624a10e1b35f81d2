"""Where marks lie, which episodes a page holds, and how a record becomes a transcript: pure, for any numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.evaluation.comparison.charts import find_ticks, lay_out_curve, lay_out_forest, lay_out_histogram
from multiors.evaluation.comparison.training import find_change
from multiors.evaluation.comparison.transcripts import Brief, choose, show_record, tell_kind
from multiors.evaluation.results import ArmResult, Comparison, Difference, Estimate
from multiors.records import StepRecord, UnscoredReason
from tests.sample_records import make_record

finite = st.floats(-1e6, 1e6, allow_nan=False)
NOTHING = Estimate(None, None, None, None, 0)
ARM = ArmResult("a", {}, 1, {}, NOTHING)


def compare(sources: dict[str, Difference]) -> Comparison:
    """A comparison of nothing but differences."""
    macro = Difference(None, None, None, None, None, None, None, 0, "undecided")
    return Comparison(ARM, ARM, "task", True, "reward", macro, sources)


# -- charts


@given(st.lists(st.tuples(finite, st.floats(0, 1e3), st.floats(0, 1e4)), max_size=8))
def test_every_mark_of_a_forest_lies_on_it(rows: list[tuple[float, float, float]]) -> None:
    """In the order low, value, high, between both ends; and so does zero."""
    sources = {
        str(place): Difference(value, value - width, value + width, 1.0, 0.5, 0.5, unseen, 9, "undecided")
        for place, (value, width, unseen) in enumerate(rows)
    }
    forest = lay_out_forest(compare(sources))
    drawn = [mark for row in forest.rows for mark in (row.low, row.at, row.high, *(row.unseen or ()))]
    marks = [mark for mark in drawn if mark is not None]

    assert all(0.0 <= mark <= 100.0 for mark in [forest.zero, *marks])
    assert all(row.low <= row.at <= row.high for row in forest.rows if row.low and row.at and row.high)


def test_sources_of_different_ranges_share_an_axis() -> None:
    """The same part of the range lies at the same place."""
    tenth = Difference(1.0, 0.5, 1.5, 0.2, 0.1, 0.1, 2.0, 9, "undecided")
    sources = {"a": tenth, "b": tenth.divide(10.0)}
    rows = lay_out_forest(replace(compare(sources), range_widths={"a": 10.0, "b": 1.0})).rows

    assert rows[0][2:] == rows[1][2:]


def test_a_forest_of_nothing_has_rows_without_marks() -> None:
    """None has no place."""
    row = lay_out_forest(compare({"a": Difference(None, None, None, None, None, None, None, 0, "undecided")})).rows[0]

    assert (None, None, None, None) == (row.at, row.low, row.high, row.unseen)


@given(st.lists(finite, max_size=30), st.lists(finite, max_size=30))
def test_a_histogram_holds_every_task(reference: list[float], candidate: list[float]) -> None:
    """Bars of one arm are in proportion to its tasks, the highest of both is 1, and bars do not overlap."""
    chart = lay_out_histogram(reference, candidate)
    bars = chart.bars if chart else ()

    assert (chart is None) == (not reference and not candidate)
    assert not bars or math.isclose(1.0, max(max(bar.reference, bar.candidate) for bar in bars))
    assert all(left.at + left.width <= right.at + 0.01 for left, right in pairwise(bars))
    assert bool(reference) == any(bar.reference for bar in bars)


@given(finite, st.floats(1e-6, 1e6))
def test_ticks_are_few_and_between_the_ends(low: float, width: float) -> None:
    """At most eleven of them."""
    ticks = find_ticks(low, low + width)

    assert len(ticks) <= 11
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in ticks)


def test_a_curve_has_gaps_where_there_is_no_value() -> None:
    """A value that stands alone is a dot, and a flat line lies in the middle."""
    curve = lay_out_curve([("thick", (0.0, 1.0, None, 0.5))], (1, 2, 3, 4))
    flat = lay_out_curve([("thick", (0.5, 0.5))], (1, 2))

    assert curve is not None
    assert flat is not None
    assert (("thick", "M0.0 100.0L0.0 100.0L333.3 0.0M1000.0 50.0L1000.0 50.0"),) == curve.paths
    assert (("thick", "M0.0 50.0L0.0 50.0L1000.0 50.0"),) == flat.paths
    assert lay_out_curve([("thick", (None,))], (1,)) is None


# -- which episodes

scores = st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0])
briefs = st.builds(Brief, scores, st.booleans())
pairs = st.lists(st.tuples(st.sampled_from("ab"), st.tuples(st.none() | briefs, briefs)), max_size=60)


@given(pairs, st.integers(1, 20))
def test_a_page_holds_as_many_episodes_as_fit(drawn: list[Any], most: int) -> None:
    """Each once, what regressed first, the largest loss first."""
    found = {(source, place): sides for place, (source, sides) in enumerate(drawn)}
    chosen = choose(found, most)
    kinds = [tell_kind(found[key]) for key in chosen]
    regressed = [found[key] for key, kind in zip(chosen, kinds, strict=True) if kind == "regressed"]
    losses = [before.score - after.score for before, after in regressed]

    assert min(most, len(found)) == len(chosen) == len(set(chosen))
    assert (
        sorted(kinds, key=["regressed", "unscored", "improved", "equal", "scored"].index)[: len(losses)]
        == (kinds[: len(losses)])
    )
    assert sorted(losses, reverse=True) == losses


def test_each_environment_and_kind_has_its_turn() -> None:
    """A flood of one kind leaves room for the others, and for what did not change."""
    found: dict[Any, Any] = {("flood", place): (Brief(1.0, False), Brief(0.0, False)) for place in range(100)}
    found |= {("drop", place): (Brief(1.0, False), Brief(0.9, False)) for place in range(3)}
    found |= {("lost", place): (Brief(None, True), Brief(1.0, False)) for place in range(3)}
    found |= {("same", place): (Brief(1.0, False), Brief(1.0, False)) for place in range(100)}
    chosen = choose(found, 30)

    assert {"flood": 14, "drop": 3, "lost": 3, "same": 10} == {
        name: sum(key[0] == name for key in chosen) for name in ("flood", "drop", "lost", "same")
    }
    assert {0, 4} == {round(key[1] / 25) for key in chosen if key[0] == "same"} & {0, 4}


@pytest.mark.parametrize(
    ("sides", "kind"),
    [
        ((Brief(1.0, False), Brief(0.5, False)), "regressed"),
        ((Brief(0.5, False), Brief(1.0, True)), "improved"),
        ((Brief(0.5, False), Brief(0.5, False)), "equal"),
        ((Brief(0.0, False), Brief(None, False)), "unscored"),
        ((Brief(None, False), None), "unscored"),
        ((None, Brief(0.0, False)), "scored"),
        ((Brief(0.0, False),), "scored"),
    ],
)
def test_what_became_of_an_episode(sides: tuple[Brief | None, ...], kind: str) -> None:
    """None is unscored and never a loss; what only one arm played is neither better nor worse."""
    assert kind == tell_kind(sides)


# -- transcripts


def test_results_have_what_their_calls_were_worth() -> None:
    """Steps are matched to results in order; a call that left no message is shown after them."""
    steps = (
        StepRecord("look", {}, "a", 0.5),
        StepRecord("look", {}, "lost", None, failure=UnscoredReason.SESSION_LOST),
        StepRecord("look", {}, "b", None, True),
        StepRecord("submit", {"x": 1}, "sent at the end", 1.0),
    )
    messages = tuple({"role": "tool", "name": "look", "content": text} for text in ("a", "b"))
    shown = show_record(make_record(steps=steps, messages=messages), None, 100_000)

    assert [("0.500", False), (None, True)] == [
        (each["step"]["reward"], each["step"]["finished"]) for each in shown["messages"]
    ]
    assert [("look", "session_lost"), ("submit", None)] == [
        (each["name"], each["step"]["failure"]) for each in shown["steps"]
    ]


def test_thoughts_are_kept_apart() -> None:
    """Those that have a field of their own, and those in the text."""
    messages = (
        {"role": "assistant", "reasoning_content": "hm", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\na"},
        {"role": "assistant", "content": "<think>cut off"},
    )
    shown = show_record(make_record(messages=messages, steps=()), None, 100_000)["messages"]

    assert [("hm", "a"), ("hm", "a"), ("cut off", None)] == [(each["thought"], each.get("text")) for each in shown]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["role", "content", "tool_calls", "name", "reasoning_content", "function"])
any_message = st.dictionaries(names, json_values, max_size=6)


@given(st.lists(any_message, max_size=4))
def test_any_message_can_be_shown(messages: list[dict[str, Any]]) -> None:
    """Whatever a policy or a server made of a message, the page holds something of it."""
    shown = show_record(make_record(messages=tuple(messages), prompt=tuple(messages)), None, 100_000)

    assert len(messages) == len(shown["messages"]) == len(shown["prompt"])
    assert shown == json.loads(json.dumps(shown))


@given(st.integers(1, 200), st.integers(0, 20_000), st.integers(3_000, 50_000))
def test_a_record_is_cut_until_it_fits(num_messages: int, length: int, most: int) -> None:
    """Its end is kept before its middle, and what is missing is said."""
    messages = tuple({"role": "assistant", "content": f"{place}{'<' * length}"} for place in range(num_messages))
    record = make_record(messages=messages, steps=(), prompt=())
    shown = show_record(record, None, most)

    assert len(json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")) <= max(most, 6_000)
    assert shown["messages"][-1]["text"].startswith(str(num_messages - 1))


# -- trainings


@given(st.lists(st.none() | st.floats(-10, 10), max_size=40))
def test_a_change_is_clear_only_where_something_scatters(values: list[float | None]) -> None:
    """It needs three values in both thirds; None is passed over."""
    third = len(values) // 3
    known = [sum(value is not None for value in part) for part in (values[:third], values[len(values) - third :])]
    change = find_change(values)

    assert (change.error is not None) == (min(known) >= 3)
    assert not change.is_clear or change.error is not None


def test_a_change_is_from_the_first_third_to_the_last() -> None:
    """Whatever lies between."""
    change = find_change([1.0, 1.1, 0.9, 50.0, 50.0, None, 2.0, 2.1, 1.9])

    assert pytest.approx((1.0, 2.0)) == (change.first, change.last)
    assert change.is_clear
