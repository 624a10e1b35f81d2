"""Two evaluations task by task: the sign-flip test, and how pairs are made."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from multiors.evaluation.statistics import SourceScores, compare_arms
from multiors.evaluation.statistics.flips import find_least_pairs, sign_flip_p
from multiors.evaluation.statistics.pairs import pair_tasks
from tests.evaluation_scores import close, make_run, make_source

_MAIZE = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
"""Darwin's fifteen pairs of plants, in eighths of an inch (Fisher 1935, The Design of Experiments, chapter 3)."""


# -- the test


def test_fishers_example_comes_out() -> None:
    """Of 32,768 signs 863 bring the sum that was found or more, and as many its opposite."""
    assert 2 * 863 / 32768 == sign_flip_p(_MAIZE, seed=0)


def test_the_paired_t_of_fishers_example_comes_out() -> None:
    """t is 2.148, just beyond the 5 % point (section 17)."""
    found = compare_arms([make_run(a=[[0.0]] * 15)], [make_run(a=[[float(each)] for each in _MAIZE])]).sources["a"]
    expected = stats.ttest_1samp(_MAIZE, 0)
    interval = expected.confidence_interval(0.95)

    assert found.value is not None
    assert found.error is not None
    assert 2.148 == close(found.value / found.error, abs=5e-4)
    assert (close(interval.low), close(interval.high)) == (found.low, found.high)
    assert (15, "undecided") == (found.num_pairs, found.verdict)


@given(st.lists(st.integers(-8, 8).map(lambda eighths: eighths / 8), min_size=2, max_size=9))
def test_the_exact_p_is_that_of_all_signs(values: list[float]) -> None:
    """Written out, zeros included, as sums: of one source these have the order of the sums over their errors."""
    sums = [
        abs(sum(sign * value for sign, value in zip(signs, values, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]

    assert sum(each >= abs(sum(values)) for each in sums) / len(sums) == sign_flip_p(values, seed=0)


def test_the_exact_p_is_scipys() -> None:
    """`permutation_test` over samples flips signs too."""
    values = [0.3, -0.1, 0.25, 0.4, 0.05, -0.2, 0.15]
    expected = stats.permutation_test((values,), np.sum, permutation_type="samples", n_resamples=np.inf)

    assert close(expected.pvalue) == sign_flip_p(values, seed=0)


def test_the_drawn_p_is_close_to_the_normal_distributions() -> None:
    """Of many differences the sum is normal, with the sum of squares as its variance; a p of 0 cannot come out."""
    values = np.random.default_rng(3).normal(0.05, 1.0, size=3000)
    expected = 2 * stats.norm.sf(abs(values.sum()) / math.sqrt((values**2).sum()))

    assert expected == close(sign_flip_p(list(values), seed=0), abs=0.02)
    assert 1 / 10_001 == sign_flip_p([1.0] * 50, seed=0)


def test_the_seed_decides_the_drawn_p() -> None:
    """And nothing else does."""
    values = list(np.random.default_rng(1).normal(0.2, 1.0, size=60))

    assert sign_flip_p(values, seed=5) == sign_flip_p(values, seed=5)
    assert sign_flip_p(values, seed=5) != sign_flip_p(values, seed=6)


def test_of_fewer_than_two_differences_there_is_no_test() -> None:
    """While two that are 0 are tested, and are no evidence."""
    assert [None, None, 1.0] == [sign_flip_p(values, seed=0) for values in ([], [0.5], [0.0, 0.0])]


@pytest.mark.parametrize("num_tests", [1, 2, 3, 6, 20])
def test_the_fewest_pairs_that_can_decide_are_known(num_tests: int) -> None:
    """With so many, differences of one sign are found; with one less they are not."""
    least = find_least_pairs(num_tests)

    assert (sign_flip_p([1.0] * least, seed=0) or 1) * num_tests < 0.05
    assert (sign_flip_p([1.0] * (least - 1), seed=0) or 1) * num_tests >= 0.05


# -- the test of several sources


eighths = st.integers(-8, 8).map(lambda number: number / 8)
several_sources = st.lists(st.lists(eighths, min_size=1, max_size=5), min_size=2, max_size=3).filter(
    lambda sources: sum(map(len, sources)) <= 9
)


def flip(sources: Sequence[Sequence[float]], signs: Iterable[int]) -> list[list[float]]:
    """The sources with the signs of all their differences."""
    each = iter(signs)
    return [[next(each) * value for value in values] for values in sources]


def studentize(sources: Sequence[Sequence[float]]) -> float:
    """The sum of means over its error, as the rule says it."""
    variance = sum(
        statistics.variance(values) / len(values) if len(values) > 1 else values[0] ** 2 for values in sources
    )
    least = 1e-6 * sum(value**2 / len(values) ** 2 for values in sources for value in values)
    return abs(sum(map(statistics.fmean, sources))) / (math.sqrt(max(variance, least)) or 1.0)


@given(several_sources)
def test_the_macro_p_is_that_of_all_signs(sources: list[list[float]]) -> None:
    """Written out: the share of all signs under which the sum is as large beside its error under the same signs."""
    observed = studentize(sources)
    num_values = sum(map(len, sources))
    flipped = [studentize(flip(sources, signs)) for signs in itertools.product((1, -1), repeat=num_values)]
    num_found = sum(each >= observed - 1e-9 * (1 + observed) for each in flipped)

    assert num_found / len(flipped) == sign_flip_p(*sources, seed=0)


@given(several_sources.filter(lambda sources: sum(map(len, sources)) <= 7))
def test_the_macro_p_is_exact(sources: list[list[float]]) -> None:
    """Where signs are coin flips a p of at most x comes out no more often than x, whatever the differences."""
    num_values = sum(map(len, sources))
    found = [
        sign_flip_p(*flip(sources, signs), seed=0) or 0.0 for signs in itertools.product((1, -1), repeat=num_values)
    ]

    assert all(sum(other <= each for other in found) <= each * len(found) for each in found)


@pytest.mark.parametrize("num_tasks", [20, 40, 400])
def test_the_macro_p_is_that_of_the_interval_where_sources_move_apart(num_tasks: int) -> None:
    """One source gains much and one loses nearly as much: p is Student's, while flips of the sum would find nothing."""
    scatter = np.linspace(-0.25, 0.25, num_tasks)
    error = float(stats.sem(scatter)) / math.sqrt(2)
    gained, lost = list(0.5 + scatter), list(scatter - 0.5 + 5 * error)
    ends = (-1.0, 1.0)
    nothing = make_source([[0.0]] * num_tasks, ends)
    reference = make_run(a=nothing, b=nothing)
    candidate = make_run(
        a=make_source([[each] for each in gained], ends), b=make_source([[each] for each in lost], ends)
    )
    found = compare_arms([reference], [candidate]).macro
    of_the_sum = sign_flip_p([*gained, *lost], seed=0)

    assert (close(2.5 * error), close(error), "better") == (found.value, found.error, found.verdict)
    assert close(2 * stats.t.sf(2.5, 2 * num_tasks - 2), abs=0.01) == found.p
    assert of_the_sum is not None
    assert of_the_sum > 0.3


@pytest.mark.parametrize("rest", [[[0.25, 0.25]], [[0.25]], [[]], [[0.0, 0.0]], [[0.25], [0.5], [-0.125]]])
def test_sources_that_do_not_scatter_have_a_macro_p(rest: list[list[float]]) -> None:
    """With sources of one task, of none, or of tasks that are all alike, p is a number, and no flip divides by 0."""
    p = sign_flip_p([1.0, 1.0, 1.0, 1.0], *rest, seed=0)

    assert p is not None
    assert 2 / 2 ** sum(value != 0 for values in [[1.0] * 4, *rest] for value in values) <= p <= 1


def test_where_nothing_scatters_the_larger_sum_counts() -> None:
    """Two sources that agree are as strong as all their tasks; two that cancel are no evidence."""
    assert 2 / 2**6 == sign_flip_p([1.0] * 3, [0.5] * 3, seed=0)
    assert 4 / 2**6 == sign_flip_p([1.0] * 3, [-0.5] * 3, seed=0)
    assert 1.0 == sign_flip_p([1.0] * 3, [-1.0] * 3, seed=0)
    assert 1 / 10_001 == sign_flip_p([1.0] * 30, [0.5] * 30, seed=0)
    assert 1.0 == sign_flip_p([1.0] * 30, [-1.0] * 30, seed=0)


def test_sources_of_one_task_are_tested_by_their_sum() -> None:
    """Nothing says how one task would scatter, so all errors are the same: what differs is the sum."""
    values = [0.5, -0.25, 1.0, 0.125, 0.75]

    assert sign_flip_p(values, seed=0) == sign_flip_p(*([value] for value in values), seed=0)


@pytest.mark.parametrize("sources", [[], [[]], [[], []], [[0.5]], [[], [0.5]]])
def test_of_fewer_than_two_differences_in_all_there_is_no_macro_test(sources: list[list[float]]) -> None:
    """None, however many sources there are."""
    assert sign_flip_p(*sources, seed=0) is None


def test_differences_that_are_0_are_no_evidence_in_any_source() -> None:
    """They count as tasks, and as nothing else."""
    moved = [0.1] * 20
    p = sign_flip_p([0.0] * 5, moved, seed=0)

    assert 1.0 == sign_flip_p([0.0], [0.0, 0.0], seed=0)
    assert 1 / 10_001 == sign_flip_p(moved, seed=0)
    assert p is not None
    assert 1 / 10_001 <= p < 0.05


@given(st.lists(st.lists(st.floats(-1e300, 1e300), max_size=30), max_size=3))
def test_the_macro_p_is_a_chance(sources: list[list[float]]) -> None:
    """Whatever is compared: above 0 and up to 1, or None."""
    p = sign_flip_p(*sources, seed=0)

    assert (p is None) == (sum(map(len, sources)) < 2)
    assert p is None or 0 < p <= 1


# -- pairs


def test_only_what_both_arms_have_a_score_of_is_compared() -> None:
    """Episodes are matched within a task, and what only one arm scored is left out and counted."""
    reference = SourceScores({0: {0: 0.0, 1: 1.0, 2: None}, 1: {0: 1.0}, 2: {0: 0.5}, 5: {}})
    candidate = SourceScores({0: {0: 1.0, 1: None, 2: 1.0}, 1: {0: 0.5, 1: 0.0}, 3: {0: 0.5}, 4: {0: None}})
    found = pair_tasks(reference, candidate)

    assert (1.0, -0.5) == found.differences
    assert (1, 2, 3) == (found.num_only_reference, found.num_only_candidate, found.num_left_out)


def test_episodes_that_one_arm_lost_do_not_make_the_other_worse() -> None:
    """Equal policies, of which one lost its hard seeds, are equal in the difference, and not in their own scores."""
    complete, lost = [[1.0, 0.0]] * 12, [[1.0, None]] * 12
    found = compare_arms([make_run(a=complete)], [make_run(a=lost)])

    assert (0.0, "undecided") == (found.macro.value, found.macro.verdict)
    assert (0.5, 1.0) == (found.reference.sources["a"].score.value, found.candidate.sources["a"].score.value)


def test_tasks_that_all_differ_by_the_same_scatter_as_if_two_more_were_there() -> None:
    """Agresti and Min's error, width / (n + 2), where the ends are known; without them there is none."""
    known, open_ = (
        compare_arms([make_run(a=make_source([[0.0]] * 18, range_))], [make_run(a=make_source([[0.5]] * 18, range_))])
        for range_ in ((0.0, 2.0), None)
    )

    assert (0.5, 2.0 / 20) == (known.macro.value, known.macro.error)
    assert (0.5, None, None) == (open_.macro.value, open_.macro.error, open_.macro.low)
    assert "better" == known.macro.verdict == open_.macro.verdict


def test_the_macro_difference_is_the_weighted_sum() -> None:
    """Its error that of independent sources, its p that of flips within each source."""
    rng = np.random.default_rng(2)
    scores = {name: rng.normal(0.3, 1.0, size=num) for name, num in (("a", 6), ("b", 4))}
    reference, candidate = (
        make_run(
            weights={"a": 3.0}, a=[[scale * each] for each in scores["a"]], b=[[scale * each] for each in scores["b"]]
        )
        for scale in (0.0, 1.0)
    )
    found = compare_arms([reference], [candidate]).macro
    error = math.hypot(0.75 * stats.sem(scores["a"]), 0.25 * stats.sem(scores["b"]))
    shares = [list(0.75 * scores["a"]), list(0.25 * scores["b"])]

    assert close(0.75 * scores["a"].mean() + 0.25 * scores["b"].mean()) == found.value
    assert (close(error), 10) == (found.error, found.num_pairs)
    assert sign_flip_p(*shares, seed=0) == found.p == found.p_adjusted
