"""Evaluations from their folders to answers: what one is worth, and whether another is better.

Decides which folders make up an arm, which episodes may be compared at all, and what a reader must be told of how the
two were made. The arithmetic is in `statistics`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from multiors.errors import ComparisonError
from multiors.evaluation.folder import EvaluationRun, is_evaluation, read_evaluation
from multiors.evaluation.results import ArmResult, Comparison, Usage
from multiors.evaluation.statistics import RunScores, SourceScores, add_details, compare_arms, summarize_arm
from multiors.records import RolloutRecord, UnscoredReason

__all__ = ["Arm", "compare", "read_arm", "summarize"]

Value = Literal["reward", "outcome"]
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
    runs = read_arm(arm)
    _check_played(runs)
    result = summarize_arm([run.scores(value) for run in runs], success_at=success_at)
    return _add_details(result, runs, _name_arm(arm, runs), value)


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
    arms = [read_arm(reference), read_arm(candidate)]
    given = names or (_name_arm(reference, arms[0]), _name_arm(candidate, arms[1]))

    for runs in arms:
        _check_played(runs)

    changed = _find_changed_tasks([run for runs in arms for run in runs])
    scores = [[_leave_out(run.scores(value), changed) for run in runs] for runs in arms]
    found = compare_arms(*scores, seed=seed, success_at=success_at)
    before, after = (
        _add_details(result, runs, name, value)
        for result, runs, name in zip((found.reference, found.candidate), arms, given, strict=True)
    )
    remarks = (*_describe_changed_tasks(changed), *_describe_differences(*arms), *found.remarks)
    return replace(found, reference=before, candidate=after, value=value, remarks=remarks)


def _check_played(runs: Sequence[EvaluationRun]) -> None:
    for run in runs:
        if next(iter(run.episodes()), None) is None:
            raise ComparisonError(
                f"the evaluation {str(run.folder)!r} has no episode yet. Run `multiors evaluate` with the same output."
            )


def _name_arm(arm: Arm, runs: Sequence[EvaluationRun]) -> str:
    if isinstance(arm, (str, os.PathLike)):
        return Path(arm).absolute().name

    return ", ".join(run.name for run in runs)


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


def _describe_differences(reference: Sequence[EvaluationRun], candidate: Sequence[EvaluationRun]) -> Iterator[str]:
    """How the two were made, where that is not the same; and what is not finished."""
    for run in (*reference, *candidate):
        played = sum(1 for _ in run.episodes())
        if played < run.manifest.num_episodes:
            yield (
                f"{run.name!r} is not finished: {played:,} of {run.manifest.num_episodes:,} episodes were played. Run "
                f"`multiors evaluate` again with the same output to play the rest."
            )

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


def _add_details(result: ArmResult, runs: Sequence[EvaluationRun], name: str, value: Value) -> ArmResult:
    """The result with what scores do not say: why episodes have none, and what they cost."""
    tallies: dict[str, _Tally] = {}

    for run in runs:
        for record in run.episodes():
            tallies.setdefault(record.source, _Tally()).add(record, value)

    return add_details(
        result,
        name=name,
        policy=runs[0].manifest.policy,
        usage={source: tally.usage for source, tally in tallies.items()},
        unscored={source: dict(tally.unscored) for source, tally in tallies.items()},
    )


class _Tally:
    """What the episodes of a source cost, and why they have no score; one record after another."""

    def __init__(self) -> None:
        self.unscored: Counter[UnscoredReason] = Counter()
        self._numbers: dict[str, list[float]] = {}
        self._num_turns = self._num_tool_calls = 0

    def add(self, record: RolloutRecord, value: Value) -> None:
        if getattr(record, value) is None:
            # Where a function of the user's scored alone, the environment itself said nothing.
            self.unscored[record.reason or UnscoredReason.NO_SCORE] += 1

        self._num_turns += sum(message.get("role") == "assistant" for message in record.messages)
        self._num_tool_calls += len(record.steps)

        for field in ("num_prompt_tokens", "num_sampled_tokens", "policy_s", "duration_s"):
            number = getattr(record, field)
            if number is not None:
                self._numbers.setdefault(field, []).append(number)

    @property
    def usage(self) -> Usage:
        durations = self._numbers.get("duration_s")
        quantiles = [None, None] if durations is None else np.quantile(durations, [0.5, 0.95]).tolist()
        return Usage(
            num_turns=self._num_turns,
            num_tool_calls=self._num_tool_calls,
            num_prompt_tokens=_add(self._numbers.get("num_prompt_tokens"), int),
            num_sampled_tokens=_add(self._numbers.get("num_sampled_tokens"), int),
            policy_s=_add(self._numbers.get("policy_s"), float),
            median_s=quantiles[0],
            p95_s=quantiles[1],
        )


def _add(numbers: Iterable[float] | None, kind: Any) -> Any:
    return None if numbers is None else kind(sum(numbers))
