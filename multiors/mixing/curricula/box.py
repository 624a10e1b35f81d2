"""The guard of every adaptive curriculum: shares that stay within bounds around a reference.

A score can be wrong for a source: rewards that are noise look like something to learn, a source that nobody can solve
looks like the one that needs help. Inside the box such a mistake costs a part of the budget, and never all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from multiors.errors import ConfigError
from multiors.mixing.settings import check_number, is_number

__all__ = ["check_box", "fit_box"]

Values = npt.NDArray[np.float64]

_LEAST = 1e-12  # A source without any preference gets what all others cannot take.


def check_box(owner: str, lowest: object, highest: object) -> None:
    """Raise unless two settings are the bounds of a box: a factor of the reference share, and another.

    Raises:
        ConfigError: They are not.
    """
    check_number(owner, "lowest", lowest, low=0, high=1, above=True)
    check_number(owner, "highest", highest, low=1)


def fit_box(
    preferences: Mapping[str, float],
    reference: Mapping[str, float],
    *,
    lowest: float,
    highest: float | Mapping[str, float],
) -> dict[str, float]:
    """Shares in proportion to preferences, as far as the box allows.

    Each share is the preference times one factor, raised to `lowest` or cut to `highest` times the source's reference
    share. The factor is the one that makes them sum to 1. Where preferences are equal in proportion to the reference,
    the shares are the reference.

    Args:
        preferences: At least 0, for every source; only their proportions count. All 0: the reference.
        reference: Shares that sum to 1. A source with 0 gets 0.
        lowest: The smallest factor of the reference share, above 0 and up to 1.
        highest: The largest, at least 1, for all or for each source.

    Raises:
        ConfigError: A preference is missing, negative or not finite.
    """
    names = [name for name, share in reference.items() if share > 0]
    base = np.array([reference[name] for name in names])
    asked = np.array([_find_preference(preferences, name) for name in names])
    most = asked.max()
    if most == 0:
        return dict(reference)
    ratios = asked / most / base
    wanted = np.maximum(ratios / ratios.max(), _LEAST)
    tops = np.array([highest[name] for name in names] if isinstance(highest, Mapping) else [highest] * len(names))

    def clip(factor: float) -> Values:
        """The shares at a factor."""
        shares: Values = np.minimum(np.maximum(factor * wanted, lowest), tops) * base
        return shares

    fitted = clip(_find_factor(clip, np.unique([lowest / wanted, tops / wanted])))
    total = math.fsum(fitted)  # 1 but for rounding
    return {**dict.fromkeys(reference, 0.0), **dict(zip(names, (fitted / total).tolist(), strict=True))}


def _find_preference(preferences: Mapping[str, float], name: str) -> float:
    value = preferences.get(name, math.nan)
    if not is_number(value) or value < 0:
        raise ConfigError(
            f"source {name!r}: the preference {value!r} is no finite number from 0 upwards. Give fit_box() one per "
            f"source."
        )
    return float(value)


def _find_factor(clip: Callable[[float], Values], corners: Values) -> float:
    """The factor at which the shares sum to 1.

    Args:
        clip: The shares at a factor. Their sum grows with it, in straight lines between the corners.
        corners: The factors at which a share enters or leaves the box, ascending.
    """
    below, above = 0, len(corners) - 1
    while above - below > 1:
        middle = (below + above) // 2
        is_below = math.fsum(clip(corners[middle])) <= 1  # exact sums, so that the order of the sources does not matter
        below, above = (middle, above) if is_below else (below, middle)
    at_below, at_above = (math.fsum(clip(corners[each])) for each in (below, above))
    if at_above <= at_below:
        return float(corners[below])
    part = (1 - at_below) / (at_above - at_below)
    return float(corners[below] + min(max(part, 0.0), 1.0) * (corners[above] - corners[below]))
