"""What the settings of mixes and curricula have in common: which numbers are allowed, what a wrong one is told, and how
a checkpoint holds them.

Knows no setting.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, is_dataclass
from numbers import Real
from typing import Any, TypeGuard

from multiors.errors import ConfigError

__all__ = ["check_count", "check_number", "is_number", "read_settings", "require_range"]


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number; truth values are none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def check_number(
    owner: str, name: str, value: object, *, low: float, high: float = math.inf, above: bool = False
) -> None:
    """Raise unless a setting is a number from `low` to `high`.

    Args:
        owner: Whose setting it is.
        name: The setting.
        value: What it was given.
        low: The smallest that is allowed.
        high: The largest that is allowed.
        above: Whether `low` itself is not allowed.

    Raises:
        ConfigError: It is not one.
    """
    if is_number(value) and low <= value <= high and not (above and value == low):
        return
    bottom = f"above {low:g}" if above else f"from {low:g}"
    top = " upwards" if high == math.inf and not above else "" if high == math.inf else f" to {high:g}"
    raise ConfigError(f"{owner}: {name}={value!r} is no number {bottom}{top}.")


def check_count(owner: str, name: str, value: object, *, low: int = 1) -> None:
    """Raise unless a setting is a whole number from `low` upwards.

    Raises:
        ConfigError: It is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"{owner}: {name}={value!r} is no whole number from {low} upwards.")


def require_range(owner: str, source: str, reward_range: tuple[float, float] | None) -> tuple[float, float]:
    """The range of a source's rewards, of which the thresholds of a curriculum are fractions.

    Raises:
        ConfigError: It declares none.
    """
    if reward_range is None:
        raise ConfigError(
            f"source {source!r}: the thresholds of {owner} are fractions of the range of its rewards, and it does not "
            f"say how low and how high they can be. Declare it: reward=SourceReward(range=(0, 1)) for example."
        )
    return reward_range


def read_settings(settings: object) -> Any:
    """A curriculum's settings as JSON-ready values. None: it has none, or others."""
    if not is_dataclass(settings) or isinstance(settings, type):
        return None
    try:
        return json.loads(json.dumps(asdict(settings)))
    except (TypeError, ValueError):
        return None
