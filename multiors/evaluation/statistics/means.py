"""Means with their errors: the arithmetic that every interval and every test of the room is made of.

A mean is over independent units: tasks, or training runs. What is inside one (episodes) was averaged before, because it
shares the unit's difficulty and luck. Knows no scores and no sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from scipy import special  # a small part of what `scipy.stats` loads

from multiors.evaluation.results import Difference, Estimate, Verdict

__all__ = [
    "CONFIDENCE",
    "SIGNIFICANCE",
    "Mean",
    "adjust_holm",
    "as_difference",
    "as_estimate",
    "combine_means",
    "find_mean",
    "find_t_quantile",
    "subtract",
    "with_adjusted_p",
]

CONFIDENCE = 0.95
_POWER = 0.8
SIGNIFICANCE = 0.05

# Relative to the values. What differs, or scatters, by less than this does so by the rounding of floats only.
_LEAST_DIFFERENCE = 1e-12
_LEAST_SCATTER = 1e-9


class Mean(NamedTuple):
    """A mean, or a weighted sum of means."""

    value: float | None
    """None: there is nothing to average."""

    error: float | None
    """Standard error. None: fewer than two units, or units that are all alike: nothing says how far they scatter."""

    df: float
    """Degrees of freedom of the error."""

    @property
    def half_width(self) -> float | None:
        """Of the 95 % interval of Student's t."""
        return None if self.error is None else find_t_quantile((1 + CONFIDENCE) / 2, self.df) * self.error

    def find_detectable(self, num_tests: int = 1) -> float | None:
        """The true mean that a test against 0 at 5 %, divided by the number of tests, would find in four of five
        repetitions.
        """
        if self.error is None:
            return None

        quantiles = (find_t_quantile(part, self.df) for part in (1 - SIGNIFICANCE / num_tests / 2, _POWER))
        return math.fsum(quantiles) * self.error

    @property
    def p(self) -> float | None:
        """Two-sided, of Student's t test against 0."""
        if self.value is None or self.error is None:
            return None

        return float(2 * special.stdtr(self.df, -abs(self.value) / self.error))


def find_t_quantile(part: float, df: float) -> float:
    """Of Student's t."""
    return float(special.stdtrit(df, part))


def find_mean(values: Sequence[float]) -> Mean:
    """The mean of independent values. The order of the values is of no consequence but for rounding."""
    num_values = len(values)

    if not num_values:
        return Mean(None, None, 0)

    mean = math.fsum(values) / num_values

    if num_values < 2:
        return Mean(mean, None, 0)

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (num_values - 1))
    is_scattered = deviation > _LEAST_SCATTER * max(map(abs, values))
    return Mean(mean, deviation / math.sqrt(num_values) if is_scattered else None, num_values - 1)


def subtract(value: float, other: float) -> float:
    """The difference of two means; 0 where only rounding makes one."""
    difference = value - other
    return difference if abs(difference) > _LEAST_DIFFERENCE * (abs(value) + abs(other)) else 0.0


def combine_means(weighted: Iterable[tuple[float, Mean]]) -> Mean:
    """The weighted sum of independent means, with Satterthwaite's degrees of freedom.

    With the weights 1 and -1 it is Welch's comparison of two samples. Means that weigh 0 are left out. The value is
    None where one of the others has none, and so is the error.
    """
    kept = [(weight, mean) for weight, mean in weighted if weight]
    values = [weight * mean.value for weight, mean in kept if mean.value is not None]
    variances = [((weight * mean.error) ** 2, mean.df) for weight, mean in kept if mean.error is not None]

    if not kept or len(values) < len(kept):
        return Mean(None, None, 0)

    if len(variances) < len(kept):
        return Mean(math.fsum(values), None, 0)

    variance = math.fsum(each for each, _ in variances)
    df = variance**2 / math.fsum(each**2 / df for each, df in variances)
    return Mean(math.fsum(values), math.sqrt(variance), df)


def as_estimate(mean: Mean, num_units: int, method: str, *, ends: tuple[float, float] | None = None) -> Estimate:
    """The mean with its interval of Student's t.

    Args:
        mean: What was averaged.
        num_units: How many.
        method: What the interval is called; there may be none.
        ends: Lowest and highest value there can be, at which the interval ends. None: not known.
    """
    half = mean.half_width

    if mean.value is None or half is None:
        return Estimate(mean.value, None, None, None, num_units)

    lowest, highest = ends or (-math.inf, math.inf)
    low, high = max(mean.value - half, lowest), min(mean.value + half, highest)
    return Estimate(mean.value, low, high, mean.error, num_units, method)


def as_difference(
    mean: Mean, num_pairs: int, *, p: float | None, p_adjusted: float | None, limit: float = math.inf
) -> Difference:
    """The mean of candidate less reference with its interval of Student's t, and the verdict.

    Args:
        mean: What was averaged.
        num_pairs: How many.
        p: Of the test.
        p_adjusted: The same, as if it were the only test; it decides.
        limit: No difference is larger, so that the interval ends there.
    """
    half, value = mean.half_width, mean.value
    low = None if half is None or value is None else max(value - half, -limit)
    high = None if half is None or value is None else min(value + half, limit)
    found = Difference(value, low, high, mean.error, p, None, mean.find_detectable(), num_pairs, "undecided")
    return with_adjusted_p(found, p_adjusted)


def with_adjusted_p(difference: Difference, p_adjusted: float | None) -> Difference:
    """The same difference with its adjusted p, and the verdict: one that the test says and no interval contradicts."""
    verdict: Verdict = "undecided"
    has_zero = difference.low is not None and difference.high is not None and difference.low <= 0 <= difference.high

    if difference.value and p_adjusted is not None and p_adjusted < SIGNIFICANCE and not has_zero:
        verdict = "better" if difference.value > 0 else "worse"

    return replace(difference, p_adjusted=p_adjusted, verdict=verdict)


def adjust_holm(p_by_name: Mapping[str, float | None]) -> dict[str, float | None]:
    """Holm's adjustment: the p values as if each were the only one. None is no test, and stays None."""
    tested = sorted((p, name) for name, p in p_by_name.items() if p is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_by_name)
    highest = 0.0

    for rank, (p, name) in enumerate(tested):
        highest = max(highest, min(1.0, p * (len(tested) - rank)))
        adjusted[name] = highest

    return adjusted
