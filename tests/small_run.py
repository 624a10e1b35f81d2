"""Training runs in a process of their own: under torchrun, or to be interrupted.

Run as `python -m tests.small_run '<options as JSON>'`; the options are those of `Options`. What the last run saw is
written to `<folder>/rank-<rank>.json`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from multiors import (
    CircuitBreaker,
    GroupScore,
    MultiOpenRewardSpec,
    MultiORSError,
    ORSSource,
    RolloutRecord,
    SourceReward,
)
from multiors.evaluation import EvaluationCallback, Policy, ScriptedPolicy, Start
from multiors.evaluation.policies import Message
from multiors.mixing.curricula import Ladder, LearningProgress
from tests.scripted import ConcurrentScriptedTrainer, ScriptedTrainer, call, make_arguments, make_trainer
from tests.scripted_tasks import read_answers
from tests.warm import run_ranks

__all__ = ["Options", "get_command", "run", "run_processes", "set_keepalive"]

_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Options:
    """What a process does."""

    policy: str
    folder: str

    runs: list[dict[str, list[Any]]]
    """The mixes of its runs, one after the other; by source: URL, environment, weight."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the trainer's configuration."""

    interrupted: bool = False
    """Whether each run waits for Ctrl-C, in the tool of `Slow` or in its reset, and the last gives it to itself while
    the policy writes. Such runs have no callbacks."""

    concurrent: bool = False
    """Whether the trainer opens and calls the environments at once."""

    keepalive_s: float | None = None
    """Silence after which a session is pinged. None: what the library takes."""

    rollout_log: str | None = None
    """Folder of the rollout log. None: there is none."""

    fails: bool = False
    """Whether the policy raises an exception when it sees what a tool answered."""

    breaker: dict[str, Any] | None = None
    """Settings of the circuit breaker. None: there is none."""

    progress: dict[str, Any] | None = None
    """Settings of `LearningProgress`. None: shares are constant."""

    ladders: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of the `Ladder` of sources that have one, by name."""

    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The lowest and the highest reward of sources that declare them, by name."""

    compared: list[str] = field(default_factory=list)
    """Sources whose environments compare the rollouts of each group."""

    limits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further arguments of sources, by name."""

    evaluates: str | None = None
    """Who is evaluated after each step, two episodes of each task: "script" or "model". None: nobody."""

    is_stopped: bool = False
    """Whether training ends with an error of this library's."""


def set_keepalive(spec: MultiOpenRewardSpec, keepalive_s: float) -> MultiOpenRewardSpec:
    """The spec, whose sessions are pinged after another silence; before any of its slots was read."""
    for source in spec.sources.values():
        assert isinstance(source, ORSSource)
        source._timeouts = replace(source._timeouts, keepalive_s=keepalive_s)

    return spec


def answer(conversation: str, row: int) -> str:
    """Even rows answer well, odd rows badly, and `Thermostat` is not even asked by them.

    `Brittle` and `Large` know one answer, and tasks of `ScriptedRewards` say what to ask for (`tests.scripted_tasks`).
    """
    is_good = row % 2 == 0

    if "<tool_response>" in conversation:
        return "done"
    if "Say " in conversation:
        return call("echo", text=conversation.rpartition("Say ")[2].partition(".")[0] if is_good else "wrong")
    if "hidden numbers" in conversation:
        return call("submit", order=[1, 0] if is_good else [0])
    if "Judged" in conversation:
        return "a" * (row + 1)
    if "Brittle" in conversation:
        return call("press")
    if "Large" in conversation:
        return call("which")
    if "ScriptedRewards" in conversation:
        return call("score", value=read_answers(conversation)[row % 2], finished=True)

    return call("submit", mode="heat") if is_good else "It is warm enough."


def be_interrupted(conversation: str, row: int) -> str:
    """In `Slow` call its tool; elsewhere do what Ctrl-C does, while every rollout of the batch has a session."""
    if "Slow" not in conversation:
        signal.raise_signal(signal.SIGINT)

    return call("work")


def fail(conversation: str, row: int) -> str:
    """Answer well, and fail in the second turn."""
    if "<tool_response>" in conversation:
        raise RuntimeError("the policy broke")

    return answer(conversation, row)


class ScriptEvaluation(EvaluationCallback):
    """Evaluates `play_by_task` in the model's place."""

    def make_policy(self, step: int) -> Policy:
        return ScriptedPolicy(play_by_task)


def play_by_task(start: Start, messages: Sequence[Message]) -> Any:
    """Answer as many tasks well as badly; what is done depends on nothing but the task."""
    if messages[-1]["role"] == "tool":
        return "done"

    orders = {0: [1, 2, 0], 2: [0, 2, 1]}
    is_good = start.task_index % 2 == 0

    if start.source == "sort":
        return [("submit", {"order": orders[start.task_index] if is_good else [0]})]

    return [("submit", {"mode": "heat" if is_good else "off"})]


CALLBACKS: dict[str, type[EvaluationCallback]] = {"script": ScriptEvaluation, "model": EvaluationCallback}


def run(options: Options, sources: dict[str, list[Any]]) -> dict[str, Any]:
    """Train on a mix; what this process saw."""
    import torch.distributed

    records: list[RolloutRecord] = []
    first_turns: list[str] = []

    def watched(conversation: str, row: int) -> str:
        if "<tool_response>" not in conversation:
            first_turns.append(conversation)
        return script(conversation, row)

    script = fail if options.fails else be_interrupted if options.interrupted else answer
    spec = MultiOpenRewardSpec(
        {
            name: ORSSource(
                url,
                env_name=env,
                weight=weight,
                discover_task_tools=False,
                reward=SourceReward(
                    range=options.ranges.get(name), parts=(GroupScore(),) if name in options.compared else ()
                ),
                task_curriculum=Ladder(**options.ladders[name]) if name in options.ladders else None,
                **options.limits.get(name, {}),
            )
            for name, (url, env, weight) in sources.items()
        },
        on_rollouts=records.extend,
        rollout_log=options.rollout_log,
        circuit_breaker=None if options.breaker is None else CircuitBreaker(**options.breaker),
        curriculum=None if options.progress is None else LearningProgress(**options.progress),
    )

    if options.keepalive_s is not None:
        set_keepalive(spec, options.keepalive_s)

    trainer = make_trainer(
        spec,
        Path(options.policy),
        make_arguments(spec, Path(options.folder), **options.fields),
        script=watched,
        trainer_class=ConcurrentScriptedTrainer if options.concurrent else ScriptedTrainer,
        callbacks=[] if options.interrupted else spec.callbacks,
    )
    error = None

    if options.evaluates is not None:
        trainer.add_callback(CALLBACKS[options.evaluates](trainer, spec, every_steps=1, episodes_per_task=2))

    try:
        trainer.train()
    except MultiORSError as stop:
        error = str(stop)

        if not options.is_stopped:
            raise

    is_distributed = torch.distributed.is_initialized()
    return {
        "world_size": torch.distributed.get_world_size() if is_distributed else 1,
        "backend": torch.distributed.get_backend() if is_distributed else None,
        "num_processes": trainer.accelerator.num_processes,
        "records": [record.to_json() for record in records],
        "first_turns": first_turns,
        "log": trainer.state.log_history,
        "error": error,
        "summary": spec.summary().to_json(),
    }


def get_command(options: Options) -> list[str]:
    """What runs in a process of its own."""
    return [sys.executable, "-m", "tests.small_run", json.dumps(asdict(options))]


def run_processes(options: Options, size: int) -> list[dict[str, Any]]:
    """Do the run in so many processes; what each of them saw."""
    said = run_ranks(get_command(options), size, timeout=_DEADLINE_S)
    assert 0 == said.exit_code, said.err
    return [json.loads(Path(options.folder, f"rank-{rank}.json").read_text()) for rank in range(size)]


def main(options: Options) -> None:
    """Do the runs; every interruption but the last is survived."""
    # torch imports it when the process ends, if it is there; that makes Python forget that Ctrl-C ended it.
    with suppress(ImportError):
        import_module("tabulate")

    for sources in options.runs[:-1]:
        with suppress(KeyboardInterrupt):
            run(options, sources)

    seen = run(options, options.runs[-1])
    Path(options.folder, f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main(Options(**json.loads(sys.argv[1])))
