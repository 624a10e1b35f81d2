"""Evaluations from their folders to answers: what one is worth, and whether another is better.

Decides which folders make up an arm, which episodes may be compared at all, and what a reader must be told of how the
two were made. The arithmetic is in `statistics`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from multiors.errors import ComparisonError
from multiors.evaluation.folder import EpisodeBrief, EpisodeKey, EvaluationRun, is_evaluation, read_evaluation
from multiors.evaluation.results import ArmResult, Comparison, Usage
from multiors.evaluation.statistics import RunScores, SourceScores, add_details, compare_arms, summarize_arm
from multiors.records import UnscoredReason

__all__ = ["Arm", "compare", "read_arm", "summarize"]

Value = Literal["reward", "outcome"]
Number = TypeVar("Number", int, float)
Arm = EvaluationRun | Sequence[EvaluationRun] | str | os.PathLike[str]
"""One policy: an evaluation, or several of one training run (seed) each; or the path of one, or of a folder of them."""


def read_arm(arm: Arm) -> list[EvaluationRun]:
    """The evaluations of one policy, in the order of their names.

    Raises:
        ComparisonError: There is none.
    """
    if isinstance(arm, EvaluationRun):
        return [arm]
    if not isinstance(arm, (str, os.PathLike)):
        return list(arm)

    folder = Path(arm)

    if is_evaluation(folder) or not folder.is_dir():
        return [read_evaluation(folder)]

    runs = [read_evaluation(each) for each in sorted(folder.iterdir()) if is_evaluation(each)]
    return runs or [read_evaluation(folder)]


def summarize(arm: Arm, *, value: Value = "reward", success_at: float | None = None) -> ArmResult:
    """What one policy is worth, on every source and overall.

    Args:
        arm: The policy.
        value: Which number of an episode is its score: the reward that the user composed, or what the environment
            alone said.
        success_at: From which score on an episode counts as a success, for pass@k. None: the highest there is.

    Raises:
        ComparisonError: There is no evaluation, or none of its episodes was played.
    """
    read = _read(arm)
    result = _add_details(summarize_arm(read.list_scores(value), success_at=success_at), read, value)
    return replace(result, remarks=(*_describe_rest(read), *_describe_failures(read), *result.remarks))


def compare(
    reference: Arm,
    candidate: Arm,
    *,
    value: Value = "reward",
    success_at: float | None = None,
    names: tuple[str, str] | None = None,
    seed: int = 0,
) -> Comparison:
    """Is the candidate better than the reference, and where?

    Args:
        reference: One policy.
        candidate: Another.
        value: As of `summarize`.
        success_at: As of `summarize`.
        names: What the two are called. None: as their folders.
        seed: Of what is drawn in tests and resamples.

    Raises:
        ComparisonError: They cannot be compared.
    """
    arms = [_read(arm, name) for arm, name in zip((reference, candidate), names or (None, None), strict=True)]
    _check_apart(*(arm.runs for arm in arms))
    _check_rewards([run for arm in arms for run in arm.runs], value)
    changed = _find_changed_tasks([run for arm in arms for run in arm.runs])
    scores = [[_leave_out(each, changed) for each in arm.list_scores(value)] for arm in arms]
    found = compare_arms(*scores, seed=seed, success_at=success_at)
    remarks = (
        *_describe_changed_tasks(changed),
        *(remark for arm in arms for remark in (*_describe_rest(arm), *_describe_failures(arm))),
        *_describe_differences(*(arm.runs for arm in arms)),
        *found.remarks,
    )
    return replace(
        found,
        reference=_add_details(found.reference, arms[0], value),
        candidate=_add_details(found.candidate, arms[1], value),
        value=value,
        remarks=remarks,
    )


class _ReadArm(NamedTuple):
    """One policy, whose episodes were read."""

    name: str
    runs: Sequence[EvaluationRun]
    briefs: Sequence[Mapping[EpisodeKey, EpisodeBrief]]
    """One per run."""

    def list_scores(self, value: Value) -> list[RunScores]:
        return [run.scores(value, briefs=briefs) for run, briefs in zip(self.runs, self.briefs, strict=True)]


def _read(arm: Arm, name: str | None = None) -> _ReadArm:
    runs = read_arm(arm)
    read = [run.read_briefs() for run in runs]

    for run, briefs in zip(runs, read, strict=True):
        if not briefs:
            raise ComparisonError(
                f"the evaluation {str(run.folder)!r} has no episode yet. Run `multiors evaluate` with the same output."
            )

    return _ReadArm(_name_arm(arm, runs) if name is None else name, runs, read)


def _name_arm(arm: Arm, runs: Sequence[EvaluationRun]) -> str:
    if isinstance(arm, (str, os.PathLike)):
        return Path(arm).absolute().name

    return ", ".join(run.name for run in runs)


def _check_apart(reference: Sequence[EvaluationRun], candidate: Sequence[EvaluationRun]) -> None:
    """An evaluation is neither better nor worse than itself, and a name that was typed wrong would look like that."""
    folders = {run.folder.resolve() for run in reference}

    for run in candidate:
        if run.folder.resolve() in folders:
            raise ComparisonError(
                f"the evaluation {str(run.folder)!r} is on both sides: it would be compared with itself. Pass another "
                f"folder."
            )


def _check_rewards(runs: Sequence[EvaluationRun], value: Value) -> None:
    """Scores that were made in two ways say nothing about two policies."""
    made: dict[str, tuple[str, Any]] = {}

    for run in runs:
        for source, plan in run.manifest.sources.items():
            if plan.reward:
                how = json.loads(json.dumps(plan.reward if value == "reward" else plan.reward["outcome"]))
                other, before = made.setdefault(source, (run.name, how))

                if before != how:
                    raise ComparisonError(
                        f"source {source!r}: {other!r} and {run.name!r} make its scores in different ways: "
                        f"{', '.join(_list_differences(before, how))}. Evaluate both with one run file; where only the "
                        f"parts of the reward differ, `--score outcome` compares without them."
                    )


def _list_differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """The settings that are not the same, each with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from _list_differences(before.get(key), after.get(key), f"{path}.{key}" if path else key)
    elif before != after:
        yield f"{path or 'the reward'} is {json.dumps(before)} and {json.dumps(after)}"


def _find_changed_tasks(runs: Sequence[EvaluationRun]) -> dict[str, set[int]]:
    """Tasks that have one index and are not the same, by source."""
    known: dict[tuple[str, int], str] = {}
    changed: dict[str, set[int]] = {}

    for run in runs:
        for source, plan in run.manifest.sources.items():
            for index, digest in plan.digests.items():
                if known.setdefault((source, index), digest) != digest:
                    changed.setdefault(source, set()).add(index)

    return changed


def _leave_out(scores: RunScores, changed: Mapping[str, set[int]]) -> RunScores:
    sources = {}

    for name, source in scores.sources.items():
        kept = {task: each for task, each in source.scores_TE.items() if task not in changed.get(name, ())}
        sources[name] = SourceScores(kept, source.range)

    return replace(scores, sources=sources)


def _describe_changed_tasks(changed: Mapping[str, set[int]]) -> Iterator[str]:
    for source, tasks in changed.items():
        yield (
            f"source {source!r}: {len(tasks)} tasks have one index and different specifications (first {min(tasks)}), "
            f"so they are not the same tasks, and are left out."
        )


def _describe_rest(arm: _ReadArm) -> Iterator[str]:
    """Evaluations that are not finished."""
    for run, briefs in zip(arm.runs, arm.briefs, strict=True):
        if len(briefs) < run.manifest.num_episodes:
            yield (
                f"{run.name!r} is not finished: {len(briefs):,} of {run.manifest.num_episodes:,} episodes were played. "
                f"Run `multiors evaluate` again with the same output to play the rest."
            )


def _describe_failures(arm: _ReadArm) -> Iterator[str]:
    """Sources whose environment failed."""
    failed = Counter(
        source
        for briefs in arm.briefs
        for (source, _, _), brief in briefs.items()
        if brief.reason is not None and brief.reason.is_infrastructure
    )

    for source, number in failed.items():
        yield (
            f"Source {source!r}: the environment failed in {number:,} episodes of {arm.name!r}, which have no score. "
            f"`multiors evaluate --replay-failed` plays them again."
        )


def _describe_differences(reference: Sequence[EvaluationRun], candidate: Sequence[EvaluationRun]) -> Iterator[str]:
    """How the two were made, where that is not the same."""
    before, after = reference[0].manifest, candidate[0].manifest

    if before.seed != after.seed:
        yield f"the seeds differ ({before.seed} and {after.seed}): episodes are paired that had different luck."
    if before.limits != after.limits:
        yield f"the limits of an episode differ: {_show(before.limits)}, and {_show(after.limits)}."

    sampling = [manifest.policy.get("sampling") for manifest in (before, after)]

    if sampling[0] != sampling[1]:
        yield f"the sampling differs: {_show(sampling[0])}, and {_show(sampling[1])}."

    for name in before.sources.keys() & after.sources.keys():
        old, new = before.sources[name], after.sources[name]
        if (old.env_name, old.split) != (new.env_name, new.split):
            yield f"source {name!r} is {_name(old)} in one and {_name(new)} in the other."


def _name(plan: Any) -> str:
    return f"split {plan.split!r}" if plan.env_name is None else f"{plan.env_name!r}, split {plan.split!r},"


def _show(settings: Any) -> str:
    if not isinstance(settings, Mapping):
        return "none" if settings is None else str(settings)

    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _add_details(result: ArmResult, arm: _ReadArm, value: Value) -> ArmResult:
    """The result with what scores do not say: why episodes have none, and what they cost."""
    by_source: dict[str, list[EpisodeBrief]] = {}

    for briefs in arm.briefs:
        for (source, _, _), brief in briefs.items():
            by_source.setdefault(source, []).append(brief)

    return add_details(
        result,
        name=arm.name,
        policy=arm.runs[0].manifest.policy,
        usage={source: _find_usage(briefs) for source, briefs in by_source.items()},
        unscored={source: _count_reasons(briefs, value) for source, briefs in by_source.items()},
    )


def _count_reasons(briefs: Sequence[EpisodeBrief], value: Value) -> dict[UnscoredReason, int]:
    # Where a function of the user's scored alone, the environment itself said nothing.
    return Counter(brief.reason or UnscoredReason.NO_SCORE for brief in briefs if getattr(brief, value) is None)


def _find_usage(briefs: Sequence[EpisodeBrief]) -> Usage:
    durations = [brief.duration_s for brief in briefs if brief.duration_s is not None]
    quantiles = np.quantile(durations, [0.5, 0.95]).tolist() if durations else [None, None]
    return Usage(
        num_turns=sum(brief.num_turns for brief in briefs),
        num_tool_calls=sum(brief.num_tool_calls for brief in briefs),
        num_prompt_tokens=_add(brief.num_prompt_tokens for brief in briefs),
        num_sampled_tokens=_add(brief.num_sampled_tokens for brief in briefs),
        policy_s=_add(brief.policy_s for brief in briefs),
        median_s=quantiles[0],
        p95_s=quantiles[1],
    )


def _add(numbers: Iterable[Number | None]) -> Number | None:
    """The sum of what is known. None: nothing is."""
    known = [number for number in numbers if number is not None]
    return sum(known[1:], start=known[0]) if known else None
