"""Evaluations that nobody played, and what a comparison of them would find: small, with every verdict and reason.

`sort` regresses, `heat` improves, `echo` cannot be told, `maze` is scored in one arm alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean, stdev
from typing import Any

from multiors.evaluation.folder import EvaluationRun, Manifest, SourcePlan, begin_folder
from multiors.evaluation.results import ArmResult, Comparison, Difference, Estimate, SourceResult, Usage, Verdict
from multiors.records import RolloutRecord, StepRecord, UnscoredReason
from multiors.redaction import Redactor
from multiors.rollout_log.lines import render, render_header

__all__ = ["NUM_TASKS", "SOURCES", "make_arm", "make_comparison", "make_episode", "write_evaluation"]

SOURCES = ("sort", "heat", "echo", "maze")
NUM_TASKS = 24
NUM_EPISODES = 2

_SKILLS: Mapping[str, Mapping[str, float | None]] = {
    "a": {"sort": 0.75, "heat": 0.35, "echo": 0.55, "maze": 0.4},
    "b": {"sort": 0.45, "heat": 0.7, "echo": 0.57, "maze": None},
}


def make_episode(
    source: str, task_index: int, episode: int, *, reward: float | None, reason: UnscoredReason | None, **changes: Any
) -> RolloutRecord:
    """An episode of two turns: a thought, a call, its result, and a last word."""
    failed = reason is not None and reason.is_infrastructure
    is_silent = reason is UnscoredReason.NO_TOOL_CALL
    output = "The tool failed." if failed else f"scored {reward}"
    arguments = {"items": ["pear", "apple", "oak"][: 1 + task_index % 3], "order": "ascending"}
    call = {"type": "function", "function": {"name": "submit", "arguments": arguments}}
    step = StepRecord("submit", arguments, output, reward, reward is not None, reason if failed else None, 0.18)
    values: dict[str, Any] = {
        "source": source,
        "task_index": task_index,
        "slot": None,
        "step": 0,
        "reward": reward,
        "outcome": reward,
        "parts": {},
        "reason": reason,
        "error": f"tool 'submit' failed on task {task_index}: HTTP 500" if failed else None,
        "finished": reward is not None,
        "steps": () if is_silent else (step,),
        "messages": (
            {"role": "assistant", "reasoning_content": f"Task {task_index} asks for an order.", "content": "I sort."}
            | ({} if is_silent else {"tool_calls": [call]}),
            *(() if is_silent else (_answer(output),)),
        ),
        "prompt": ({"role": "user", "content": f"Solve task {task_index} of {source}."},),
        "session": f"{source}-{task_index}-{episode}",
        "episode": episode,
        "seed": 1000 * task_index + episode,
        "num_prompt_tokens": 180 + task_index,
        "num_sampled_tokens": 40 + 3 * task_index,
        "policy_s": 0.9,
        "duration_s": 1.4 + 0.05 * task_index,
        "num_attempts": 1,
    }
    return RolloutRecord(**{**values, **changes})


def _answer(output: str) -> dict[str, Any]:
    return {"role": "tool", "name": "submit", "content": output}


def make_episodes(arm: str, *, num_tasks: int = NUM_TASKS) -> list[RolloutRecord]:
    """All episodes of an arm, the same at every call."""
    found = []

    for source in SOURCES:
        for task_index in range(num_tasks):
            difficulty = Random(f"{source} {task_index}").gauss(0.0, 0.18)

            for episode in range(NUM_EPISODES):
                chance = Random(f"{arm} {source} {task_index} {episode}")
                skill = _SKILLS[arm][source]
                reward, reason = None, None

                if skill is None:
                    reason = UnscoredReason.UNREACHABLE
                elif chance.random() < (0.08 if arm == "b" else 0.03):
                    reason = chance.choice([UnscoredReason.NO_TOOL_CALL, UnscoredReason.SESSION_LOST])
                else:
                    reward = round(min(1.0, max(0.0, skill + difficulty + chance.gauss(0.0, 0.08))), 3)

                found.append(make_episode(source, task_index, episode, reward=reward, reason=reason))

    return found


def write_evaluation(folder: Path, arm: str, records: list[RolloutRecord] | None = None) -> EvaluationRun:
    """An evaluation in a folder, with the episodes of an arm or with others."""
    records = make_episodes(arm) if records is None else records
    names = list(dict.fromkeys(record.source for record in records))
    tasks = {name: sorted({record.task_index or 0 for record in records if record.source == name}) for name in names}
    manifest = Manifest(
        policy={"kind": "scripted", "name": f"policy {arm}", "sampling": {"temperature": 1.0}},
        sources={name: SourcePlan("http://127.0.0.1:8001", name, "test", tuple(tasks[name])) for name in names},
        seed=0,
        episodes_per_task=1 + max((record.episode or 0 for record in records), default=0),
        limits={"turns": 8},
        begun="2026-01-02T03:04:05+00:00",
    )

    with begin_folder(folder, manifest) as run:
        lines = [render(record, Redactor(), limit_bytes=64 * 1024**2) for record in records]
        (folder / "rollouts-000001-rank0.jsonl").write_bytes(b"".join([render_header(names), *lines]))
        return run


# -- what a comparison would find


def make_arm(run: EvaluationRun, name: str | None = None) -> ArmResult:
    """What one evaluation would come to."""
    records = list(run.episodes())
    sources = {
        source: _make_source(source, [each for each in records if each.source == source])
        for source in run.manifest.sources
    }
    values = [each.score.value for each in sources.values()]
    known = [value for value in values if value is not None]
    macro = fmean(known) if len(known) == len(values) else None
    error = None if macro is None else 0.02
    return ArmResult(name or run.name, run.manifest.policy, 1, sources, _estimate(macro, error, len(known)))


def _make_source(source: str, records: list[RolloutRecord]) -> SourceResult:
    means = list(_task_means(records).values())
    reasons = [record.reason for record in records if record.reason is not None]
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    scored = sum(record.reward is not None for record in records)
    total = sum(record.reward or 0.0 for record in records)
    usage = Usage(
        num_turns=sum(len(record.messages) for record in records),
        num_tool_calls=sum(len(record.steps) for record in records),
        num_prompt_tokens=sum(record.num_prompt_tokens or 0 for record in records),
        num_sampled_tokens=sum(record.num_sampled_tokens or 0 for record in records),
        policy_s=0.9 * len(records),
        median_s=1.9,
        p95_s=2.5,
    )
    num = len(records)
    score = _estimate(fmean(means) if means else None, error, len(means))
    return SourceResult(
        source=source,
        weight=1 / len(SOURCES),
        num_tasks=len({record.task_index for record in records}),
        num_episodes=num,
        num_scored=scored,
        unscored_by_reason={reason: reasons.count(reason) for reason in dict.fromkeys(reasons)},
        score=score,
        bounds=(total / num, (total + num - scored) / num),
        success_at=0.5,
        pass_at={
            k: _estimate(None if not means else min(1.0, fmean(means) * (0.8 + 0.2 * k)), 0.05, len(means))
            for k in (1, 2)
        },
        usage=usage,
    )


def _task_means(records: list[RolloutRecord]) -> dict[int, float]:
    by_task: dict[int, list[float]] = {}

    for record in records:
        if record.reward is not None:
            by_task.setdefault(record.task_index or 0, []).append(record.reward)

    return {task: fmean(rewards) for task, rewards in by_task.items()}


def _estimate(value: float | None, error: float | None, num_units: int) -> Estimate:
    if value is None or error is None:
        return Estimate(value, None, None, None, num_units)
    return Estimate(value, value - 1.96 * error, value + 1.96 * error, error, num_units, "t over tasks")


def make_comparison(reference: EvaluationRun, candidate: EvaluationRun, **changes: Any) -> Comparison:
    """What a comparison of two evaluations would find."""
    arms = [list(run.episodes()) for run in (reference, candidate)]
    pairs = {
        source: _pair([[each for each in arm if each.source == source] for arm in arms])
        for source in reference.manifest.sources
    }
    sources = {source: _make_difference(changes_of, len(pairs)) for source, changes_of in pairs.items()}
    known = [each for each in sources.values() if each.value is not None]
    everything = [change for changes_of in pairs.values() for change in changes_of]
    macro = _make_difference(everything, 1) if len(known) == len(sources) else _make_difference([], 1)
    values: Mapping[str, Any] = {
        "reference": make_arm(reference),
        "candidate": make_arm(candidate),
        "unit": "task",
        "is_paired": True,
        "value": "reward",
        "macro": macro,
        "sources": sources,
        "remarks": ("The scored fractions of 'maze' differ: 97 % beside 0 %.",),
    }
    return Comparison(**{**values, **changes})


def _pair(arms: list[list[RolloutRecord]]) -> list[float]:
    before, after = map(_task_means, arms)
    return [after[task] - before[task] for task in before if task in after]


def _make_difference(changes: list[float], num_tests: int) -> Difference:
    if len(changes) < 2:
        return Difference(None, None, None, None, None, None, None, len(changes), "undecided")

    value, error = fmean(changes), stdev(changes) / math.sqrt(len(changes))
    p = 2 * (1 - NormalDist().cdf(abs(value) / error)) if error else 1.0
    adjusted = min(1.0, p * num_tests)
    verdict: Verdict = "undecided" if adjusted > 0.05 else "better" if value > 0 else "worse"
    low, high = value - 2 * error, value + 2 * error
    return Difference(value, low, high, error, p, adjusted, 2.8 * error, len(changes), verdict)
