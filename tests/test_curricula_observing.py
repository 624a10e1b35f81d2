"""What curricula are told: numbers read off the groups of a source, in which unscored rollouts are missing data."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multiors.mixing.curricula import SourceObservation, group_by_source
from multiors.mixing.curricula.observing import relative_mean, widen_range
from multiors.mixing.observed import SlotObservation
from tests.histories import groups

LARGEST = sys.float_info.max
finite = st.floats(allow_nan=False, allow_infinity=False)
observations = st.lists(groups, min_size=1, max_size=5).map(lambda found: SourceObservation(tuple(found), (0.0, 1.0)))


def numbers_of(seen: SourceObservation) -> list[float | None]:
    """All that is read off an observation."""
    return [seen.mean_reward, seen.relative_reward, seen.abs_advantage, seen.spread_fraction, seen.variance(1.0)]


@given(observations)
def test_unscored_rollouts_change_nothing(seen: SourceObservation) -> None:
    """Groups without their unscored rollouts say the same."""
    scored = tuple(tuple(reward for reward in group if reward is not None) for group in seen.groups)

    assert numbers_of(SourceObservation(scored, (0.0, 1.0))) == numbers_of(seen)


def test_nothing_scored_says_nothing() -> None:
    """Every number of rollouts that nobody scored is None."""
    seen = SourceObservation(((None, None), (None,)), (0.0, 1.0))

    assert 0 == seen.num_scored
    assert [None] * 5 == numbers_of(seen)


def test_one_scored_rollout_is_compared_with_nothing() -> None:
    """A group with one scored rollout has a mean, and neither an advantage nor a variance."""
    seen = SourceObservation(((1.0, None), (0.0,)), (0.0, 1.0))

    assert [0.5, 0.5, None, None, None] == numbers_of(seen)


def test_the_numbers_of_binary_groups() -> None:
    """Half of a group solved: a variance of k(G - k) / (G(G - 1)); a group of equal rewards counts as 0."""
    seen = SourceObservation(((1.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)), (0.0, 1.0))
    variance = 2 * 2 / (4 * 3)

    assert 0.25 == seen.mean_reward
    assert 0.5 == seen.spread_fraction
    assert pytest.approx(variance / 2) == seen.variance(1.0)
    assert pytest.approx(0.5 / math.sqrt(variance) / 2) == seen.abs_advantage


@given(observations, st.integers(-20, 20), st.sampled_from([-1.0, 0.0, 0.5, 8.0]))
def test_advantages_do_not_know_the_scale(seen: SourceObservation, exponent: int, shift: float) -> None:
    """Rewards times a factor plus a number have the same advantages, and a variance that is the factor squared."""
    factor = 2.0**exponent

    def move(reward: float | None) -> float | None:
        return None if reward is None else factor * (round(reward, 3) + shift)

    plain = SourceObservation(
        tuple(tuple(None if each is None else round(each, 3) for each in group) for group in seen.groups)
    )
    moved = SourceObservation(tuple(tuple(map(move, group)) for group in seen.groups))

    assert pytest.approx(plain.abs_advantage, abs=1e-6) == moved.abs_advantage
    assert pytest.approx(plain.variance(1.0), abs=1e-9) == moved.variance(factor)


@example([(LARGEST,) * 3])
@example([(LARGEST, -LARGEST), (LARGEST,) * 4])
@given(st.lists(st.lists(finite, min_size=1, max_size=4).map(tuple), min_size=1, max_size=4))
def test_no_finite_rewards_overflow(found: list[tuple[float, ...]]) -> None:
    """Means of rewards up to the largest number there is are finite, and nothing raises."""
    seen = SourceObservation(tuple(found))
    low, high = widen_range(None, seen) or (0.0, 0.0)

    assert math.isfinite(seen.mean_reward or 0.0)
    assert math.isfinite(seen.abs_advantage or 0.0)
    assert not math.isnan(seen.variance(high - low) or 0.0)


@given(st.lists(st.integers(-1000, 1000).map(float), min_size=1), finite, finite)
def test_a_relative_mean_is_a_fraction_of_the_range(values: list[float], one: float, other: float) -> None:
    """The mean of rewards inside a range is from 0 to 1, for any range."""
    low, high = sorted((one, other))
    inside = [min(max(value, low), high) for value in values]
    part = relative_mean(inside, (low, high)) if low / 2 < high / 2 else 0.0

    assert part is not None
    assert -1e-6 <= part <= 1 + 1e-6


def test_the_mean_of_the_largest_numbers_is_one_of_them() -> None:
    """Where a sum would overflow, the mean does not, however it is rounded."""
    assert pytest.approx(1e308) == SourceObservation(((1e308, 1e308, 1e308),)).mean_reward
    assert [LARGEST] * 20 == [SourceObservation(((LARGEST,) * number,)).mean_reward for number in range(1, 21)]


def test_the_range_is_the_declared_one_or_what_was_seen() -> None:
    """A declared range stays; without one it grows with what is seen, and is not known before."""
    seen = SourceObservation(((3.0, None, 1.0),))

    assert [0.0, 1.0] == widen_range([2.0, 2.0], SourceObservation(((3.0,),), (0.0, 1.0)))
    assert [1.0, 3.0] == widen_range(None, seen)
    assert [1.0, 5.0] == widen_range([2.0, 5.0], seen)
    assert None is widen_range(None, SourceObservation(((None,),)))


def test_a_batch_is_sorted_by_source() -> None:
    """Groups keep the order of the slots, each source has its range, and one that was not drawn is not there."""
    slots = [
        SlotObservation(0, 2, (1.0, None), 1),
        SlotObservation(1, 0, (0.0,), 0),
        SlotObservation(2, 2, (0.5,), 0),
    ]
    expected = {
        "a": SourceObservation(((0.0,),), None),
        "c": SourceObservation(((1.0, None), (0.5,)), (0.0, 1.0)),
    }

    assert expected == group_by_source(slots, {"a": None, "b": None, "c": (0.0, 1.0)})
