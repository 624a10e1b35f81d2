"""The arithmetic of means: scipy's functions, and published numbers, are the references."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from multiors.evaluation.statistics.means import (
    Mean,
    adjust_holm,
    as_difference,
    as_estimate,
    combine_means,
    find_mean,
    subtract,
)
from tests.evaluation_scores import close

_VALUES = [0.61, 0.72, 0.58, 0.80, 0.69]
_REFERENCE = [0.55, 0.70, 0.49, 0.78, 0.71, 0.66]


def test_the_interval_of_a_mean_is_students() -> None:
    """Five values have four degrees of freedom."""
    found = as_estimate(find_mean(_VALUES), 5, "Student's t")
    low, high = stats.t.interval(0.95, 4, loc=0.68, scale=stats.sem(_VALUES))

    assert (close(0.68), close(low), close(high)) == (found.value, found.low, found.high)
    assert (close(stats.sem(_VALUES)), 5, "Student's t") == (found.error, found.num_units, found.method)


def test_the_difference_of_two_means_is_welchs() -> None:
    """The weights 1 and -1 give the t test of samples that scatter unequally."""
    found = combine_means([(1.0, find_mean(_VALUES)), (-1.0, find_mean(_REFERENCE))])
    expected = stats.ttest_ind(_VALUES, _REFERENCE, equal_var=False)
    interval = expected.confidence_interval(0.95)
    difference = as_difference(found, 5, p=found.p, p_adjusted=None)

    assert (close(expected.df), close(expected.pvalue)) == (found.df, found.p)
    assert (close(interval.low), close(interval.high)) == (difference.low, difference.high)


def test_means_that_weigh_nothing_are_left_out() -> None:
    """Not even a mean of nothing makes the sum undefined, if it weighs 0."""
    known = find_mean(_VALUES)

    assert known.value == combine_means([(1.0, known), (0.0, find_mean([]))]).value


def test_one_mean_alone_keeps_its_error_and_degrees_of_freedom() -> None:
    """Satterthwaite's degrees of freedom of one mean are its own."""
    assert find_mean(_VALUES) == close(combine_means([(1.0, find_mean(_VALUES))]))


def test_the_undefined_is_none() -> None:
    """Nothing has no mean, one value no error, and neither have values that are all alike."""
    assert Mean(None, None, 0) == find_mean([])
    assert Mean(0.5, None, 0) == find_mean([0.5])
    assert (0.3, None) == find_mean([0.3, 0.1 + 0.2, 0.3])[:2]


def test_a_sum_with_an_undefined_part_is_undefined() -> None:
    """A part without a value leaves no value; one without an error leaves the value, and no interval."""
    known, alone, nothing = find_mean(_VALUES), find_mean([0.2]), find_mean([])
    found = as_estimate(combine_means([(0.5, known), (0.5, alone)]), 6, "some")

    assert Mean(None, None, 0) == combine_means([(0.5, known), (0.5, nothing)])
    assert Mean(None, None, 0) == combine_means([])
    assert (close(0.44), None, None, "") == (found.value, found.low, found.error, found.method)


def test_what_can_be_detected_is_found_four_times_in_five() -> None:
    """By the noncentral t distribution, whose power the quantiles approach."""
    found = find_mean(_VALUES)
    detectable, error = found.find_detectable(), found.error
    assert detectable is not None
    assert error is not None
    power = stats.nct.sf(stats.t.ppf(0.975, 4), 4, detectable / error)

    assert 0.8 == close(power, abs=0.03)


def test_a_difference_of_rounding_is_none() -> None:
    """Means that are equal but for the last bit are equal; a small difference of small means is one."""
    assert 0.0 == subtract(0.1 + 0.2, 0.3)
    assert 1e-13 == close(subtract(2e-13, 1e-13))


@pytest.mark.parametrize(
    ("value", "p", "expected"),
    [
        (0.1, 0.049, "better"),
        (-0.1, 0.049, "worse"),
        (0.1, 0.05, "undecided"),
        (0.0, 0.01, "undecided"),
        (0.1, None, "undecided"),
    ],
)
def test_the_verdict_is_the_adjusted_ps_and_the_signs(value: float, p: float | None, expected: str) -> None:
    """Without a test, at 5 % and above, and without a difference nothing is decided."""
    assert expected == as_difference(Mean(value, 0.02, 9), 10, p=0.001, p_adjusted=p).verdict


def test_no_interval_is_longer_than_the_differences_there_can_be() -> None:
    """Its ends are at most the limit."""
    found = as_difference(Mean(0.9, 0.2, 1), 2, p=None, p_adjusted=None, limit=1.0)

    assert (-1.0, 1.0) == (found.low, found.high)


def test_holm_adjusts_the_smallest_most_and_keeps_the_order() -> None:
    """Each p is multiplied by how many are not smaller, and is never below one before it; None is no test."""
    found = adjust_holm({"a": 0.04, "b": 0.01, "c": None, "d": 0.03, "e": 0.9})

    assert {"a": 0.09, "b": 0.04, "c": None, "d": 0.09, "e": 0.9} == {
        name: p if p is None else round(p, 6) for name, p in found.items()
    }


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=8))
def test_holm_is_monotone_and_between_the_p_and_bonferronis(p_by_name: dict[str, float]) -> None:
    """Adjusted p values are in the order of the plain ones, none below its own and none above as many times it."""
    found = {name: p for name, p in adjust_holm(p_by_name).items() if p is not None}
    ordered = [found[name] for name in sorted(p_by_name, key=lambda name: (p_by_name[name], name))]

    assert sorted(ordered) == ordered
    assert all(p <= found[name] <= min(1.0, len(found) * p) for name, p in p_by_name.items())


@given(st.lists(st.floats(-1e6, 1e6), max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_values_changes_nothing(values: list[float], random: object) -> None:
    """Sums are exact, so not even the last bit."""
    shuffled = sorted(values, key=lambda _: random.random())  # type: ignore[attr-defined]  # Hypothesis's own class

    assert find_mean(values) == find_mean(shuffled)
    assert all(each is None or math.isfinite(each) for each in find_mean(values))
