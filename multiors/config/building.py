"""From a run file to a spec: imports what the file names, and takes secrets from the environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from multiors.config.curricula import as_curricula, as_curriculum
from multiors.config.models import OtherSourceConfig, RewardConfig, RunConfig, SourceConfig
from multiors.config.secrets import resolve_secret
from multiors.errors import ConfigError, SourceError
from multiors.importing import import_callable, import_named
from multiors.mixing import CircuitBreaker
from multiors.ors import ORSSource
from multiors.rewards import GroupScore, RewardPart, SourceReward
from multiors.rollout_log import RolloutLog
from multiors.spec import MultiOpenRewardSpec
from multiors.training.others import TRLSource

__all__ = ["build_spec"]


# What the spec takes as it stands in the file.
_OF_THE_MIX = {"weights", "seed", "num_slots", "stopping_strategy", "tools", "max_sessions", "max_concurrent_calls"}


def build_spec(config: RunConfig, **options: Any) -> MultiOpenRewardSpec:
    """The spec that a run file describes; `options` are further arguments of the spec.

    Raises:
        ConfigError: Something that the file names cannot be imported or used, a key's variable is not set, or the mix
            contradicts itself.
    """
    sources: dict[str, ORSSource | TRLSource] = {}
    mistakes = []

    for name, source in config.sources.items():
        try:
            sources[name] = (
                _build_source(name, source) if isinstance(source, SourceConfig) else _build_other(name, source)
            )
        except (ConfigError, SourceError) as error:
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


def _build_other(name: str, config: OtherSourceConfig) -> TRLSource:
    place = f"sources.{name}"
    find = partial(_import_named, f"{place}.task_curriculum.name")

    return TRLSource(
        _make_spec(f"{place}.spec: {config.spec!r}", config.spec),
        weight=config.weight,
        task_curriculum=None if config.task_curriculum is None else as_curriculum(config.task_curriculum, find),
        reward=_build_reward(name, config.reward),
        on_failure=config.on_failure,
        max_failing_rollouts=config.max_failing_rollouts,
    )


def _make_spec(who: str, name: str) -> Any:
    """The object with slots that a run file names, or that what it names makes.

    Raises:
        ConfigError: There is none, or it belongs under another key.
    """
    found = import_named(name, who=who, remedy="Write 'module:name'.")

    if callable(found):
        try:
            found = found()
        except Exception as error:  # code of the user's, which may raise anything
            raise ConfigError(f"{who} makes no spec: {type(error).__name__}: {error}. Mend it.") from error

    if isinstance(found, ORSSource | TRLSource) or type(found).__name__ == "OpenRewardSpec":
        raise ConfigError(
            f"{who} is a {type(found).__name__}, whose settings stand in a run file: an ORS environment under target, "
            f"others beside spec. Name an object that has nothing but TRL's slots, such as a SimpleNamespace of them."
        )

    return found


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
