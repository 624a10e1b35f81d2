"""Planning a run batch by batch, where the mix must react to what happens.

A trainer reads rows before the batches before them are rewarded, may read a batch several times, and may be stopped and
resumed anywhere. So the rules are:

- A batch is planned once, in order, from what was observed of the batches that lie at least `lag` before it. An
  observation that is not there yet, though it must be, is an error; one that comes again changes nothing.
- What a batch holds follows from (shares, task counts, batch size, seed) and these observations alone: not from the
  number of processes, from arrival order or from when it is asked for.
- `state()` holds all of it, so a planner that is restored goes on as if it had never stopped.
- Before a batch is planned, the breaker decides which sources are drawn from, then the curriculum at which shares, and
  then each source which of its tasks.
- While no source is left out and nothing decides otherwise, the slots are exactly those of
  `multiors.mixing.schedule.build_schedule`.

This module knows sources by name and position.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from multiors.errors import RoutingError
from multiors.mixing.breaker import BreakerState, SourceBreakers
from multiors.mixing.comparing import (
    compare_mixes,
    compare_task_curricula,
    describe_source,
    find_other_ranges,
    find_other_tasks,
)
from multiors.mixing.curricula import SourceTasks, TaskObservation, group_by_source
from multiors.mixing.observed import SlotObservation
from multiors.mixing.quota import SHARE_UNITS, apportion_some
from multiors.mixing.rules import MixRules
from multiors.mixing.settings import read_settings
from multiors.mixing.shuffle import check_seed
from multiors.mixing.walk import TaskWalk, shuffle_batches

__all__ = ["BatchPlanner", "PlannedBatch"]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
    """Which source and which of its tasks each slot of a batch draws."""

    source_index: npt.NDArray[np.int32]
    """Position of the slot's source, (slots,)."""

    position: npt.NDArray[np.int64]
    """Position in that source's list of tasks, (slots,)."""

    shares: tuple[float, ...]
    """Share of the batch that each source was meant to get; 0 for one that is left out."""


class BatchPlanner:
    """Plans the batches of one run.

    Args:
        shares: Each source's share while no rule decides otherwise, by name, in the order of the mix.
        sources: What is known of their tasks, in the same order.
        prompts_per_batch: Slots in a batch.
        seed: The run's seed.
        lag: How many batches before the one that is planned the last known observation lies, at least 1.
        rules: What changes the mix.
        num_batches: Batches in the run. None: not known.

    Raises:
        ConfigError: A rule does not fit the sources.
    """

    def __init__(
        self,
        shares: Mapping[str, float],
        sources: Sequence[SourceTasks],
        *,
        prompts_per_batch: int,
        seed: int,
        lag: int,
        rules: MixRules,
        num_batches: int | None = None,
    ) -> None:
        check_seed(seed)
        self.names = tuple(shares)
        self.prompts_per_batch = prompts_per_batch
        self.reward_ranges = {source.name: source.reward_range for source in sources}
        """What each source declares, in the order of the mix."""

        self._rules = rules
        self._sources = tuple(sources)
        self._shares = tuple(shares.values())
        self._num_tasks = tuple(source.num_tasks for source in sources)
        self._seed = seed
        self._lag = lag
        self._walks = [TaskWalk(count, seed=seed, source=index) for index, count in enumerate(self._num_tasks)]
        self._curriculum = rules.begin_shares(sources, num_batches=num_batches)
        self._task_draws = rules.begin_tasks(sources, seed=seed)
        self._first_draws = {index: draws.state() for index, draws in self._task_draws.items()}
        self.restart()

    def restart(self, batch: int = 0) -> None:
        """Begin at a batch as if all before it had been drawn, and nothing of them been observed."""
        self._next_batch = batch
        self._num_consumed = batch  # observations of batches below this are taken into account, or never come
        self._draws = [0] * len(self.names)
        self._residual = np.zeros(len(self.names), dtype=np.int64)
        self._planned: dict[int, PlannedBatch] = {}
        self._observed: dict[int, tuple[SlotObservation, ...]] = {}
        self.breakers = SourceBreakers(self.names, self._rules.breaker)
        if self._curriculum is not None:
            self._curriculum.restart()
        for index, draws in self._task_draws.items():
            draws.restore(self._first_draws[index])
        for number in range(batch):
            counts, self._residual = apportion_some(self._find_shares(number), self.prompts_per_batch, self._residual)
            self._count_draws(counts)

    def plan(self, batch: int) -> PlannedBatch:
        """The batch of that number.

        Raises:
            RoutingError: It was forgotten, or is asked for before what it follows from was observed.
            SourceError: Every source fails.
        """
        if batch < self._next_batch and batch not in self._planned:
            raise RoutingError(
                f"the rows of batch {batch} are asked for again, after batch {self._next_batch - 1} was planned. This "
                f"mix is planned as it is trained, so its rows can be read once and in order."
            )
        while self._next_batch <= batch:
            self._plan_next()
        return self._planned[batch]

    def observe(self, batch: int, observations: Sequence[SlotObservation]) -> bool:
        """Take what became of a batch, over all processes and in slot order; whether it was not known before.

        Raises:
            RoutingError: The batch was never planned.
        """
        if batch >= self._next_batch:
            raise RoutingError(
                f"rollouts of batch {batch} were scored, but {self._next_batch} batches were planned. Give the trainer "
                f"spec.train_dataset as it is."
            )
        if batch < self._num_consumed or batch in self._observed:
            return False
        self._observed[batch] = tuple(observations)
        self.breakers.may_retry = False
        return True

    # What can be told

    def take_changes(self) -> list[str]:
        """What the curriculum changed that a person should hear of, since this was last called."""
        changes = [] if self._curriculum is None else list(self._curriculum.changes)
        if self._curriculum is not None:
            self._curriculum.changes.clear()
        return changes

    def measure(self) -> dict[str, dict[str, float]]:
        """Numbers of the curricula to be logged, by source and metric, as the batch planned last was decided by."""
        found = {name: dict[str, float]() for name in self.names}
        if self._curriculum is not None:
            for name, values in self._curriculum.measure().items():
                found[name] |= values
        for index, draws in self._task_draws.items():
            found[self.names[index]] |= draws.measure()
        return found

    def measure_debt(self) -> dict[str, float]:
        """How many slots each source was promised beyond those it has drawn; negative: it has drawn more."""
        return {name: float(units) / SHARE_UNITS for name, units in zip(self.names, self._residual, strict=True)}

    # State

    def state(self) -> dict[str, Any]:
        """Everything the next batches follow from, as JSON-ready values."""
        return {
            "sources": [
                {
                    **describe_source(source, share=self._shares[index]),
                    "reward_range": None if source.reward_range is None else list(source.reward_range),
                    "draws": self._draws[index],
                    "residual": int(self._residual[index]),
                    "breaker": self.breakers.states[index].to_json(),
                    "tasks": self._save_tasks(index),
                }
                for index, source in enumerate(self._sources)
            ],
            "curriculum": None if self._curriculum is None else self._curriculum.state(),
            "prompts_per_batch": self.prompts_per_batch,
            "seed": self._seed,
            "next_batch": self._next_batch,
            "num_consumed": self._num_consumed,
            "planned": [
                [batch, planned.source_index.tolist(), planned.position.tolist(), list(planned.shares)]
                for batch, planned in self._planned.items()
            ],
            "observed": [
                [batch, [list(astuple(observation)) for observation in observations]]
                for batch, observations in self._observed.items()
            ],
        }

    def fingerprint(self) -> str:
        """Equal in two processes exactly if they will plan the same."""
        return hashlib.sha256(json.dumps(self.state(), sort_keys=True).encode()).hexdigest()

    def restore(self, state: Mapping[str, Any], *, batch: int) -> list[str]:
        """Go on from an earlier planner's state; where the mix has changed, with what still fits it.

        Args:
            state: What `state()` returned, here or in a process before.
            batch: The first batch that will be asked for.

        Returns:
            A sentence on each thing that changed.
        """
        now = self.state()
        ranges = {
            name: said for name, said in find_other_ranges(state, now).items() if self._rules.follows_rewards(name)
        }
        changes = compare_mixes(state, now, follows_weights=self._rules.scheduled is None) + list(ranges.values())
        is_in_step = batch == state["next_batch"] or batch in [planned[0] for planned in state["planned"]]
        is_same = not changes and is_in_step
        if is_same:
            self._restore_all(state)
        else:
            self._restore_parts(state, batch, keeps_quota=state["prompts_per_batch"] == self.prompts_per_batch)
            changes = changes or [f"the run goes on at batch {batch}, the checkpoint's was {state['next_batch']}"]
        others = find_other_tasks(state, now)
        return [*changes, *self._restore_curricula(state, in_step=is_same, forgotten=list(ranges), others=others)]

    def _restore_all(self, state: Mapping[str, Any]) -> None:
        self.restart()
        self._next_batch, self._num_consumed = state["next_batch"], state["num_consumed"]
        self._draws = [source["draws"] for source in state["sources"]]
        self._residual = np.array([source["residual"] for source in state["sources"]], dtype=np.int64)
        if self._rules.breaker is not None:
            self.breakers.states = [BreakerState.from_json(source["breaker"]) for source in state["sources"]]
        self._planned = {
            number: PlannedBatch(np.array(sources, np.int32), np.array(positions, np.int64), tuple(shares))
            for number, sources, positions, shares in state["planned"]
        }
        self._observed = {
            number: tuple(
                SlotObservation(slot, source, tuple(rewards), num_failed, error)
                for slot, source, rewards, num_failed, error in observations
            )
            for number, observations in state["observed"]
        }
        self.breakers.may_retry = True

    def _restore_parts(self, state: Mapping[str, Any], batch: int, *, keeps_quota: bool) -> None:
        """Each source that is still there goes on in its tasks, with its residual, and left out if it was."""
        self.restart()
        self._next_batch = self._num_consumed = batch
        before = {source["name"]: (index, source) for index, source in enumerate(state["sources"])}
        undone = [sources for number, sources, _, _ in state["planned"] if number >= batch]
        for index, name in enumerate(self.names):
            if name not in before:
                continue
            former, source = before[name]
            self._draws[index] = source["draws"] - sum(sources.count(former) for sources in undone)
            self._residual[index] = source["residual"] if keeps_quota else 0
            breaker = BreakerState.from_json(source["breaker"])
            if self._rules.breaker is not None and breaker.status != "closed":
                self.breakers.states[index] = BreakerState(
                    "open", cause=breaker.cause, wait_batches=breaker.wait_batches, probe_batch=batch
                )
                self._residual[index] = 0
        self.breakers.may_retry = True

    def _save_tasks(self, index: int) -> dict[str, Any] | None:
        draws = self._task_draws.get(index)
        if draws is None:
            return None
        settings = read_settings(self._rules.task_curricula[self.names[index]])
        return {"draws": type(draws).__name__, "settings": settings, "state": draws.state()}

    def _restore_curricula(
        self, state: Mapping[str, Any], *, in_step: bool, forgotten: Sequence[str], others: Sequence[str]
    ) -> list[str]:
        """What the curricula know, as far as they are the same; sentences on those that are not.

        Args:
            state: Of the earlier planner.
            in_step: Whether what it had planned and not observed is still to come.
            forgotten: Sources of which nothing is kept.
            others: Sources with other tasks than before.
        """
        changes = []
        if self._curriculum is not None and state["curriculum"] is not None:
            changes += self._curriculum.restore(state["curriculum"], forgotten=forgotten)
        elif self._curriculum is not None:
            changes.append("the checkpoint was made without a curriculum, so it knows nothing yet")
        elif state["curriculum"] is not None:
            changes.append(f"the checkpoint was made with the curriculum {state['curriculum']['curriculum']}, now off")
        before = {source["name"]: source["tasks"] for source in state["sources"]}
        for index, name in enumerate(self.names):
            saved, now = before.get(name), self._save_tasks(index)
            if name not in before or (saved is None and now is None):
                continue
            rule = self._rules.task_curricula.get(name)
            change, goes_on = compare_task_curricula(name, saved, now, rule, has_other_tasks=name in others)
            if saved is not None and goes_on and name not in forgotten:
                self._task_draws[index].restore(saved["state"], in_step=in_step)
            else:
                self._draws[index] = 0
            changes += change
        return changes

    # Planning

    def _plan_next(self) -> None:
        batch = self._next_batch
        self._consume(batch)
        probes = self.breakers.begin_probes(batch, most=max(1, self.prompts_per_batch // 2))
        size = self.prompts_per_batch - len(probes)
        shares = self._find_shares(batch)
        counts, self._residual = apportion_some(shares, size, self._residual)
        meant = np.array(shares) * size / self.prompts_per_batch
        counts[probes] += 1
        meant[probes] = 1 / self.prompts_per_batch
        source_index = np.repeat(np.arange(len(self.names), dtype=np.int32), counts)
        shuffle_batches(source_index[np.newaxis], seed=self._seed, first_batch=batch)
        position = np.empty(self.prompts_per_batch, dtype=np.int64)
        drawn = [self._draw_tasks(index, int(counts[index])) for index in np.flatnonzero(counts).tolist()]
        position[np.argsort(source_index, kind="stable")] = np.concatenate(drawn)
        self._count_draws(counts)
        self._planned[batch] = PlannedBatch(source_index, position, tuple(meant.tolist()))
        self._next_batch += 1
        for number in [number for number in self._planned if number < batch - self._lag]:
            del self._planned[number]

    def _consume(self, batch: int) -> None:
        """Take into account what was observed of the batches up to `batch - lag`.

        Raises:
            RoutingError: Something was not observed yet.
            SourceError: Every source fails.
        """
        numbers = range(self._num_consumed, batch - self._lag + 1)
        missing = [number for number in numbers if number not in self._observed]
        if missing:
            raise RoutingError(
                f"batch {batch} is planned from what happened until batch {batch - self._lag}, and batch {missing[0]} "
                f"was not scored yet. This mix is planned as it is trained: read its rows through the trainer only, "
                f"see what is to come with spec.plan(), and to resume a run give the trainer spec.callbacks."
            )
        self.breakers.update([(number, self._observed[number]) for number in numbers], next_batch=batch)
        for number in numbers:
            self._learn(number, self._observed.pop(number))
        self._num_consumed = max(self._num_consumed, numbers.stop)

    def _learn(self, batch: int, observations: Sequence[SlotObservation]) -> None:
        """Tell the curricula what became of a batch."""
        if self._curriculum is not None:
            self._curriculum.update(group_by_source(observations, self.reward_ranges), batch=batch)
        if not self._task_draws:
            return
        first_slot, positions = batch * self.prompts_per_batch, self._planned[batch].position
        tasks: dict[int, list[TaskObservation]] = {index: [] for index in self._task_draws}
        for seen in observations:
            if seen.source in tasks:
                tasks[seen.source].append(TaskObservation(int(positions[seen.slot - first_slot]), seen.rewards))
        for index, found in tasks.items():
            self._task_draws[index].update(found)

    def _find_shares(self, batch: int) -> list[float]:
        """Each source's share of the slots that are no probes; 0 for one that is not drawn."""
        closed = self.breakers.closed
        reference = [0.0] * len(self.names)
        total = fsum(self._shares[index] for index in closed)
        for index in closed:
            reference[index] = self._shares[index] / (total if len(closed) < len(self.names) else 1.0)
        if self._curriculum is None:
            return reference
        return list(self._curriculum.shares(dict(zip(self.names, reference, strict=True)), batch).values())

    def _draw_tasks(self, index: int, count: int) -> npt.NDArray[np.int64]:
        """Positions of a source's next tasks."""
        draws = self._task_draws.get(index)
        return self._walks[index].draw(self._draws[index], count) if draws is None else draws.draw(count)

    def _count_draws(self, counts: npt.NDArray[np.int64]) -> None:
        self._draws = [before + more for before, more in zip(self._draws, counts.tolist(), strict=True)]
