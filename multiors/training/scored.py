"""Environments that score themselves, for `AsyncGRPOTrainer`.

Its rollout worker runs in a spawned process and gives reward functions no environments, so a rollout's reward must come
from `get_reward()`. With `GRPOTrainer` the same method beside the reward columns would count every reward twice, so the
environments of the two trainers are of different classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from multiors.ors.environment import Blueprint, RolloutEnvironment, make_environment_class
from multiors.rewards import SourceReward, compose, decide_outcome

__all__ = ["ScoredEnvironment", "ScoredEnvironmentFactory"]


class ScoredEnvironment(RolloutEnvironment):
    """A rollout's environment whose reward TRL asks it for."""

    _reward_rule: ClassVar[SourceReward]

    def get_reward(self) -> float | None:
        """The rollout's reward, None where it is unscored; its session ends here."""
        episode = self._episode()
        outcome = decide_outcome(
            episode.steps,
            finished=episode.finished,
            opened=episode.opened,
            truncated=False,
            reward=self._reward_rule,
        )
        self._release()

        return compose(outcome.value, [], self._reward_rule)


@dataclass(frozen=True, slots=True)
class ScoredEnvironmentFactory:
    """Makes the self-scoring environments of one source; pickles to the rollout worker."""

    blueprint: Blueprint
    reward: SourceReward

    def __call__(self) -> RolloutEnvironment:
        """A fresh environment, always of the same class in one process."""
        return make_environment_class(self.blueprint, ScoredEnvironment, _reward_rule=self.reward)()
