"""What became of the slots of a batch, as the planner and whoever decides the mix are told it.

Gathered over all processes and in slot order, so that it does not depend on how many there are. Holds what was seen;
nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

__all__ = ["Failures", "SlotObservation", "add_failures", "count_failures", "slide"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SlotObservation:
    """What became of the rollouts of one slot."""

    slot: int
    source: int
    """The source's position in the mix."""

    rewards: tuple[float | None, ...]
    """Of its rollouts, in their order: what its source's environment said, where that declares a range, else what the
    rollouts are trained on. None: unscored."""

    num_failed: int
    """Rollouts that are unscored because the environment failed."""

    error: str | None = None
    """The first error among them. None: nothing failed."""


class Failures(NamedTuple):
    """How many of some rollouts failed."""

    num_rollouts: int
    num_failed: int

    error: str | None
    """The first error among them. None: nothing failed, or nothing was said."""

    @property
    def rate(self) -> float:
        """Fraction that failed; 0 where there are no rollouts."""
        return self.num_failed / self.num_rollouts if self.num_rollouts else 0.0


def add_failures(parts: Sequence[Failures]) -> Failures:
    """All of them together, the first error first."""
    return Failures(
        sum(part.num_rollouts for part in parts),
        sum(part.num_failed for part in parts),
        next((part.error for part in parts if part.error is not None), None),
    )


def count_failures(observations: Sequence[SlotObservation], num_sources: int) -> list[Failures]:
    """The failures of each source in one batch."""
    found: list[list[Failures]] = [[] for _ in range(num_sources)]
    for seen in observations:
        found[seen.source].append(Failures(len(seen.rewards), seen.num_failed, seen.error))
    return [add_failures(parts) for parts in found]


def slide(window: Sequence[T], enough: int, *, count: Callable[[T], int]) -> list[T]:
    """The last batches of a window that hold enough together, as few as it takes; all of them where they do not.

    Args:
        window: What was kept of each batch, the latest last.
        enough: How many a window holds.
        count: How many a batch holds.
    """
    kept = list(window)
    while sum(map(count, kept[1:])) >= enough:
        kept.pop(0)
    return kept
