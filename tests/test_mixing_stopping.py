"""The length of a schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing import build_schedule, count_slots

mixes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 25)), min_size=1, max_size=6).map(
    lambda mix: ([share / sum(share for share, _ in mix) for share, _ in mix], [tasks for _, tasks in mix])
)
batch_sizes = st.sampled_from([None, 1, 3, 8, 32])


def draws(shares: list[float], num_tasks: list[int], num_slots: int, size: int | None) -> np.ndarray:
    """How often each source is drawn."""
    schedule = build_schedule(shares, num_tasks, num_slots=num_slots, prompts_per_batch=size, seed=0)
    return np.bincount(schedule.source_index, minlength=len(shares))


@given(mixes)
def test_first_exhausted_ends_when_a_source_is_through(mix: tuple[list[float], list[int]]) -> None:
    """Some source has drawn all of its tasks, and none has begun its second pass by more than one task."""
    shares, num_tasks = mix

    length = count_slots(shares, num_tasks, stopping_strategy="first_exhausted")
    left = np.array(num_tasks) - draws(shares, num_tasks, length, None)

    assert left.min() in (0, -1)


@given(mixes, batch_sizes)
def test_all_exhausted_draws_every_task(mix: tuple[list[float], list[int]], size: int | None) -> None:
    """Every source has drawn all of its tasks, with and without batches."""
    shares, num_tasks = mix

    length = count_slots(shares, num_tasks, stopping_strategy="all_exhausted", prompts_per_batch=size)

    assert (draws(shares, num_tasks, length, size) >= np.array(num_tasks)).all()


@given(mixes, st.sampled_from([1, 3, 8, 32]))
def test_lengths_are_whole_batches(mix: tuple[list[float], list[int]], size: int) -> None:
    """first_exhausted is rounded down, though not to nothing; all_exhausted and max_slots are rounded up."""
    shares, num_tasks = mix
    first = count_slots(shares, num_tasks, stopping_strategy="first_exhausted")
    every = count_slots(shares, num_tasks, stopping_strategy="all_exhausted")

    rounded_first = count_slots(shares, num_tasks, stopping_strategy="first_exhausted", prompts_per_batch=size)
    rounded_every = count_slots(shares, num_tasks, stopping_strategy="all_exhausted", prompts_per_batch=size)
    rounded_max = count_slots(shares, num_tasks, stopping_strategy="max_slots", num_slots=20, prompts_per_batch=size)

    assert max(size, first - first % size) == rounded_first
    assert every + -every % size == rounded_every
    assert 20 + -20 % size == rounded_max


def test_equal_shares_and_task_counts_are_exact() -> None:
    """Shares that no float holds exactly do not add a slot."""
    thirds, tenths = [1 / 3] * 3, [0.7, 0.2, 0.1]

    assert 30 == count_slots(thirds, [10, 10, 10], stopping_strategy="first_exhausted")
    assert 30 == count_slots(thirds, [10, 7, 2], stopping_strategy="all_exhausted")
    assert 10 == count_slots(tenths, [7, 2, 1], stopping_strategy="first_exhausted")
    assert 10 == count_slots(tenths, [7, 2, 1], stopping_strategy="all_exhausted")


def test_a_thousand_million_slots_are_counted() -> None:
    """The answer is arithmetic on the plan, so its size does not matter."""
    assert 10**9 == count_slots([0.5, 0.5], [5 * 10**8, 7], stopping_strategy="all_exhausted")
    assert 10**9 == count_slots([0.5, 0.5], [1, 1], stopping_strategy="max_slots", num_slots=10**9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stopping_strategy": "max_slots"}, "needs a number of slots. Pass num_slots"),
        ({"stopping_strategy": "max_slots", "num_slots": 0}, "num_slots=0 is not above 0"),
        ({"stopping_strategy": "first_exhausted", "num_slots": 5}, "num_slots=5 contradicts .*'first_exhausted'"),
        ({"stopping_strategy": "all_exhausted", "num_slots": 5}, "Pass stopping_strategy='max_slots'"),
        ({"stopping_strategy": "oversample"}, r"'oversample' is not known. Pass one of \['first_exhausted'"),
        ({"stopping_strategy": "first_exhausted", "prompts_per_batch": 0}, "prompts_per_batch=0 is not above 0"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], message: str) -> None:
    """A length without its strategy, a strategy without its length and unknown words are errors with a remedy."""
    with pytest.raises(ConfigError, match=message):
        count_slots([1.0], [5], **arguments)
