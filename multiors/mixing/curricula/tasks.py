"""What a curriculum inside a source is: it chooses among the tasks of the source, draw by draw.

The settings (`TaskCurriculum`) begin the draws of one source (`TaskDraws`), which are told what became of them and say
what is drawn next. Draws follow from the seed, the draws before, and what was observed, and from nothing else;
`state()` holds all of it as JSON-ready values. How many draws a source gets is decided elsewhere.

Tasks lie in *pools*: levels of difficulty, or tasks that are hard at the moment. `spread` divides draws among pools;
inside a pool tasks are drawn in turn. This module knows no particular pools.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from multiors.mixing.curricula.observing import RewardRange, TaskObservation

__all__ = ["SourceTasks", "TaskCurriculum", "TaskDraws", "spread", "stream_of"]

_STREAMS_PER_SOURCE = 2**32  # More than a source has tasks; the walks of sources as wholes have the streams below.


@dataclass(frozen=True, slots=True)
class SourceTasks:
    """What is known of a source's tasks before any was drawn, by position in its list."""

    name: str
    num_tasks: int

    reward_range: RewardRange | None = None
    """The lowest and the highest reward of a rollout, as declared. None: not declared."""

    specs: Sequence[str] | None = None
    """Each task's specification as JSON text. None: they were not fetched."""

    avg_rewards: Sequence[float | None] | None = None
    """What others' rollouts of each task earned on average; None for a task without any. None: that was not asked."""

    digest: Sequence[str | None] | None = None
    """Texts that are equal where the tasks are; None for what is not known of them. None: nothing is."""


class TaskDraws(ABC):
    """The draws of one source in one run."""

    @abstractmethod
    def draw(self, count: int) -> npt.NDArray[np.int64]:
        """Positions of the next tasks."""

    @abstractmethod
    def update(self, seen: Sequence[TaskObservation]) -> None:
        """Take what became of the source's slots in one batch, in slot order."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that the next draws follow from, as JSON-ready values."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any], *, in_step: bool = True) -> None:
        """Go on from an earlier state, with what still fits where the source's tasks have changed.

        Args:
            state: What `state()` returned, here or in a process before.
            in_step: Whether what was drawn and not observed yet will still be observed.
        """

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """Numbers to be logged."""


class TaskCurriculum(ABC):
    """Decides which of its tasks a source draws."""

    @abstractmethod
    def begin(self, tasks: SourceTasks, *, seed: int, source: int) -> TaskDraws:
        """The draws of a run.

        Args:
            tasks: Of the source.
            seed: The run's seed.
            source: The source's position in the mix.

        Raises:
            ConfigError: The settings do not fit these tasks.
        """

    def can_continue(self, settings: Any, *, has_other_tasks: bool) -> bool:
        """Whether draws that began otherwise can go on with these settings, on resume. False: they begin anew.

        Args:
            settings: Those before, as JSON-ready values. None: not known.
            has_other_tasks: Whether the source has as many tasks as before, and others.
        """
        return True


def spread(weights: Sequence[float], credit: list[float]) -> int:
    """The pool of the next draw, so that draws follow the weights as closely as whole draws can.

    Each pool is credited with its part of a draw, and the one with the most pays for it, the first among equals. What a
    pool was owed when its weight became 0 is forgotten.

    Args:
        weights: One per pool, at least 0, at least one of them above.
        credit: What each pool is owed, in draws; changed in place.
    """
    total = sum(weights)
    for pool, weight in enumerate(weights):
        credit[pool] = credit[pool] + weight / total if weight > 0 else 0.0
    chosen = max((pool for pool, weight in enumerate(weights) if weight > 0), key=lambda pool: (credit[pool], -pool))
    credit[chosen] -= 1
    return chosen


def stream_of(source: int, pool: int) -> int:
    """A number for `TaskWalk(source=...)` that no other pool has, and no source as a whole."""
    return (1 + source) * _STREAMS_PER_SOURCE + pool
