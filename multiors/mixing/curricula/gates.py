"""Gates between sources: some open only when others go well, and what goes well gets less.

Each source is judged by the mean reward of its last groups, relative to the range that it declares:

- It is *locked* until every prerequisite has reached its threshold once. What was opened stays open.
- It has *graduated* once it reaches its own threshold, and then gets a floor of its share, so that the budget goes
  where there is more to learn. If it falls back below the threshold by more than a margin, it gets its whole share
  again, and that is told.

This module knows no levels: where tasks of a source get harder, its mean reward is that of the tasks that are drawn.
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from multiors.errors import ConfigError
from multiors.mixing.curricula.curriculum import Curriculum, MixSource, States
from multiors.mixing.curricula.observing import SourceObservation, relative_mean
from multiors.mixing.observed import slide
from multiors.mixing.settings import check_count, check_number, require_range

__all__ = ["Gates"]


@dataclass(frozen=True)
class Gates(Curriculum):
    """Which sources wait for which, and what a source gets that has graduated.

    Thresholds are fractions of the declared range: 0 is the lowest reward there is, 1 the highest.

    Example:
        >>> gates = Gates(after={"hard": {"easy": 0.7}}, graduate_at={"easy": 0.9})
    """

    after: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By source, what it waits for: sources, and the mean reward that each of them must reach."""

    graduate_at: Mapping[str, float] = field(default_factory=dict)
    """By source, the mean reward at which it has graduated. One that is not named never does."""

    floor: float = 0.25
    """What a source that has graduated gets, as a factor of its share beside those that have not."""

    margin: float = 0.1
    """A source that has graduated and falls below its threshold by more than this has regressed."""

    window_groups: int = 16
    """How many of a source's last scored groups it is judged by: those of its last batches, as many as it takes. Fewer
    are never judged."""

    patience_batches: int | None = None
    """After so many batches a source opens whatever it waits for. None: never."""

    def __post_init__(self) -> None:
        if not any(self.after.values()) and not self.graduate_at:
            raise ConfigError(
                "Gates: no source waits for another, and none graduates. Give after=... or graduate_at=..."
            )
        for name, prerequisites in self.after.items():
            for before, threshold in prerequisites.items():
                check_number("Gates", f"after[{name!r}][{before!r}]", threshold, low=0, high=1)
        for name, threshold in self.graduate_at.items():
            check_number("Gates", f"graduate_at[{name!r}]", threshold, low=0, high=1)
        check_number("Gates", "floor", self.floor, low=0, high=1, above=True)
        check_number("Gates", "margin", self.margin, low=0, high=1)
        check_count("Gates", "window_groups", self.window_groups)
        if self.patience_batches is not None:
            check_count("Gates", "patience_batches", self.patience_batches)
        try:
            graphlib.TopologicalSorter(self.after).prepare()
        except graphlib.CycleError as error:
            circle = " waits for ".join(reversed(error.args[1]))
            raise ConfigError(f"Gates: {circle}, so none of them ever opens. Remove a prerequisite.") from None

    def begin(self, sources: Sequence[MixSource]) -> States:
        """Sources with prerequisites are locked.

        Raises:
            ConfigError: A gate names a source that is not there, or one that declares no range.
        """
        found = {source.name: source for source in sources}
        judged = {*self.graduate_at, *(name for each in self.after.values() for name in each)}
        for name in sorted({*judged, *self.after}):
            if name not in found:
                raise ConfigError(f"Gates: source {name!r} is not in the mix; sources: {list(found)}.")
            if name in judged:
                require_range("Gates", name, found[name].reward_range)
        return {name: self._begin_source(name) for name in found}

    def _begin_source(self, name: str) -> dict[str, Any]:
        is_locked = bool(self.after.get(name))
        return {"window": [], "reached": [], "locked": is_locked, "graduated": False, "num_batches": 0}

    def update(self, states: States, seen: Mapping[str, SourceObservation]) -> States:
        """Judge the sources that were scored, then open what has waited for them."""
        judged = {name: self._judge(name, states[name], seen.get(name)) for name in states}
        return {name: self._open(name, state, judged) for name, state in judged.items()}

    def shares(
        self, states: States, reference: Mapping[str, float], *, batch: int, num_batches: int | None
    ) -> Mapping[str, float]:
        """0 for the locked, the floor for those that have graduated, in proportion to the reference.

        Where only locked sources are left, because others are left out for another reason, they keep their shares.
        """
        parts = {
            name: 0.0 if states[name]["locked"] else share * (self.floor if states[name]["graduated"] else 1.0)
            for name, share in reference.items()
        }
        total = math.fsum(parts.values())
        return {name: part / total for name, part in parts.items()} if total > 0 else dict(reference)

    def measure(self, states: States) -> dict[str, dict[str, float]]:
        """1 for what is locked, and for what has graduated."""
        gated = {*self.after, *self.graduate_at}
        return {
            name: {"locked": float(state["locked"]), "graduated": float(state["graduated"])}
            for name, state in states.items()
            if name in gated
        }

    def describe_changes(self, before: States, after: States) -> list[str]:
        """What opened, what graduated, and what regressed."""
        sentences = []
        for name, new in after.items():
            old = before[name]
            mean = _mean(new["window"])
            if old["locked"] and not new["locked"]:
                sentences.append(f"source {name!r} is open: {self._explain_opening(name, new)}")
            if new["graduated"] and not old["graduated"]:
                sentences.append(
                    f"source {name!r} has graduated with a mean reward of {mean:.2f} of its range, and gets "
                    f"{self.floor:g} of its share"
                )
            if old["graduated"] and not new["graduated"]:
                sentences.append(f"source {name!r} {self._explain_return(name, mean)}. It gets its whole share again")
        return sentences

    def _judge(self, name: str, state: Any, seen: SourceObservation | None) -> Any:
        """The state once its own observation is taken into account; "reached" lists who need wait for it no longer."""
        state = {**state, "num_batches": state["num_batches"] + 1}
        rewards = [] if seen is None else _relative_rewards(seen)
        if not rewards:
            return state
        window = slide([*state["window"], [math.fsum(rewards), len(rewards)]], self.window_groups, count=itemgetter(1))
        state["window"] = window
        if sum(count for _, count in window) < self.window_groups:
            return state
        mean = _mean(window)
        thresholds = {other: needed[name] for other, needed in self.after.items() if name in needed}
        state["reached"] = [
            other for other, threshold in thresholds.items() if other in state["reached"] or mean >= threshold
        ]
        threshold = self.graduate_at.get(name, math.inf) - (self.margin if state["graduated"] else 0.0)
        state["graduated"] = mean >= threshold
        return state

    def _open(self, name: str, state: Any, states: States) -> Any:
        if not state["locked"]:
            return state
        is_patient = self.patience_batches is None or state["num_batches"] < self.patience_batches
        is_waiting = any(name not in states[before]["reached"] for before in self.after.get(name, ()))
        return {**state, "locked": is_waiting and is_patient}

    def _explain_opening(self, name: str, state: Any) -> str:
        wanted = ", ".join(f"{before!r} {threshold:g}" for before, threshold in self.after.get(name, {}).items())
        if not wanted:
            return "nothing is named any more that it waits for"
        if state["num_batches"] == self.patience_batches:
            return f"it has waited for {wanted} during {state['num_batches']} batches"
        return f"reached was {wanted}"

    def _explain_return(self, name: str, mean: float) -> str:
        if name not in self.graduate_at:
            return "had graduated, and is not named in graduate_at any more"
        return (
            f"has regressed: its mean reward fell to {mean:.2f} of its range, it had graduated at "
            f"{self.graduate_at[name]:g}"
        )


def _relative_rewards(seen: SourceObservation) -> list[float]:
    """The mean of each group that has one, as a fraction of the declared range."""
    if seen.reward_range is None:
        return []
    means = (relative_mean(group, seen.reward_range) for group in seen.groups)
    return [mean for mean in means if mean is not None]


def _mean(window: Sequence[Sequence[float]]) -> float:
    count = sum(each for _, each in window)
    return math.fsum(total for total, _ in window) / count if count else math.nan
