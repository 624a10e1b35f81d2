"""From a run file to a spec: imports what the file names, and takes secrets from the environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from multiors.config.curricula import as_curricula, as_curriculum
from multiors.config.models import RewardConfig, RunConfig, SourceConfig
from multiors.config.secrets import resolve_secret
from multiors.errors import ConfigError
from multiors.importing import import_callable
from multiors.mixing import CircuitBreaker
from multiors.ors import ORSSource
from multiors.rewards import GroupScore, RewardPart, SourceReward
from multiors.rollout_log import RolloutLog
from multiors.spec import MultiOpenRewardSpec

__all__ = ["build_spec"]


# What the spec takes as it stands in the file.
_OF_THE_MIX = {"weights", "seed", "num_slots", "stopping_strategy", "tools", "max_sessions", "max_concurrent_calls"}


def build_spec(config: RunConfig, **options: Any) -> MultiOpenRewardSpec:
    """The spec that a run file describes; `options` are further arguments of the spec.

    Raises:
        ConfigError: A reward function cannot be imported, a key's variable is not set, or the mix contradicts itself.
    """
    sources: dict[str, ORSSource] = {}
    mistakes = []

    for name, source in config.sources.items():
        try:
            sources[name] = _build_source(name, source)
        except ConfigError as error:
            located = str(error).startswith(f"sources.{name}.")
            mistakes.append(str(error) if located else f"sources.{name}: {error}")

    if mistakes:
        raise ConfigError("\n".join(mistakes))
    curricula = as_curricula(config.curriculum, partial(_import_named, "curriculum"))
    breaker = None if config.circuit_breaker is None else CircuitBreaker(**config.circuit_breaker.model_dump())
    log = None if config.rollout_log is None else RolloutLog(**config.rollout_log.model_dump())

    return MultiOpenRewardSpec(
        sources,
        **config.model_dump(include=_OF_THE_MIX),
        **{"rollout_log": log, "circuit_breaker": breaker, "curriculum": curricula, **options},
    )


def _build_source(name: str, config: SourceConfig) -> ORSSource:
    place = f"sources.{name}"
    find = partial(_import_named, f"{place}.task_curriculum.name")

    return ORSSource(
        **config.model_dump(exclude={"reward", "api_key", "secrets", "task_curriculum"}),
        task_curriculum=None if config.task_curriculum is None else as_curriculum(config.task_curriculum, find),
        api_key=None if config.api_key is None else resolve_secret(config.api_key, f"{place}.api_key"),
        secrets={each: _read_secret(given, f"{place}.secrets.{each}") for each, given in config.secrets.items()}
        or None,
        reward=_build_reward(name, config.reward),
    )


def _read_secret(given: Any, key: str) -> Any:
    """As `ORSSource` takes it: None, a value, or a value and the hosts that it may go to."""
    if isinstance(given, list):
        variable, hosts = given
        return resolve_secret(variable, key), hosts

    return None if given is None else resolve_secret(given, key)


def _build_reward(source: str, config: RewardConfig) -> SourceReward:
    parts: list[RewardPart | GroupScore] = [
        RewardPart(
            _import_named(f"sources.{source}.reward.parts.{position}.function", part.function),
            weight=part.weight,
            name=part.name or "",
            scores_alone=part.scores_alone,
        )
        for position, part in enumerate(config.parts)
    ]

    if config.group_score is not None:
        parts.append(GroupScore(**config.group_score.model_dump()))

    return SourceReward(**config.model_dump(exclude={"parts", "group_score"}), parts=tuple(parts))


def _import_named(location: str, name: str) -> Callable[..., Any]:
    return import_callable(name, who=f"{location}: {name!r}", remedy="Write 'module:name'.")
