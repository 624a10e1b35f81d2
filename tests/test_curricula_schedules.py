"""Shares that follow the batch number: constant, in straight lines, in stages."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing.curricula import CurriculumRun, ShareSchedule
from tests.histories import History, even, names, play, references, sources_of

NAMES = names(3)
weights = st.lists(st.just(0.0) | st.floats(0, 1e6), min_size=3, max_size=3).filter(any)
points = st.lists(st.tuples(st.integers(0, 50), weights), min_size=1, max_size=5).map(
    lambda found: [(at, dict(zip(NAMES, each, strict=True))) for at, each in sorted(found, key=lambda pair: pair[0])]
)


@given(points, st.floats(0, 60), references(NAMES))
def test_shares_sum_to_one_at_any_time(found: list[tuple[int, dict[str, float]]], at: float, reference: object) -> None:
    """Between points, before the first, after the last, and where sources are left out."""
    schedule = ShareSchedule(found)
    shares = schedule.shares({}, reference, batch=int(at), num_batches=None)  # type: ignore[arg-type]  # a mapping

    assert math.isclose(1, math.fsum(schedule.find_shares(at).values()), rel_tol=1e-9)
    assert math.isclose(1, math.fsum(shares.values()), rel_tol=1e-9)
    assert all(0 <= share <= 1 for share in shares.values())


@given(points)
def test_at_a_point_the_shares_are_its_weights(found: list[tuple[int, dict[str, float]]]) -> None:
    """Each point's weights hold at its position; the last one of those at the same."""
    schedule = ShareSchedule(found)
    last = dict(found)

    for at, given_weights in last.items():
        total = sum(given_weights.values())
        assert pytest.approx({name: each / total for name, each in given_weights.items()}) == schedule.find_shares(at)


def test_a_constant_schedule_never_changes() -> None:
    """The same shares in the first batch and in the thousandth."""
    schedule = ShareSchedule.constant({"a": 3, "b": 1})

    assert {"a": 0.75, "b": 0.25} == schedule.find_shares(0)
    assert {"a": 0.75, "b": 0.25} == schedule.find_shares(1000)


def test_between_points_shares_move_in_a_straight_line() -> None:
    """In the middle of two points the shares are the mean of theirs; outside they stay."""
    schedule = ShareSchedule([(10, {"a": 1, "b": 0}), (20, {"a": 1, "b": 1})])
    found = [schedule.find_shares(at)["b"] for at in (0, 10, 15, 20, 30)]

    assert [0.0, 0.0, 0.25, 0.5, 0.5] == found


def test_stages_jump_without_a_warm_up() -> None:
    """A stage's shares hold from the batch in which it begins."""
    schedule = ShareSchedule.stages([(0, {"a": 1, "b": 0}), (4, {"a": 0, "b": 1})])

    assert [0.0, 0.0, 0.0, 0.0, 1.0, 1.0] == [schedule.find_shares(at)["b"] for at in range(6)]


def test_stages_warm_up() -> None:
    """With a warm-up the shares move from one stage to the next during it."""
    schedule = ShareSchedule.stages([(0, {"a": 1, "b": 0}), (2, {"a": 0, "b": 1})], warm_up=4)

    assert [0.0, 0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0] == [schedule.find_shares(at)["b"] for at in range(8)]


def test_fractions_count_from_the_first_batch_to_the_last() -> None:
    """0 is the first batch of a run and 1 the last, however long it is; a run of one batch is at its beginning."""
    schedule = ShareSchedule([(0, {"a": 1, "b": 0}), (1, {"a": 0, "b": 1})], unit="fraction")
    run_of_five = [schedule.shares({}, even(["a", "b"]), batch=batch, num_batches=5)["b"] for batch in range(5)]

    assert [0.0, 0.25, 0.5, 0.75, 1.0] == run_of_five
    assert {"a": 1.0, "b": 0.0} == schedule.shares({}, even(["a", "b"]), batch=0, num_batches=1)


def test_a_fraction_of_an_unknown_length_is_refused() -> None:
    """The error says how to make the length known."""
    schedule = ShareSchedule([(0, {"a": 1})], unit="fraction")
    with pytest.raises(ConfigError, match=r"its length is not known\. Pass max_steps"):
        schedule.shares({}, {"a": 1.0}, batch=0, num_batches=None)


def test_what_is_left_out_hands_its_share_to_the_others() -> None:
    """A source with a reference share of 0 gets nothing; if nothing of a stage is left, the reference stands."""
    schedule = ShareSchedule.constant({"a": 1, "b": 1, "c": 2})
    alone = ShareSchedule.constant({"a": 1, "b": 0})

    found = schedule.shares({}, {"a": 0.5, "b": 0.0, "c": 0.5}, batch=0, num_batches=None)
    assert pytest.approx({"a": 1 / 3, "b": 0.0, "c": 2 / 3}) == found
    assert {"a": 0.0, "b": 1.0} == alone.shares({}, {"a": 0.0, "b": 1.0}, batch=0, num_batches=None)


@given(points, st.integers(0, 5))
def test_a_schedule_needs_no_memory(found: list[tuple[int, dict[str, float]]], batch: int) -> None:
    """Any batch can be asked for at any time: what came before changes nothing."""
    schedule = ShareSchedule(found)
    seen: History = [{name: [(1.0, 0.0)]} for name in NAMES] * 2

    expected = schedule.shares({}, even(NAMES), batch=batch, num_batches=None)
    assert pytest.approx(expected, abs=1e-8) == play(schedule, seen, even(NAMES))[batch]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "is no list of positions and weights"),
        ([(0,)], "is no list of positions and weights"),
        ([("soon", {"a": 1})], "is no list of positions and weights"),
        (3, "is no list of positions and weights"),
        ([(0, {})], "at 0 no source is drawn"),
        ([(0, {"a": 0, "b": 0})], "at 0 no source is drawn"),
        ([(0, {"a": -1})], "the weight of source 'a' at 0=-1 is no number from 0 upwards"),
        ([(0, {"a": math.inf})], "the weight of source 'a' at 0=inf is no number from 0 upwards"),
        ([(0, {"a": 1}), (5, {"b": 1})], r"at 5 there are weights for \['b'\], at 0 for \['a'\]"),
        ([(5, {"a": 1}), (4, {"a": 1})], "position 4 stands after 5. Order the points"),
        ([(-1, {"a": 1})], "position=-1 is no number from 0 upwards"),
    ],
)
def test_a_wrong_schedule_is_refused(found: object, message: str) -> None:
    """Each mistake is named when the schedule is made."""
    with pytest.raises(ConfigError, match=f"ShareSchedule: .*{message}"):
        ShareSchedule(found)  # type: ignore[arg-type]  # what is tested


def test_a_fraction_is_at_most_one() -> None:
    """Positions in fractions of a run end with it."""
    with pytest.raises(ConfigError, match=r"position=1.5 is no number from 0 to 1"):
        ShareSchedule([(1.5, {"a": 1})], unit="fraction")


def test_units_are_two() -> None:
    """Anything but a batch or a fraction is refused."""
    with pytest.raises(ConfigError, match="unit='step' is not known"):
        ShareSchedule([(0, {"a": 1})], unit="step")  # type: ignore[arg-type]  # what is tested


def test_stages_begin_at_the_beginning() -> None:
    """What is drawn before the first stage is not left open."""
    with pytest.raises(ConfigError, match=r"the first stage begins at 5\. Let it begin at 0"):
        ShareSchedule.stages([(5, {"a": 1})])


def test_a_stage_is_as_long_as_its_warm_up() -> None:
    """A stage that would begin in the middle of a change is refused."""
    with pytest.raises(ConfigError, match=r"the stage that begins at 6 comes before .* warmed up, at 9"):
        ShareSchedule.stages([(0, {"a": 1}), (4, {"a": 1}), (6, {"a": 1})], warm_up=5)


def test_a_schedule_names_the_sources_of_the_mix() -> None:
    """A source without a weight, and a weight without a source, are refused before training."""
    with pytest.raises(ConfigError, match=r"weights for \['a'\], and the sources are \['a', 'b'\]"):
        CurriculumRun(ShareSchedule.constant({"a": 1}), sources_of(["a", "b"]))
