"""The two seeded orders of a run, each to be entered anywhere: slots inside a batch, and tasks inside a source.

Whether a run is laid out at once or planned batch by batch, it draws the same: both take these functions. A source
walks its tasks without replacement, in a new order in each pass. This module knows no quota.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from multiors.mixing.shuffle import shuffle_rows

__all__ = ["TaskWalk", "shuffle_batches", "walk_tasks"]

_CHUNK_VALUES = 2**18  # What is shuffled at once stays in the processor's cache.
_BATCH_STREAM = 0  # Batches are shuffled from this stream of the seed, the tasks of source i from stream 1 + i.


def shuffle_batches(batches: npt.NDArray[np.int32], *, seed: int, first_batch: int = 0) -> None:
    """Shuffle each row in place.

    Args:
        batches: Source indices, (batches, slots), ascending in each row.
        seed: The run's seed.
        first_batch: Number of the first row in the run.
    """
    if batches.shape[1] == 1:
        return
    num_rows = max(1, _CHUNK_VALUES // batches.shape[1])
    for start in range(0, len(batches), num_rows):
        rows = batches[start : start + num_rows]
        rows[:] = shuffle_rows(rows.astype(np.uint64), seed=seed, stream=_BATCH_STREAM, first_row=first_batch + start)


def walk_tasks(steps: npt.NDArray[Any], num_tasks: int, *, seed: int, source: int) -> None:
    """Write the first draws of one source, pass after pass.

    Args:
        steps: As many draws as are wanted; filled with positions in the source's list of tasks.
        num_tasks: Length of that list.
        seed: The run's seed.
        source: The source's index.
    """
    passes_at_once = max(1, _CHUNK_VALUES // num_tasks)
    for first_draw in range(0, len(steps), passes_at_once * num_tasks):
        part = steps[first_draw : first_draw + passes_at_once * num_tasks]
        first_pass, num_passes = first_draw // num_tasks, -(-len(part) // num_tasks)
        shuffled = _shuffle_passes(num_tasks, num_passes, seed=seed, source=source, first_pass=first_pass)
        part[:] = shuffled.reshape(-1)[: len(part)]


class TaskWalk:
    """The draws of one source, to be asked for anywhere; remembers the pass it is in."""

    def __init__(self, num_tasks: int, *, seed: int, source: int) -> None:
        self._num_tasks = num_tasks
        self._seed = seed
        self._source = source
        self._pass_index = -1
        self._pass = np.empty(0, dtype=np.min_scalar_type(num_tasks))

    def draw(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Positions of the tasks that the draws `first`, `first + 1`, … take."""
        index, step = divmod(first, self._num_tasks)
        if step + count <= self._num_tasks:
            return self._find_pass(index)[step : step + count].astype(np.int64)
        draws = np.arange(first, first + count, dtype=np.int64)
        positions = np.empty(count, dtype=np.int64)
        passes, steps = np.divmod(draws, self._num_tasks)
        for index in np.unique(passes).tolist():
            is_here = passes == index
            positions[is_here] = self._find_pass(index)[steps[is_here]]
        return positions

    def _find_pass(self, index: int) -> npt.NDArray[Any]:
        if index != self._pass_index:
            shuffled = _shuffle_passes(self._num_tasks, 1, seed=self._seed, source=self._source, first_pass=index)
            self._pass = shuffled[0].astype(np.min_scalar_type(self._num_tasks))
            self._pass_index = index
        return self._pass


def _shuffle_passes(
    num_tasks: int, num_passes: int, *, seed: int, source: int, first_pass: int
) -> npt.NDArray[np.uint64]:
    tasks = np.tile(np.arange(num_tasks, dtype=np.uint64), (num_passes, 1))
    return shuffle_rows(tasks, seed=seed, stream=1 + source, first_row=first_pass)
