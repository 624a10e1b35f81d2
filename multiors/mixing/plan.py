"""What a schedule will do, in numbers and in words, before anything is trained.

Read off a finished schedule; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from multiors.mixing.schedule import Schedule
from multiors.mixing.stopping import StoppingStrategy
from multiors.tables import align

__all__ = ["Plan", "SharePoint", "SourcePlan", "make_plan"]

_NUM_POINTS = 6


@dataclass(frozen=True, slots=True)
class SharePoint:
    """What a schedule of shares says for one batch."""

    batch: int

    shares: tuple[float, ...]
    """One per source, summing to 1."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What one source contributes."""

    name: str
    num_tasks: int

    share: float
    """Share of the slots it is meant to get, 0 < share <= 1."""

    slots: int
    """Slots it gets."""

    passes: float
    """How often it goes through its tasks: slots / num_tasks."""

    slots_per_batch: float | None
    """Mean over generation batches. None: the schedule has no batches."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a mix will draw. `print(plan)` shows a table and what is worth knowing."""

    sources: tuple[SourcePlan, ...]
    num_slots: int

    prompts_per_batch: int | None
    """Slots in one generation batch. None: the schedule has no batches."""

    num_batches: int | None
    """Generation batches. None: the schedule has no batches."""

    seed: int
    stopping_strategy: StoppingStrategy

    requested_slots: int | None = None
    """Slots that were asked for. None: the strategy decided."""

    changed_by: tuple[str, ...] = ()
    """The curricula that follow what is observed: the plan is that of the mix without them."""

    share_points: tuple[SharePoint, ...] = ()
    """The shares at some batches of the run, in order. Empty: they are constant, or follow what is observed."""

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-ready values; None stays None."""
        lists = {
            "sources": [asdict(source) for source in self.sources],
            "share_points": [{"batch": point.batch, "shares": list(point.shares)} for point in self.share_points],
        }
        return {**asdict(self), **lists}

    def __str__(self) -> str:
        remarks = [sentence for _, sentence in self.remarks]
        parts = [_table(self), _table_of_shares(self) if self.share_points else [], remarks]
        return "\n".join([_headline(self), *(line for part in parts if part for line in ["", *part])])

    @property
    def remarks(self) -> list[tuple[str | None, str]]:
        """Sentences on what the table does not say at a glance, each with the source it is about. None: the mix."""
        remarks: list[tuple[str | None, str]] = []

        if self.requested_slots is not None and self.requested_slots != self.num_slots:
            asked = f"num_slots={self.requested_slots:,} was asked for; whole batches make {self.num_slots:,}."
            remarks.append((None, asked))

        if self.changed_by:
            changes = " and ".join(self.changed_by)
            remarks.append((None, f"this is the mix without {changes}, which will change it."))

        for source in self.sources:
            if source.slots == 0:
                not_drawn = f"source {source.name!r} is not drawn: the schedule is too short for its share."
                remarks.append((source.name, not_drawn))
            else:
                sentences = _remark_on_passes(source) + _remark_on_batches(source)
                remarks += [(source.name, sentence) for sentence in sentences]

        return remarks


def make_plan(
    names: Sequence[str],
    schedule: Schedule,
    *,
    shares: Sequence[float],
    num_tasks: Sequence[int],
    seed: int,
    stopping_strategy: StoppingStrategy,
    requested_slots: int | None = None,
    changed_by: Sequence[str] = (),
    shares_by_batch: Sequence[Sequence[float]] | None = None,
) -> Plan:
    """Describe a schedule.

    Args:
        names: The sources' names, in the schedule's order.
        schedule: What was built from the arguments below.
        shares: One per source.
        num_tasks: Tasks of each source.
        seed: The schedule's seed.
        stopping_strategy: What decided the length.
        requested_slots: Slots that were asked for, before they were rounded to whole batches. None: none were.
        changed_by: The curricula that follow what is observed, without which the schedule was built.
        shares_by_batch: For each batch the share of each source. None: they are constant, or not known.
    """
    num_batches = schedule.num_batches
    sources = tuple(
        SourcePlan(
            name=name,
            num_tasks=tasks,
            share=share,
            slots=slots,
            passes=slots / tasks,
            slots_per_batch=None if num_batches is None else slots / num_batches,
        )
        for name, tasks, share, slots in zip(
            names,
            num_tasks,
            shares,
            np.bincount(schedule.source_index, minlength=len(names)).tolist(),
            strict=True,
        )
    )
    return Plan(
        sources=sources,
        num_slots=schedule.num_slots,
        prompts_per_batch=schedule.prompts_per_batch,
        num_batches=num_batches,
        seed=seed,
        stopping_strategy=stopping_strategy,
        requested_slots=requested_slots,
        changed_by=tuple(changed_by),
        share_points=() if shares_by_batch is None else _pick_points(shares_by_batch),
    )


def _pick_points(shares_by_batch: Sequence[Sequence[float]]) -> tuple[SharePoint, ...]:
    """Some batches at about equal distances, the first and the last among them."""
    last = len(shares_by_batch) - 1
    batches = sorted({round(last * point / (_NUM_POINTS - 1)) for point in range(_NUM_POINTS)})
    return tuple(SharePoint(batch, tuple(shares_by_batch[batch])) for batch in batches)


def _headline(plan: Plan) -> str:
    batches = ""
    if plan.num_batches is not None:
        batches = f" in {_count(plan.num_batches, 'batch', 'batches')} of {plan.prompts_per_batch}"
    return f"{_count(plan.num_slots, 'slot')}{batches} (seed {plan.seed}, {plan.stopping_strategy})"


def _table(plan: Plan) -> list[str]:
    header = ["source", "tasks", "share", "slots", "passes"]
    rows = [
        [source.name, f"{source.num_tasks:,}", f"{source.share:.2%}", f"{source.slots:,}", f"{source.passes:,.2f}"]
        for source in plan.sources
    ]
    if plan.num_batches is not None:
        header.append("per batch")
        for row, source in zip(rows, plan.sources, strict=True):
            row.append(f"{source.slots_per_batch:,.2f}")
    return align(header, rows)


def _table_of_shares(plan: Plan) -> list[str]:
    header = ["share in batch", *(f"{point.batch:,}" for point in plan.share_points)]
    rows = [
        [source.name, *(f"{point.shares[index]:.2%}" for point in plan.share_points)]
        for index, source in enumerate(plan.sources)
    ]
    return align(header, rows)


def _remark_on_passes(source: SourcePlan) -> list[str]:
    tasks = _count(source.num_tasks, "task")
    fewest, more = divmod(source.slots, source.num_tasks)
    if source.slots < source.num_tasks:
        return [f"source {source.name!r} draws {source.slots:,} of its {tasks}, none twice."]
    if source.slots == source.num_tasks:
        return []
    times = f"{fewest:,}" if more == 0 else f"{fewest:,} or {fewest + 1:,}"
    return [f"source {source.name!r} repeats its {tasks}: each is drawn {times} times."]


def _remark_on_batches(source: SourcePlan) -> list[str]:
    if source.slots_per_batch is None or source.slots_per_batch >= 1:
        return []
    return [f"source {source.name!r} is not in every batch: one slot in {1 / source.slots_per_batch:,.3g} batches."]


def _count(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
