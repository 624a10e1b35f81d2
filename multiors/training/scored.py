"""Environments that score themselves, for `AsyncGRPOTrainer`.

Its rollout worker runs in a spawned process and gives reward functions no environments, so a rollout's reward must come
from `get_reward()`. With `GRPOTrainer` the same method beside the reward columns would count every reward twice, so the
environments of the two trainers are of different classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from multiors.errors import ConfigError
from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.rollouts.environment import RolloutEnvironment
from multiors.ors.rollouts.factory import make_environment_class
from multiors.ors.rollouts.showing import Shown
from multiors.rewards import SourceReward, compose
from multiors.training.lookahead import Lookahead
from multiors.training.readers import judge

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["AsyncSlots", "ScoredEnvironment", "ScoredEnvironmentFactory", "check_async", "make_async_slots"]


class ScoredEnvironment(RolloutEnvironment):
    """A rollout's environment whose reward TRL asks it for."""

    _reward_rule: ClassVar[SourceReward]
    _lookahead: ClassVar[Lookahead]

    def reset(self, *, slot: int | None = None, **columns: Any) -> Shown:
        """As of any rollout's environment; what the schedule plays next opens in the background meanwhile."""
        if slot is not None:
            self._lookahead.begin(slot)

        return super().reset(**columns)

    def get_reward(self) -> float | None:
        """The rollout's reward, None where it is unscored; its session ends here.

        Raises:
            SourceError: A tool showed an image to a policy that takes none.
        """
        try:
            outcome = judge(self, self._reward_rule, truncated=False)
        finally:
            self._release()

        return compose(outcome.value, [], self._reward_rule)


@dataclass(frozen=True, slots=True)
class ScoredEnvironmentFactory:
    """Makes the self-scoring environments of one source; pickles to the rollout worker."""

    blueprint: Blueprint
    reward: SourceReward
    lookahead: Lookahead

    def __call__(self) -> RolloutEnvironment:
        """A fresh environment, always of the same class in one process."""
        return make_environment_class(
            self.blueprint, ScoredEnvironment, _reward_rule=self.reward, _lookahead=self.lookahead
        )()


@dataclass(frozen=True, slots=True)
class AsyncSlots:
    """The slots for `AsyncGRPOTrainer`, whose rollouts are scored in another process."""

    train_dataset: Dataset
    environment_factory: dict[str, ScoredEnvironmentFactory]
    """Environments with `get_reward()`; picklable."""

    reward_funcs: list[Callable[..., Any]]
    """Empty: a column beside `get_reward()` would count every reward twice."""


def check_async(
    rewards: Mapping[str, SourceReward],
    *,
    is_union: bool,
    reacting: Sequence[str],
    has_limits: bool,
    has_slot_sources: bool,
) -> None:
    """Check that a mix has nothing that `AsyncGRPOTrainer` cannot do.

    Args:
        rewards: Of the sources, by name.
        is_union: Whether every prompt shows the tools of all sources.
        reacting: What changes the mix while it is trained, by name.
        has_limits: Whether failures can end the training.
        has_slot_sources: Whether there are sources that are known by their slots alone.

    Raises:
        ConfigError: It has something; everything is named.
    """
    problems = [
        (
            "reward weights, which it always normalizes away",
            len({reward.weight for reward in rewards.values()}) > 1,
        ),
        ("reward parts beside the rewards of tools", any(reward.parts for reward in rewards.values())),
        ("tools='union'", is_union),
        (", ".join(reacting), bool(reacting)),
        ("limits on failures (on_failure, max_failing_rollouts)", has_limits),
        ("specs other than ORSSource and OpenRewardSpec", has_slot_sources),
    ]
    found = [problem for problem, is_there in problems if is_there]

    if found:
        raise ConfigError(f"AsyncGRPOTrainer cannot train this mix: it has {'; '.join(found)}. Use GRPOTrainer.")


def make_async_slots(
    blueprints: Mapping[str, Blueprint], rewards: Mapping[str, SourceReward], dataset: Dataset, *, identity: str
) -> AsyncSlots:
    """The slots of a mix for `AsyncGRPOTrainer`.

    Args:
        blueprints: Of the sources, by name.
        rewards: How their rollouts become rewards, by name.
        dataset: The schedule as rows.
        identity: Of the mix.

    Raises:
        ConfigError: Environments grade the policy's last message.
    """
    graded = [name for name, blueprint in blueprints.items() if blueprint.terminal is not None]

    if graded:
        raise ConfigError(
            f"AsyncGRPOTrainer cannot train this mix: the sources {graded} grade the policy's last message, which "
            f"that trainer does not show to environments. Use GRPOTrainer."
        )

    index_by_source = {name: index for index, name in enumerate(blueprints)}
    lookahead = Lookahead(
        identity,
        blueprints=tuple(blueprints.values()),
        sources=[index_by_source[name] for name in dataset["environment"]],
        task_indices=list(dataset["task_index"]),
    )
    factories = {
        name: ScoredEnvironmentFactory(blueprint, rewards[name], lookahead) for name, blueprint in blueprints.items()
    }
    return AsyncSlots(train_dataset=dataset, environment_factory=factories, reward_funcs=[])
