"""The schedule: which source and which task each slot draws."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing import build_schedule
from multiors.mixing.shuffle import shuffle_rows

mixes = st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(1, 30)), min_size=1, max_size=8).map(
    lambda mix: ([share / sum(share for share, _ in mix) for share, _ in mix], [tasks for _, tasks in mix])
)
batch_sizes = st.sampled_from([None, 1, 2, 5, 16, 64])
seeds = st.integers(0, 2**64 - 1)


@given(mixes, batch_sizes, seeds, st.integers(1, 12), st.integers(1, 12))
def test_a_longer_schedule_begins_with_the_shorter_one(
    mix: tuple[list[float], list[int]], size: int | None, seed: int, num_batches: int, num_more: int
) -> None:
    """Only shares, task counts, batch size and seed decide a slot, never the length of the run."""
    shares, num_tasks = mix
    length = num_batches * (size or 1)

    short = build_schedule(shares, num_tasks, num_slots=length, prompts_per_batch=size, seed=seed)
    long = build_schedule(
        shares, num_tasks, num_slots=length + num_more * (size or 1), prompts_per_batch=size, seed=seed
    )

    assert np.array_equal(short.source_index, long.source_index[:length])
    assert np.array_equal(short.position, long.position[:length])


@given(mixes, batch_sizes, seeds, st.integers(1, 20))
def test_each_pass_draws_every_task_once(
    mix: tuple[list[float], list[int]], size: int | None, seed: int, num_batches: int
) -> None:
    """A source draws all of its tasks before it draws one again, pass after pass."""
    shares, num_tasks = mix

    schedule = build_schedule(shares, num_tasks, num_slots=num_batches * (size or 1), prompts_per_batch=size, seed=seed)

    for index, tasks in enumerate(num_tasks):
        walk = schedule.position[schedule.source_index == index]
        for start in range(0, len(walk), tasks):
            part = walk[start : start + tasks]
            assert len(part) == len(set(part.tolist()) & set(range(tasks)))


@given(mixes, seeds)
def test_every_prefix_is_exact_without_batches(mix: tuple[list[float], list[int]], seed: int) -> None:
    """Without a batch size the quota holds after every slot."""
    shares, num_tasks = mix

    schedule = build_schedule(shares, num_tasks, num_slots=150, prompts_per_batch=None, seed=seed)
    drawn = np.cumsum(schedule.source_index[:, None] == np.arange(len(shares)), axis=0)

    assert np.abs(drawn - np.outer(np.arange(1, 151), shares)).max() < 1


def test_passes_are_shuffled_anew() -> None:
    """Two passes, two sources and two seeds walk equal lists of tasks in different orders."""
    schedules = [
        build_schedule([0.5, 0.5], [50, 50], num_slots=200, prompts_per_batch=None, seed=seed) for seed in (0, 1)
    ]
    walks = [schedule.position[schedule.source_index == index] for schedule in schedules for index in (0, 1)]

    orders = {tuple(walk[start : start + 50].tolist()) for walk in walks for start in (0, 50)}
    assert 8 == len(orders)


def test_batches_are_shuffled_each_in_its_own_way() -> None:
    """Equal batches come in different orders, so that no source keeps the same places in a batch."""
    schedule = build_schedule([0.5, 0.5], [3, 3], num_slots=64 * 20, prompts_per_batch=64, seed=0)

    batches = schedule.source_index.reshape(20, 64)
    assert [32] * 20 == batches.sum(axis=1).tolist()
    assert 20 == len({batch.tobytes() for batch in batches})


def test_order_inside_batches_is_fair() -> None:
    """Each place of a batch gets each source in proportion to its share."""
    schedule = build_schedule([0.75, 0.25], [5, 5], num_slots=8 * 4000, prompts_per_batch=8, seed=7)

    by_place = schedule.source_index.reshape(4000, 8).mean(axis=0)
    assert np.abs(by_place - 0.25).max() < 0.04


def test_orders_of_tasks_are_uniform() -> None:
    """Each of the six orders of three tasks is as frequent as any other."""
    schedule = build_schedule([1.0], [3], num_slots=3 * 6000, prompts_per_batch=None, seed=11)

    _, counts = np.unique(schedule.position.reshape(6000, 3), axis=0, return_counts=True)
    assert 6 == len(counts)
    assert np.abs(counts - 1000).max() < 150


def test_a_schedule_is_the_same_in_another_process() -> None:
    """Nothing of the process decides a slot: a fixed schedule is pinned by its content."""
    code = (
        "from multiors.mixing import build_schedule as b;"
        "s = b([0.5, 0.3, 0.2], [4, 9, 2], num_slots=24, prompts_per_batch=8, seed=3);"
        "print(s.source_index.tolist(), s.position.tolist())"
    )
    schedule = build_schedule([0.5, 0.3, 0.2], [4, 9, 2], num_slots=24, prompts_per_batch=8, seed=3)

    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert f"{schedule.source_index.tolist()} {schedule.position.tolist()}\n" == output
    assert PINNED_SOURCES == schedule.source_index.tolist()
    assert PINNED_POSITIONS == schedule.position.tolist()


# A change here changes what every resumed run draws: a decision, with an entry in the changelog.
PINNED_SOURCES = [2, 0, 1, 0, 2, 1, 0, 0, 1, 0, 0, 0, 0, 2, 1, 1, 0, 0, 1, 2, 2, 1, 0, 0]
PINNED_POSITIONS = [1, 3, 8, 0, 0, 2, 2, 1, 4, 3, 1, 2, 0, 1, 1, 3, 1, 0, 6, 0, 0, 5, 2, 3]


def test_a_large_source_is_walked_in_full() -> None:
    """Lists of tasks longer than what is shuffled at once are still drawn without replacement, pass after pass."""
    num_tasks = 2**18 + 5

    schedule = build_schedule([1.0], [num_tasks], num_slots=num_tasks + 9, prompts_per_batch=None, seed=0)

    assert num_tasks == len(np.unique(schedule.position[:num_tasks]))
    assert not np.array_equal(schedule.position[:9], schedule.position[num_tasks:])


def test_many_sources_are_told_apart() -> None:
    """More sources than 16 bits can number are drawn like few."""
    num_sources = 2**16 + 1

    schedule = build_schedule(
        [1 / num_sources] * num_sources, [2] * num_sources, num_slots=num_sources, prompts_per_batch=None, seed=0
    )

    assert list(range(num_sources)) == sorted(schedule.source_index.tolist())


def test_a_schedule_knows_its_length() -> None:
    """Slots and batches are counted; without a batch size there are no batches."""
    batched = build_schedule([1.0], [3], num_slots=12, prompts_per_batch=4, seed=0)
    plain = build_schedule([1.0], [3], num_slots=12, prompts_per_batch=None, seed=0)

    assert (12, 3) == (batched.num_slots, batched.num_batches)
    assert (12, None) == (plain.num_slots, plain.num_batches)


def test_a_schedule_travels_between_processes() -> None:
    """A schedule survives pickling."""
    schedule = build_schedule([0.5, 0.5], [3, 4], num_slots=8, prompts_per_batch=4, seed=0)

    copy = pickle.loads(pickle.dumps(schedule))

    assert np.array_equal(schedule.source_index, copy.source_index)
    assert np.array_equal(schedule.position, copy.position)
    assert 4 == copy.prompts_per_batch


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_slots": 10}, r"num_slots=10 is not a positive whole number of batches of 4 .* count_slots"),
        ({"num_slots": 0}, "num_slots=0 is not"),
        ({"prompts_per_batch": 0}, "batches of 0 slots"),
        ({"num_tasks": [3]}, r"task counts \[3\] do not fit 2 shares"),
        ({"num_tasks": [3, 0]}, r"task counts \[3, 0\] do not fit"),
        ({"seed": -1}, "seed -1 is not a whole number"),
        ({"seed": 2**64}, "seed 18446744073709551616 is not"),
        ({"seed": 1.0}, r"seed 1\.0 is not"),
        ({"seed": True}, "seed True is not"),
    ],
)
def test_impossible_schedules_are_refused(changed: dict[str, Any], message: str) -> None:
    """Lengths that are no whole batches, missing tasks and seeds that are no whole numbers are errors."""
    arguments: dict[str, Any] = {"num_tasks": [3, 4], "num_slots": 8, "prompts_per_batch": 4, "seed": 0, **changed}
    num_tasks = arguments.pop("num_tasks")

    with pytest.raises(ConfigError, match=message):
        build_schedule([0.5, 0.5], num_tasks, **arguments)


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 19), seeds)
def test_rows_can_be_shuffled_from_anywhere(width: int, num_rows: int, first: int, seed: int) -> None:
    """A row's order depends on its number, not on which rows are shuffled with it."""
    values = np.tile(np.arange(width, dtype=np.uint64), (num_rows, 1))

    together = shuffle_rows(values, seed=seed, stream=3, first_row=0)
    apart = shuffle_rows(values[min(first, num_rows - 1) :], seed=seed, stream=3, first_row=min(first, num_rows - 1))

    assert np.array_equal(together[min(first, num_rows - 1) :], apart)
    assert np.array_equal(values, np.sort(together, axis=1))


@given(mixes, seeds, st.integers(1, 12), st.integers(1, 12))
def test_the_most_slots_of_a_batch_are_counted(
    mix: tuple[list[float], list[int]], seed: int, prompts_per_batch: int, num_batches: int
) -> None:
    """For every source, no batch has more slots than counted, and one batch has as many."""
    shares, num_tasks = mix
    num_slots = prompts_per_batch * num_batches
    schedule = build_schedule(shares, num_tasks, num_slots=num_slots, prompts_per_batch=prompts_per_batch, seed=seed)
    batches = schedule.source_index.reshape(num_batches, prompts_per_batch)
    counts = [[int((batch == source).sum()) for batch in batches] for source in range(len(shares))]

    most = schedule.most_slots(len(shares), prompts_per_batch=prompts_per_batch)

    assert [max(count) for count in counts] == most
