"""A rollout as the events that the platform takes for it.

Decides how a record's messages become the platform's, and which result a step's reward stands on. Knows no address and
no key. Field names are those of the SDK's own events (openreward 0.1.167, `models.py`), which are used here.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from openreward.models import LogMessageEvent, RolloutInfo, RolloutStartedEvent, RolloutUpdateEvent

from multiors.records import RolloutRecord, StepRecord
from multiors.redaction import Redactor

__all__ = ["Destination", "Events", "make_events"]

_TYPES = {"system": "system_message", "user": "user_message", "assistant": "assistant_message"}


@dataclass(frozen=True, slots=True)
class Destination:
    """Which environment of the platform a source is."""

    environment: str
    """Its catalogue name."""

    environment_id: str | None
    """The platform's id of it. None: not known."""

    variant: str | None
    split: str


@dataclass(frozen=True, slots=True)
class Events:
    """What is sent for one rollout."""

    start: dict[str, Any]
    """Sent first: the others belong to it."""

    rest: list[dict[str, Any]]


def make_events(
    record: RolloutRecord, destination: Destination, redactor: Redactor, *, run_name: str, time_ms: int
) -> Events:
    """The events of a rollout, without the redactor's secrets."""
    rollout_id = str(uuid.uuid4())
    start = RolloutStartedEvent(
        eventId=rollout_id,
        timestamp=time_ms,
        runName=run_name,
        step=record.step,
        environment=destination.environment,
        environment_id=destination.environment_id,
        rolloutName=f"{record.source} task {record.task_index} slot {record.slot} step {record.step}",
        variant=destination.variant,
        split=destination.split,
        metadata=redactor.hide_in(_describe(record)),
    )
    rest = [
        LogMessageEvent(
            eventId=str(uuid.uuid4()),
            timestamp=time_ms,
            index=index,
            rolloutEventId=rollout_id,
            environment_id=destination.environment_id,
            **{**fields, "content": _clean(redactor.hide(fields["content"]))},
        )
        for index, fields in enumerate(_list_messages(record))
    ]

    return Events(
        _strip(asdict(start)), [*_locate(record, rollout_id, time_ms), *(_strip(asdict(each)) for each in rest)]
    )


def _describe(record: RolloutRecord) -> dict[str, Any]:
    """What the platform has no field for."""
    return {
        "source": record.source,
        "task_index": record.task_index,
        "slot": record.slot,
        "reward": record.reward,
        "outcome": record.outcome,
        "parts": dict(record.parts),
        "reason": record.reason,
        "error": record.error,
        "finished": record.finished,
        "multiors": version("multiors"),
    }


def _locate(record: RolloutRecord, rollout_id: str, time_ms: int) -> Iterator[dict[str, Any]]:
    if record.task_index is not None:
        info = RolloutInfo(task_index=record.task_index, current_step=record.step, harness="multiors")
        yield _strip(asdict(RolloutUpdateEvent(rollout_id, time_ms, asdict(info))))


def _list_messages(record: RolloutRecord) -> Iterator[dict[str, Any]]:
    """The messages in order; a step without a result among them, as of a terminal tool, comes after."""
    steps = list(record.steps)
    calls: list[str] = []
    num_calls = 0

    for message in (*record.prompt, *record.messages):
        role, text = message.get("role"), _read_text(message.get("content"))

        if role == "tool":
            step = steps.pop(0) if steps and steps[0].output in text else None
            yield {"type": "tool_result", "content": text, "callId": calls.pop(0) if calls else None, **_score(step)}
        elif role in _TYPES and text.strip():
            yield {"type": _TYPES[role], "content": text}

        for call in message.get("tool_calls") or []:
            function = call.get("function", call)
            calls.append(f"call-{num_calls}")
            num_calls += 1
            yield {
                "type": "tool_call",
                "name": str(function.get("name")),
                "content": _write(function.get("arguments")),
                "callId": calls[-1],
            }

    for number, step in enumerate(steps, num_calls):
        name = f"call-{number}"
        yield {"type": "tool_call", "name": step.tool, "content": _write(step.arguments), "callId": name}
        yield {"type": "tool_result", "content": step.output, "callId": name, **_score(step)}


def _score(step: StepRecord | None) -> dict[str, Any]:
    return {} if step is None else {"reward": step.reward, "isFinished": step.finished}


def _read_text(content: Any) -> str:
    if isinstance(content, str):
        return content

    blocks = content if isinstance(content, list) else []
    texts = [str(block.get("text", f"[{block.get('type')}]")) for block in blocks if isinstance(block, Mapping)]
    return "\n".join(texts)


def _write(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) and arguments else json.dumps(arguments or {}, default=str)


def _clean(text: str) -> str:
    """As the SDK does it: without null bytes, and with halves of surrogate pairs written out."""
    return text.replace("\x00", "").encode("utf-8", "backslashreplace").decode("utf-8")


def _strip(fields: dict[str, Any]) -> dict[str, Any]:
    """As the SDK does it: without what is None, at any depth."""
    return {
        name: _strip(value) if isinstance(value, dict) else value for name, value in fields.items() if value is not None
    }
