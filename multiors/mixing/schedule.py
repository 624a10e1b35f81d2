"""The seeded sequence of (source, task) that a run draws.

Rules that change together with `quota` and with the numbered rules 9, 10 and 15 of the test of semantics:

- Sources are drawn by the exact quota of `multiors.mixing.quota`. With a batch size the quota holds at batch ends, and
  inside a batch the order is shuffled; without one it holds after every slot.
- A source walks its tasks without replacement, in a new order in each pass (`multiors.mixing.walk`).
- Everything follows from (shares, task counts, batch size, seed): a longer schedule begins with the shorter one.

This module knows sources by their position only, and no tasks but their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multiors.errors import ConfigError
from multiors.mixing.quota import draw_changing, draw_sources
from multiors.mixing.shuffle import check_seed
from multiors.mixing.walk import shuffle_batches, walk_tasks

__all__ = ["Schedule", "build_schedule"]

_CHUNK_VALUES = 2**18  # What is placed at once stays in the processor's cache.


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Which source and which of its tasks each slot draws."""

    source_index: npt.NDArray[np.int32]
    """Position of the slot's source, (slots,)."""

    position: npt.NDArray[np.int64]
    """Position in that source's list of tasks, 0 <= position < its number of tasks, (slots,)."""

    prompts_per_batch: int | None
    """Slots in one generation batch. None: the schedule has no batches."""

    @property
    def num_slots(self) -> int:
        return len(self.source_index)

    @property
    def num_batches(self) -> int | None:
        """Generation batches. None: the schedule has no batches."""
        return None if self.prompts_per_batch is None else self.num_slots // self.prompts_per_batch

    def most_slots(self, num_sources: int, *, prompts_per_batch: int) -> list[int]:
        """The most slots that each source has in one batch of this size; an incomplete last batch counts as one."""
        batch = np.arange(self.num_slots) // prompts_per_batch
        num_batches = -(-self.num_slots // prompts_per_batch)
        counts = np.bincount(batch * num_sources + self.source_index, minlength=num_batches * num_sources)
        most: list[int] = counts.reshape(num_batches, num_sources).max(axis=0).tolist()
        return most


def build_schedule(
    shares: Sequence[float],
    num_tasks: Sequence[int],
    *,
    num_slots: int,
    prompts_per_batch: int | None,
    seed: int,
    shares_by_batch: Sequence[Sequence[float]] | None = None,
) -> Schedule:
    """Lay out a run.

    Args:
        shares: One per source, above 0, summing to 1 (`resolve_shares`).
        num_tasks: Tasks of each source, at least 1.
        num_slots: Length of the schedule; a whole number of batches (`count_slots`).
        prompts_per_batch: Slots in one generation batch. None: as exact as can be after every slot, not shuffled.
        seed: 0 <= seed < 2**64.
        shares_by_batch: For each batch the shares that hold in it, instead of `shares`; 0: not drawn. None: they never
            change.

    Returns:
        The schedule. It is the beginning of every longer one with the same shares, tasks, batch size and seed.

    Raises:
        ConfigError: An argument is out of range, or `num_slots` is no whole number of batches.
    """
    check_seed(seed)
    if len(num_tasks) != len(shares) or any(count < 1 for count in num_tasks):
        raise ConfigError(
            f"task counts {list(num_tasks)!r} do not fit {len(shares)} shares; each source has at least one task. "
            f"Pass one count per share."
        )
    batch_slots = 1 if prompts_per_batch is None else prompts_per_batch
    if batch_slots < 1 or num_slots < 1 or num_slots % batch_slots != 0:
        raise ConfigError(
            f"num_slots={num_slots!r} is not a positive whole number of batches of {prompts_per_batch!r} slots. "
            f"Take the number from count_slots()."
        )
    if shares_by_batch is None:
        source_index = draw_sources(shares, num_slots // batch_slots, batch_slots)
    else:
        source_index = draw_changing(shares_by_batch, batch_slots)
    batches = source_index.reshape(-1, batch_slots)
    if 1 < batch_slots < len(shares):  # the quota leaves their order open; with fewer sources it is ascending
        batches.sort(axis=1)
    shuffle_batches(batches, seed=seed)
    return Schedule(source_index, _place_tasks(source_index, num_tasks, seed), prompts_per_batch)


def _place_tasks(source_index: npt.NDArray[np.int32], num_tasks: Sequence[int], seed: int) -> npt.NDArray[np.int64]:
    """Position of each slot's task in its source: the k-th draw of a source takes the k-th step of its walk."""
    num_sources = len(num_tasks)
    blocks = range(0, len(source_index), _CHUNK_VALUES)
    num_draws = np.zeros(num_sources, dtype=np.int64)
    for start in blocks:
        num_draws += np.bincount(source_index[start : start + _CHUNK_VALUES], minlength=num_sources)

    # The sources' walks, one after the other, in the smallest type that holds them.
    steps = np.empty(len(source_index), dtype=np.min_scalar_type(max(num_tasks)))
    next_step = np.cumsum(num_draws) - num_draws
    for index, (first, count) in enumerate(zip(next_step.tolist(), num_draws.tolist(), strict=True)):
        walk_tasks(steps[first : first + count], num_tasks[index], seed=seed, source=index)

    position = np.empty(len(source_index), dtype=np.int64)
    for start in blocks:
        block = source_index[start : start + _CHUNK_VALUES]
        order = np.argsort(block.astype(np.uint16) if num_sources <= 2**16 else block, kind="stable")  # 16 bits: radix
        counts = np.bincount(block, minlength=num_sources)
        step = np.arange(len(block)) + np.repeat(next_step - np.cumsum(counts) + counts, counts)
        position[start : start + _CHUNK_VALUES][order] = steps[step]
        next_step += counts
    return position
