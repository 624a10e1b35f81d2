"""What a curriculum is told: the rewards of a source's groups in one batch, and numbers read off them.

None stays missing data: an unscored rollout is in no mean, and a number for which too little was scored is None, never
0. No finite rewards overflow. Nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from multiors.mixing.observed import SlotObservation

__all__ = [
    "Group",
    "RewardRange",
    "SourceObservation",
    "TaskObservation",
    "group_by_source",
    "mean_of",
    "relative_mean",
    "widen_range",
]

Group = tuple[float | None, ...]
"""The rewards of one slot's rollouts. None: unscored."""

RewardRange = tuple[float, float]
"""The lowest and the highest reward there is."""


@dataclass(frozen=True, slots=True)
class TaskObservation:
    """What became of the rollouts of one slot, for who chooses among the tasks of its source."""

    position: int
    """Of the task in its source's list."""

    rewards: Group


@dataclass(frozen=True, slots=True)
class SourceObservation:
    """What became of a source's slots in one batch, at least one of them.

    Example:
        >>> seen = SourceObservation(groups=((0.0, 1.0, None), (None, None, None)))
        >>> seen.mean_reward, seen.num_scored
        (0.5, 2)
    """

    groups: tuple[Group, ...]
    """One per slot, in slot order."""

    reward_range: RewardRange | None = None
    """The range that the source declares. None: none."""

    @property
    def scored(self) -> list[float]:
        """The rewards that there are."""
        return [reward for group in self.groups for reward in _scored(group)]

    @property
    def num_scored(self) -> int:
        """Rollouts with a reward."""
        return len(self.scored)

    @property
    def mean_reward(self) -> float | None:
        """Mean over the scored rollouts. None: there are none."""
        return mean_of(self.scored)

    @property
    def relative_reward(self) -> float | None:
        """The mean as a fraction of the declared range. None: nothing was scored, or no range is declared."""
        return None if self.reward_range is None else relative_mean(self.scored, self.reward_range)

    @property
    def abs_advantage(self) -> float | None:
        """Mean of |reward - group's mean| / group's standard deviation over the scored rollouts.

        Groups with equal rewards count as 0, groups with fewer than two scored rollouts not at all. None: no others.
        """
        return mean_of(value for group in self._compared() for value in _abs_advantages(group))

    @property
    def spread_fraction(self) -> float | None:
        """Part of the groups whose rewards differ, and so have a gradient.

        Groups with fewer than two scored rollouts do not count. None: there are no others.
        """
        return mean_of(float(min(group) != max(group)) for group in self._compared())

    def variance(self, width: float) -> float | None:
        """Mean over the groups of the unbiased variance of their rewards, in units of `width` squared.

        Groups with fewer than two scored rollouts do not count. None: there are no others.

        Args:
            width: What a reward is divided by, at least 0. 0: all rewards are equal, and so their variance is 0.
        """
        return mean_of(_variance([reward / width for reward in group]) if width else 0.0 for group in self._compared())

    def _compared(self) -> list[list[float]]:
        return [group for group in map(_scored, self.groups) if len(group) >= 2]


def group_by_source(
    observations: Sequence[SlotObservation], reward_ranges: Mapping[str, RewardRange | None]
) -> dict[str, SourceObservation]:
    """A batch's observations by the name of their source; sources that were not drawn are not in it.

    Args:
        observations: In slot order.
        reward_ranges: The declared range of each source, in the order of the mix.
    """
    names = list(reward_ranges)
    groups: dict[str, list[Group]] = {}
    for seen in observations:
        groups.setdefault(names[seen.source], []).append(seen.rewards)
    return {name: SourceObservation(tuple(groups[name]), reward_ranges[name]) for name in names if name in groups}


def mean_of(values: Iterable[float]) -> float | None:
    """The mean of finite numbers, whatever their order. None: of nothing."""
    found = list(values)
    if not found:
        return None
    try:
        return math.fsum(found) / len(found)
    except OverflowError:
        mean = 2 * math.fsum(value / 2 / len(found) for value in found)  # rounded, perhaps beyond the largest number
        return min(max(mean, min(found)), max(found))


def relative_mean(rewards: Iterable[float | None], reward_range: RewardRange) -> float | None:
    """The mean of the rewards that there are as a fraction of a range: 0 at its lowest, 1 at its highest.

    None: there are none.
    """
    mean = mean_of(_scored(rewards))
    low, high = reward_range
    return None if mean is None else (mean / 2 - low / 2) / (high / 2 - low / 2)


def widen_range(known: Sequence[float] | None, seen: SourceObservation) -> list[float] | None:
    """The range of a source's rewards: the declared one, else all that was seen so far. None: nothing."""
    if seen.reward_range is not None:
        return list(seen.reward_range)
    values = [*(known or ()), *seen.scored]
    return [min(values), max(values)] if values else None


def _scored(rewards: Iterable[float | None]) -> list[float]:
    """The rewards that there are."""
    return [reward for reward in rewards if reward is not None]


def _abs_advantages(group: Sequence[float]) -> list[float]:
    largest = max(map(abs, group))
    scaled = [reward / largest for reward in group] if largest else group
    variance, mean = _variance(scaled), mean_of(scaled)
    if not variance or mean is None:
        return [0.0] * len(group)
    deviation = math.sqrt(variance)
    return [abs(value - mean) / deviation for value in scaled]


def _variance(values: Sequence[float]) -> float:
    if min(values) == max(values):
        return 0.0  # without the rounding of their mean
    mean = math.fsum(values) / len(values)
    return math.fsum([(value - mean) * (value - mean) for value in values]) / (len(values) - 1)
