"""Records of rollouts that nobody played. Imports nothing heavy: processes of their own begin with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from multiors.records import RolloutRecord, StepRecord

__all__ = ["make_record", "make_records"]


def make_record(**changes: Any) -> RolloutRecord:
    """A record of a rollout that went well."""
    step = StepRecord("echo", {"text": "oak"}, output="oak", reward=1.0, finished=True, duration_s=0.25)
    record = RolloutRecord(
        source="echo",
        task_index=3,
        slot=7,
        step=2,
        reward=1.1,
        outcome=1.0,
        parts={"brevity": 0.1, "judge": None},
        reason=None,
        error=None,
        finished=True,
        steps=(step,),
        messages=({"role": "assistant", "content": "oak"}, {"role": "tool", "name": "echo", "content": "oak"}),
        prompt=({"role": "user", "content": "Say oak."},),
        session="s-1",
        opening_s=0.125,
        num_tokens=12,
    )
    return replace(record, **changes)


def make_records(count: int, **changes: Any) -> list[RolloutRecord]:
    """Records of the slots from 0."""
    return [make_record(slot=slot, **changes) for slot in range(count)]
