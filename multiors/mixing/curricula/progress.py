"""Learning progress: more of what the policy is getting better, or worse, at.

The mean reward of each source is averaged twice, over few batches and over many. Where the two differ, something is
changing: that is the score. A source that is always solved, never solved, or rewarded by chance has almost none.
Only proportions of scores count, however small they are, so what is no more than rounding is a score of 0. The
constants were chosen in a simulation (`benchmarks/curriculum_simulation.py`); the idea is the one of teacher-student
curricula (Matiisen et al. 2017, "Teacher-Student Curriculum Learning").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multiors.errors import ConfigError
from multiors.mixing.curricula.box import check_box, fit_box
from multiors.mixing.curricula.curriculum import Curriculum, MixSource, States
from multiors.mixing.curricula.observing import SourceObservation, widen_range
from multiors.mixing.settings import check_number

__all__ = ["LearningProgress"]

_BONUS = 0.05  # A source that was not scored yet counts as this much better than the best that was.
_LEAST_CHANGE = 1e-9  # Averages that differ by less, in proportion to their size and to the range, do so by rounding.


@dataclass(frozen=True)
class LearningProgress(Curriculum):
    """Shares that follow how fast the mean reward of each source changes.

    The score of a source is |fast average - slow average| of its mean reward per batch, as a fraction of the range of
    its rewards: the declared one, else what was seen so far. Scaling or shifting a source's rewards changes nothing.

    Example:
        >>> LearningProgress(highest=2.0).slow
        0.04
    """

    fast: float = 0.2
    """Weight of a new batch in the fast average."""

    slow: float = 0.04
    """Weight of a new batch in the slow average."""

    lowest: float = 0.25
    """A source's share never falls below so many times its share without a curriculum."""

    highest: float = 3.0
    """A source's share never rises above so many times its share without a curriculum."""

    def __post_init__(self) -> None:
        check_number("LearningProgress", "fast", self.fast, low=0, high=1, above=True)
        check_number("LearningProgress", "slow", self.slow, low=0, high=1, above=True)
        check_box("LearningProgress", self.lowest, self.highest)
        if self.slow >= self.fast:
            raise ConfigError(
                f"LearningProgress: slow={self.slow!r} is not below fast={self.fast!r}. Raise the one, or lower the "
                f"other."
            )

    def begin(self, sources: Sequence[MixSource]) -> States:
        """Nothing was seen."""
        return {source.name: {"fast": None, "slow": None, "range": None} for source in sources}

    def update(self, states: States, seen: Mapping[str, SourceObservation]) -> States:
        """Move the averages of the sources that were scored."""
        return {name: self._follow(state, seen.get(name)) for name, state in states.items()}

    def shares(
        self, states: States, reference: Mapping[str, float], *, batch: int, num_batches: int | None
    ) -> Mapping[str, float]:
        """In proportion to reference share times score, inside the box."""
        scores = {name: _score(states[name]) for name in reference}
        unseen = max((score for score in scores.values() if score is not None), default=0.0) + _BONUS
        preferences = {
            name: share * (unseen if (score := scores[name]) is None else score) for name, share in reference.items()
        }
        return fit_box(preferences, reference, lowest=self.lowest, highest=self.highest)

    def measure(self, states: States) -> dict[str, dict[str, float]]:
        """The score of each source that has one."""
        scores = {name: _score(state) for name, state in states.items()}
        return {name: {"score": score} for name, score in scores.items() if score is not None}

    def _follow(self, state: Any, seen: SourceObservation | None) -> Any:
        mean = None if seen is None else seen.mean_reward
        if seen is None or mean is None:
            return state
        if state["fast"] is None:
            return {"fast": mean, "slow": mean, "range": widen_range(None, seen)}
        return {
            "fast": (1 - self.fast) * state["fast"] + self.fast * mean,
            "slow": (1 - self.slow) * state["slow"] + self.slow * mean,
            "range": widen_range(state["range"], seen),
        }


def _score(state: Any) -> float | None:
    """Between 0 and 1. None: nothing was scored yet."""
    if state["fast"] is None:
        return None
    low, high = state["range"]
    width = high - low
    if not width > 0:
        return 0.0
    fast, slow = state["fast"] / width, state["slow"] / width
    score = abs(fast - slow)
    return score if score > _LEAST_CHANGE * max(1.0, abs(fast), abs(slow)) else 0.0
