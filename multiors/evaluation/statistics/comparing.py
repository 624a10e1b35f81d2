"""The two questions that are asked of scores: what is one policy worth, and is another one better?

Answers in the values of `multiors.evaluation.results`, as far as numbers alone can fill them: what a policy is, what
its episodes cost and why some have no score is added with `add_details`. The order in which runs, sources, tasks and
episodes are given is of no consequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from multiors.errors import ComparisonError
from multiors.evaluation.results import ArmResult, Comparison, Estimate, SourceResult, Usage
from multiors.evaluation.statistics.estimates import (
    MacroScale,
    Scale,
    average_tasks,
    estimate_macro,
    estimate_source,
    find_bounds,
    find_macro_scale,
    find_scale,
    list_scored,
    normalize_weights,
)
from multiors.evaluation.statistics.pairs import compare_tasks, pair_tasks
from multiors.evaluation.statistics.pass_at_k import choose_success_at, estimate_pass_at
from multiors.evaluation.statistics.remarks import (
    describe_pairs,
    describe_run_matching,
    describe_scales,
    describe_scored,
    describe_sources,
    describe_weights,
    differ_in_scored,
)
from multiors.evaluation.statistics.runs import (
    Values,
    compare_sources,
    compare_values,
    describe_runs,
    estimate_values,
)
from multiors.evaluation.statistics.scores import RunScores, SourceScores
from multiors.records import UnscoredReason

__all__ = ["add_details", "compare_arms", "summarize_arm"]

T = TypeVar("T")

SuccessAt = float | Mapping[str, float] | None
"""For all sources, or by source. A source without one has its own: see `choose_success_at`."""


def summarize_arm(runs: Sequence[RunScores], *, success_at: SuccessAt = None) -> ArmResult:
    """What one policy is worth, on every source and overall.

    Args:
        runs: One evaluation; or several, of one training run (seed) each, and then intervals are over runs.
        success_at: From which score on an episode counts as a success, for pass@k.

    Raises:
        ComparisonError: There is no evaluation, or its weights are none.
    """
    _check_arm(runs, "arm")
    return _summarize(runs, _find_scales(runs), success_at)


def add_details(
    arm: ArmResult,
    *,
    name: str,
    policy: Mapping[str, Any],
    usage: Mapping[str, Usage],
    unscored: Mapping[str, Mapping[UnscoredReason, int]],
) -> ArmResult:
    """The arm with what scores do not say.

    Args:
        arm: From `summarize_arm` or `compare_arms`.
        name: As the user calls it.
        policy: What the policy says of itself.
        usage: By source.
        unscored: By source, how many episodes have no score for which reason. Missing: none.
    """
    sources = {
        source: replace(found, usage=usage.get(source), unscored_by_reason=dict(unscored.get(source, {})))
        for source, found in arm.sources.items()
    }
    return replace(arm, name=name, policy=dict(policy), sources=sources)


def compare_arms(
    reference: Sequence[RunScores], candidate: Sequence[RunScores], *, seed: int = 0, success_at: SuccessAt = None
) -> Comparison:
    """Is the candidate better than the reference, and where?

    With one evaluation of each, tasks are paired. With several, of one training run each, whole runs are: by their
    names, if the names of both arms are the same. Only sources and tasks that all evaluations played are compared; the
    results of the arms themselves are over all that they played.

    Args:
        reference: Its evaluations.
        candidate: Its evaluations.
        seed: Of what is drawn: signs and resamples.
        success_at: From which score on an episode counts as a success, for pass@k.

    Raises:
        ComparisonError: An arm has no evaluation, they have no source in common, or the weights are none.
    """
    _check_arm(reference, "reference")
    _check_arm(candidate, "candidate")
    reference, candidate = (sorted(arm, key=lambda run: run.name) for arm in (reference, candidate))
    runs = [*reference, *candidate]
    names = [name for name in reference[0].sources if all(name in run.sources for run in runs)]

    if not names:
        raise ComparisonError(
            f"the evaluations have no source in common (reference: {_list_sources(reference)}; candidate: "
            f"{_list_sources(candidate)}). Compare evaluations of the same mix."
        )

    scales = _find_scales(runs)
    arms = (_summarize(reference, scales, success_at), _summarize(candidate, scales, success_at))
    weights = [normalize_weights(run, names) for run in runs]
    scales = {name: scales[name] for name in names}
    macro_scale = find_macro_scale(weights[0], scales)
    compare = _compare_by_tasks if len(runs) == 2 else _compare_by_runs
    found = compare(reference, candidate, arms=arms, scales=scales, macro_scale=macro_scale, seed=seed)
    said = (
        *describe_sources(names, reference, candidate),
        *describe_weights(weights),
        *describe_scales(
            {name: scale for name, scale in scales.items() if weights[0][name]},
            is_normalized=macro_scale.is_normalized,
            is_comparison=True,
        ),
        *describe_scored(*({name: arm.sources[name] for name in names} for arm in arms)),
        *found.remarks,
    )
    widths = _of_all({name: scale.width for name, scale in scales.items()}, macro_scale)
    found = replace(found, remarks=said, range_widths=widths)
    return _withhold(found, weights[0], is_one_scale=macro_scale.ends is not None)


def _of_all(known: Mapping[str, T | None], macro_scale: MacroScale) -> dict[str, T]:
    """What is known by source, where scores are put on one scale and it is known of all; otherwise nothing."""
    found = {name: value for name, value in known.items() if value is not None}
    return found if macro_scale.is_normalized and len(found) == len(known) else {}


def _withhold(found: Comparison, weights: Mapping[str, float], *, is_one_scale: bool) -> Comparison:
    """No verdict that unscored episodes could turn, and none overall on scores of unknown scales."""
    arms = found.reference.sources, found.candidate.sources
    open_ones = {
        name: difference
        for name, difference in found.sources.items()
        if differ_in_scored(arms[0][name], arms[1][name]) and not _holds(arms[0][name], arms[1][name], difference.value)
    }
    sources = {
        name: replace(each, verdict="undecided") if name in open_ones else each for name, each in found.sources.items()
    }
    is_open = any(weights[name] for name in open_ones) or not (is_one_scale or len(weights) == 1)
    macro = replace(found.macro, verdict="undecided") if is_open else found.macro
    return replace(found, sources=sources, macro=macro)


def _holds(before: SourceResult, after: SourceResult, difference: float | None) -> bool:
    """Whether the sign of a difference stands whatever the unscored episodes would have scored."""
    if before.bounds is None or after.bounds is None or difference is None:
        return False

    return after.bounds[0] > before.bounds[1] if difference > 0 else after.bounds[1] < before.bounds[0]


def _compare_by_tasks(
    reference: Sequence[RunScores],
    candidate: Sequence[RunScores],
    *,
    arms: tuple[ArmResult, ArmResult],
    scales: Mapping[str, Scale],
    macro_scale: MacroScale,
    seed: int,
) -> Comparison:
    pairs = {name: pair_tasks(reference[0].sources[name], candidate[0].sources[name]) for name in scales}
    macro, sources = compare_tasks(pairs, scales=scales, macro_scale=macro_scale, seed=seed)
    said = tuple(describe_pairs(pairs, sources, macro_scale.factors))
    return Comparison(*arms, "task", is_paired=True, value="reward", macro=macro, sources=sources, remarks=said)


def _compare_by_runs(
    reference: Sequence[RunScores],
    candidate: Sequence[RunScores],
    *,
    arms: tuple[ArmResult, ArmResult],
    scales: Mapping[str, Scale],
    macro_scale: MacroScale,
    seed: int,
) -> Comparison:
    names = [[run.name for run in arm] for arm in (reference, candidate)]
    is_paired = names[0] == names[1] and len(set(names[0])) == len(names[0])
    common, said = _keep_common_tasks([*reference, *candidate], scales)
    values = [{name: _average_runs(arm, name, common[name]) for name in scales} for arm in (reference, candidate)]
    macros = [_weigh(each, macro_scale) for each in values]
    ranges = {name: scale.declared or scale.ends for name, scale in scales.items()}
    runs = describe_runs(*values, ranges=ranges, is_paired=is_paired, seed=seed)
    matching = describe_run_matching(names, is_paired=is_paired, scores=macros, has_iqm=None not in ranges.values())
    return Comparison(
        *arms,
        "run",
        is_paired=is_paired,
        value="reward",
        macro=compare_values(*macros, is_paired=is_paired),
        sources=compare_sources(*values, is_paired=is_paired),
        runs=runs,
        remarks=(*said, *matching),
    )


def _keep_common_tasks(
    runs: Sequence[RunScores], names: Iterable[str]
) -> tuple[dict[str, frozenset[int]], tuple[str, ...]]:
    """The tasks of each source that every run played, and a remark where others are left out."""
    common, said = {}, []

    for name in names:
        played = [{task for task, episodes in run.sources[name].scores_TE.items() if episodes} for run in runs]
        common[name] = frozenset(set.intersection(*played))

        if any(each != common[name] for each in played):
            said.append(
                f"Source {name!r}: the evaluations did not play the same tasks; the {len(common[name]):,} that all of "
                f"them played are compared."
            )

    return common, tuple(said)


def _average_runs(runs: Iterable[RunScores], name: str, tasks: frozenset[int] | None = None) -> Values:
    """The score of each run on a source: the mean over tasks. None: nothing is scored.

    Args:
        runs: In the order in which scores are wanted.
        name: Of the source.
        tasks: That count. None: all.
    """
    values: list[float | None] = []

    for run in runs:
        means = average_tasks(run.sources[name]) if name in run.sources else {}
        kept = [mean for task, mean in means.items() if tasks is None or task in tasks]
        values.append(math.fsum(kept) / len(kept) if kept else None)

    return values


def _weigh(values: Mapping[str, Values], scale: MacroScale) -> Values:
    """The macro score of each run: None where a source that has a weight has no score."""
    kept = [(factor, values[name]) for name, factor in scale.factors.items() if factor]
    macros: list[float | None] = []

    for run in range(len(kept[0][1])):
        known = [factor * value for factor, each in kept if (value := each[run]) is not None]
        macros.append(math.fsum([*known, scale.offset]) if len(known) == len(kept) else None)

    return macros


# -- one arm


def _summarize(runs: Sequence[RunScores], scales: Mapping[str, Scale], success_at: SuccessAt) -> ArmResult:
    """One arm; its runs in the order of their names, so that theirs is of no consequence."""
    runs = sorted(runs, key=lambda run: run.name)
    weights = normalize_weights(runs[0], _list_sources(runs))
    sources = {}

    for name, weight in weights.items():
        mine = [run.sources[name] for run in runs if name in run.sources]
        threshold = _choose_success_at(name, scales[name], success_at)
        sources[name] = _summarize_source(name, mine, weight=weight, scale=scales[name], success_at=threshold)

    macro_scale = find_macro_scale(weights, scales)

    if len(runs) == 1:
        macro = estimate_macro(macro_scale, {name: each.score for name, each in sources.items()})
    else:
        values = {name: _average_runs(runs, name) for name in weights}
        macro = estimate_values(_weigh(values, macro_scale))

    said = describe_scales(
        {name: scales[name] for name, weight in weights.items() if weight},
        is_normalized=macro_scale.is_normalized,
        is_comparison=False,
    )
    return ArmResult(
        name=runs[0].name,
        policy={},
        num_runs=len(runs),
        sources=sources,
        macro=macro,
        ranges=_of_all({name: scales[name].ends for name in sources}, macro_scale),
        remarks=tuple(said),
    )


def _summarize_source(
    name: str, runs: Sequence[SourceScores], *, weight: float, scale: Scale, success_at: float | None
) -> SourceResult:
    """One source in all runs of an arm: numbers are of all together, estimates are over runs if there are several."""
    played = [{task: episodes for task, episodes in run.scores_TE.items() if episodes} for run in runs]
    return SourceResult(
        source=name,
        weight=weight,
        num_tasks=len(set().union(*played)),
        num_episodes=sum(len(episodes) for tasks in played for episodes in tasks.values()),
        num_scored=sum(len(scores) for run in runs for scores in list_scored(run).values()),
        unscored_by_reason={},
        score=_join([estimate_source(run, scale) for run in runs]),
        bounds=_join_bounds([find_bounds(run, scale) for run in runs]),
        success_at=success_at,
        pass_at=_join_pass_at([estimate_pass_at(run, success_at) for run in runs]),
    )


def _join(estimates: Sequence[Estimate]) -> Estimate:
    """Over runs; of one run its own."""
    return estimates[0] if len(estimates) == 1 else estimate_values([each.value for each in estimates])


def _join_bounds(bounds: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    lows, highs = ([each[end] for each in bounds if each is not None] for end in (0, 1))
    return (math.fsum(lows) / len(lows), math.fsum(highs) / len(highs)) if lows else None


def _join_pass_at(estimates: Sequence[Mapping[int, Estimate]]) -> dict[int, Estimate]:
    ks = sorted({k for each in estimates for k in each})
    return {k: _join([each[k] for each in estimates if k in each]) for k in ks}


def _choose_success_at(name: str, scale: Scale, asked: SuccessAt) -> float | None:
    if isinstance(asked, Mapping):
        return asked[name] if name in asked else choose_success_at(scale)

    return choose_success_at(scale) if asked is None else asked


# -- all runs


def _check_arm(runs: Sequence[RunScores], arm: str) -> None:
    if not runs:
        raise ComparisonError(f"the {arm} has no evaluation. Pass at least one.")


def _list_sources(runs: Sequence[RunScores]) -> list[str]:
    """Of any of the runs, in the order of the mix."""
    return list(dict.fromkeys(name for run in runs for name in run.sources))


def _find_scales(runs: Sequence[RunScores]) -> dict[str, Scale]:
    return {name: find_scale(run.sources[name] for run in runs if name in run.sources) for name in _list_sources(runs)}
