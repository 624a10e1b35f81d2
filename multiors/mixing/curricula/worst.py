"""The weighting of MT-GRPO: more of what is low and is not improving (arXiv:2602.05547, improvement-aware weights).

Each source has a weight, moved by AdamW along z (s - mean s), where z is the softmax of the weights, and s is the
improvement of the mean reward since the batch before plus `worst_case` times the mean reward. The paper's sampler,
which draws until enough groups of a source have a gradient, is no part of it: a batch is planned once. So a source that
nobody can solve gets the most there is, and the box is what bounds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multiors.errors import ConfigError
from multiors.mixing.curricula.box import check_box, fit_box
from multiors.mixing.curricula.curriculum import Curriculum, MixSource, States
from multiors.mixing.curricula.observing import SourceObservation
from multiors.mixing.settings import check_number

__all__ = ["WorstSource"]

_WEIGHT_DECAY = 1e-5
_MAX_IMPROVEMENT = 0.1
_BETAS = (0.9, 0.999)
_EPSILON = 1e-8
_SPREAD_RATE = 0.1
_ENOUGH_SPREAD = 0.05  # From this part of groups with a gradient on a source may have its whole upper bound.
_LOWEST_EXPONENT = -300.0  # No part is 0, so that parts can be divided by.


@dataclass(frozen=True)
class WorstSource(Curriculum):
    """Shares that rise where the mean reward is low and does not rise by itself.

    Rewards of different sources are compared, so each source must declare its range.

    Example:
        >>> WorstSource(worst_case=0.25).highest
        1.5
    """

    worst_case: float = 0.2
    """How much a low mean reward counts beside a lack of improvement (the paper's lambda)."""

    learning_rate: float = 0.025
    """Step of the weights in each batch."""

    lowest: float = 0.25
    """A source's share never falls below so many times its share without a curriculum."""

    highest: float = 1.5
    """A source's share never rises above so many times its share without a curriculum."""

    def __post_init__(self) -> None:
        check_number("WorstSource", "worst_case", self.worst_case, low=0)
        check_number("WorstSource", "learning_rate", self.learning_rate, low=0, above=True)
        check_box("WorstSource", self.lowest, self.highest)

    def begin(self, sources: Sequence[MixSource]) -> States:
        """All weights are 0.

        Raises:
            ConfigError: A source declares no range.
        """
        for source in sources:
            if source.reward_range is None:
                raise ConfigError(
                    f"source {source.name!r}: WorstSource compares the rewards of sources, and this one does not say "
                    f"how low and how high they can be. Declare it, reward=SourceReward(range=(0, 1)) for example, or "
                    f"use LearningProgress."
                )
        fresh = {"weight": 0.0, "momentum": 0.0, "square": 0.0, "steps": 0, "reward": None, "spread": None}
        return {source.name: dict(fresh) for source in sources}

    def update(self, states: States, seen: Mapping[str, SourceObservation]) -> States:
        """Move the weights of the sources that were scored, in this batch and in one before."""
        rewards = {name: reward for name, each in seen.items() if (reward := each.relative_reward) is not None}
        parts = _softmax({name: state["weight"] for name, state in states.items()})
        scores = {
            name: self.worst_case * reward + max(-_MAX_IMPROVEMENT, min(reward - before, _MAX_IMPROVEMENT))
            for name, reward in rewards.items()
            if (before := states[name]["reward"]) is not None
        }
        total = math.fsum(parts[name] for name in scores)
        mean = math.fsum(parts[name] / total * score for name, score in scores.items())
        updated = {
            name: {**states[name], "reward": reward, "spread": _follow_spread(states[name]["spread"], seen[name])}
            for name, reward in rewards.items()
        }
        for name, score in scores.items():
            updated[name] = self._step(updated[name], parts[name] * (score - mean))
        return {**states, **updated}

    def shares(
        self, states: States, reference: Mapping[str, float], *, batch: int, num_batches: int | None
    ) -> Mapping[str, float]:
        """In proportion to reference share times the weight's exponential, inside the box."""
        parts = _softmax({name: states[name]["weight"] for name in reference})
        preferences = {name: share * parts[name] for name, share in reference.items()}
        highest = {name: self._find_top(states[name]["spread"]) for name in reference}
        return fit_box(preferences, reference, lowest=self.lowest, highest=highest)

    def measure(self, states: States) -> dict[str, dict[str, float]]:
        """The weight of each source."""
        return {name: {"score": state["weight"]} for name, state in states.items()}

    def _find_top(self, spread: float | None) -> float:
        """The upper bound of a source: its reference share where no group has a gradient."""
        return 1 + (self.highest - 1) * (1.0 if spread is None else min(spread / _ENOUGH_SPREAD, 1.0))

    def _step(self, state: Any, gradient: float) -> Any:
        """One step of AdamW, downhill."""
        steps = state["steps"] + 1
        momentum = _BETAS[0] * state["momentum"] + (1 - _BETAS[0]) * gradient
        square = _BETAS[1] * state["square"] + (1 - _BETAS[1]) * gradient * gradient
        direction = momentum / (1 - _BETAS[0] ** steps)
        size = math.sqrt(square / (1 - _BETAS[1] ** steps)) + _EPSILON
        weight = state["weight"] - self.learning_rate * (direction / size + _WEIGHT_DECAY * state["weight"])
        return {**state, "weight": weight, "momentum": momentum, "square": square, "steps": steps}


def _follow_spread(known: float | None, seen: SourceObservation) -> float | None:
    """A running mean of the part of groups whose rewards differ. None: no group could tell."""
    fraction = seen.spread_fraction
    if fraction is None or known is None:
        return known if fraction is None else fraction
    return (1 - _SPREAD_RATE) * known + _SPREAD_RATE * fraction


def _softmax(values: Mapping[str, float]) -> dict[str, float]:
    largest = max(values.values())
    powers = {name: math.exp(max(value - largest, _LOWEST_EXPONENT)) for name, value in values.items()}
    total = math.fsum(powers.values())
    return {name: power / total for name, power in powers.items()}
