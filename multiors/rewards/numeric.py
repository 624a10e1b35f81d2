"""What counts as a reward: the one place that decides whether a value is a finite number."""

from __future__ import annotations

import math

__all__ = ["to_finite"]


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
