"""Bandits on scores of a batch: more of what has a large advantage, or a large variance, right now.

Two scores of a source in a batch, both read off its groups:

- `abs_advantage`: mean |A| with A = (reward - mean) / standard deviation of the group. SEC (Chen et al. 2025,
  arXiv:2505.14970) keeps a moving average of it, DUMP (arXiv:2504.09710) a window, and a bonus for what was rarely
  drawn; both turn averages into shares by a softmax.
- `variance`: the unbiased variance of the group, whose mean for a reward of 0 or 1 is p(1 - p), the learnability of
  sampling for learnability (arXiv:2408.15099). Shares are in proportion to it.

Rewards that are noise have the highest score of all in either; the box is what keeps them from taking everything.
Unlike in SEC's code, a source that was not drawn keeps its score, where that moves it towards 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, get_args

from multiors.errors import ConfigError
from multiors.mixing.curricula.box import check_box, fit_box
from multiors.mixing.curricula.curriculum import Curriculum, MixSource, States
from multiors.mixing.curricula.observing import SourceObservation, widen_range
from multiors.mixing.observed import slide
from multiors.mixing.settings import check_count, check_number

__all__ = ["BanditScore", "ScoreBandit"]

BanditScore = Literal["abs_advantage", "variance"]
"""What a bandit averages of a source's rewards."""

_RATE = {"abs_advantage": 0.5, "variance": 0.1}
_TEMPERATURE = {"abs_advantage": 0.2, "variance": None}


@dataclass(frozen=True)
class ScoreBandit(Curriculum):
    """Shares that follow a running mean of a score.

    Example:
        >>> sec = ScoreBandit()
        >>> dump = ScoreBandit(window_rollouts=300, temperature=0.1, exploration=1.0)
        >>> learnability = ScoreBandit("variance")
    """

    score: BanditScore = "abs_advantage"
    """What is averaged. "variance" is taken relative to the range of the source's rewards, squared: the declared range,
    else what was seen so far."""

    rate: float | None = None
    """Weight of a new batch in the running mean. None: 0.5 for "abs_advantage" (SEC's), 0.1 for "variance"."""

    temperature: float | None = None
    """Shares are in proportion to reference share × exp(mean / temperature). None: 0.2 for "abs_advantage" (SEC's); for
    "variance" they are in proportion to reference share × mean."""

    window_rollouts: int | None = None
    """The mean is that of the last so many scored rollouts, instead of a running one (DUMP: 300)."""

    exploration: float = 0.0
    """Factor of sqrt(2 ln(N + 1) / (n + 1)), added to the mean of a source with n of N scored rollouts (DUMP: 1)."""

    lowest: float = 0.25
    """A source's share never falls below so many times its share without a curriculum."""

    highest: float = 1.5
    """A source's share never rises above so many times its share without a curriculum."""

    def __post_init__(self) -> None:
        if self.score not in get_args(BanditScore):
            raise ConfigError(f"ScoreBandit: score={self.score!r} is not known. Pass one of {get_args(BanditScore)}.")
        if self.rate is not None:
            check_number("ScoreBandit", "rate", self.rate, low=0, high=1, above=True)
        if self.temperature is not None:
            check_number("ScoreBandit", "temperature", self.temperature, low=0, above=True)
        if self.window_rollouts is not None:
            check_count("ScoreBandit", "window_rollouts", self.window_rollouts)
        if self.window_rollouts is not None and self.rate is not None:
            raise ConfigError(
                f"ScoreBandit: rate={self.rate!r} and window_rollouts={self.window_rollouts!r} are two ways to "
                f"average. Leave one out."
            )
        check_number("ScoreBandit", "exploration", self.exploration, low=0)
        check_box("ScoreBandit", self.lowest, self.highest)

    def begin(self, sources: Sequence[MixSource]) -> States:
        """Nothing was seen."""
        fresh: dict[str, Any] = {"mean": None, "num_rollouts": 0, "range": None, "window": []}
        return {source.name: dict(fresh) for source in sources}

    def update(self, states: States, seen: Mapping[str, SourceObservation]) -> States:
        """Move the means of the sources that had a score."""
        return {name: self._follow(state, seen.get(name)) for name, state in states.items()}

    def shares(
        self, states: States, reference: Mapping[str, float], *, batch: int, num_batches: int | None
    ) -> Mapping[str, float]:
        """In proportion to reference share times the score's exponential or the score, inside the box."""
        found = self._find_scores(states)
        best = max((score for score in found.values() if score is not None), default=1.0)
        scores = {name: best if score is None else score for name, score in found.items()}
        temperature = _TEMPERATURE[self.score] if self.temperature is None else self.temperature
        if temperature is None:
            preferences = {name: share * scores[name] for name, share in reference.items()}
        else:
            preferences = {
                name: share * math.exp((scores[name] - best) / temperature) for name, share in reference.items()
            }
        return fit_box(preferences, reference, lowest=self.lowest, highest=self.highest)

    def can_continue(self, settings: Any) -> bool:
        """A mean of the other score is none of this one, and a running mean has no window."""
        begins_window = settings["window_rollouts"] is None and self.window_rollouts is not None
        return bool(settings["score"] == self.score) and not begins_window

    def measure(self, states: States) -> dict[str, dict[str, float]]:
        """The score of each source that has one."""
        scores = self._find_scores(states)
        return {name: {"score": score} for name, score in scores.items() if score is not None}

    def _follow(self, state: Any, seen: SourceObservation | None) -> Any:
        if seen is None:
            return state
        known_range = widen_range(state["range"], seen)
        if self.score == "abs_advantage":
            value = seen.abs_advantage
        else:
            value = None if known_range is None else seen.variance(known_range[1] - known_range[0])
        if value is None:
            return {**state, "range": known_range}
        window, mean = [], value
        if self.window_rollouts is not None:
            window = slide([*state["window"], [value, seen.num_scored]], self.window_rollouts, count=itemgetter(1))
            total = sum(count for _, count in window)
            mean = math.fsum(each * (count / total) for each, count in window)
        elif state["mean"] is not None:
            rate = _RATE[self.score] if self.rate is None else self.rate
            mean = (1 - rate) * state["mean"] + rate * value
        num_rollouts = state["num_rollouts"] + seen.num_scored
        return {"mean": mean, "num_rollouts": num_rollouts, "range": known_range, "window": window}

    def _find_scores(self, states: States) -> dict[str, float | None]:
        """The mean of each source, and its bonus. None: it was not scored yet."""
        total = sum(state["num_rollouts"] for state in states.values())
        return {
            name: None
            if state["mean"] is None
            else state["mean"] + self.exploration * math.sqrt(2 * math.log(total + 1) / (state["num_rollouts"] + 1))
            for name, state in states.items()
        }
