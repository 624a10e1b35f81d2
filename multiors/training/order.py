"""Whether rows reach the trainer in the order of the schedule.

A shuffled, repeated or replayed dataset still trains, on another mix than the one asked for. The reward columns see
every row's slot, so they can tell. Pure: knows slots and batch arithmetic, no trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from multiors.errors import RoutingError

__all__ = ["SlotOrder"]

_REMEDY = (
    "Build the trainer's arguments with spec.training_arguments(...), or set shuffle_dataset=False and one epoch, and "
    "give the trainer spec.train_dataset as it is."
)


class SlotOrder:
    """Watches the slots that one process scores, batch after batch.

    A process gets a contiguous slice of each generation batch, every slot `num_generations` times, so within a batch
    its slots rise by at most one, and every batch starts after the last one ended.
    """

    def __init__(self) -> None:
        self._last: int | None = None
        self.prompts_per_batch: int | None = None
        """Slots in a generation batch over all processes. None: not known, so gaps between batches go unseen."""

    def restart(self, *, prompts_per_batch: int) -> None:
        """A training run begins, perhaps from a checkpoint; its first batch may start anywhere."""
        self._last = None
        self.prompts_per_batch = prompts_per_batch

    def check(self, slots: Sequence[int], *, is_first_process: bool, global_step: int) -> None:
        """Check the slots of one batch on this process.

        Args:
            slots: The slot of each rollout, in row order.
            is_first_process: Whether this process has the first slice of each generation batch.
            global_step: The trainer's step; at 0 nothing may have come before.

        Raises:
            RoutingError: The order is not the schedule's.
        """
        steps = {after - before for before, after in pairwise(slots)}

        if not steps <= {0, 1}:
            raise RoutingError(
                f"rows arrive in another order than the schedule's: this batch has the slots {_abridge(slots)}, which "
                f"do not rise one by one. Was the dataset shuffled? {_REMEDY}"
            )

        if self._last is None and is_first_process and global_step == 0 and slots[0] != 0:
            raise RoutingError(
                f"training begins at slot {slots[0]} of the schedule instead of slot 0. Was the dataset shuffled or "
                f"cut? {_REMEDY}"
            )

        if self._last is not None and slots[0] <= self._last:
            raise RoutingError(
                f"slot {slots[0]} arrives after slot {self._last}: the schedule is being replayed. It is laid out "
                f"for one epoch. {_REMEDY}"
            )

        if self.prompts_per_batch and slots[0] // self.prompts_per_batch != slots[-1] // self.prompts_per_batch:
            raise RoutingError(
                f"a batch holds the slots {_abridge(slots)}, which belong to two batches of the schedule "
                f"({self.prompts_per_batch} prompts each). {_REMEDY}"
            )

        self._last = slots[-1]


def _abridge(slots: Sequence[int]) -> str:
    distinct = list(dict.fromkeys(slots))
    return ", ".join(map(str, distinct[:6])) + (", …" if len(distinct) > 6 else "")
