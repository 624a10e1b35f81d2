"""Shares that follow the batch number alone: constant, in straight lines, or in stages.

Every form is a list of points with straight lines between them; before the first and after the last point the shares
stay as they are there. Nothing is observed and nothing remembered, so any batch can be asked for at any time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from multiors.errors import ConfigError
from multiors.mixing.curricula.curriculum import Curriculum, MixSource, States
from multiors.mixing.curricula.observing import SourceObservation
from multiors.mixing.settings import check_number, is_number

__all__ = ["ScheduleUnit", "ShareSchedule"]

ScheduleUnit = Literal["batch", "fraction"]
"""What the positions of a schedule count."""

Point = tuple[float, Mapping[str, float]]


@dataclass(frozen=True)
class ShareSchedule(Curriculum):
    """Weights of all sources at some points of the run, and straight lines between them.

    Example:
        >>> warm_up = ShareSchedule([(0, {"easy": 1, "hard": 0}), (100, {"easy": 1, "hard": 3})])
        >>> warm_up.find_shares(50)
        {'easy': 0.625, 'hard': 0.375}
    """

    points: Sequence[Point]
    """Positions that never fall, each with the weight of every source there; 0: it is not drawn. Of two points at one
    position the second holds from there on."""

    unit: ScheduleUnit = "batch"
    """What positions count: "batch" numbers, or the "fraction" of the run, from 0 (first batch) to 1 (last batch)."""

    def __post_init__(self) -> None:
        if self.unit not in get_args(ScheduleUnit):
            raise ConfigError(f"ShareSchedule: unit={self.unit!r} is not known. Pass one of {get_args(ScheduleUnit)}.")
        points = tuple((position, _normalize(position, weights)) for position, weights in _pairs(self.points))
        for position, shares in points:
            check_number("ShareSchedule", "position", position, low=0, high=1 if self.unit == "fraction" else math.inf)
            if shares.keys() != points[0][1].keys():
                raise ConfigError(
                    f"ShareSchedule: at {position:g} there are weights for {list(shares)}, at {points[0][0]:g} for "
                    f"{list(points[0][1])}. Give every source a weight at every point, 0 where it is not drawn."
                )
        for (before, _), (after, _) in pairwise(points):
            if after < before:
                raise ConfigError(f"ShareSchedule: position {after:g} stands after {before:g}. Order the points.")
        object.__setattr__(self, "points", points)

    @classmethod
    def constant(cls, weights: Mapping[str, float]) -> ShareSchedule:
        """The same shares all the time."""
        return cls([(0, weights)])

    @classmethod
    def stages(cls, stages: Sequence[Point], *, warm_up: float = 0, unit: ScheduleUnit = "batch") -> ShareSchedule:
        """Constant shares from each position on.

        Args:
            stages: Where each stage begins, and its weights; the first begins at 0.
            warm_up: How long the change from the stage before takes, in the same unit, from the stage's beginning on.
                0: the shares jump.
            unit: What positions count.

        Raises:
            ConfigError: A stage is shorter than its warm-up, or the first begins later than 0.
        """
        found = _pairs(stages)
        check_number("ShareSchedule", "warm_up", warm_up, low=0)
        if found[0][0] != 0:
            raise ConfigError(f"ShareSchedule: the first stage begins at {found[0][0]!r}. Let it begin at 0.")
        points: list[Point] = []
        for position, weights in found:
            if points and position < points[-1][0]:
                raise ConfigError(
                    f"ShareSchedule: the stage that begins at {position!r} comes before the one before it has warmed "
                    f"up, at {points[-1][0]:g}. Begin it later, or shorten warm_up={warm_up!r}."
                )
            ramp = [(position, points[-1][1])] if points else []
            points += [*ramp, (position + (warm_up if points else 0), weights)]
        return cls(points, unit=unit)

    @property
    def reacts(self) -> bool:
        """Shares follow the batch number alone."""
        return False

    @property
    def follows_reference(self) -> bool:
        """Shares are those that were written down."""
        return False

    def find_shares(self, position: float) -> dict[str, float]:
        """The shares at a position."""
        before = [point for point in self.points if point[0] <= position]
        after = [point for point in self.points if point[0] > position]
        if not before or not after:
            return dict(before[-1][1] if before else after[0][1])
        (left, old), (right, new) = before[-1], after[0]
        part = (position - left) / (right - left)
        return {name: (1 - part) * share + part * new[name] for name, share in old.items()}

    def begin(self, sources: Sequence[MixSource]) -> States:
        """Nothing is remembered."""
        names, scheduled = [source.name for source in sources], list(self.points[0][1])
        if set(names) != set(scheduled):
            raise ConfigError(
                f"ShareSchedule: it has weights for {scheduled}, and the sources are {names}. "
                f"Give every source a weight, 0 where it is not drawn."
            )
        return dict.fromkeys(names)

    def update(self, states: States, seen: Mapping[str, SourceObservation]) -> States:
        """Nothing is learned."""
        return states

    def shares(
        self, states: States, reference: Mapping[str, float], *, batch: int, num_batches: int | None
    ) -> Mapping[str, float]:
        """The shares at this batch, without the sources that are left out; weights given elsewhere do not count.

        Raises:
            ConfigError: The unit is "fraction", and the length of the run is not known.
        """
        position: float = batch
        if self.unit == "fraction":
            if num_batches is None:
                raise ConfigError(
                    "ShareSchedule: unit='fraction' counts fractions of the run, and its length is not known. "
                    "Pass max_steps to spec.training_arguments(...), or use unit='batch'."
                )
            position = batch / max(1, num_batches - 1)
        found = self.find_shares(position)
        drawn = {name: found[name] if share > 0 else 0.0 for name, share in reference.items()}
        total = math.fsum(drawn.values())
        return {name: share / total for name, share in drawn.items()} if total > 0 else dict(reference)


def _pairs(points: Any) -> list[Point]:
    try:
        pairs: list[Point] = [(position, dict(weights)) for position, weights in points]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or not all(is_number(position) for position, _ in pairs):
        raise ConfigError(
            f"ShareSchedule: {points!r} is no list of positions and weights. Pass at least one pair, "
            f"such as [(0, {{'sort': 1.0, 'heat': 2.0}})]."
        )
    return pairs


def _normalize(position: float, weights: Mapping[str, float]) -> dict[str, float]:
    for name, weight in weights.items():
        check_number("ShareSchedule", f"the weight of source {name!r} at {position:g}", weight, low=0)
    largest = max(weights.values(), default=0)
    if largest <= 0:
        raise ConfigError(f"ShareSchedule: at {position:g} no source is drawn. Give at least one a weight above 0.")
    total = math.fsum(weight / largest for weight in weights.values())  # Divided by first, so that no sum overflows.
    return {name: weight / largest / total for name, weight in weights.items()}
