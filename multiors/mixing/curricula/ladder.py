"""The ladder: a source's tasks from easy to hard, a window of levels at a time.

After RLVE (arXiv:2511.07317): draws are spread evenly over the last `window` levels up to the current one, and groups
of the current level alone decide whether to go on. Beside RLVE there is a way down, patience with levels that cannot be
mastered, and rehearsal of levels that were left behind. Which task is on which level is decided in `levels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any

import numpy as np
import numpy.typing as npt

from multiors.errors import ConfigError
from multiors.mixing.curricula.levels import Level, find_levels, read_field
from multiors.mixing.curricula.observing import RewardRange, TaskObservation, relative_mean
from multiors.mixing.curricula.tasks import SourceTasks, TaskCurriculum, TaskDraws, spread, stream_of
from multiors.mixing.settings import check_count, check_number, read_settings, require_range
from multiors.mixing.walk import TaskWalk

__all__ = ["Ladder", "LadderDraws"]


@dataclass(frozen=True)
class Ladder(TaskCurriculum):
    """Draws tasks level by level, from easy to hard.

    Thresholds are fractions of the range of rewards that the source declares: 0 is the lowest reward, 1 the highest.
    Tasks of which no level is known are drawn in proportion to their number, and decide nothing.

    Example:
        >>> by_field = Ladder(field="difficulty", order=("easy", "medium", "hard"))
        >>> by_what_others_earned = Ladder(num_levels=5)
    """

    field: str | None = None
    """The field of a task's specification that holds its level; dots lead into objects. None: what others' rollouts of
    the task earned on average (`avg_reward`), the highest first."""

    order: Sequence[str | float] | None = None
    """The values of the field from the easiest to the hardest. None: they are numbers."""

    num_levels: int | None = None
    """Numbers are put into so many levels of about equally many tasks. None: each number is a level of its own, and
    `avg_reward` makes 5."""

    highest_first: bool = False
    """Whether the highest number of the field is the easiest."""

    window: int = 4
    """Levels that are drawn from at once: the current one and those before it."""

    up: float = 0.9
    """The ladder goes up where the mean reward of the current level is at least this."""

    down: float = 0.1
    """The ladder goes down where it is below this."""

    min_groups: int = 8
    """Scored groups of the current level in each decision."""

    patience_groups: int | None = 128
    """After so many scored groups of one level the ladder goes up though `up` was not reached. None: never."""

    rehearsal: float = 0.1
    """Part of the draws that goes to levels below the window, once there are any."""

    def __post_init__(self) -> None:
        check_count("Ladder", "window", self.window)
        check_count("Ladder", "min_groups", self.min_groups)
        check_number("Ladder", "up", self.up, low=0, high=1, above=True)
        check_number("Ladder", "down", self.down, low=0, high=1)
        check_number("Ladder", "rehearsal", self.rehearsal, low=0, high=0.9)
        if self.num_levels is not None:
            check_count("Ladder", "num_levels", self.num_levels)
        if self.patience_groups is not None:
            check_count("Ladder", "patience_groups", self.patience_groups, low=self.min_groups)
        if self.down >= self.up:
            raise ConfigError(
                f"Ladder: down={self.down!r} is not below up={self.up!r}. Raise the one, or lower the other."
            )
        if self.order is not None and (self.field is None or self.num_levels is not None or self.highest_first):
            raise ConfigError(
                "Ladder: order=... lists the values of a field. Give field=..., and nothing else beside it."
            )
        if self.order is not None:
            repeated = [value for place, value in enumerate(self.order) if value in self.order[:place]]
            if repeated:
                raise ConfigError(
                    f"Ladder: order={list(self.order)!r} has {repeated[0]!r} more than once. List each value once."
                )
            object.__setattr__(self, "order", tuple(self.order))

    def begin(self, tasks: SourceTasks, *, seed: int, source: int) -> LadderDraws:
        """The draws of a source, from the easiest level on.

        Raises:
            ConfigError: Levels cannot be found, or the source declares no range of rewards.
        """
        return LadderDraws(
            self,
            self.find_levels(tasks),
            require_range("Ladder", tasks.name, tasks.reward_range),
            seed=seed,
            source=source,
        )

    def can_continue(self, settings: Any, *, has_other_tasks: bool) -> bool:
        """A level means the same where levels are found as they were; harder ones may have come to an order."""
        if settings is None:
            return True
        now = read_settings(self)
        orders = settings["order"] or (), now["order"] or ()
        are_equal = [settings[name] == now[name] for name in ("field", "num_levels", "highest_first")]
        return all(are_equal) and bool(orders[0]) == bool(orders[1]) and all(map(eq, *orders))

    def find_levels(self, tasks: SourceTasks) -> list[Level | None]:
        """The level of each task. None: not known.

        Raises:
            ConfigError: Nothing is known of any task, or values cannot be ordered.
        """
        if self.field is not None:
            values = read_field(tasks, self.field)
            return find_levels(
                tasks.name,
                values,
                order=self.order,
                num_levels=self.num_levels,
                highest_first=self.highest_first,
            )
        if tasks.avg_rewards is None or all(value is None for value in tasks.avg_rewards):
            raise ConfigError(
                f"source {tasks.name!r}: a ladder needs to know how hard its tasks are. Name a field of their "
                f"specifications, field=..., or ask what others' rollouts earned, task_difficulty=True."
            )
        return find_levels(tasks.name, tasks.avg_rewards, num_levels=self.num_levels or 5, highest_first=True)


class LadderDraws(TaskDraws):
    """The draws of one source.

    Args:
        settings: The rule.
        levels: Of each task, from 0 without gaps. None: not known.
        reward_range: Of the source's rewards.
        seed: The run's seed.
        source: The source's position in the mix.
    """

    def __init__(
        self,
        settings: Ladder,
        levels: Sequence[Level | None],
        reward_range: RewardRange,
        *,
        seed: int,
        source: int,
    ) -> None:
        self._settings = settings
        self._levels = list(levels)
        self._range = reward_range
        self._top = max((level for level in levels if level is not None), default=0)
        # One pool per level, and a last one for the tasks whose level is not known.
        pool_of = np.array([self._top + 1 if level is None else level for level in levels], dtype=np.int64)
        self._pools = [np.flatnonzero(pool_of == pool) for pool in range(self._top + 2)]
        self._walks = [
            TaskWalk(max(1, len(pool)), seed=seed, source=stream_of(source, number))
            for number, pool in enumerate(self._pools)
        ]
        self._draws = [0] * len(self._pools)
        self._credit = [0.0] * len(self._pools)
        self._level: Level = 0
        self._total = 0.0
        """Relative rewards of the level's groups since the last decision, summed."""

        self._num_groups = 0
        """Those groups."""

        self._num_waited = 0
        """The level's groups in earlier decisions."""

    def draw(self, count: int) -> npt.NDArray[np.int64]:
        """Positions of the next tasks."""
        weights = self.weights()
        return np.array([self._draw_one(spread(weights, self._credit)) for _ in range(count)], dtype=np.int64)

    def _draw_one(self, pool: int) -> int:
        step = self._walks[pool].draw(self._draws[pool], 1)[0]
        self._draws[pool] += 1
        return int(self._pools[pool][step])

    def update(self, seen: Sequence[TaskObservation]) -> None:
        """Count the scored groups of the current level; where there are enough, decide.

        Groups of other levels decide nothing: they were drawn before the last change, or to keep what was learned.
        """
        for each in seen:
            mean = relative_mean(each.rewards, self._range)
            if mean is not None and self._levels[each.position] == self._level:
                self._total += mean
                self._num_groups += 1
        if self._num_groups < self._settings.min_groups:
            return
        mean = self._total / self._num_groups
        self._num_waited += self._num_groups
        self._total, self._num_groups = 0.0, 0
        patience = self._settings.patience_groups
        is_tired = patience is not None and self._num_waited >= patience and mean >= self._settings.down
        if (mean >= self._settings.up or is_tired) and self._level < self._top:
            self._go_to(self._level + 1)
        elif mean < self._settings.down and self._level > 0:
            self._go_to(self._level - 1)

    def weights(self) -> list[float]:
        """What part of the draws each level gets, and the tasks without one; not all of them sum to 1."""
        first = max(0, self._level - self._settings.window + 1)
        num_known = len(self._levels) - len(self._pools[-1])
        rehearsal = self._settings.rehearsal if first else 0.0
        known = [0.0] * (self._top + 1)
        for level in range(self._level + 1):
            is_inside = level >= first
            known[level] = (1 - rehearsal) / (self._level + 1 - first) if is_inside else rehearsal / first
        return [*(weight * num_known for weight in known), float(len(self._pools[-1]))]

    def state(self) -> dict[str, Any]:
        """The current level, what is counted of it, and how far each level's tasks were drawn."""
        return {
            "level": self._level,
            "total": self._total,
            "num_groups": self._num_groups,
            "num_waited": self._num_waited,
            "draws": list(self._draws),
            "credit": list(self._credit),
        }

    def restore(self, state: Mapping[str, Any], *, in_step: bool = True) -> None:
        """Where there are other levels than before, the current one is kept as far as there is one, and no counts."""
        self._go_to(min(state["level"], self._top))
        if len(state["draws"]) == len(self._draws):
            self._draws, self._credit = list(state["draws"]), list(state["credit"])
            self._total, self._num_groups = state["total"], state["num_groups"]
            self._num_waited = state["num_waited"]

    def measure(self) -> dict[str, float]:
        """The current level, from 0."""
        return {"level": float(self._level)}

    def _go_to(self, level: Level) -> None:
        self._level = level
        self._total, self._num_groups, self._num_waited = 0.0, 0, 0
