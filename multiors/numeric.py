"""What counts as a reward: the one place that decides whether a value is a finite number."""

from __future__ import annotations

import math

__all__ = ["parse_step_reward", "to_finite"]


def to_finite(value: object) -> float | None:
    """The value as a float. True is 1.0 and False 0.0. None: it is no number, not finite, or too large for a float.

    Texts are never numbers, whatever they spell.
    """
    if not isinstance(value, (bool, int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def parse_step_reward(value: object) -> tuple[float | None, bool]:
    """Read the reward that a server sent with a tool's answer.

    JSON's true and false are taken as 1.0 and 0.0, because servers written in Python send a comparison's result.

    Args:
        value: The decoded JSON value.

    Returns:
        The reward, None where there is none, and whether the value was bad: neither null nor a finite number.
    """
    number = to_finite(value)
    return number, number is None and value is not None
