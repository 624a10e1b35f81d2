"""Pools of tasks by what they earned last: solved ones and those that nobody solves are drawn less often.

Needs to know nothing of tasks beforehand. A task that was not drawn yet counts as one worth drawing. After prime-rl's
difficulty pools, with its thresholds and weights; drawing is not random there as it is here: a pool's tasks take turns,
the one that has waited longest first, and how often a pool is drawn follows its weight times its number of tasks.

A task that was drawn lies in no pool until its outcome is known, so that it is not drawn twice meanwhile, unless there
is no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from multiors.errors import ConfigError
from multiors.mixing.curricula.observing import RewardRange, TaskObservation, relative_mean
from multiors.mixing.curricula.tasks import SourceTasks, TaskCurriculum, TaskDraws, spread, stream_of
from multiors.mixing.settings import check_number, require_range
from multiors.mixing.walk import TaskWalk

__all__ = ["PoolDraws", "Pools"]

_NAMES = ("hard", "normal", "solved")
_NEW = len(_NAMES)
"""The pool of tasks that were never scored."""


@dataclass(frozen=True)
class Pools(TaskCurriculum):
    """Draws a task less often once its group is mostly solved, or hardly ever.

    Thresholds are fractions of the range of rewards that the source declares: 0 is the lowest reward, 1 the highest.

    Example:
        >>> Pools(solved_weight=0.1).hard_below
        0.25
    """

    hard_below: float = 0.25
    """A task is hard if the mean reward of its last group is at most this."""

    solved_above: float = 0.75
    """A task is solved if it is above this. All others are normal."""

    hard_weight: float = 0.2
    """How often a hard task is drawn beside a normal one."""

    solved_weight: float = 0.2
    """How often a solved task is drawn beside a normal one."""

    def __post_init__(self) -> None:
        check_number("Pools", "hard_below", self.hard_below, low=0, high=1)
        check_number("Pools", "solved_above", self.solved_above, low=0, high=1)
        check_number("Pools", "hard_weight", self.hard_weight, low=0, above=True)
        check_number("Pools", "solved_weight", self.solved_weight, low=0, above=True)
        if self.hard_below > self.solved_above:
            raise ConfigError(
                f"Pools: hard_below={self.hard_below!r} is above solved_above={self.solved_above!r}. Raise the one, or "
                f"lower the other."
            )

    def begin(self, tasks: SourceTasks, *, seed: int, source: int) -> PoolDraws:
        """The draws of a source, of which no task was drawn yet.

        Raises:
            ConfigError: The source declares no range of rewards.
        """
        return PoolDraws(
            self, tasks.num_tasks, require_range("Pools", tasks.name, tasks.reward_range), seed=seed, source=source
        )

    def can_continue(self, settings: Any, *, has_other_tasks: bool) -> bool:
        """What was learned of a task says nothing of another one."""
        return not has_other_tasks


class PoolDraws(TaskDraws):
    """The draws of one source.

    Args:
        settings: The rule.
        num_tasks: Of the source.
        reward_range: Of its rewards.
        seed: The run's seed.
        source: The source's position in the mix.
    """

    def __init__(self, settings: Pools, num_tasks: int, reward_range: RewardRange, *, seed: int, source: int) -> None:
        self._weights = (settings.hard_weight, 1.0, settings.solved_weight, 1.0)
        self._settings = settings
        self._num_tasks = num_tasks
        self._range = reward_range
        self._walk = TaskWalk(num_tasks, seed=seed, source=stream_of(source, 0))
        self._num_begun = 0
        """Tasks that were drawn at least once: the first of the source's first pass."""

        self._queues: list[deque[int]] = [deque() for _ in range(_NEW + 1)]
        """Tasks that were drawn before and wait for their turn, by pool."""

        self._in_flight: dict[int, int] = {}
        """The pool that each task was drawn from whose outcome is not known, the one drawn first in front."""

        self._credit = [0.0] * (_NEW + 1)

    def draw(self, count: int) -> npt.NDArray[np.int64]:
        """Positions of the next tasks."""
        return np.array([self._draw_one() for _ in range(count)], dtype=np.int64)

    def update(self, seen: Sequence[TaskObservation]) -> None:
        """Put each task into the pool that its group's mean reward says; an unscored one goes back where it was."""
        for each in seen:
            if each.position not in self._in_flight:
                continue  # drawn twice, and back already; or drawn by a run with other tasks
            pool = self._in_flight.pop(each.position)
            mean = relative_mean(each.rewards, self._range)
            self._queues[pool if mean is None else self._find_pool(mean)].append(each.position)

    def state(self) -> dict[str, Any]:
        """The order of all tasks that were drawn, by pool, and what is in flight."""
        return {
            "num_begun": self._num_begun,
            "queues": [list(queue) for queue in self._queues],
            "in_flight": [list(pair) for pair in self._in_flight.items()],
            "credit": list(self._credit),
        }

    def restore(self, state: Mapping[str, Any], *, in_step: bool = True) -> None:
        """Tasks that are gone are left out; those in flight go back where they were if nothing will be seen of them.

        Where the source walks its tasks in another order than before, those that were not drawn yet take turns in it.
        """
        self._queues = [deque(each for each in queue if each < self._num_tasks) for queue in state["queues"]]
        self._in_flight = {position: pool for position, pool in state["in_flight"] if position < self._num_tasks}
        self._credit = list(state["credit"])
        self._begin_rest(min(state["num_begun"], self._num_tasks))
        if not in_step:
            for position, pool in self._in_flight.items():
                self._queues[pool].appendleft(position)
            self._in_flight = {}

    def measure(self) -> dict[str, float]:
        """What part of the tasks is in each pool; those in flight count where they were."""
        counts = [len(queue) for queue in self._queues]
        for pool in self._in_flight.values():
            counts[pool] += 1
        return {f"{name}_tasks": counts[pool] / self._num_tasks for pool, name in enumerate(_NAMES)}

    def _draw_one(self) -> int:
        sizes = [len(queue) for queue in self._queues]
        sizes[_NEW] += self._num_tasks - self._num_begun
        if not any(sizes):
            position, pool = next(iter(self._in_flight.items()))
            del self._in_flight[position]
        else:
            pool = spread([size * weight for size, weight in zip(sizes, self._weights, strict=True)], self._credit)
            is_first = pool == _NEW and self._num_begun < self._num_tasks
            position = self._begin_next() if is_first else self._queues[pool].popleft()
        self._in_flight[position] = pool
        return position

    def _begin_next(self) -> int:
        position = int(self._walk.draw(self._num_begun, 1)[0])
        self._num_begun += 1
        return position

    def _begin_rest(self, num_begun: int) -> None:
        """Where the first tasks of the walk are not those that were begun, all others are new ones that wait."""
        order = self._walk.draw(0, self._num_tasks).tolist()
        begun = {*self._in_flight, *(position for queue in self._queues for position in queue)}
        self._num_begun = num_begun
        if begun != set(order[:num_begun]):
            self._queues[_NEW].extend(position for position in order if position not in begun)
            self._num_begun = self._num_tasks

    def _find_pool(self, mean: float) -> int:
        if mean <= self._settings.hard_below:
            return 0
        return 2 if mean > self._settings.solved_above else 1
