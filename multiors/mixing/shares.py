"""From the weights a user gives to the share of slots each source gets.

Rule 8 of the semantics: weights are given for every source or for none; with none, shares are equal. Sources are known
by name here, because the errors are read by who wrote the names. Nothing is drawn here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from multiors.errors import ConfigError
from multiors.mixing.quota import SHARE_UNITS
from multiors.mixing.settings import is_number

__all__ = ["Weights", "resolve_shares"]

Weights = Literal["tasks"] | Mapping[str, float]
"""Weights for the whole mix: in proportion to task counts, or by source name."""


def resolve_shares(
    weights_by_source: Mapping[str, float | None],
    num_tasks_by_source: Mapping[str, int],
    *,
    weights: Weights | None = None,
) -> dict[str, float]:
    """Decide each source's share of the slots.

    Args:
        weights_by_source: The weight each source was given on its own. None: it was given none.
        num_tasks_by_source: Tasks of each source, for the same names.
        weights: Weights for the whole mix, instead of weights on the sources. "tasks": the task counts.

    Returns:
        One share per source, in the order of `weights_by_source`; they sum to 1.

    Raises:
        ConfigError: There is no source, a source has no tasks, weights are given for some sources only, in both
            places, for an unknown source, or are not finite numbers above 0.
    """
    _check_tasks(weights_by_source, num_tasks_by_source)
    given = {name: weight for name, weight in weights_by_source.items() if weight is not None}
    if weights is not None and given:
        raise ConfigError(
            f"source {next(iter(given))!r}: weight={next(iter(given.values()))!r} is given together with "
            f"weights={weights!r} for the whole mix; one of the two decides. Remove either."
        )
    if isinstance(weights, str) and weights != "tasks":
        raise ConfigError(f"weights={weights!r} is not known. Pass 'tasks', one number per source name, or nothing.")
    if weights == "tasks":
        chosen: Mapping[str, float] = num_tasks_by_source
    elif weights is not None:
        chosen = weights
    else:
        chosen = given or dict.fromkeys(weights_by_source, 1.0)
    return _normalize({name: _find_weight(name, chosen) for name in weights_by_source}, chosen)


def _check_tasks(sources: Mapping[str, object], num_tasks_by_source: Mapping[str, int]) -> None:
    if not sources:
        raise ConfigError("the mix has no source. Pass at least one.")
    if sources.keys() != num_tasks_by_source.keys():
        raise ConfigError(
            f"task counts are known for {list(num_tasks_by_source)}, the sources are {list(sources)}. "
            f"Pass one count per source."
        )
    for name, num_tasks in num_tasks_by_source.items():
        if num_tasks < 1:
            raise ConfigError(
                f"source {name!r}: it has {num_tasks!r} tasks; at least one is needed. Remove the source."
            )


def _find_weight(name: str, weights: Mapping[str, object]) -> float:
    if name not in weights:
        raise ConfigError(
            f"source {name!r}: it has no weight, but {list(weights)} have; weights are given for every source or for "
            f"none. Give it one too, as with weights={{...}} for all of them, or remove the others."
        )
    weight = weights[name]
    if not (is_number(weight) and float(weight) > 0):
        raise ConfigError(
            f"source {name!r}: weight {weight!r} is not a finite number above 0. To leave the source out, "
            f"remove it from the mix."
        )
    return float(weight)


def _normalize(weight_by_source: dict[str, float], given: Mapping[str, float]) -> dict[str, float]:
    unknown = [name for name in given if name not in weight_by_source]
    if unknown:
        raise ConfigError(
            f"source {unknown[0]!r}: it has a weight but is not in the mix; sources: {list(weight_by_source)}. "
            f"Add the source, or remove its weight."
        )
    largest = max(weight_by_source.values())  # Divided by first, so that no sum overflows.
    total = math.fsum(weight / largest for weight in weight_by_source.values())
    share_by_source = {name: weight / largest / total for name, weight in weight_by_source.items()}
    for name, share in share_by_source.items():
        if share < 1 / SHARE_UNITS:
            raise ConfigError(
                f"source {name!r}: weight {weight_by_source[name]!r} is less than one slot in 2**40 of the mix. "
                f"Raise the weight, or remove the source."
            )
    return share_by_source
