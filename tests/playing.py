"""Rollouts played by hand: real environments and real reward columns, without a trainer around them.

Quicker than a training run, and the only way to say exactly what a policy does. `scripted.py` is the other one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from multiors import MultiOpenRewardSpec
from multiors.errors import SessionError
from multiors.ors.rollouts.blueprint import Blueprint

__all__ = ["Scored", "factories", "keep_alive", "play", "score"]

Call = tuple[str, Mapping[str, Any]]


def factories(spec: MultiOpenRewardSpec) -> dict[str, Callable[[], Any]]:
    """The factories of a spec by source; the spec has separate tools."""
    by_source = spec.environment_factory
    assert isinstance(by_source, dict)
    return by_source


def keep_alive(blueprint: Blueprint, keepalive_s: float | None) -> Blueprint:
    """The blueprint with sessions that are pinged after so much silence."""
    timeouts = replace(blueprint.options.timeouts, keepalive_s=keepalive_s)
    return replace(blueprint, options=replace(blueprint.options, timeouts=timeouts))


def play(factory: Callable[[], Any], *calls: Call, task_index: int = 0, **columns: Any) -> Any:
    """A fresh environment after `reset` and the given calls of its tools; a policy does not see exceptions either."""
    environment = factory()
    environment.reset(task_index=task_index, **columns)

    for tool, arguments in calls:
        with suppress(SessionError):
            getattr(environment, tool)(**arguments)

    return environment


@dataclass
class Scored:
    """What reward columns said of a batch."""

    rewards: dict[str, list[float | None]] = field(default_factory=dict)
    """By column, in the order of the rollouts."""

    metrics: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """What was logged, value after value."""

    extra: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """The columns for the table of completions, put together as TRL does."""


def score(columns: Sequence[Any], rollouts: Sequence[tuple[str, Any]], **arguments: Any) -> Scored:
    """Call the columns one after another, as the trainer does, with (source, environment) rollouts."""
    scored = Scored()

    for column in columns:
        scored.rewards[column.__name__] = column(
            environments=[environment for _, environment in rollouts],
            environment=[name for name, _ in rollouts],
            log_metric=lambda name, value: scored.metrics[name].append(value),
            log_extra=lambda name, values: scored.extra[name].extend(values),
            **arguments,
        )

    return scored
