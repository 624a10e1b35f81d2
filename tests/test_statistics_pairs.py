"""Two evaluations task by task: the sign-flip test, and how pairs are made."""

from __future__ import annotations

import itertools
import math

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
    """Written out, zeros included."""
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
    shares = [*(0.75 * scores["a"] / 6), *(0.25 * scores["b"] / 4)]

    assert close(0.75 * scores["a"].mean() + 0.25 * scores["b"].mean()) == found.value
    assert (close(error), 10) == (found.error, found.num_pairs)
    assert sign_flip_p(shares, seed=0) == found.p == found.p_adjusted
