"""The statistics of benchmarks that compare training runs."""

from __future__ import annotations

import math

import pytest

statistics = pytest.importorskip("benchmarks._statistics", reason="the benchmarks are not part of the package")
stats = pytest.importorskip("scipy.stats")

_VALUES = [0.61, 0.72, 0.58, 0.80, 0.69]
_REFERENCE = [0.55, 0.70, 0.49, 0.78, 0.71]


def test_the_interval_of_a_mean_is_students() -> None:
    """Five runs have four degrees of freedom."""
    found = statistics.estimate_mean(_VALUES)
    low, high = stats.t.interval(0.95, 4, loc=0.68, scale=stats.sem(_VALUES))

    assert (5, pytest.approx(0.68)) == (found.num_runs, found.mean)
    assert (pytest.approx(low), pytest.approx(high)) == (found.low, found.high)


def test_runs_are_compared_in_pairs() -> None:
    """The difference, its interval and its p are those of the paired t test."""
    found = statistics.compare_paired(_VALUES, _REFERENCE)
    expected = stats.ttest_rel(_VALUES, _REFERENCE)
    interval = expected.confidence_interval(0.95)

    assert pytest.approx(expected.pvalue) == found.p
    assert (pytest.approx(interval.low), pytest.approx(interval.high)) == (found.low, found.high)
    assert pytest.approx(0.034) == found.mean


def test_a_difference_that_can_be_detected_is_found_four_times_in_five() -> None:
    """By the noncentral t distribution, whose power at `minimum_detectable` the quantiles approach."""
    found = statistics.compare_paired(_VALUES, _REFERENCE)
    error = (found.high - found.mean) / stats.t.ppf(0.975, 4)
    power = stats.nct.sf(stats.t.ppf(0.975, 4), 4, found.minimum_detectable / error)

    assert 0.8 == pytest.approx(power, abs=0.03)


def test_the_undefined_is_none() -> None:
    """Nothing has no mean, one run no interval, and equal differences no test."""
    nothing, one = statistics.estimate_mean([]), statistics.compare_paired([1.0], [0.5])
    equal = statistics.compare_paired([1.0, 2.0], [0.0, 1.0])

    assert [None] * 3 == [nothing.mean, nothing.low, nothing.high]
    assert (0.5, None, None, None) == (one.mean, one.low, one.p, one.minimum_detectable)
    assert (1.0, None) == (equal.mean, equal.p)


def test_holm_adjusts_the_smallest_most_and_keeps_the_order() -> None:
    """Each p is multiplied by how many are not smaller, and is never below one before it; None is no test."""
    found = statistics.adjust_holm({"a": 0.04, "b": 0.01, "c": None, "d": 0.03, "e": 0.9})

    assert {"a": 0.09, "b": 0.04, "c": None, "d": 0.09, "e": 0.9} == {
        name: p if p is None else round(p, 6) for name, p in found.items()
    }
    assert not any(math.isnan(p) for p in found.values() if p is not None)
