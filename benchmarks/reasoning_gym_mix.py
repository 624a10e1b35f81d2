"""What do answers earn by level on a mix of reasoning-gym's generators, and how fast does one server judge them?

`multiors serve reasoning-gym` with four generators, played by `evaluate` with three policies that need no model:
`oracle` gives the right answer, `random` calls the tool with random text, and `shuffled` gives the right answer of
another task of the same generator. `shuffled` is what knowing the form of an answer alone is worth, so what a policy
earns above it is for the question. By source and level, means over tasks; `episodes_per_s` is of the whole evaluation,
with everything on one machine, and that of `oracle`, which plays first, includes the making of the questions. `start_s`
is from the command to the first answer, with the check of every level.

What it can show: that levels are told apart, that right answers earn 1 on all of them, and where chance is far from 0.
What it cannot: how hard a level is for a model.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks._report import parse_arguments, write_report
from multiors import ORSSource, SourceReward
from multiors.evaluation import Policy, RandomCalls, ScriptedPolicy, evaluate
from multiors.serving.generators import Generator
from tests.served import serve_command

__all__ = ["main"]

_DATASETS = ("chain_sum", "circuit_logic", "countdown", "maze")
_NUM_TASKS = 200
_SEED = 1
_END = "\n\nCall the tool"

Answers = Mapping[str, str]
"""By question."""


def main() -> None:
    """Serve, play each policy, and write what it earned."""
    options = parse_arguments(__doc__ or "")
    num_tasks = 12 if options.quick else _NUM_TASKS
    arguments = [option for name in _DATASETS for option in ("--dataset", name)]
    arguments += ["--num-tasks", str(num_tasks), "--seed", str(_SEED)]

    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with serve_command("reasoning-gym", *arguments, folder=Path(folder)) as server:
            start_s = time.perf_counter() - started
            levels = {name: each["levels"] for name, each in server.environments.items()}
            right, others = _find_answers(levels, num_tasks)
            policies = {"oracle": _answer_by(right), "shuffled": _answer_by(others), "random": RandomCalls()}
            played = {
                name: _play(policy, server.url, Path(folder) / name, levels=levels) for name, policy in policies.items()
            }

    results = {"start_s": round(start_s, 2), "num_levels": {name: len(each) for name, each in levels.items()}, **played}
    write_report(options.json, results, settings={"datasets": list(_DATASETS), "num_tasks": num_tasks, "seed": _SEED})


def _find_answers(levels: Mapping[str, Sequence[int]], num_tasks: int) -> tuple[Answers, Answers]:
    """The right answer to each question, and that of the next task of the same generator."""
    right: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, each in levels.items():
        generator = Generator(name, each, num_tasks=num_tasks, seed=_SEED)
        entries = [generator.make_entry(spec) for spec in generator.list_specs("train")]
        for entry, after in zip(entries, [*entries[1:], entries[0]], strict=True):
            question = entry["question"].strip()
            right[question] = entry["answer"]
            others[question] = after["answer"]
    return right, others


def _answer_by(answers: Answers) -> Policy:
    def answer(_: object, messages: Sequence[Mapping[str, Any]]) -> Any:
        if messages[-1]["role"] == "tool":
            return "Done."
        return [("answer", {"text": answers[str(messages[0]["content"]).partition(_END)[0]]})]

    return ScriptedPolicy(answer)


def _play(policy: Policy, url: str, folder: Path, *, levels: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    sources = {name: ORSSource(url, env_name=name, reward=SourceReward(range=(0, 1))) for name in levels}
    started = time.perf_counter()
    run = evaluate(sources, policy, folder, episodes_per_task=1)
    seconds = time.perf_counter() - started
    rewards: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    num_episodes = num_scored = 0
    for record in run.episodes():
        num_episodes += 1
        if record.reward is not None:
            num_scored += 1
            each = levels[record.source]
            rewards[record.source][each[(record.task_index or 0) % len(each)]].append(record.reward)
    return {
        "episodes": num_episodes,
        "scored": num_scored,
        "episodes_per_s": round(num_episodes / seconds, 1),
        "mean": {name: round(fmean(chain.from_iterable(each.values())), 4) for name, each in sorted(rewards.items())},
        "mean_by_level": {
            name: {f"level_{level}": round(fmean(values), 4) for level, values in sorted(each.items())}
            for name, each in sorted(rewards.items())
        },
    }


if __name__ == "__main__":
    main()
