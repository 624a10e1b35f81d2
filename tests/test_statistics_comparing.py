"""The whole comparison: what must not change it, what must, and what it says beside the numbers."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ComparisonError
from multiors.evaluation.results import Difference, Usage, Verdict
from multiors.evaluation.statistics import (
    RunScores,
    SourceScores,
    add_details,
    compare_arms,
    summarize_arm,
    tasks_needed,
)
from multiors.evaluation.statistics.means import as_difference, find_mean
from multiors.records import UnscoredReason
from tests.evaluation_scores import change_scores, make_run, make_source, reorder, runs

_OPPOSITE: dict[Verdict, Verdict] = {"better": "worse", "worse": "better", "undecided": "undecided"}


def negate(difference: Difference) -> Difference:
    """The same difference seen from the other side."""
    ends = (None if each is None else -each or 0.0 for each in (difference.value, difference.high, difference.low))
    value, low, high = ends
    return replace(difference, value=value, low=low, high=high, verdict=_OPPOSITE[difference.verdict])


# -- properties


@given(runs(), runs())
def test_the_order_of_tasks_and_episodes_changes_nothing(reference: RunScores, candidate: RunScores) -> None:
    """Not in the last bit."""
    assert compare_arms([reference], [candidate]) == compare_arms([reorder(reference)], [reorder(candidate)])


@given(runs(), runs())
def test_the_order_of_sources_changes_no_number(reference: RunScores, candidate: RunScores) -> None:
    """Only the order in which they are shown."""
    turned = RunScores(reference.name, dict(reversed(list(reference.sources.items()))), reference.weights)
    found, other = compare_arms([reference], [candidate]), compare_arms([turned], [candidate])

    assert (found.macro, found.sources, found.reference) == (other.macro, other.sources, other.reference)
    assert list(other.sources) == list(found.sources)[::-1]


@given(runs(), runs())
def test_swapping_the_arms_negates_the_differences(reference: RunScores, candidate: RunScores) -> None:
    """And leaves p, error and what can be detected."""
    found, other = compare_arms([reference], [candidate]), compare_arms([candidate], [reference])

    assert negate(found.macro) == other.macro
    assert {name: negate(each) for name, each in found.sources.items()} == other.sources


@given(runs(), runs())
def test_scaling_the_scores_scales_the_results(reference: RunScores, candidate: RunScores) -> None:
    """By a power of two, so that it is exact; p and verdicts stay."""
    found = compare_arms([reference], [candidate])
    scaled = compare_arms(*([change_scores(run, lambda score: 8 * score)] for run in (reference, candidate)))

    for name, each in {"macro": found.macro, **found.sources}.items():
        other = scaled.macro if name == "macro" else scaled.sources[name]
        assert (each.p, each.p_adjusted, each.verdict) == (other.p, other.p_adjusted, other.verdict)
        for key in ("value", "low", "high", "error", "minimum_detectable"):
            before, after = getattr(each, key), getattr(other, key)
            assert after == (None if before is None else pytest.approx(8 * before))


@given(runs(), runs(), st.integers(-20, 20).map(lambda number: number / 3))
def test_a_constant_in_both_arms_leaves_the_differences(
    reference: RunScores, candidate: RunScores, constant: float
) -> None:
    """And moves the scores by itself."""
    found = compare_arms([reference], [candidate])
    moved = compare_arms(*([change_scores(run, lambda score: score + constant)] for run in (reference, candidate)))
    pairs = [(found.macro, moved.macro), *((each, moved.sources[name]) for name, each in found.sources.items())]

    for before, after in pairs:
        for key in ("value", "low", "high", "p", "p_adjusted"):
            old, new = getattr(before, key), getattr(after, key)
            assert new == (None if old is None else pytest.approx(old, abs=1e-9))
    for name, source in found.candidate.sources.items():
        new, old = moved.candidate.sources[name].score.value, source.score.value
        assert new == (None if old is None else pytest.approx(old + constant, abs=1e-9))


@given(runs(), runs())
def test_unscored_episodes_are_no_numbers(reference: RunScores, candidate: RunScores) -> None:
    """Taking them out changes counts and bounds, and no score, difference or test."""
    stripped = [
        RunScores(
            run.name,
            {
                name: SourceScores(
                    {
                        task: {episode: score for episode, score in episodes.items() if score is not None}
                        for task, episodes in source.scores_TE.items()
                    },
                    source.range,
                )
                for name, source in run.sources.items()
            },
            run.weights,
        )
        for run in (reference, candidate)
    ]
    found, other = compare_arms([reference], [candidate]), compare_arms([stripped[0]], [stripped[1]])

    assert (found.macro, found.sources) == (other.macro, other.sources)
    assert [each.score for each in found.candidate.sources.values()] == [
        each.score for each in other.candidate.sources.values()
    ]


@given(runs())
def test_a_policy_is_no_better_than_itself(run: RunScores) -> None:
    """No difference, and no verdict."""
    found = compare_arms([run], [run])

    assert found.macro.value in (0.0, None)
    assert {"undecided"} == {found.macro.verdict, *(each.verdict for each in found.sources.values())}


@given(runs(), runs())
def test_results_survive_json_and_pickle(reference: RunScores, candidate: RunScores) -> None:
    """They are plain numbers and names, and None stays None; there is no NaN."""
    found = compare_arms([reference], [candidate])

    assert found == pickle.loads(pickle.dumps(found))
    assert found.to_json() == json.loads(json.dumps(found.to_json(), allow_nan=False))


# -- arms


def test_an_arm_counts_what_was_played_and_what_was_scored() -> None:
    """Tasks without an episode were not played."""
    source = SourceScores({0: {0: 1.0, 1: None}, 3: {0: None}, 7: {}}, (0.0, 1.0))
    found = summarize_arm([make_run(a=source)]).sources["a"]

    assert (2, 3, 1, 1 / 3) == (found.num_tasks, found.num_episodes, found.num_scored, found.scored_fraction)
    assert (1.0, 1, (0.25, 1.0)) == (found.score.value, found.score.num_units, found.bounds)


def test_the_counts_of_several_runs_are_of_all_together() -> None:
    """And the score, the bounds and pass@k are means over runs."""
    first = make_run("1", a=make_source([[1.0, None], [0.0, 0.0]], (0.0, 1.0)))
    second = make_run("2", a=make_source([[1.0, 1.0], [1.0, 1.0]], (0.0, 1.0)))
    found = summarize_arm([first, second])
    source = found.sources["a"]

    assert (2, 2, 8, 7) == (found.num_runs, source.num_tasks, source.num_episodes, source.num_scored)
    assert (0.75, 2, (0.625, 0.75)) == (source.score.value, source.score.num_units, source.bounds)
    assert {1: 0.75, 2: 0.5} == {k: each.value for k, each in source.pass_at.items()}


def test_a_source_of_which_nothing_is_scored_has_no_numbers() -> None:
    """But its counts and bounds."""
    found = compare_arms(*([make_run(a=make_source([[None], [None]], (0.0, 1.0)))] for _ in range(2)))
    source = found.candidate.sources["a"]

    assert (None, (0.0, 1.0), 0.0) == (source.score.value, source.bounds, source.scored_fraction)
    assert (None, None, "undecided") == (found.macro.value, found.macro.p, found.macro.verdict)
    assert ("Source 'a': no episode has a score in both arms, so there is no macro difference.",) == found.remarks


def test_details_are_added_to_an_arm() -> None:
    """Name, policy, usage and reasons are not in scores; a source without any has none."""
    usage = Usage(1, 2, None, None, None, None, None)
    arm = summarize_arm([make_run(a=[[None]], b=[[1.0]])])
    found = add_details(
        arm,
        name="mine",
        policy={"kind": "scripted"},
        usage={"a": usage},
        unscored={"a": {UnscoredReason.NO_SCORE: 1}},
    )

    assert ("mine", {"kind": "scripted"}, arm.macro) == (found.name, found.policy, found.macro)
    assert [(usage, {UnscoredReason.NO_SCORE: 1}), (None, {})] == [
        (each.usage, each.unscored_by_reason) for each in found.sources.values()
    ]


# -- what cannot be compared


def test_an_arm_needs_an_evaluation() -> None:
    """Which one is missing is said."""
    with pytest.raises(ComparisonError, match="the candidate has no evaluation"):
        compare_arms([make_run(a=[[1.0]])], [])


def test_evaluations_need_a_source_in_common() -> None:
    """Both lists are shown."""
    with pytest.raises(ComparisonError, match=r"reference: \['a'\]; candidate: \['b'\]"):
        compare_arms([make_run(a=[[1.0]])], [make_run(b=[[1.0]])])


# -- remarks


def test_nothing_is_remarked_where_there_is_nothing_to_say() -> None:
    """Equal plans, enough tasks, everything scored."""
    scores = [[float(task % 2)] for task in range(8)]

    assert () == compare_arms([make_run(a=scores)], [make_run(a=scores[::-1])]).remarks


def test_what_is_not_compared_is_remarked() -> None:
    """Sources, tasks and episodes that only one arm has."""
    reference = make_run(a=[[0.0, 1.0]] * 10, b=[[1.0]])
    candidate = make_run(a=[[1.0, 0.0]] * 8 + [[1.0, None]], c=[[1.0]])

    assert (
        "Only the reference was evaluated on 'b': not compared, and not in the macro difference.",
        "Only the candidate was evaluated on 'c': not compared, and not in the macro difference.",
        "Source 'a': 100% of the reference's episodes are scored and 94% of the candidate's; the scores say nothing "
        "about the rest, so there is a verdict only where none of the rest could turn it.",
        "Source 'a': 1 task only the reference played and 0 only the candidate are not compared.",
        "Source 'a': 1 episode that only one arm has a score of is left out of the difference.",
    ) == compare_arms([reference], [candidate]).remarks


def test_sources_that_some_run_lacks_and_ranges_that_differ_are_remarked() -> None:
    """Runs are compared on what all of them have."""
    scores = [[float(task % 2)] for task in range(8)]
    narrow, wide = (make_source(scores, (0.0, top)) for top in (1.0, 2.0))
    reference = [make_run("1", a=narrow, b=scores), make_run("2", a=narrow)]
    candidate = [make_run("1", a=wide, b=scores), make_run("2", a=wide, b=scores)]

    assert (
        "Not every training run was evaluated on 'b': not compared, and not in the macro difference.",
        "Source 'a': the evaluations declare different ranges of its scores, so none is used.",
    ) == compare_arms(reference, candidate).remarks[:2]


def test_weights_and_scales_that_differ_are_remarked() -> None:
    """Between evaluations, and between the sources of one average."""
    scores = [[float(task % 2)] for task in range(8)]
    wide = make_source([[10.0 * each[0]] for each in scores], (0.0, 10.0))
    found = compare_arms([make_run(a=scores, b=wide)], [make_run(weights={"a": 2.0}, a=scores, b=wide)])

    assert (
        "The evaluations weigh the sources differently: the weights of the reference are used.",
        "The macro average is of scores as fractions of their ranges ('a' 0 to 1, 'b' 0 to 10).",
    ) == found.remarks


def test_what_regressed_most_is_said_on_one_scale() -> None:
    """A loss of three in ten is less than one of a half, though its number is larger."""
    before = make_run(a=make_source([[10.0]] * 8, (0.0, 10.0)), b=[[1.0]] * 8)
    after = make_run(a=make_source([[7.0]] * 8, (0.0, 10.0)), b=[[0.5]] * 8)
    b = make_source([[0.5]] * 8, (0.0, 1.0))
    after = replace(after, sources={**after.sources, "b": b})
    before = replace(before, sources={**before.sources, "b": make_source([[1.0]] * 8, (0.0, 1.0))})
    found = compare_arms([before], [after])

    assert ({"a": 10.0, "b": 1.0}, ("b", "a")) == (found.range_widths, found.regressed)
    assert {"a": -0.3, "b": -0.5} == {name: each.value for name, each in found.on_one_scale.items()}


def test_sources_of_one_range_are_compared_as_they_are() -> None:
    """So are those of which one's range is not known."""
    ten = make_source([[7.0]] * 8, (0.0, 10.0))
    runs = make_run(a=ten, b=ten), make_run(a=ten, b=[[7.0]] * 8)

    assert [{}, {}] == [compare_arms([each], [each]).range_widths for each in runs]


def test_the_scores_of_one_evaluation_are_put_on_one_scale() -> None:
    """That of the overall score; as they are where that is of scores as they are."""
    ten, last = make_source([[13.0], [15.0]], (10.0, 20.0)), make_source([[0.5], [0.5]], (0.0, 1.0))
    found = summarize_arm([make_run(a=ten, b=last)])
    unweighted = summarize_arm([make_run(weights={"a": 1.0, "b": 0.0}, a=ten, b=last)])

    assert [each.value for each in (*found.on_one_scale.values(), found.macro)] == pytest.approx([0.4, 0.5, 0.45])
    assert found.on_one_scale["a"].low == pytest.approx((found.sources["a"].score.low - 10.0) / 10.0)  # type: ignore[operator]
    assert [14.0, 0.5, 14.0] == [each.value for each in (*unweighted.on_one_scale.values(), unweighted.macro)]


def test_differences_are_on_the_scale_of_the_overall_one() -> None:
    """Ranges of one width are brought to one scale too, if they are not one range."""
    low, high = make_source([[3.0]] * 8, (0.0, 10.0)), make_source([[13.0]] * 8, (10.0, 20.0))
    other = make_source([[1.0]] * 8, (0.0, 1.0))
    found = compare_arms(*[[make_run(a=low, b=high)]] * 2)
    unweighted = compare_arms(*[[make_run(weights={"a": 1.0, "b": 0.0}, a=low, b=other)]] * 2)

    assert ({"a": 10.0, "b": 10.0}, {}) == (found.range_widths, unweighted.range_widths)


def test_ranges_that_are_not_known_are_remarked() -> None:
    """A source with large scores counts for more, and only a declared range mends that."""
    scores = [[float(task % 2)] for task in range(8)]
    run = make_run(a=scores, b=[[7.0 * each[0]] for each in scores])
    said, alone = compare_arms([run], [run]).remarks[0], summarize_arm([run]).remarks[0]

    assert "counts for more, so there is no overall verdict. Declare each source's range" in said
    assert "counts for more. Declare each source's range" in alone


@pytest.mark.parametrize("ends", [None, (0.0, 1.0)])
def test_giving_up_is_no_improvement(ends: tuple[float, float] | None) -> None:
    """A policy that is scored where it is right, and silent elsewhere, is not told to be better."""
    wrong = make_source([[1.0, 0.0]] * 12, ends)
    silent = make_source([[1.0, None]] * 6 + [[None, 1.0]] * 6, ends)
    found = compare_arms([make_run(a=wrong)], [make_run(a=silent)])

    assert ("undecided", "undecided") == (found.sources["a"].verdict, found.macro.verdict)
    assert "there is a verdict only where none of the rest could turn it" in " ".join(found.remarks)


def test_a_difference_that_nothing_unscored_could_turn_is_a_verdict() -> None:
    """If even the worst that the unscored could be leaves the candidate ahead."""
    before, after = make_source([[0.0] * 4] * 12, (0.0, 1.0)), make_source([[1.0, 1.0, 1.0, None]] * 12, (0.0, 1.0))
    found = compare_arms([make_run(a=before)], [make_run(a=after)])

    assert ("better", "better") == (found.sources["a"].verdict, found.macro.verdict)


def test_scores_of_unknown_scales_have_no_verdict_overall() -> None:
    """Two sources that lose and a third, on a wide scale, that gains are no policy that is better."""
    low, high = [[0.5 + task / 100] for task in range(12)], [[50.0 + task] for task in range(12)]
    before = make_run(a=low, b=low, c=high)
    after = make_run(
        a=[[each[0] - 0.3] for each in low], b=[[each[0] - 0.3] for each in low], c=[[each[0] + 5] for each in high]
    )
    found = compare_arms([before], [after])

    assert (["worse", "worse", "better"], "undecided") == (
        [each.verdict for each in found.sources.values()],
        found.macro.verdict,
    )


def test_an_interval_that_holds_zero_leaves_no_verdict() -> None:
    """Test and interval come from different arithmetic; where they differ by a hair, nothing is claimed."""
    found = as_difference(find_mean([1.0, -0.2, 1.0]), 3, p=0.04, p_adjusted=0.04)

    assert (True, "undecided") == ((found.low or 0.0) < 0.0 < (found.high or 0.0), found.verdict)


def test_too_few_tasks_and_tasks_that_do_not_scatter_are_remarked() -> None:
    """Because no verdict, or no interval, can come out."""
    few = compare_arms([make_run(a=[[0.0]] * 4)], [make_run(a=[[1.0]] * 4)])
    alike = compare_arms([make_run(a=[[0.25]] * 9)], [make_run(a=[[0.5]] * 9)])

    assert ("too few for a verdict" in few.remarks[0], few.macro.verdict) == (True, "undecided")
    assert ("declare its range" in alike.remarks[0], alike.macro.verdict) == (True, "better")


# -- planning


@given(
    st.floats(0.005, 0.5),
    st.floats(0.0, 0.5),
    st.floats(0.01, 0.5),
    st.integers(1, 16),
    st.integers(1, 8),
)
def test_so_many_tasks_are_needed_and_no_fewer(
    difference: float, between: float, within: float, episodes: int, num_sources: int
) -> None:
    """With them the difference is detectable, with one less it is not, unless signs could not decide at all."""
    found = tasks_needed(
        difference, between=between, within=within, episodes_per_task=episodes, num_sources=num_sources
    )
    deviation = (between**2 + 2 * within**2 / episodes) ** 0.5

    def detectable(num_tasks: int) -> float:
        """Of tasks whose differences have the deviation."""
        mean = find_mean([deviation, -deviation])._replace(error=deviation / num_tasks**0.5, df=num_tasks - 1)
        return mean.find_detectable(num_sources) or 0.0

    assert detectable(found) <= difference
    assert found <= 12 or detectable(found - 1) > difference


def test_millers_rule_is_the_limit_of_many_tasks() -> None:
    """Section 5 of arXiv 2411.00640: (z + z)² (between² + 2 within² / k) / difference²."""
    found = tasks_needed(0.01, between=0.2, within=0.4, episodes_per_task=4)
    expected = (1.959964 + 0.841621) ** 2 * (0.2**2 + 2 * 0.4**2 / 4) / 0.01**2

    assert expected == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize("changed", [{"difference": 0.0}, {"between": 0.0, "within": 0.0}, {"episodes_per_task": 0}])
def test_a_plan_without_a_difference_or_a_scatter_is_refused(changed: dict[str, float]) -> None:
    """With the values."""
    asked: dict[str, float] = {"difference": 0.1, "between": 0.1, "within": 0.1, "episodes_per_task": 1} | changed

    with pytest.raises(ValueError, match="a number of tasks needs a difference"):
        tasks_needed(**asked)  # type: ignore[arg-type]  # numbers of both kinds in one dict
