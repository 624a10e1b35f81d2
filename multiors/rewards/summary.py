"""What became of a run's rollouts: sums per source that can be added up, over batches and processes, and their table.

Arithmetic on records. When a table is shown, and to whom, is decided elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import fsum
from typing import Any, NamedTuple

from multiors.records import RolloutRecord, UnscoredReason
from multiors.rewards.statistics import find_calls
from multiors.tables import align

__all__ = ["FirstError", "RunSummary", "SourceSummary", "add_summaries", "summarize_source"]

_MOST_TOOLS = 3  # Named in the remarks; the others are in `failed_calls_by_tool`.
_MOST_CHARACTERS = 300  # Of an error in the remarks.
_SILENT_STEPS = 3  # From so many steps without a score at the end on, they are remarked.


class FirstError(NamedTuple):
    """The first thing that failed."""

    step: int
    slot: int
    """-1: the rollout had none."""

    text: str


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """What became of some rollouts of one source."""

    num_rollouts: int = 0
    num_scored: int = 0
    num_finished: int = 0

    total_reward: float = 0.0
    """Sum over the scored rollouts."""

    unscored_by_reason: Mapping[UnscoredReason, int] = field(default_factory=lambda: dict.fromkeys(UnscoredReason, 0))
    """Unscored rollouts for each of the eight reasons; they sum to num_rollouts - num_scored."""

    num_tool_calls: int = 0

    failed_calls_by_tool: Mapping[str, int] = field(default_factory=dict)
    """Calls that failed in any way (refused, raised, lost, or answered with a bad reward), for tools that have any."""

    first_error: FirstError | None = None
    """None: nothing failed in the environment."""

    last_step: int | None = None
    """Step of the last rollout. None: there is none."""

    last_scored_step: int | None = None
    """Step of the last scored rollout. None: there is none."""

    @property
    def mean_reward(self) -> float | None:
        """Over the scored rollouts. None: none was scored."""
        return self.total_reward / self.num_scored if self.num_scored else None

    @property
    def scored_fraction(self) -> float | None:
        """None: there are no rollouts."""
        return self.num_scored / self.num_rollouts if self.num_rollouts else None

    @property
    def finished_fraction(self) -> float | None:
        """None: there are no rollouts."""
        return self.num_finished / self.num_rollouts if self.num_rollouts else None

    @property
    def num_tool_errors(self) -> int:
        """Failed calls of all tools."""
        return sum(self.failed_calls_by_tool.values())


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What became of a run's rollouts. `print(summary)` shows a table, and under it what failed."""

    sources: Mapping[str, SourceSummary]
    """By name, in the order of the mix."""

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON-ready values; None stays None."""
        return {name: {**asdict(summary), "mean_reward": summary.mean_reward} for name, summary in self.sources.items()}

    def __str__(self) -> str:
        header = ["source", "rollouts", "scored", "reward", "finished", "tool calls", "failed calls"]
        rows = [_row(name, summary) for name, summary in self.sources.items()]
        remarks = [line for name, summary in self.sources.items() for line in _remark(name, summary)]
        return "\n".join([*align(header, rows), *(["", *remarks] if remarks else [])])


def summarize_source(records: Sequence[RolloutRecord]) -> SourceSummary:
    """Summarize rollouts of one source."""
    rewards = [record.reward for record in records if record.reward is not None]
    errors = [
        FirstError(record.step, -1 if record.slot is None else record.slot, _describe_error(record))
        for record in records
        if record.error is not None
    ]
    calls = [step for record in records for step in find_calls(record)]
    return SourceSummary(
        num_rollouts=len(records),
        num_scored=len(rewards),
        num_finished=sum(record.finished for record in records),
        total_reward=fsum(rewards),
        unscored_by_reason={reason: sum(record.reason is reason for record in records) for reason in UnscoredReason},
        num_tool_calls=len(calls),
        failed_calls_by_tool=dict(Counter(call.tool for call in calls if call.failure is not None)),
        first_error=min(errors, default=None),
        last_step=max((record.step for record in records), default=None),
        last_scored_step=max((record.step for record in records if record.reward is not None), default=None),
    )


def add_summaries(parts: Sequence[SourceSummary]) -> SourceSummary:
    """The summary of all rollouts that the parts were made of."""
    errors = [part.first_error for part in parts if part.first_error is not None]
    calls: Counter[str] = Counter()
    for part in parts:
        calls.update(part.failed_calls_by_tool)
    return SourceSummary(
        num_rollouts=sum(part.num_rollouts for part in parts),
        num_scored=sum(part.num_scored for part in parts),
        num_finished=sum(part.num_finished for part in parts),
        total_reward=fsum(part.total_reward for part in parts),
        unscored_by_reason={
            reason: sum(part.unscored_by_reason.get(reason, 0) for part in parts) for reason in UnscoredReason
        },
        num_tool_calls=sum(part.num_tool_calls for part in parts),
        failed_calls_by_tool=dict(calls),
        first_error=min(errors, default=None),
        last_step=_find_last(part.last_step for part in parts),
        last_scored_step=_find_last(part.last_scored_step for part in parts),
    )


def _find_last(steps: Iterable[int | None]) -> int | None:
    return max((step for step in steps if step is not None), default=None)


def _describe_error(record: RolloutRecord) -> str:
    reason = "" if record.reason is None else f"{record.reason}: "
    return f"task {record.task_index}: {reason}{record.error}"


def _row(name: str, summary: SourceSummary) -> list[str]:
    return [
        name,
        f"{summary.num_rollouts:,}",
        _percent(summary.scored_fraction),
        "–" if summary.mean_reward is None else f"{summary.mean_reward:.4g}",
        _percent(summary.finished_fraction),
        f"{summary.num_tool_calls:,}",
        f"{summary.num_tool_errors:,}",
    ]


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{fraction:.1%}"


def _remark(name: str, summary: SourceSummary) -> list[str]:
    lines = []
    last, last_scored = summary.last_step, summary.last_scored_step
    if last is not None and last_scored is None:
        lines.append(f"source {name!r}: no rollout was scored, so nothing was learned from it.")
    if last is not None and last_scored is not None and last - last_scored >= _SILENT_STEPS:
        lines.append(
            f"source {name!r}: nothing was scored, and so nothing learned, from step {last_scored + 1} to {last}, its "
            f"last."
        )
    reasons = [f"{count:,} {reason}" for reason, count in summary.unscored_by_reason.items() if count]
    if reasons:
        lines.append(f"source {name!r}: unscored: {', '.join(reasons)}.")
    tools = Counter(summary.failed_calls_by_tool).most_common(_MOST_TOOLS)
    if tools:
        more = ", …" if len(summary.failed_calls_by_tool) > len(tools) else ""
        lines.append(f"source {name!r}: failed calls: {', '.join(f'{tool} {count:,}' for tool, count in tools)}{more}.")
    if summary.first_error is not None:
        text = summary.first_error.text
        shown = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
        lines.append(f"source {name!r}: the first error, in step {summary.first_error.step}, {shown}")
    return lines
