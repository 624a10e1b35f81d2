"""Several training runs of each arm: scipy's t tests, trimmed mean and Mann-Whitney U are the references."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from multiors.evaluation.statistics import RunScores, compare_arms, summarize_arm
from multiors.evaluation.statistics.runs import compare_values, describe_runs, estimate_values
from tests.evaluation_scores import close, make_run, make_source

_VALUES = [0.61, 0.72, 0.58, 0.80, 0.69]
_REFERENCE = [0.55, 0.70, 0.49, 0.78, 0.71]
_UNIT = (0.0, 1.0)


def make_runs(values: Sequence[float], others: Sequence[float], names: str = "12345") -> list[RunScores]:
    """Runs with two sources of one task each."""
    return [
        make_run(name, a=make_source([[value]], _UNIT), b=make_source([[other]], _UNIT))
        for name, value, other in zip(names, values, others, strict=False)
    ]


def test_runs_are_compared_in_pairs() -> None:
    """The difference, its interval and its p are those of the paired t test."""
    found = compare_values(_REFERENCE, _VALUES, is_paired=True)
    expected = stats.ttest_rel(_VALUES, _REFERENCE)
    interval = expected.confidence_interval(0.95)

    assert (close(0.034), close(expected.pvalue)) == (found.value, found.p)
    assert (close(interval.low), close(interval.high)) == (found.low, found.high)
    assert 5 == found.num_pairs


def test_runs_that_are_not_matched_are_compared_as_samples() -> None:
    """By Welch's t test; the pairs are the runs of the smaller arm."""
    found = compare_values(_REFERENCE[:3], _VALUES, is_paired=False)
    expected = stats.ttest_ind(_VALUES, _REFERENCE[:3], equal_var=False)

    assert (close(expected.pvalue), 3) == (found.p, found.num_pairs)


def test_runs_without_a_score_are_left_out() -> None:
    """In pairs with their partner; None is never a number."""
    paired = compare_values([0.5, None, 0.7, 0.1], [0.6, 0.9, None, 0.3], is_paired=True)

    assert (close(0.15), 2) == (paired.value, paired.num_pairs)
    assert (0.75, 2) == (estimate_values([0.5, None, 1.0]).value, estimate_values([0.5, None, 1.0]).num_units)


def test_the_undefined_is_none() -> None:
    """Nothing has no mean, one run no interval, and equal differences no test."""
    nothing, one = estimate_values([]), compare_values([0.5], [1.0], is_paired=True)
    equal = compare_values([0.0, 1.0], [1.0, 2.0], is_paired=True)

    assert [None] * 3 == [nothing.value, nothing.low, nothing.high]
    assert (0.5, None, None, None) == (one.value, one.low, one.p, one.minimum_detectable)
    assert (1.0, None, None) == (equal.value, equal.p, equal.low)


def test_runs_are_matched_by_their_names() -> None:
    """In whatever order they come; with other names they are independent samples, and that is said."""
    reference, candidate = make_runs(_REFERENCE, _REFERENCE), make_runs(_VALUES, _VALUES)
    matched = compare_arms(reference, candidate)
    turned = compare_arms(reference[::-1], candidate[2:] + candidate[:2])
    other = compare_arms(reference, make_runs(_VALUES, _VALUES, "abcde"))

    assert ("run", True, close(stats.ttest_rel(_VALUES, _REFERENCE).pvalue)) == (
        matched.unit,
        matched.is_paired,
        matched.macro.p,
    )
    assert matched == turned
    assert (False, 1) == (other.is_paired, sum("cannot be matched" in each for each in other.remarks))


def test_names_that_are_not_unique_match_nothing() -> None:
    """Which run belongs to which would be a guess."""
    assert not compare_arms(make_runs(_REFERENCE, _REFERENCE, "1123"), make_runs(_VALUES, _VALUES, "1123")).is_paired


def test_a_runs_macro_score_is_the_weighted_mean_of_its_sources() -> None:
    """And the arm's is the mean over its runs, with an interval over runs."""
    runs = make_runs(_VALUES, _REFERENCE)
    weighted = [RunScores(run.name, run.sources, {"a": 3.0}) for run in runs]
    macros = [0.75 * value + 0.25 * other for value, other in zip(_VALUES, _REFERENCE, strict=True)]
    found = summarize_arm(weighted)

    assert (close(np.mean(macros)), close(stats.sem(macros))) == (found.macro.value, found.macro.error)
    assert (5, "Student's t over runs") == (found.macro.num_units, found.macro.method)
    assert close(stats.sem(_VALUES)) == found.sources["a"].score.error


def test_sources_of_runs_are_adjusted_for_their_number() -> None:
    """By Holm's method."""
    found = compare_arms(make_runs(_REFERENCE, _REFERENCE), make_runs(_VALUES, _VALUES[::-1])).sources
    p = [stats.ttest_rel(each, _REFERENCE).pvalue for each in (_VALUES, _VALUES[::-1])]

    assert [close(each) for each in p] == [each.p for each in found.values()]
    assert close(2 * min(p)) == min(each.p_adjusted or 1.0 for each in found.values())


def test_iqm_and_probability_of_improvement_are_those_of_their_definitions() -> None:
    """A quarter is cut off at either end of all cells; ties count half. Scores are brought to 0 to 1 first."""
    before = {"a": [0.0, 1.0, 2.0, 2.0], "b": [3.0, 3.0, 5.0, 1.0]}
    after = {"a": [2.0, 2.0, 1.0, 4.0], "b": [3.0, 6.0, 0.0, 9.0]}
    ranges = {"a": (0.0, 4.0), "b": (0.0, 10.0)}
    found = describe_runs(before, after, ranges=ranges, is_paired=True, seed=0)
    cells = [value / (high - low) for name, (low, high) in ranges.items() for value in after[name]]
    wins = [stats.mannwhitneyu(after[name], before[name]).statistic / 16 for name in ranges]

    assert close(stats.trim_mean(cells, 0.25)) == found.candidate_iqm.value
    assert close(np.mean(wins)) == found.probability_of_improvement.value
    assert 4 == found.reference_iqm.num_units == found.probability_of_improvement.num_units


def test_the_interval_of_a_probability_is_that_of_resampled_runs() -> None:
    """Of two runs, that of a win and that of none, all resamples are known: three quarters win in some run of two."""
    found = describe_runs(
        {"a": [0.0, 1.0]}, {"a": [0.5, 0.5]}, ranges={"a": _UNIT}, is_paired=False, seed=0
    ).probability_of_improvement

    assert (0.5, 0.0, 1.0) == (found.value, found.low, found.high)
    assert close(np.std([0.0, 0.5, 0.5, 1.0]), abs=0.01) == found.error


def test_the_seed_decides_what_is_resampled() -> None:
    """And nothing else does."""
    arms = make_runs(_REFERENCE, _VALUES), make_runs(_VALUES, _REFERENCE[::-1])

    assert compare_arms(*arms, seed=1) == compare_arms(*arms, seed=1)
    assert compare_arms(*arms, seed=1).runs != compare_arms(*arms, seed=2).runs


def test_without_a_range_of_every_source_there_is_no_iqm() -> None:
    """Because cells of different scales have no common order; that is said, and the probability stays."""
    runs = [
        [make_run(name, a=[[value]], b=[[10 * value]]) for name, value in zip("12345", values, strict=True)]
        for values in (_REFERENCE, _VALUES)
    ]
    found = compare_arms(*runs)

    assert found.runs is not None
    assert (None, None) == (found.runs.candidate_iqm.value, found.runs.candidate_iqm.low)
    assert found.runs.probability_of_improvement.value is not None
    assert 1 == sum("no interquartile means" in each for each in found.remarks)


def test_of_one_run_beside_several_there_is_a_difference_and_no_test() -> None:
    """One run says nothing of how runs scatter."""
    found = compare_arms(make_runs([0.5], [0.5], "x"), make_runs(_VALUES, _VALUES))

    assert found.runs is not None
    assert ("run", close(0.18), None, None) == (found.unit, found.macro.value, found.macro.p, found.macro.low)
    assert (1, None) == (found.runs.reference_iqm.num_units, found.runs.reference_iqm.low)
    assert 1 == sum("One training run" in each for each in found.remarks)


def test_runs_are_compared_on_the_tasks_that_all_of_them_played() -> None:
    """A hard task that one run did not play does not make it better."""
    full, short = make_source([[1.0], [0.0]], _UNIT), make_source([[1.0]], _UNIT)
    reference = [make_run("1", a=full), make_run("2", a=full)]
    candidate = [make_run("1", a=short), make_run("2", a=full)]
    found = compare_arms(reference, candidate)

    assert (0.0, 1) == (found.macro.value, sum("did not play the same tasks" in each for each in found.remarks))


def test_runs_that_scored_nothing_on_a_source_are_left_out_and_said() -> None:
    """The macro score is None where a part of it is; the arm is described by the others."""
    reference, candidate = make_runs(_REFERENCE, _REFERENCE), make_runs(_VALUES, _VALUES)
    candidate[0] = make_run("1", a=[[None]], b=[[0.5]])
    found = compare_arms(reference, candidate)

    assert found.runs is not None
    assert (4, 4, 4) == (found.macro.num_pairs, found.candidate.macro.num_units, found.runs.candidate_iqm.num_units)
    assert 1 == sum("1 training run of the candidate" in each for each in found.remarks)


def test_arms_that_scored_nothing_have_no_description() -> None:
    """Everything is None, and nothing fails."""
    empty = [make_run(name, a=[[None]]) for name in "12"]
    found = compare_arms(empty, empty)

    assert found.runs is not None
    assert [None] * 3 == [
        found.macro.value,
        found.runs.reference_iqm.value,
        found.runs.probability_of_improvement.value,
    ]
