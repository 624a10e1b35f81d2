"""Rows that are decided when the trainer reads them: the dataset of a mix that is planned as it is trained.

The dataset holds slot numbers alone; a transform asks the planner what they draw. Every process plans every batch and
hands out its own slice of it. Which row comes is decided in `multiors.mixing.planner`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from multiors.errors import ConfigError, RoutingError
from multiors.mixing import (
    BatchPlanner,
    Curves,
    MixRules,
    PlannedBatch,
    Schedule,
    Simulation,
    SourceRows,
    build_dataset,
    simulate,
)
from multiors.mixing.curricula import SourceTasks
from multiors.training.settings import BatchShape, check_streaming
from multiors.training.watch import RunWatch

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = [
    "PlannedRows",
    "check_planned_rows",
    "check_planning",
    "count_lag",
    "lay_out_planned",
    "require_batches",
    "simulate_planned",
]


def count_lag(shape: BatchShape) -> int:
    """How many batches before the one it reads for the first time a trainer surely has scored.

    An optimizer step reads its micro-batches before it trains on the first of them, and accelerate reads one more (TRL
    1.16, transformers 5.24, accelerate 1.15). A run that is resumed in the middle of a generation batch generates up to
    all but one of its micro-batches later.
    """
    return 1 + -(-shape.gradient_accumulation_steps // shape.micro_batches_per_generation)


def check_planning(args: Any, shape: BatchShape, planned: BatchShape | None, rules: MixRules) -> None:
    """Check a finished `GRPOConfig` against a mix that is planned as it is trained.

    Args:
        args: The trainer's `GRPOConfig`.
        shape: Its batches.
        planned: The batches that the mix was told of. None: it was told of none.
        rules: What changes the mix.

    Raises:
        ConfigError: The trainer would read rows elsewhere, or earlier, than they can be planned.
    """
    problems = []

    if planned is None:
        problems.append(_UNKNOWN_BATCHES)
    elif count_lag(shape) != count_lag(planned):
        problems.append(
            f"the mix is planned {count_lag(planned)} batches ahead, and this trainer reads {count_lag(shape)} ahead. "
            f"Pass the same gradient_accumulation_steps, steps_per_generation and num_iterations to "
            f"spec.training_arguments(...)."
        )

    if args.dataloader_num_workers:
        problems.append(
            f"dataloader_num_workers={args.dataloader_num_workers}: rows would be planned in processes that learn "
            f"nothing of what happens. Set dataloader_num_workers=0."
        )

    if getattr(args.accelerator_config, "dispatch_batches", None):
        problems.append("dispatch_batches=True: only one process would plan. Leave it out.")

    if problems:
        raise ConfigError(f"{_explain(rules)}:\n- " + "\n- ".join(problems))


def _explain(rules: MixRules) -> str:
    return f"this mix is planned as it is trained, because it has {', '.join(rules.reacting)}"


_UNKNOWN_BATCHES = (
    "the batches of the trainer are not known. Call spec.training_arguments(...) before train_dataset is read, and "
    "build GRPOConfig from what it returns."
)


def lay_out_planned(
    watch: RunWatch,
    rows: Sequence[SourceRows],
    rules: MixRules,
    *,
    tasks: Sequence[SourceTasks],
    shares: Mapping[str, float],
    shape: BatchShape | None,
    num_slots: int,
    seed: int,
) -> Dataset:
    """One row per slot with the columns of `build_dataset`, each decided when it is read.

    Args:
        watch: Of the mix; it is given the planner.
        rows: What the rows are made of, in the order of the mix.
        rules: What changes the mix.
        tasks: What curricula may know of the sources, in the order of the mix.
        shares: Each source's share while no rule decides otherwise.
        shape: The trainer's batches. None: not known.
        num_slots: Length of the run.
        seed: The run's seed.

    Raises:
        ConfigError: The batches are not known.
    """
    if shape is None:
        raise ConfigError(f"{_explain(rules)}: {_UNKNOWN_BATCHES}")

    from datasets import Dataset

    watch.planner = BatchPlanner(
        shares,
        tasks,
        prompts_per_batch=shape.prompts_per_batch,
        seed=seed,
        lag=count_lag(shape),
        rules=rules,
        num_batches=num_slots // shape.prompts_per_batch,
    )
    dataset = Dataset.from_dict({"slot": np.arange(num_slots)})
    dataset.set_transform(PlannedRows(rows, watch.plan, prompts_per_batch=shape.prompts_per_batch))
    return dataset


def require_batches(shape: BatchShape | None) -> BatchShape:
    """The trainer's batches, for a simulation.

    Raises:
        ConfigError: They are not known.
    """
    if shape is None:
        raise ConfigError(
            "a simulation needs the batches of the trainer, and these are not known. Call "
            "spec.training_arguments(...) before spec.simulate(...); on the command line, pass --training."
        )

    return shape


def simulate_planned(
    rules: MixRules,
    *,
    shape: BatchShape,
    num_slots: int,
    tasks: Sequence[SourceTasks],
    shares: Mapping[str, float],
    seed: int,
    curves: Curves,
    rewards_seed: int,
) -> Simulation:
    """Simulate a run as it is planned for a trainer.

    Args:
        rules: What changes the mix.
        shape: The trainer's batches.
        num_slots: Length of the run.
        tasks: What curricula may know of the sources, in the order of the mix.
        shares: Each source's share while no rule decides otherwise.
        seed: The run's seed.
        curves: How sources are assumed to be learned.
        rewards_seed: Of the rewards that rollouts get.

    Raises:
        ConfigError: A curve is for no source of the mix.
    """
    return simulate(
        shares,
        tasks,
        rules,
        num_batches=num_slots // shape.prompts_per_batch,
        prompts_per_batch=shape.prompts_per_batch,
        num_generations=shape.num_generations,
        lag=count_lag(shape),
        seed=rewards_seed,
        mix_seed=seed,
        curves=curves,
    )


def check_planned_rows(dataset: Any, planned: Any) -> None:
    """Check that a trainer's dataset still is the run's slots in order, with whatever columns were added to it.

    Args:
        dataset: The trainer's dataset.
        planned: The mix's own.

    Raises:
        ConfigError: It is not, or it is a stream.
    """
    check_streaming(dataset)
    slots = list(dataset.with_format(None)["slot"]) if "slot" in dataset.column_names else []
    transforms = [each.format["format_kwargs"].get("transform") for each in (dataset, planned)]

    if slots != list(range(len(planned))) or transforms[0] is not transforms[1]:
        raise ConfigError(
            "the trainer's dataset does not hold the slots of the mix in order, as they are planned. Give it "
            "spec.train_dataset of this spec as it is."
        )


class PlannedRows:
    """Turns slot numbers into rows."""

    def __init__(
        self, sources: Sequence[SourceRows], plan: Callable[[int], PlannedBatch], *, prompts_per_batch: int
    ) -> None:
        self._plan: Callable[[int], PlannedBatch] | None = plan
        self._prompts_per_batch = prompts_per_batch
        self._identity = uuid.uuid4().hex
        num_tasks = [len(source.task_indices) for source in sources]
        self._first_row = np.cumsum(num_tasks) - num_tasks
        every_task = Schedule(
            np.repeat(np.arange(len(sources), dtype=np.int32), num_tasks),
            np.concatenate([np.arange(count, dtype=np.int64) for count in num_tasks]),
            prompts_per_batch=None,
        )
        self._rows = build_dataset(every_task, sources)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The rows of some slots, with what other columns were given."""
        if self._plan is None:
            raise RoutingError(
                "this mix is planned in the process that trains it, and its dataset was sent to another. Set "
                "dataloader_num_workers=0."
            )

        chosen = []

        for slot in batch["slot"]:
            number, place = divmod(int(slot), self._prompts_per_batch)
            planned = self._plan(number)
            chosen.append(int(self._first_row[planned.source_index[place]] + planned.position[place]))

        return {**self._rows[chosen], **batch}

    def __getstate__(self) -> dict[str, Any]:
        """What `datasets` makes a fingerprint of; a planner is in one process only."""
        return {"_identity": self._identity, "_plan": None}

    def __deepcopy__(self, memo: object) -> PlannedRows:
        """`datasets` copies formats; there is one planner."""
        return self
