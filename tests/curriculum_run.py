"""Runs of a mix whose tasks say how they are rewarded, and what is read off them.

What such a run observes is known before it: `drift` gets better from draw to draw, `weak` fails in its first five, and
`stairs` has three levels, of which the policy solves the first two.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord
from tests.scripted import make_arguments, train
from tests.scripted_tasks import answers_by_draw, groups_of, task_of
from tests.servers.launch import ServerHandle
from tests.small_run import answer
from tests.test_training_breaker import SHAPE, Listener, Run

__all__ = ["SLOTS", "TASKS", "find_metric", "played", "read_log", "run_whole", "source_of", "told"]

SLOTS = 4
"""Slots in a batch of `SHAPE`."""

TASKS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "drift": answers_by_draw([(draw / 32, 0.0) for draw in range(32)], source=0),
    "weak": answers_by_draw([("raise", "raise")] * 5 + [(1.0, 0.5)] * 27, source=1),
    "stairs": [task_of(1.0, float(level < 2), level=level, n=n) for level in range(3) for n in range(4)],
    "steady": [task_of(0.5, 0.5, n=n) for n in range(8)],
    "learned": answers_by_draw([(0.0, 0.0)] * 4 + [(1.0, 1.0)] * 8 + [(0.0, 0.0)] * 20, source=0),
    "mute": [task_of("null", "null", n=n) for n in range(4)],
    "single": [task_of(1.0, 0.0)],
    "mastered": [task_of(1.0, 1.0, n=n) for n in range(4)],
    "hopeless": [task_of(0.0, 0.0, n=n) for n in range(4)],
}
"""The tasks of each split, for `configured("ScriptedRewards", TASKS=...)`."""


def source_of(server: ServerHandle, split: str, **options: Any) -> ORSSource:
    """The source of a split."""
    return ORSSource(server.url, split=split, discover_task_tools=False, **options)


def run_whole(
    make: Callable[..., MultiOpenRewardSpec], policy: Path, folder: Path, *, steps: int, **fields: Any
) -> Run:
    """A run that is never interrupted."""
    records: list[RolloutRecord] = []
    logger, listener = logging.getLogger("multiors.training"), Listener()
    spec = make(on_rollouts=records.extend)
    args = make_arguments(spec, folder, max_steps=steps, **{**SHAPE, **fields})
    logger.addHandler(listener)

    try:
        trainer = train(spec, policy, args, script=answer)
    finally:
        logger.removeHandler(listener)

    return Run(records, folder, trainer.state.log_history, listener.messages)


def played(records: Sequence[RolloutRecord], *, slots: int = SLOTS) -> list[list[tuple[str, int | None]]]:
    """The source and task of each slot, batch by batch."""
    drawn = [(group[0].source, group[0].task_index) for group in groups_of(records)]
    return [drawn[first : first + slots] for first in range(0, len(drawn), slots)]


def told(log: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """What was logged of each source, batch by batch."""
    names = [[name for name in entry if re.fullmatch("env/.*/.*", name)] for entry in log]
    entries = [{name: entry[name] for name in found} for entry, found in zip(log, names, strict=True)]
    return [entry for entry in entries if entry]


def read_log(folder: Path, step: int) -> list[dict[str, float]]:
    """What was logged of each source until a checkpoint, in all pieces of its run."""
    text = (folder / f"checkpoint-{step}" / "trainer_state.json").read_text(encoding="utf-8")
    return told(json.loads(text)["log_history"])


def find_metric(log: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """The values of a metric in the batches in which it was logged."""
    return [entry[name] for entry in log if entry.get(name) is not None]
