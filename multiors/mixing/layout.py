"""How a run is laid out before anything was observed: its length, the shares of its batches, its schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, NamedTuple

from multiors.errors import ConfigError
from multiors.mixing.comparing import describe_mix
from multiors.mixing.curricula import SourceTasks
from multiors.mixing.rules import MixRules
from multiors.mixing.schedule import Schedule, build_schedule
from multiors.mixing.stopping import StoppingStrategy, count_slots

__all__ = ["Layout", "lay_out"]


class Layout(NamedTuple):
    """A run as it is while nothing decides otherwise."""

    schedule: Schedule
    shares: list[float]
    """Each source's share of the run."""

    shares_by_batch: list[list[float]] | None
    """For each batch each source's share of it. None: they never change."""

    mix: Mapping[str, Any]
    """What it follows from, as a checkpoint holds it: see `multiors.mixing.comparing`."""


def lay_out(
    shares: Mapping[str, float],
    tasks: Sequence[SourceTasks],
    rules: MixRules,
    *,
    run_slots: int | None,
    num_slots: int | None,
    stopping_strategy: StoppingStrategy,
    prompts_per_batch: int | None,
    seed: int,
) -> Layout:
    """Lay out a run. Its length is that of a run with constant shares.

    Args:
        shares: By source, without a curriculum.
        tasks: Of the sources, in the same order.
        rules: What changes the mix; only a curriculum that does not react is laid out here.
        run_slots: Slots that the trainer needs. None: the other two arguments decide.
        num_slots: Slots that were asked for.
        stopping_strategy: What decides the length if nobody asked.
        prompts_per_batch: Slots in a batch. None: not known.
        seed: The run's seed.

    Raises:
        ConfigError: The curriculum counts batches, and there are none.
    """
    constant, num_tasks = list(shares.values()), [source.num_tasks for source in tasks]
    length = run_slots or count_slots(
        constant,
        num_tasks,
        stopping_strategy=stopping_strategy,
        num_slots=num_slots,
        prompts_per_batch=prompts_per_batch,
    )
    changing = None
    if rules.curriculum is not None and not rules.curriculum.reacts:
        if prompts_per_batch is None:
            raise ConfigError(
                "the curriculum is a schedule of shares by batch, and the batches of the trainer are not known. Call "
                "spec.training_arguments(...) before the dataset or plan is read; on the command line, pass --training."
            )
        changing = rules.find_shares(tasks, shares, num_batches=length // prompts_per_batch)
    schedule = build_schedule(
        constant,
        num_tasks,
        num_slots=length,
        prompts_per_batch=prompts_per_batch,
        seed=seed,
        shares_by_batch=changing,
    )
    mix = describe_mix(shares, tasks, prompts_per_batch=prompts_per_batch, seed=seed, scheduled=rules.scheduled)
    if changing is None:
        return Layout(schedule, constant, None, mix)
    means = [fsum(batch[index] for batch in changing) / len(changing) for index in range(len(tasks))]
    return Layout(schedule, means, changing, mix)
