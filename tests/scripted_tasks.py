"""Tasks that say how their rollouts are rewarded, and what a planner makes of a run in which they were.

A rollout's reward follows from its task and its place in the group alone. So a run observes the same on any number of
processes and after any kill, and can be planned once more from its records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from multiors import RolloutRecord
from multiors.mixing import BatchPlanner, SlotObservation
from multiors.mixing.walk import TaskWalk

__all__ = ["Planned", "answers_by_draw", "groups_of", "plan_again", "read_answers", "task_of"]


def task_of(first: object, second: object, **fields: Any) -> dict[str, Any]:
    """A task of `ScriptedRewards`: even rows are rewarded with the first value, odd rows with the second.

    A value is a number, "null" for none, or "raise" for a tool that fails.
    """
    return {**fields, "answers": [str(first), str(second)]}


def answers_by_draw(answers: Sequence[tuple[object, object]], *, source: int) -> list[dict[str, Any]]:
    """Tasks in such an order that the source at that position of a mix with seed 0 draws these answers in turn."""
    order = TaskWalk(len(answers), seed=0, source=source).draw(0, len(answers)).tolist()
    tasks = {position: task_of(*answers[draw], n=draw) for draw, position in enumerate(order)}
    return [tasks[position] for position in range(len(answers))]


def read_answers(conversation: str) -> list[str]:
    """What a task's rows are to ask for, from its prompt."""
    task, _ = json.JSONDecoder().raw_decode(conversation.partition("ScriptedRewards: ")[2])
    answers: list[str] = task["answers"]
    return answers


def groups_of(records: Sequence[RolloutRecord]) -> list[list[RolloutRecord]]:
    """The rollouts of each slot that was played, in slot order."""
    ordered = sorted(records, key=lambda record: -1 if record.slot is None else record.slot)
    return [list(group) for _, group in groupby(ordered, key=attrgetter("slot"))]


class Planned(NamedTuple):
    """A batch of a run that was planned once more from its records."""

    slots: list[tuple[str, int]]
    """The source and the position of the task of each slot."""

    metrics: dict[str, float]
    """What is to be logged of the mix."""


def plan_again(planner: BatchPlanner, records: Sequence[RolloutRecord]) -> Iterator[Planned]:
    """Each batch of a run, from what is recorded of the batches before it.

    The next batch is planned before a batch is observed, as a trainer reads it.
    """
    size = planner.prompts_per_batch
    groups = groups_of(records)
    num_batches = len(groups) // size
    for batch in range(num_batches):
        planned = planner.plan(batch)
        planner.plan(min(batch + 1, num_batches - 1))
        planner.observe(batch, [_observe(planner, group) for group in groups[batch * size : (batch + 1) * size]])
        debt, metrics = planner.measure_debt(), planner.measure()
        logged: dict[str, float] = {}
        for name, share in zip(planner.names, planned.shares, strict=True):
            own = {"planned_share": share, "left_out": float(share == 0), "owed_slots": debt[name]}
            own |= {f"curriculum/{metric}": value for metric, value in metrics[name].items()}
            logged |= {f"env/{name}/{metric}": value for metric, value in own.items()}
        slots = zip(planned.source_index.tolist(), planned.position.tolist(), strict=True)
        yield Planned([(planner.names[source], position) for source, position in slots], logged)


def _observe(planner: BatchPlanner, group: Sequence[RolloutRecord]) -> SlotObservation:
    first = group[0]
    assert first.slot is not None
    return SlotObservation(
        first.slot,
        planner.names.index(first.source),
        tuple(record.reward for record in group),
        sum(record.reason is not None and record.reason.is_infrastructure for record in group),
    )
