"""What one evaluation says of a source: closed forms, scipy and published numbers are the references."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from multiors.errors import ComparisonError
from multiors.evaluation.results import Estimate
from multiors.evaluation.statistics import RunScores, SourceScores, compare_arms, summarize_arm
from multiors.evaluation.statistics.estimates import (
    Scale,
    average_tasks,
    estimate_macro,
    estimate_source,
    estimate_tasks,
    find_bounds,
    find_macro_scale,
    find_scale,
    normalize_weights,
)
from multiors.evaluation.statistics.pass_at_k import choose_success_at, estimate_pass_at, find_pass_at_k
from tests.evaluation_scores import Scores, change_scores, close, make_run, make_source, runs, sources

_UNIT = (0.0, 1.0)
_OPEN = Scale(None, None)


# -- scores and their scale


def test_each_task_counts_the_same() -> None:
    """Tasks are averaged, not episodes: three scores on one task weigh as much as one on another."""
    source = make_source([[1.0, 1.0, 1.0], [0.0, None, None]])

    assert {0: 1.0, 1: 0.0} == average_tasks(source)
    assert 0.5 == estimate_source(source, _OPEN).value


@pytest.mark.parametrize(
    ("scores", "declared", "expected"),
    [
        ([[0.0, 1.0], [None]], None, Scale(None, _UNIT)),
        ([[0.0, 0.5]], None, _OPEN),
        ([[None], [None]], None, _OPEN),
        ([[0.0, 0.5]], (0.0, 2.0), Scale((0.0, 2.0), (0.0, 2.0))),
        ([[0.0, 3.0]], (0.0, 2.0), Scale((0.0, 2.0), None)),
        ([[None]], (0.0, 2.0), Scale((0.0, 2.0), (0.0, 2.0))),
        ([[0.0]], (2.0, 2.0), Scale(None, _UNIT)),
        ([[0.0]], (-math.inf, 2.0), Scale(None, _UNIT)),
    ],
)
def test_the_ends_of_scores_are_declared_or_seen(
    scores: Scores, declared: tuple[float, float] | None, expected: Scale
) -> None:
    """A declared range holds unless a score is outside; without one, 0 and 1 do if there is nothing else."""
    assert expected == find_scale([make_source(scores, declared)])


def test_a_range_that_evaluations_do_not_agree_on_is_none() -> None:
    """Then only what is seen counts."""
    both = [make_source([[0.0, 1.0]], (0.0, 1.0)), make_source([[0.0, 1.0]], (0.0, 2.0))]

    assert Scale(None, _UNIT) == find_scale(both)


# -- intervals


def test_the_error_is_millers_clustered_one() -> None:
    """With as many episodes on each task it is the clustered standard error of arXiv 2411.00640, section 2.2, with the
    finite-cluster factor that it lacks.
    """
    scores = [[1.0, 0.0, 1.0], [0.25, 0.5, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.5]]
    mean = math.fsum(map(math.fsum, scores)) / 12
    clustered = math.sqrt(sum(sum(score - mean for score in task) ** 2 for task in scores)) / 12
    found = estimate_source(make_source(scores), _OPEN)

    assert close(clustered * math.sqrt(4 / 3)) == found.error


def test_without_a_known_range_the_interval_is_students() -> None:
    """Over the means of tasks."""
    found = estimate_source(make_source([[0.5, 1.5], [2.0], [3.0, 4.0]]), _OPEN)
    means = [1.0, 2.0, 3.5]
    low, high = stats.t.interval(0.95, 2, loc=6.5 / 3, scale=stats.sem(means))

    assert (close(low), close(high), 3) == (found.low, found.high, found.num_units)
    assert "Student's t over tasks" == found.method


@pytest.mark.parametrize(
    ("num_successes", "num_tasks", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_of_single_successes_the_interval_is_wilsons(
    num_successes: int, num_tasks: int, low: float, high: float
) -> None:
    """The four examples of Newcombe 1998 (Statistics in Medicine 17, table I, method 3), and scipy's."""
    scores = [[float(task < num_successes)] for task in range(num_tasks)]
    found = estimate_source(make_source(scores), Scale(None, _UNIT))
    expected = stats.binomtest(num_successes, num_tasks).proportion_ci(method="wilson")

    assert (low, high) == (close(found.low, abs=5e-5), close(found.high, abs=5e-5))
    assert (close(expected.low), close(expected.high)) == (found.low, found.high)
    assert "Wilson's, one episode per task" == found.method


def test_of_repeated_tasks_wilsons_interval_is_for_as_many_flips_as_tasks_scatter() -> None:
    """m (1 - m) / error² flips, and the quantile of Student's t."""
    values = [0.0, 0.25, 0.25, 0.75, 0.5, 0.0]
    found = estimate_tasks(values, _UNIT)
    share, error, quantile = 1.75 / 6, stats.sem(values), stats.t.ppf(0.975, 5)
    flips = share * (1 - share) / error**2

    def excess(end: float) -> float:
        """Wilson's ends are where the mean is as far away as the quantile says."""
        return abs(share - end) / math.sqrt(end * (1 - end) / flips)

    assert found.low is not None
    assert found.high is not None
    assert (close(quantile), close(quantile)) == (excess(found.low), excess(found.high))
    assert (close(error), "Wilson's, clustered by task") == (found.error, found.method)


def test_tasks_that_are_all_alike_count_as_one_flip_each() -> None:
    """Twenty tasks that were always solved are no proof of 1; without a known range nothing can be said."""
    found, open_ = estimate_tasks([1.0] * 20, _UNIT), estimate_tasks([1.0] * 20, None)
    quantile = stats.t.ppf(0.975, 19)

    assert (close(20 / (20 + quantile**2)), 1.0) == (found.low, found.high)
    assert found.low is not None
    assert close((1 - found.low) / 2 / quantile) == found.error
    assert Estimate(1.0, None, None, None, 20) == open_


def test_one_task_has_no_interval_and_none_no_mean() -> None:
    """However many episodes it has."""
    assert Estimate(0.5, None, None, None, 1) == estimate_source(make_source([[0.0, 1.0]]), Scale(None, _UNIT))
    assert Estimate(None, None, None, None, 0) == estimate_source(make_source([[None], []]), _OPEN)


@given(sources())
def test_an_interval_is_around_its_mean_and_within_the_range(source: SourceScores) -> None:
    """Where there is one."""
    found = estimate_source(source, find_scale([source]))

    if found.value is None or found.low is None or found.high is None:
        assert (None, None, None) == (found.low, found.high, found.error)
    else:
        assert 0.0 <= found.low <= found.value + 1e-12
        assert found.value - 1e-12 <= found.high <= 1.0


# -- bounds


def test_bounds_take_unscored_episodes_as_the_worst_and_the_best() -> None:
    """Also those of tasks that have no score at all."""
    source = make_source([[1.0, None], [None, None], [0.5, 0.5]], (-1.0, 1.0))

    assert (close(-0.5 / 3), close(2.5 / 3)) == find_bounds(source, find_scale([source]))
    assert 0.75 == estimate_source(source, find_scale([source])).value


def test_bounds_need_a_declared_range() -> None:
    """That all scores are 0 or 1 says nothing about those that are missing."""
    source = make_source([[1.0, None], [0.0, None]])

    assert find_bounds(source, find_scale([source])) is None
    assert find_bounds(make_source([], _UNIT), Scale(_UNIT, _UNIT)) is None


@given(sources())
def test_the_score_is_between_the_bounds(source: SourceScores) -> None:
    """And they meet where every episode is scored."""
    found, scale = find_bounds(source, find_scale([source])), find_scale([source])
    value = estimate_source(source, scale).value
    scores = [score for episodes in source.scores_TE.values() for score in episodes.values()]

    assert (found is None) == (not scores)
    if found is not None and value is not None:
        assert found[0] - 1e-12 <= value <= found[1] + 1e-12
        assert (None in scores) or found[0] == found[1] == value


# -- pass@k


def test_pass_at_k_has_no_bias() -> None:
    """Its expected value is the true chance, where the plug-in's is too small: .292 for .344."""
    n, k, p = 8, 4, 0.1
    chances = [stats.binom.pmf(c, n, p) for c in range(n + 1)]
    unbiased = sum(chance * (find_pass_at_k(n, c, k) or 0.0) for c, chance in enumerate(chances))
    plug_in = sum(chance * (1 - (1 - c / n) ** k) for c, chance in enumerate(chances))

    assert (close(1 - 0.9**4), 0.292) == (unbiased, close(plug_in, abs=1e-3))


def test_pass_at_k_of_too_few_episodes_is_none() -> None:
    """Such a task is not counted, and if there is no other, the value is None."""
    found = estimate_pass_at(make_source([[1.0, 0.0, None], [1.0, 1.0, 0.0, 0.0], [None] * 4]), 1.0)

    assert find_pass_at_k(3, 3, 4) is None
    assert [1, 2, 4] == list(found)
    assert [(0.5, 2), (close((1 + 5 / 6) / 2), 2), (1.0, 1)] == [
        (each.value, each.num_units) for each in found.values()
    ]
    assert {1: None, 2: None} == {k: each.value for k, each in estimate_pass_at(make_source([[None] * 2]), 1).items()}


@given(st.integers(1, 30), st.data())
def test_more_episodes_never_pass_less(num_episodes: int, data: st.DataObject) -> None:
    """pass@k grows with k, from the share of successes; pass@n is whether there is any."""
    num_successes = data.draw(st.integers(0, num_episodes))
    found = [find_pass_at_k(num_episodes, num_successes, k) or 0.0 for k in range(1, num_episodes + 1)]

    assert sorted(found) == found
    assert (close(num_successes / num_episodes), float(num_successes > 0)) == (found[0], found[-1])


def test_a_success_is_the_highest_score_unless_said_otherwise() -> None:
    """Of the declared range, or 1 where scores are 0 and 1; else there is no pass@k."""
    run = make_run(
        a=make_source([[3.0, 1.0]], (0.0, 3.0)), b=[[1.0, 0.0]], c=[[0.2, 0.4]], d=make_source([[4.0]], (0.0, 3.0))
    )
    plain, all_, some = (summarize_arm([run], success_at=each) for each in (None, 0.3, {"c": 0.4}))

    assert [3.0, 1.0, None, 3.0] == [each.success_at for each in plain.sources.values()]
    assert [0.3] * 4 == [each.success_at for each in all_.sources.values()]
    assert [3.0, 1.0, 0.4, 3.0] == [each.success_at for each in some.sources.values()]
    assert ({}, 0.5) == (plain.sources["c"].pass_at, some.sources["c"].pass_at[1].value)
    assert choose_success_at(_OPEN) is None


# -- macro


def test_the_macro_average_is_the_weighted_mean() -> None:
    """Its variance is the weighted sum of squares of the sources' errors, and so are the ends of its interval: of their
    distances from the values, each to its side.
    """
    weights = {"a": 0.75, "b": 0.25}
    scores = {"a": Estimate(0.4, 0.36, 0.48, 0.02, 30), "b": Estimate(0.8, 0.5, 0.9, 0.08, 10)}
    found = estimate_macro(find_macro_scale(weights, {"a": _OPEN, "b": _OPEN}), scores)
    error, below, above = (
        math.hypot(0.75 * a, 0.25 * b) for a, b in ((0.02, 0.08), (0.4 - 0.36, 0.8 - 0.5), (0.48 - 0.4, 0.9 - 0.8))
    )

    assert (close(0.5), close(error)) == (found.value, found.error)
    assert (close(0.5 - below), close(0.5 + above), 40) == (found.low, found.high, found.num_units)


@given(runs())
def test_the_macro_average_of_one_source_is_its_score(run: RunScores) -> None:
    """With the same interval."""
    name, source = next(iter(run.sources.items()))
    arm = summarize_arm([replace(run, sources={name: source}, weights={name: 1.0})])
    score, macro = arm.sources[name].score, arm.macro
    expected = [None if each is None else close(each) for each in (score.value, score.low, score.high)]

    assert (expected, score.num_units) == ([macro.value, macro.low, macro.high], macro.num_units)


def test_sources_of_different_known_ranges_are_averaged_as_fractions_of_them() -> None:
    """Then no source counts for more because it pays more; in arms and in differences, tasks and runs alike."""
    low = [[0.0], [1.0], [1.0], [0.0]]
    high = [[1.0], [1.0], [1.0], [0.0]]
    before = make_run(a=make_source(low, (0.0, 1.0)), b=make_source([[-5.0]] * 4, (-5.0, 15.0)))
    after = make_run(a=make_source(high, (0.0, 1.0)), b=make_source([[5.0]] * 4, (-5.0, 15.0)))
    by_task = compare_arms([before], [after])
    by_run = compare_arms(
        [replace(before, name="1"), replace(before, name="2")], [replace(after, name="1"), replace(after, name="2")]
    )

    assert (close(0.25), close(0.625)) == (by_task.reference.macro.value, by_task.candidate.macro.value)
    assert (close(0.375), close(0.375)) == (by_task.macro.value, by_run.macro.value)
    assert (close(0.25), close(0.625)) == (by_run.reference.macro.value, by_run.candidate.macro.value)


@given(runs(), st.floats(0.1, 100.0), st.floats(-10.0, 10.0))
def test_the_macro_average_lies_between_its_ends(run: RunScores, factor: float, offset: float) -> None:
    """As does its interval, where the ends are known."""
    changed = change_scores(run, lambda score: score * factor + offset)
    macro = summarize_arm([changed]).macro
    scales = {name: find_scale([each]) for name, each in changed.sources.items()}
    ends = find_macro_scale(normalize_weights(changed, changed.sources), scales).ends
    least, most = ends or (-math.inf, math.inf)

    assert macro.value is None or least - 1e-6 <= macro.value <= most + 1e-6
    assert macro.low is None or macro.high is None or least <= macro.low <= macro.high <= most


def test_a_source_without_a_score_leaves_no_macro_average() -> None:
    """Unless it weighs nothing."""
    run = make_run(weights={"a": 1.0}, a=[[0.0, 1.0], [1.0, 1.0]], b=[[None], [None]])
    without = make_run(weights={"a": 1.0, "b": 0.0}, a=[[0.0, 1.0], [1.0, 1.0]], b=[[None], [None]])

    assert Estimate(None, None, None, None, 2) == summarize_arm([run]).macro
    assert 0.75 == summarize_arm([without]).macro.value


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    """With the evaluation, the source and the value."""
    with pytest.raises(ComparisonError, match=f"'run': source 'a' weighs {weight}"):
        normalize_weights(make_run(weights={"a": weight}, a=[[1.0]]), ["a"])


def test_weights_that_are_all_0_are_refused() -> None:
    """There is nothing to average then."""
    with pytest.raises(ComparisonError, match="every source weighs 0"):
        normalize_weights(make_run(weights={"a": 0.0}, a=[[1.0]]), ["a"])
