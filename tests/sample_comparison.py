"""Evaluations that nobody played, and what a comparison of them finds: small, with every verdict.

`sort` regresses, `heat` improves, `echo` cannot be told, `maze` is scored in one arm alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from multiors.evaluation import compare, summarize
from multiors.evaluation.folder import EvaluationRun, Manifest, SourcePlan, begin_folder
from multiors.evaluation.results import ArmResult, Comparison
from multiors.records import RolloutRecord, StepRecord, UnscoredReason
from multiors.redaction import Redactor
from multiors.rollout_log.lines import render, render_header

__all__ = [
    "NUM_TASKS",
    "SOURCES",
    "make_arm",
    "make_comparison",
    "make_episode",
    "make_episodes",
    "write_evaluation",
    "write_training",
]

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
        sources={
            name: SourcePlan("http://127.0.0.1:8001", name, "test", tuple(tasks[name]), reward_range=(0.0, 1.0))
            for name in names
        },
        seed=0,
        episodes_per_task=1 + max((record.episode or 0 for record in records), default=0),
        limits={"turns": 8},
        begun="2026-01-02T03:04:05+00:00",
    )

    with begin_folder(folder, manifest) as run:
        lines = [render(record, Redactor(), limit_bytes=64 * 1024**2) for record in records]
        (folder / "rollouts-000001-rank0.jsonl").write_bytes(b"".join([render_header(names), *lines]))
        return run


def _make_plan(name: str, tasks: list[int]) -> SourcePlan:
    return SourcePlan("http://127.0.0.1:8001", name, "test", tuple(tasks), reward_range=(0.0, 1.0))


def write_training(folder: Path, *, num_steps: int = 60) -> None:
    """The rollout log of a training in which `sort` forgets, `heat` learns, and `echo` breaks down at the end."""
    chance = Random(7)
    records: list[RolloutRecord] = []

    for step in range(1, num_steps + 1):
        part = step / num_steps

        for place in range(8):
            source = ("sort", "heat", "heat", "echo")[place % 4]
            mean = {"sort": 0.8 - 0.5 * part, "heat": 0.2 + 0.6 * part, "echo": 0.5}[source]
            is_lost = source == "echo" and part > 0.6 and chance.random() < 0.5
            reward = None if is_lost else round(min(1.0, max(0.0, mean + chance.gauss(0.0, 0.1))), 3)
            reason = UnscoredReason.SESSION_LOST if is_lost else None
            record = make_episode(source, chance.randrange(20), 0, reward=reward, reason=reason)
            records.append(replace(record, slot=len(records) // 2, step=step, episode=None, seed=None))

    folder.mkdir(parents=True, exist_ok=True)
    lines = [render(record, Redactor(), limit_bytes=64 * 1024**2) for record in records]
    (folder / "rollouts-000001-rank0.jsonl").write_bytes(b"".join([render_header(["sort", "heat", "echo"]), *lines]))


def make_comparison(reference: EvaluationRun, candidate: EvaluationRun, **changes: Any) -> Comparison:
    """What a comparison of two evaluations finds, or would find if some of it were different."""
    return replace(compare(reference, candidate, success_at=0.5), **changes)


def make_arm(run: EvaluationRun) -> ArmResult:
    """What one evaluation comes to."""
    return summarize(run, success_at=0.5)
