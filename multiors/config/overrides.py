"""Overrides of a run file, `KEY.PATH=VALUE`: a place in it, and the YAML of a value that stands there instead.

Pure: how a text is read, and what values become. Whether they make a run file is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from multiors.config.reading import parse_yaml
from multiors.errors import ConfigError

__all__ = ["Override", "apply_overrides", "parse_override"]


@dataclass(frozen=True, slots=True)
class Override:
    """A value that stands in a file's place."""

    path: tuple[str, ...]
    """Keys, and positions of lists, from the top; never empty."""

    value: Any

    def __str__(self) -> str:
        return f"--set {'.'.join(self.path)}"  # without the value, which may be a secret


def parse_override(text: str) -> Override:
    """Read an override. The value is YAML: `3`, `1e-5`, `true`, `[a, b]`, `{a: 1}`, or text.

    Raises:
        ConfigError: It has no value, or one that is no YAML; the value is not shown.
    """
    place, sign, value = text.partition("=")
    path = tuple(place.split("."))

    if not sign:
        raise ConfigError(f"{place!r} has no value. Write KEY.PATH=VALUE, as in seed=3 or sources.NAME.weight=2.")
    if not all(step and step.isprintable() and step == step.strip() for step in path):
        raise ConfigError(f"{place!r} is no place of a run file. Write keys with dots, as in sources.NAME.weight=2.")

    try:
        return Override(path, parse_yaml(value).values)
    except ValueError:
        raise ConfigError(f"the value of {place!r} is no YAML. Put quotes around text that has signs.") from None


def apply_overrides(values: Any, overrides: Sequence[Override]) -> Any:
    """The values, with overrides in their places, the last one last; what was given is left as it is.

    Keys that are missing are added. A position must be there.

    Raises:
        ConfigError: The place of an override is inside something that has no keys.
    """
    for override in overrides:
        values = _put(values, override, 0)

    return values


def _put(values: Any, override: Override, depth: int) -> Any:
    """The values with what an override has for them, from a depth of its path on."""
    if depth == len(override.path):
        return override.value

    step = override.path[depth]

    if values is None:
        values = {}

    if isinstance(values, dict):
        # The keys of YAML may be numbers.
        key = next((key for key in values if str(key) == step), step)
        return {**values, key: _put(values.get(key), override, depth + 1)}

    where = ".".join(override.path[:depth]) or "the file"

    if not isinstance(values, list):
        raise ConfigError(f"{override}: {where!r} is one value and has no {step!r} in it. Set {where!r} as a whole.")
    if not (step.isdecimal() and int(step) < len(values)):
        raise ConfigError(
            f"{override}: {where!r} is a list of {len(values)}, and {step!r} is no position in it. Positions count "
            f"from 0; to add to it, set it as a whole."
        )

    position = int(step)
    return [*values[:position], _put(values[position], override, depth + 1), *values[position + 1 :]]
