"""What is learned from a batch once all of its rollouts are scored: for the mix, for the limits, and for the table.

The reward columns report their records; after the last of a batch they are put together over all processes, in slot
order. What is done with them is decided in `multiors.mixing` and `multiors.training.limits`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from multiors.errors import ConfigError, MultiORSError, RoutingError, SourceError
from multiors.mixing import (
    BatchPlanner,
    BreakerEvent,
    Layout,
    MixRules,
    PlannedBatch,
    SlotObservation,
    compare_curricula,
    compare_mixes,
    digest_shares,
)
from multiors.records import RolloutRecord
from multiors.rewards import RunSummary, SourceSummary, add_summaries, gradient_values, summarize_source
from multiors.training.limits import FailureLimits, ScoredRollout
from multiors.training.processes import gather, is_distributed, is_first_process
from multiors.training.settings import BatchShape

__all__ = ["RunWatch"]

logger = logging.getLogger("multiors.training")

_STATE_KEY = "multiors"


class RunWatch:
    """Watches the training runs of a mix, one after another.

    Args:
        names: The sources, in the order of the mix.
        limits: When failures end the training.
    """

    def __init__(self, names: Sequence[str], limits: FailureLimits) -> None:
        self.planner: BatchPlanner | None = None
        """Plans the run. None: its schedule was laid out before."""

        self._names = tuple(names)
        self._mix: Mapping[str, Any] = {}
        self._digests: Sequence[str] = ()
        """Of the scheduled shares of the run's first batches, by their number. Empty: no schedule was laid out."""

        self._count_batches: Callable[[int], int] = lambda step: 0
        """The batches that are drawn before a step."""

        self._find_shares: Callable[[int], Sequence[float]] = lambda slot: ()
        """The scheduled shares of the batch that a slot is in. Nothing before a run was begun."""

        self._limits = limits
        self._summaries = dict.fromkeys(self._names, SourceSummary())
        self._is_reported = True

    @property
    def has_limits(self) -> bool:
        """Whether failures can end the training."""
        return bool(self._limits.limited)

    # A run

    def begin(self, state: Any, shape: BatchShape, layout: Layout, rules: MixRules) -> None:
        """A training run begins, perhaps from a checkpoint; what of the mix has changed since then is said.

        Args:
            state: The trainer's state.
            shape: Its batches.
            layout: What the mix draws while nothing decides otherwise.
            rules: What may decide otherwise.
        """
        shares_by_batch = layout.shares_by_batch
        self._find_shares = lambda slot: (
            layout.shares if shares_by_batch is None else shares_by_batch[slot // shape.prompts_per_batch]
        )
        self._count_batches = lambda step: (
            step * shape.gradient_accumulation_steps // shape.micro_batches_per_generation
        )
        self._digests = () if shares_by_batch is None else digest_shares(self._names, shares_by_batch)
        self._mix = layout.mix
        self._limits.restart()
        self._summaries = dict.fromkeys(self._names, SourceSummary())
        self._is_reported = True
        saved = state.stateful_callbacks.get(_STATE_KEY, {}) if state.global_step else {}
        saved = {name: json.loads(text) for name, text in saved.items()}
        said = self._restore(saved, state.global_step, rules)

        if said and is_first_process():
            logger.warning("resuming from a checkpoint of another mix: %s.", "; ".join(said))

        self.save(state)

    def save(self, state: Any) -> None:
        """Put into the trainer's state what a checkpoint must hold."""
        held = {"mix": self._mix} if self.planner is None else {"planner": self.planner.state()}

        if self._digests:
            num_batches = self._count_batches(state.global_step)
            held["drawn"] = {"num_batches": num_batches, "digest": self._digests[num_batches]}

        entries: MutableMapping[str, Any] = state.stateful_callbacks
        # As text: a checkpoint's JSON has a line for every number.
        entries[_STATE_KEY] = {name: json.dumps(value) for name, value in held.items()}

    def end_batch(self, records: Sequence[RolloutRecord]) -> dict[str, list[float]]:
        """Take the records of all rollouts that this process played in a training batch; what to log of it.

        Raises:
            SessionError: A source failed more often than it may.
            RoutingError: The processes do not plan the same.
        """
        for name in self._names:
            own = [record for record in records if record.source == name]
            self._summaries[name] = add_summaries([self._summaries[name], summarize_source(own)])

        self._is_reported = False
        rollouts = self._put_together(records)

        try:
            self._limits.check(rollouts)
        except MultiORSError:
            self.report()
            raise

        groups = [list(group) for _, group in groupby(rollouts, key=attrgetter("slot"))]
        values = gradient_values([(group[0].source, [rollout.reward for rollout in group]) for group in groups])
        first_slot = rollouts[0].slot if rollouts else 0

        if self.planner is None:
            return values | self._log_shares(self._find_shares(first_slot))

        batch = first_slot // self.planner.prompts_per_batch
        self._observe(self.planner, batch, groups)
        shares = self.planner.plan(batch).shares
        values |= {f"env/{name}/left_out": [float(not share)] for name, share in zip(self._names, shares, strict=True)}
        return values | self._log_shares(shares) | self._log_curricula(self.planner)

    def plan(self, batch: int) -> PlannedBatch:
        """What a batch draws; decisions that are taken on the way are told.

        Raises:
            ConfigError: The run is not planned as it is trained.
            SourceError: Every source fails.
        """
        if self.planner is None:
            raise ConfigError("this mix is not planned as it is trained: its schedule was laid out before.")

        try:
            planned = self.planner.plan(batch)
        except SourceError:
            self.report()
            raise

        told = [_describe(event) for event in self.planner.breakers.events]
        told += [f"from batch {batch} on: {change}." for change in self.planner.take_changes()]
        self.planner.breakers.events.clear()

        if is_first_process():
            for sentence in told:
                logger.warning("%s", sentence)

        return planned

    # What became of it

    @property
    def summary(self) -> RunSummary:
        """Of the rollouts since the run began: of this process, and once it has ended, of all."""
        return RunSummary(dict(self._summaries))

    def report(self, *, is_shared: bool = True) -> None:
        """Show the table of the run, once.

        Args:
            is_shared: Whether every process is here, so that they can be asked for their rollouts.
        """
        if self._is_reported:
            return

        self._is_reported = True
        parts = gather([self._summaries]) if is_shared else [self._summaries]
        self._summaries = {name: add_summaries([part[name] for part in parts]) for name in self._names}

        if is_first_process() or not is_shared:
            where = "" if is_shared or not is_distributed() else " in this process"
            logger.info("rollouts of the run%s:\n%s", where, self.summary)

    # Inside

    def _restore(self, saved: Mapping[str, Any], global_step: int, rules: MixRules) -> list[str]:
        """Go on from a checkpoint; sentences on what has changed."""
        first = self._count_batches(global_step)

        if self.planner is not None and "planner" in saved:
            return self.planner.restore(saved["planner"], batch=first)

        if self.planner is not None:
            self.planner.restart(first)

        changes = self._compare(saved, rules)

        if self.planner is not None and global_step:
            anew = "so it begins anew" if len(rules.reacting) == 1 else "so these begin anew"
            changes.append(f"it holds no state of {' or '.join(rules.reacting)}, {anew}")

        return changes

    def _compare(self, saved: Mapping[str, Any], rules: MixRules) -> list[str]:
        """Sentences on what is not as it was in a checkpoint, where what it holds is no state to go on from."""
        before = saved.get("mix") or saved.get("planner")

        if before is None:
            return []

        scheduled, followed = before.get("scheduled"), before.get("scheduled") or before.get("curriculum")
        is_scheduled = scheduled is not None or rules.scheduled is not None
        changes = compare_mixes(before, self._mix, follows_weights=not is_scheduled)
        others = compare_curricula(followed, rules.followed) if is_scheduled else []

        if "planner" in saved:
            beside = "a curriculum" if others or rules.scheduled is None else "a task curriculum"
            changes.append(f"it was made with a circuit breaker or {beside}, which is now off")

        return changes + others + self._compare_drawn(saved.get("drawn"), rules)

    def _compare_drawn(self, drawn: Mapping[str, Any] | None, rules: MixRules) -> list[str]:
        """Whether the schedule now gives other shares to batches that are drawn; its unit may be the run's length."""
        if drawn is None or rules.curriculum is None or drawn["num_batches"] >= len(self._digests):
            return []

        is_same = drawn["digest"] == self._digests[drawn["num_batches"]]
        what = f"{rules.curriculum.name} gives batches that are already drawn other shares than they had"
        return [] if is_same else [what]

    def _put_together(self, records: Sequence[RolloutRecord]) -> list[ScoredRollout]:
        """The batch's rollouts over all processes, in slot order."""
        fingerprint = None if self.planner is None or not is_distributed() else self.planner.fingerprint()
        parts = gather([(fingerprint, [ScoredRollout.of(record) for record in records])])

        if len({fingerprint for fingerprint, _ in parts}) > 1:
            raise RoutingError(
                "the processes do not plan the same batches. Give each the same spec (sources, tasks, weights, seed), "
                "and do not read spec.train_dataset in one of them alone."
            )

        return sorted((rollout for _, rollouts in parts for rollout in rollouts), key=attrgetter("slot"))

    def _observe(self, planner: BatchPlanner, batch: int, groups: Sequence[Sequence[ScoredRollout]]) -> None:
        planner.observe(
            batch,
            [
                SlotObservation(
                    group[0].slot,
                    self._names.index(group[0].source),
                    rewards=tuple(
                        rollout.find_score(has_range=planner.reward_ranges[rollout.source] is not None)
                        for rollout in group
                    ),
                    num_failed=sum(rollout.is_failed for rollout in group),
                    error=next((rollout.describe() for rollout in group if rollout.is_failed), None),
                )
                for group in groups
            ],
        )

    def _log_shares(self, shares: Sequence[float]) -> dict[str, list[float]]:
        return {f"env/{name}/planned_share": [share] for name, share in zip(self._names, shares, strict=False)}

    def _log_curricula(self, planner: BatchPlanner) -> dict[str, list[float]]:
        values = {f"env/{name}/owed_slots": [slots] for name, slots in planner.measure_debt().items()}
        found = planner.measure().items()
        return values | {f"env/{name}/curriculum/{metric}": [v] for name, own in found for metric, v in own.items()}


def _describe(event: BreakerEvent) -> str:
    if event.kind == "readmitted":
        return f"source {event.source!r} works again, and is drawn from as before from batch {event.batch} on."

    failures = ""

    if event.cause is not None:
        first = f"; the first: {event.cause.error}" if event.cause.error else ""
        failures = f": {event.cause.num_failed} of {event.cause.num_rollouts} rollouts failed{first}"

    what = f"is left out from batch {event.batch} on" if event.kind == "opened" else "still fails and stays left out"
    return (
        f"source {event.source!r} {what}{failures}. The other sources get its slots. It is tried again with one slot "
        f"in batch {event.probe_batch}."
    )
