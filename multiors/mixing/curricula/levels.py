"""Which level of difficulty each task of a source is on, from what is known of the task before it was drawn.

From a field of its specification, or from what others' rollouts of it earned. A task of which nothing is known has no
level; it is never taken for an easy or a hard one. Nothing is drawn here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from multiors.errors import ConfigError
from multiors.mixing.curricula.tasks import SourceTasks
from multiors.mixing.settings import is_number

__all__ = ["Level", "find_levels", "read_field"]

Level = int
"""0 is the easiest."""


def read_field(tasks: SourceTasks, field: str) -> list[Any]:
    """The value of a field in each task's specification. None: the task has no such field.

    Args:
        tasks: Of the source.
        field: Its name; dots lead into objects, as in "config.level".

    Raises:
        ConfigError: Specifications were not fetched, or no task has the field.
    """
    if tasks.specs is None:
        raise ConfigError(
            f"source {tasks.name!r}: levels are read from the field {field!r} of its tasks, and their specifications "
            f"were not fetched. Leave include_metadata at True."
        )
    values = [_find(json.loads(spec), field.split(".")) for spec in tasks.specs]
    if all(value is None for value in values):
        keys = sorted({str(key) for spec in tasks.specs[:100] for key in _keys(json.loads(spec))})
        raise ConfigError(f"source {tasks.name!r}: no task has the field {field!r}; fields of its tasks: {keys}.")
    return values


def find_levels(
    name: str,
    values: Sequence[Any],
    *,
    order: Sequence[Any] | None = None,
    num_levels: int | None = None,
    highest_first: bool = False,
) -> list[Level | None]:
    """The level of each task.

    Args:
        name: Of the source, for errors.
        values: One per task. None: nothing is known of it.
        order: The values there are, from the easiest to the hardest. None: they are numbers.
        num_levels: Numbers are put into so many levels of about equally many tasks; equal ones stay together. None:
            each number is a level.
        highest_first: Whether the highest number is the easiest.

    Returns:
        Levels from 0 without gaps; None where the value is.

    Raises:
        ConfigError: A value is not in the order, or is no number.
    """
    known = [value for value in values if value is not None]
    if order is not None:
        unknown = [value for value in known if value not in order]
        if unknown:
            raise ConfigError(
                f"source {name!r}: a task's level is {unknown[0]!r}, which is not in order={list(order)!r}. Add it."
            )
        ordered = list(order)
        return _close_gaps([None if value is None else ordered.index(value) for value in values])
    strange = [value for value in known if not is_number(value)]
    if strange:
        raise ConfigError(
            f"source {name!r}: a task's level is {strange[0]!r}, which is no number. List the levels from the "
            f"easiest to the hardest: order=[...]."
        )
    sign = -1 if highest_first else 1
    numbers = [None if value is None else sign * value for value in values]
    return _close_gaps(numbers if num_levels is None else _bin(numbers, num_levels))


def _bin(numbers: Sequence[float | None], num_levels: int) -> list[float | None]:
    ordered = sorted(number for number in numbers if number is not None)
    bins: dict[float, int] = {}
    rank = 0
    for number, equal in groupby(ordered):
        count = len(list(equal))
        bins[number] = (2 * rank + count) * num_levels // (2 * len(ordered))  # by the middle of those that are equal
        rank += count
    return [None if number is None else bins[number] for number in numbers]


def _close_gaps(ranks: Sequence[float | None]) -> list[Level | None]:
    level_by_rank = {rank: level for level, rank in enumerate(sorted({rank for rank in ranks if rank is not None}))}
    return [None if rank is None else level_by_rank[rank] for rank in ranks]


def _find(spec: Any, path: Sequence[str]) -> Any:
    for key in path:
        spec = spec.get(key) if isinstance(spec, dict) else None
    return spec


def _keys(spec: Any) -> list[Any]:
    return list(spec) if isinstance(spec, dict) else []
