"""Training runs in a process of their own: under torchrun, or to be interrupted.

Run as `python -m tests.small_run '<options as JSON>'`; the options are those of `Options`. What the last run saw is
written to `<folder>/rank-<rank>.json`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord
from tests.scripted import call, make_arguments, train

__all__ = ["Options", "run"]


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


def answer(conversation: str, row: int) -> str:
    """Even rows answer well, odd rows badly, and `Thermostat` is not even asked by them."""
    is_good = row % 2 == 0

    if "<tool_response>" in conversation:
        return "done"
    if "Say " in conversation:
        return call("echo", text=conversation.rpartition("Say ")[2].partition(".")[0] if is_good else "wrong")
    if "hidden numbers" in conversation:
        return call("submit", order=[1, 0] if is_good else [0])

    return call("submit", mode="heat") if is_good else "It is warm enough."


def be_interrupted(conversation: str, row: int) -> str:
    """In `Slow` call its tool; elsewhere do what Ctrl-C does, while every rollout of the batch has a session."""
    if "Slow" not in conversation:
        signal.raise_signal(signal.SIGINT)

    return call("work")


def run(options: Options, sources: dict[str, list[Any]]) -> dict[str, Any]:
    """Train on a mix; what this process saw."""
    import torch.distributed

    records: list[RolloutRecord] = []
    spec = MultiOpenRewardSpec(
        {
            name: ORSSource(url, env_name=env, weight=weight, discover_task_tools=False)
            for name, (url, env, weight) in sources.items()
        },
        on_rollouts=records.extend,
    )
    trainer = train(
        spec,
        Path(options.policy),
        make_arguments(spec, Path(options.folder), **options.fields),
        script=be_interrupted if options.interrupted else answer,
        callbacks=[] if options.interrupted else spec.callbacks,
    )
    is_distributed = torch.distributed.is_initialized()
    return {
        "world_size": torch.distributed.get_world_size() if is_distributed else 1,
        "backend": torch.distributed.get_backend() if is_distributed else None,
        "num_processes": trainer.accelerator.num_processes,
        "records": [record.to_json() for record in records],
        "log": trainer.state.log_history,
    }


def main(options: Options) -> None:
    """Do the runs; every interruption but the last is survived."""
    for sources in options.runs[:-1]:
        with suppress(KeyboardInterrupt):
            run(options, sources)

    seen = run(options, options.runs[-1])
    Path(options.folder, f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main(Options(**json.loads(sys.argv[1])))
