"""Planning a run batch by batch, where the mix must react to what happens.

A trainer reads rows before the batches before them are rewarded, may read a batch several times, and may be stopped and
resumed anywhere. So the rules are:

- A batch is planned once, in order, from what was observed of the batches that lie at least `lag` before it. An
  observation that is not there yet, though it must be, is an error; one that comes again changes nothing.
- What a batch holds follows from (shares, task counts, batch size, seed) and these observations alone: not from the
  number of processes, from arrival order or from when it is asked for.
- `state()` holds all of it, so a planner that is restored goes on as if it had never stopped.
- While no source is left out, the slots are exactly those of `multiors.mixing.schedule.build_schedule`.

This module knows sources by name and position, and no tasks but their number.
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
from multiors.mixing.breaker import BreakerState, CircuitBreaker, SourceBreakers
from multiors.mixing.observed import SlotObservation
from multiors.mixing.quota import SHARE_UNITS, apportion, share_units
from multiors.mixing.shuffle import check_seed
from multiors.mixing.walk import TaskWalk, shuffle_batches

__all__ = ["BatchPlanner", "PlannedBatch", "compare_mixes"]


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
        shares: Each source's share while none is left out, by name, in the order of the mix.
        num_tasks: Tasks of each source.
        prompts_per_batch: Slots in a batch.
        seed: The run's seed.
        lag: How many batches before the one that is planned the last known observation lies, at least 1.
        breaker: When a source is left out. None: never.
    """

    def __init__(
        self,
        shares: Mapping[str, float],
        num_tasks: Sequence[int],
        *,
        prompts_per_batch: int,
        seed: int,
        lag: int,
        breaker: CircuitBreaker | None,
    ) -> None:
        check_seed(seed)
        self.names = tuple(shares)
        self.prompts_per_batch = prompts_per_batch
        self._breaker = breaker
        self._shares = tuple(shares.values())
        self._num_tasks = tuple(num_tasks)
        self._seed = seed
        self._lag = lag
        self._walks = [TaskWalk(count, seed=seed, source=index) for index, count in enumerate(num_tasks)]
        self.restart()

    def restart(self, batch: int = 0) -> None:
        """Begin at a batch as if all before it had been drawn, and nothing of them been observed."""
        self._next_batch = batch
        self._num_consumed = batch  # observations of batches below this are taken into account, or never come
        self._draws = [0] * len(self.names)
        self._residual = np.zeros(len(self.names), dtype=np.int64)
        self._planned: dict[int, PlannedBatch] = {}
        self._observed: dict[int, tuple[SlotObservation, ...]] = {}
        self.breakers = SourceBreakers(self.names, self._breaker)
        for _ in range(batch):
            counts, self._residual = apportion(self._shares, self.prompts_per_batch, self._residual)
            self._count_draws(counts)

    def plan(self, batch: int) -> PlannedBatch:
        """The batch of that number.

        Raises:
            RoutingError: It was forgotten, or is asked for before what it follows from was observed.
            SourceError: Every source fails.
        """
        if batch < self._next_batch and batch not in self._planned:
            raise RoutingError(
                f"the rows of batch {batch} are asked for again, after batch {self._next_batch - 1} was planned. A mix "
                f"with a circuit breaker is planned as it is trained, so its rows can be read once and in order."
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

    # State

    def state(self) -> dict[str, Any]:
        """Everything the next batches follow from, as JSON-ready values."""
        return {
            "sources": [
                {
                    "name": name,
                    "num_tasks": self._num_tasks[index],
                    "draws": self._draws[index],
                    "residual": float(self._residual[index]),
                    "breaker": self.breakers.states[index].to_json(),
                }
                for index, name in enumerate(self.names)
            ],
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
        changes = compare_mixes(state, self.state())
        is_in_step = batch == state["next_batch"] or batch in [planned[0] for planned in state["planned"]]
        if not changes and is_in_step:
            self._restore_all(state)
            return []
        self._restore_parts(state, batch, keeps_quota=state["prompts_per_batch"] == self.prompts_per_batch)
        return changes or [f"the run goes on at batch {batch}, the checkpoint's was {state['next_batch']}"]

    def _restore_all(self, state: Mapping[str, Any]) -> None:
        self.restart()
        self._next_batch, self._num_consumed = state["next_batch"], state["num_consumed"]
        self._draws = [source["draws"] for source in state["sources"]]
        self._residual = np.array([source["residual"] for source in state["sources"]], dtype=np.int64)
        if self._breaker is not None:
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
            if self._breaker is not None and breaker.status != "closed":
                self.breakers.states[index] = BreakerState(
                    "open", cause=breaker.cause, wait_batches=breaker.wait_batches, probe_batch=batch
                )
                self._residual[index] = 0
        self._hand_over(-int(self._residual.sum()))
        self.breakers.may_retry = True

    # Planning

    def _plan_next(self) -> None:
        batch = self._next_batch
        self._consume(batch)
        probes = self.breakers.begin_probes(batch, most=max(1, self.prompts_per_batch // 2))
        closed = self.breakers.closed
        size = self.prompts_per_batch - len(probes)
        counts = np.zeros(len(self.names), dtype=np.int64)
        counts[probes] = 1
        shares = self._share_among(closed)
        if size:
            counts[closed], self._residual[closed] = apportion(shares, size, self._residual[closed])
        meant = counts / self.prompts_per_batch
        meant[closed] = np.array(shares) * size / self.prompts_per_batch
        source_index = np.repeat(np.arange(len(self.names), dtype=np.int32), counts)
        shuffle_batches(source_index[np.newaxis], seed=self._seed, first_batch=batch)
        position = np.empty(self.prompts_per_batch, dtype=np.int64)
        for index in np.flatnonzero(counts).tolist():
            position[source_index == index] = self._walks[index].draw(self._draws[index], int(counts[index]))
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
                f"was not scored yet. A mix with a circuit breaker is planned as it is trained: read its rows through "
                f"the trainer only, see what is to come with spec.plan(), and to resume a run give the trainer "
                f"spec.callbacks."
            )
        self.breakers.update([(number, self._observed[number]) for number in numbers], next_batch=batch)
        for number in numbers:
            del self._observed[number]
        self._num_consumed = max(self._num_consumed, numbers.stop)
        left_out = self.breakers.left_out
        owed = int(self._residual[left_out].sum())
        self._residual[left_out] = 0
        self._hand_over(owed)

    def _hand_over(self, owed: int) -> None:
        """Divide units that nobody owns any more among the sources that are drawn from, in proportion."""
        if not owed:
            return
        closed = self.breakers.closed
        shares = self._share_among(closed)
        # In whole numbers: every process must divide alike.
        parts = [owed * units // SHARE_UNITS for units in share_units(shares).tolist()]
        self._residual[closed] += np.array(parts, dtype=np.int64)
        self._residual[closed[int(np.argmax(shares))]] += owed - sum(parts)

    def _share_among(self, sources: Sequence[int]) -> list[float]:
        if len(sources) == len(self.names):
            return list(self._shares)
        total = fsum(self._shares[index] for index in sources)
        return [self._shares[index] / total for index in sources]

    def _count_draws(self, counts: npt.NDArray[np.int64]) -> None:
        self._draws = [before + more for before, more in zip(self._draws, counts.tolist(), strict=True)]


def compare_mixes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Sentences on what of a mix is not as it was.

    Args:
        before: A planner's state, or what it has in common with `Plan.to_json()`: `sources` with `name` and
            `num_tasks`, `prompts_per_batch`, `seed`.
        now: The same of the mix as it is.
    """
    tasks_before = {source["name"]: source["num_tasks"] for source in before["sources"]}
    tasks_now = {source["name"]: source["num_tasks"] for source in now["sources"]}
    changes = [f"source {name!r} is no longer in the mix" for name in tasks_before if name not in tasks_now]
    changes += [
        f"source {name!r} is new and begins with its first tasks" for name in tasks_now if name not in tasks_before
    ]
    changes += [
        f"source {name!r} has {count} tasks, and had {tasks_before[name]}"
        for name, count in tasks_now.items()
        if tasks_before.get(name, count) != count
    ]
    if not changes and list(tasks_before) != list(tasks_now):
        changes.append("the sources stand in another order")
    changes += [
        f"{name} is {now[name]}, and was {before[name]}"
        for name in ("prompts_per_batch", "seed")
        if before[name] != now[name]
    ]
    return changes
