"""Rows must reach the trainer in the order of the schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import RoutingError
from multiors.training.order import SlotOrder


def feed(order: SlotOrder, *batches: list[int], step: int = 0, first: bool = True) -> None:
    """Check batches one after another."""
    for slots in batches:
        order.check(slots, is_first_process=first, global_step=step)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 5))
def test_the_schedule_order_passes_whatever_the_batch(prompts: int, generations: int, batches: int) -> None:
    """Every slot repeated for its group, batch after batch, is the schedule's own order."""
    order = SlotOrder()
    order.restart(prompts_per_batch=prompts)
    slots = [slot for slot in range(prompts * batches) for _ in range(generations)]
    size = prompts * generations

    feed(order, *(slots[start : start + size] for start in range(0, len(slots), size)))

    assert order._last == prompts * batches - 1


def test_a_shuffled_batch_is_refused() -> None:
    """Slots that do not rise one by one are not the schedule's."""
    with pytest.raises(RoutingError, match=r"another order than the schedule's: .* 3, 1, .*shuffle_dataset=False"):
        feed(SlotOrder(), [3, 3, 1, 1])


def test_a_dataset_that_lost_rows_is_refused() -> None:
    """A gap inside a batch means that rows were filtered out."""
    with pytest.raises(RoutingError, match="do not rise one by one"):
        feed(SlotOrder(), [0, 0, 2, 2])


def test_a_run_begins_at_slot_zero() -> None:
    """A first batch that begins elsewhere was shuffled or cut."""
    with pytest.raises(RoutingError, match="begins at slot 4"):
        feed(SlotOrder(), [4, 5])


def test_a_resumed_run_may_begin_anywhere() -> None:
    """After a checkpoint the first batch is not the first slot."""
    order = SlotOrder()

    feed(order, [4, 5], [6, 7], step=3)

    assert 7 == order._last


def test_another_process_may_begin_anywhere() -> None:
    """Only the first process has the first slice of a generation batch."""
    order = SlotOrder()

    feed(order, [4, 5], first=False)

    assert 5 == order._last


def test_a_replayed_schedule_is_refused() -> None:
    """A second epoch would train the same rows again and count them as new."""
    with pytest.raises(RoutingError, match=r"slot 0 arrives after slot 3.*replayed"):
        feed(SlotOrder(), [0, 1], [2, 3], [0, 1])


def test_a_new_run_starts_over() -> None:
    """After `restart` the schedule may begin again."""
    order = SlotOrder()
    feed(order, [0, 1])
    order.restart(prompts_per_batch=2)

    feed(order, [0, 1])

    assert 1 == order._last


def test_a_batch_across_two_planned_batches_is_refused() -> None:
    """With known batches, one that straddles two of them was cut differently than planned."""
    order = SlotOrder()
    order.restart(prompts_per_batch=4)

    with pytest.raises(RoutingError, match="belong to two batches"):
        feed(order, [2, 3, 4, 5], step=1)
