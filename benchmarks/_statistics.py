"""How training runs of several arms are compared: one number a run, matched by seed.

The unit is the run. Tasks and episodes within one share its seed, its warm start and its luck, so they are averaged
first, and an interval says what another seed may bring. Undefined is None: the interval of one run, a test of equal
differences.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy import special  # a small part of what `scipy.stats` loads

__all__ = ["Difference", "Estimate", "adjust_holm", "compare_paired", "estimate_mean"]

_POWER = 0.8
_SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over runs."""

    num_runs: int
    mean: float | None
    """None: there are no runs."""

    low: float | None
    """Lower end of the 95 % interval of Student's t. None: fewer than two runs."""

    high: float | None

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values; None stays None."""
        return _round(asdict(self))


@dataclass(frozen=True, slots=True)
class Difference:
    """An arm less a reference, over matched runs."""

    num_pairs: int
    mean: float | None
    low: float | None
    """Lower end of the 95 % interval of the paired t. None: fewer than two pairs."""

    high: float | None
    p: float | None
    """Two-sided. None: fewer than two pairs, or all differences are equal."""

    minimum_detectable: float | None
    """The true difference that a test at 5 %, before any adjustment, would find in four of five repetitions, if runs
    scatter as these did."""

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values; None stays None."""
        return _round(asdict(self))


def estimate_mean(values: Sequence[float]) -> Estimate:
    """The mean of runs, with its interval."""
    mean = statistics.fmean(values) if values else None
    half_width = _find_half_width(values)
    if mean is None or half_width is None:
        return Estimate(len(values), mean, None, None)
    return Estimate(len(values), mean, mean - half_width, mean + half_width)


def compare_paired(values: Sequence[float], reference: Sequence[float]) -> Difference:
    """The mean of value less reference, run by run.

    Raises:
        ValueError: The two are not of one length.
    """
    differences = [value - other for value, other in zip(values, reference, strict=True)]
    estimate = estimate_mean(differences)
    if estimate.mean is None or estimate.low is None:
        return Difference(len(differences), estimate.mean, None, None, None, None)
    num_pairs = len(differences)
    error = statistics.stdev(differences) / math.sqrt(num_pairs)
    p = float(2 * special.stdtr(num_pairs - 1, -abs(estimate.mean) / error)) if error > 0 else None
    quantiles = sum(_find_quantile(part, num_pairs) for part in (1 - _SIGNIFICANCE / 2, _POWER))
    return Difference(num_pairs, estimate.mean, estimate.low, estimate.high, p, quantiles * error)


def adjust_holm(p_by_name: Mapping[str, float | None]) -> dict[str, float | None]:
    """Holm's adjustment: the p values as if each were the only one. None is no test, and stays None."""
    tested = sorted((p, name) for name, p in p_by_name.items() if p is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_by_name)
    highest = 0.0
    for rank, (p, name) in enumerate(tested):
        highest = max(highest, min(1.0, p * (len(tested) - rank)))
        adjusted[name] = highest
    return adjusted


def _find_half_width(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    quantile = _find_quantile(1 - _SIGNIFICANCE / 2, len(values))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def _find_quantile(part: float, num_values: int) -> float:
    """Of Student's t."""
    return float(special.stdtrit(num_values - 1, part))


def _round(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in values.items()}
