"""A run as it would go if every source were learned along an assumed curve: what the mix would draw, before training.

The planner is the one of a real run, with its lag; only what a rollout earns is made up. So a simulation shows what a
curriculum does with sources that are learned fast, slowly or never. It is no forecast: how a policy learns is assumed,
sources teach each other nothing, and nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import fsum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from multiors.errors import ConfigError
from multiors.mixing.curricula import Ladder, SourceTasks
from multiors.mixing.observed import SlotObservation
from multiors.mixing.planner import BatchPlanner, PlannedBatch
from multiors.mixing.rules import MixRules
from multiors.mixing.settings import check_count, check_number
from multiors.mixing.shuffle import check_seed
from multiors.tables import align

__all__ = ["PRESETS", "Curves", "LearningCurve", "Simulation", "simulate"]

_NUM_PARTS = 6


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """How the mean reward of a source's tasks is assumed to grow with the slots that the source has drawn.

    After n slots it is `end - (end - start) * 2 ** (-n / half_slots)`, as a fraction of the source's range of rewards.
    Every slot counts, whether its group has a gradient or not. Where a ladder knows levels, level l begins to be
    learned after l times `half_slots` slots, and is at `start` until then.

    Example:
        >>> LearningCurve(start=0.0, end=0.8, half_slots=100).find_reward(100)
        0.4
    """

    start: float = 0.2
    """Mean reward before anything was learned, from 0 (the lowest reward) to 1 (the highest)."""

    end: float = 0.9
    """Mean reward that learning comes close to. As `start`: nothing is learned."""

    half_slots: float = 64
    """Slots that bring the mean reward half of the way from where it is to `end`."""

    def __post_init__(self) -> None:
        check_number("LearningCurve", "start", self.start, low=0, high=1)
        check_number("LearningCurve", "end", self.end, low=0, high=1)
        check_number("LearningCurve", "half_slots", self.half_slots, low=0, above=True)

    def find_reward(self, num_slots: float, level: int = 0) -> float:
        """The mean reward of a task, from 0 to 1.

        Args:
            num_slots: Slots that its source has drawn before.
            level: Of the task, from 0.
        """
        learned = max(0.0, num_slots - level * self.half_slots)
        return self.end - (self.end - self.start) * float(2.0 ** (-learned / self.half_slots))

    def __str__(self) -> str:
        if self.start == self.end:
            return f"{self.start:g} all the time"
        return f"{self.start:g} to {self.end:g}, half of the way in {self.half_slots:g} slots"


PRESETS: Mapping[str, LearningCurve] = {
    "impossible": LearningCurve(0.0, 0.0),
    "noise": LearningCurve(0.5, 0.5),
    "solved": LearningCurve(1.0, 1.0),
}
"""Sources that cannot be learned, by what is wrong with them."""

Curves: TypeAlias = "LearningCurve | Mapping[str, LearningCurve] | None"
"""One for all sources, or by source; those that are not named, and all where it is None, have `LearningCurve()`."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a mix drew and earned in a simulated run. `print(simulation)` shows a table.

    In the names of fields S stands for sources, in the order of `names`, and B for batches.
    """

    names: tuple[str, ...]
    curves_S: tuple[LearningCurve, ...]
    """What was assumed."""

    shares_BS: tuple[tuple[float, ...], ...]
    """Share of the batch that each source was meant to get."""

    drawn_BS: tuple[tuple[int, ...], ...]
    """Slots that it got."""

    rewards_BS: tuple[tuple[float | None, ...], ...]
    """Mean reward of its rollouts as a fraction of its range, from 0 (the lowest) to 1. None: nothing was drawn."""

    measures_B: tuple[Mapping[str, Mapping[str, float]], ...]
    """Numbers of the curricula by source and metric, as each batch was decided by."""

    changes: tuple[tuple[int, str], ...]
    """What the curricula told, each sentence with the batch from which on it holds."""

    prompts_per_batch: int
    num_generations: int
    seed: int
    """Of the rewards; the order of tasks follows the mix's own."""

    @property
    def num_batches(self) -> int:
        """Batches of the run."""
        return len(self.shares_BS)

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values; None stays None."""
        columns = zip(zip(*self.shares_BS, strict=True), zip(*self.drawn_BS, strict=True), strict=True)
        sources = zip(self.names, self.curves_S, columns, zip(*self.rewards_BS, strict=True), strict=True)
        return {
            "num_batches": self.num_batches,
            "prompts_per_batch": self.prompts_per_batch,
            "num_generations": self.num_generations,
            "seed": self.seed,
            "sources": {
                name: {
                    "assumed": asdict(curve),
                    "share": list(shares),
                    "slots": list(drawn),
                    "reward": list(rewards),
                    "metrics": [dict(measured[name]) for measured in self.measures_B],
                }
                for name, curve, (shares, drawn), rewards in sources
            },
            "changes": [{"batch": batch, "change": change} for batch, change in self.changes],
        }

    def __str__(self) -> str:
        parts = _split(self.num_batches)
        header = ["planned share", *(f"{part.start}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)]
        shares, rewards = list[list[str]](), list[list[str]]()
        for index, name in enumerate(self.names):
            planned = [fsum(self.shares_BS[batch][index] for batch in part) / len(part) for part in parts]
            earned = [self._find_mean(index, part) for part in parts]
            shares.append([name, *(f"{share:.1%}" for share in planned)])
            rewards.append([name, *("–" if mean is None else f"{mean:.2f}" for mean in earned)])
        told = [f"batch {batch}: {change}" for batch, change in self.changes]
        return "\n".join(
            [
                f"simulation of {self.num_batches} batches of {self.prompts_per_batch} slots with "
                f"{self.num_generations} rollouts each (seed {self.seed})",
                "",
                *align(header, shares),
                "",
                *align(["mean reward", *header[1:]], rewards),
                "",
                *(["told:", *told, ""] if told else []),
                "Rewards follow curves that are assumed, not measured; a real run will go otherwise:",
                *(f"{name}: {curve}" for name, curve in zip(self.names, self.curves_S, strict=True)),
            ]
        )

    def _find_mean(self, source: int, part: range) -> float | None:
        """The mean reward of a source's rollouts in some batches. None: it was not drawn."""
        drawn = [self.drawn_BS[batch][source] for batch in part]
        earned = [(self.rewards_BS[batch][source] or 0.0) * count for batch, count in zip(part, drawn, strict=True)]
        return fsum(earned) / sum(drawn) if sum(drawn) else None


def simulate(
    shares: Mapping[str, float],
    tasks: Sequence[SourceTasks],
    rules: MixRules,
    *,
    num_batches: int,
    prompts_per_batch: int,
    num_generations: int,
    lag: int,
    seed: int = 0,
    mix_seed: int = 0,
    curves: Curves = None,
) -> Simulation:
    """Play a run in which each source is learned along its curve.

    Args:
        shares: By source, without a curriculum, as `BatchPlanner` takes them.
        tasks: Of the sources, in the same order.
        rules: What changes the mix.
        num_batches: Batches of the run.
        prompts_per_batch: Slots in a batch.
        num_generations: Rollouts of a slot.
        lag: How many batches before the one that is planned the last known observation lies.
        seed: Of the rewards that are drawn.
        mix_seed: Of the mix.
        curves: What is assumed.

    Raises:
        ConfigError: A rule does not fit the sources, or a curve is given for a source that is not there.
    """
    check_seed(seed)
    counts = {"num_batches": num_batches, "prompts_per_batch": prompts_per_batch, "num_generations": num_generations}
    for name, count in counts.items():
        check_count("simulate", name, count)
    planner = BatchPlanner(
        shares,
        tasks,
        prompts_per_batch=prompts_per_batch,
        seed=mix_seed,
        lag=lag,
        rules=rules,
        num_batches=num_batches,
    )
    world = _World(tasks, rules, _choose_curves(planner.names, curves), num_generations=num_generations, seed=seed)
    batches = [_play(planner, world, batch) for batch in range(num_batches)]
    return Simulation(
        planner.names,
        world.curves,
        shares_BS=tuple(batch.shares for batch in batches),
        drawn_BS=tuple(batch.drawn for batch in batches),
        rewards_BS=tuple(batch.rewards for batch in batches),
        measures_B=tuple(batch.measures for batch in batches),
        changes=tuple((number, change) for number, batch in enumerate(batches) for change in batch.changes),
        prompts_per_batch=prompts_per_batch,
        num_generations=num_generations,
        seed=seed,
    )


class _Batch(NamedTuple):
    """What became of one batch, by source in the order of the mix."""

    shares: tuple[float, ...]
    drawn: tuple[int, ...]
    rewards: tuple[float | None, ...]
    measures: Mapping[str, Mapping[str, float]]
    changes: list[str]


def _play(planner: BatchPlanner, world: _World, batch: int) -> _Batch:
    """Plan a batch, play it, and tell the planner at once; it takes that into account when a trainer's would."""
    planned = planner.plan(batch)
    is_solved = world.play(planned)
    source_index = planned.source_index
    rows = zip(source_index.tolist(), is_solved.tolist(), strict=True)
    first_slot = batch * planner.prompts_per_batch
    seen = [
        SlotObservation(slot, source, world.find_rewards(source, row), 0)
        for slot, (source, row) in enumerate(rows, first_slot)
    ]
    planner.observe(batch, seen)
    drawn = tuple(np.bincount(source_index, minlength=len(planner.names)).tolist())
    return _Batch(
        planned.shares,
        drawn,
        tuple(float(is_solved[source_index == index].mean()) if count else None for index, count in enumerate(drawn)),
        planner.measure(),
        planner.take_changes(),
    )


class _World:
    """Sources that are learned along their curves.

    Args:
        tasks: Of the sources, in the order of the mix.
        rules: Of the mix; its ladders know levels.
        curves: What is assumed, in the same order.
        num_generations: Rollouts of a slot.
        seed: Of the rewards.
    """

    def __init__(
        self,
        tasks: Sequence[SourceTasks],
        rules: MixRules,
        curves: tuple[LearningCurve, ...],
        *,
        num_generations: int,
        seed: int,
    ) -> None:
        self.curves = curves
        self._num_generations = num_generations
        self._ranges = [(0.0, 1.0) if source.reward_range is None else source.reward_range for source in tasks]
        self._levels = [_find_levels(source, rules) for source in tasks]
        self._num_drawn = np.zeros(len(tasks), dtype=np.int64)
        self._rng = np.random.default_rng(seed)

    def play(self, planned: PlannedBatch) -> npt.NDArray[np.bool_]:
        """Which rollouts of a batch are solved, (slots, rollouts); after it, all of its slots count as learned from."""
        chance = np.empty(len(planned.source_index))
        for index in np.unique(planned.source_index).tolist():
            curve, num_drawn = self.curves[index], int(self._num_drawn[index])
            levels = self._levels[index][planned.position[planned.source_index == index]]
            chance[planned.source_index == index] = [curve.find_reward(num_drawn, level) for level in levels.tolist()]
        is_solved: npt.NDArray[np.bool_] = (
            self._rng.random((len(chance), self._num_generations)) < chance[:, np.newaxis]
        )
        self._num_drawn += np.bincount(planned.source_index, minlength=len(self._num_drawn))
        return is_solved

    def find_rewards(self, source: int, is_solved: Sequence[bool]) -> tuple[float, ...]:
        """What solved and unsolved rollouts of a source earn: the highest and the lowest of its range."""
        low, high = self._ranges[source]
        return tuple(high if each else low for each in is_solved)


def _find_levels(source: SourceTasks, rules: MixRules) -> npt.NDArray[np.int64]:
    """The level of each task: what the source's ladder says, the easiest where nothing is known."""
    rule = rules.task_curricula.get(source.name)
    if not isinstance(rule, Ladder):
        return np.zeros(source.num_tasks, dtype=np.int64)
    return np.array([level or 0 for level in rule.find_levels(source)], dtype=np.int64)


def _choose_curves(names: Sequence[str], curves: Curves) -> tuple[LearningCurve, ...]:
    given = dict.fromkeys(names, curves) if isinstance(curves, LearningCurve) else curves or {}
    for name, curve in given.items():
        if name not in names:
            raise ConfigError(f"source {name!r}: a curve is assumed for it, and the sources are {list(names)}.")
        if not isinstance(curve, LearningCurve):
            raise ConfigError(f"source {name!r}: {curve!r} is no curve. Pass LearningCurve(start, end, half_slots).")
    return tuple(given.get(name, LearningCurve()) for name in names)


def _split(num_batches: int) -> list[range]:
    """A run in about equal parts, none of them empty."""
    num_parts = min(_NUM_PARTS, num_batches)
    return [range(num_batches * part // num_parts, num_batches * (part + 1) // num_parts) for part in range(num_parts)]
