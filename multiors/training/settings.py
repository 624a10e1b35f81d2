"""Which trainer settings make a mix what it says it is.

Completes a user's `GRPOConfig` fields with what the mix needs, and names every setting that would silently break it,
each with its remedy. Decides nothing about shares or rewards.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multiors.errors import ConfigError, RoutingError

__all__ = [
    "BatchShape",
    "check_length",
    "check_max_sessions",
    "check_prompts",
    "check_rows",
    "check_settings",
    "check_streaming",
    "complete_fields",
    "describe_refusal",
    "find_cancelled_weights",
    "find_contradictions",
    "measure_batches",
    "samples_groups_together",
]

_FIXED = {
    "shuffle_dataset": (False, "the order of the rows is the schedule"),
    "remove_unused_columns": (False, "the columns environment, task_index and slot route each row"),
    "ignore_data_skip": (False, "a resumed run would replay the schedule from its start"),
    "num_train_epochs": (1, "the schedule holds the whole run; set max_steps=..., or num_slots=... on the spec"),
}


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How a trainer turns slots into optimizer steps."""

    prompts_per_batch: int
    """Slots in one generation batch, over all processes."""

    num_generations: int
    """Rollouts of one slot."""

    rollouts_per_process: int
    """Rollouts of a generation batch that one process plays, all at once."""

    gradient_accumulation_steps: int
    micro_batches_per_generation: int
    """Forward passes that one generation batch serves: steps_per_generation × num_iterations."""

    def count_slots(self, max_steps: int) -> int:
        """Slots that `max_steps` optimizer steps consume."""
        micro_batches = max_steps * self.gradient_accumulation_steps
        return math.ceil(micro_batches / self.micro_batches_per_generation) * self.prompts_per_batch

    def count_steps(self, num_slots: int) -> int:
        """Optimizer steps that one pass over `num_slots` slots gives; TRL drops an incomplete last batch."""
        generations = num_slots // self.prompts_per_batch
        # transformers 5.24, Trainer.set_initial_training_values: the last, incomplete accumulation counts as a step.
        return math.ceil(generations * self.micro_batches_per_generation / self.gradient_accumulation_steps)


def measure_batches(args: Any) -> BatchShape:
    """The batch arithmetic of a `GRPOConfig` on this world size (TRL 1.16, GRPOTrainer._get_train_sampler)."""
    return BatchShape(
        prompts_per_batch=args.generation_batch_size // args.num_generations,
        num_generations=args.num_generations,
        rollouts_per_process=args.per_device_train_batch_size * args.steps_per_generation,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        micro_batches_per_generation=args.steps_per_generation * args.num_iterations,
    )


def describe_refusal(error: Exception) -> str:
    """Why `GRPOConfig` refuses its fields, in one line, with a remedy where its own words have none."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"

    if "divisible by num_generations" not in said:
        return said

    return (
        f"{said} A generation batch has per_device_train_batch_size × processes × steps_per_generation rollouts, which "
        f"must be whole groups of num_generations; steps_per_generation is gradient_accumulation_steps unless set."
    )


def complete_fields(fields: Mapping[str, Any], reward_weights: Mapping[str, float]) -> dict[str, Any]:
    """The user's `GRPOConfig` fields plus those a mix needs.

    Args:
        fields: As the user would pass them to `GRPOConfig`.
        reward_weights: Reward weight by source, in column order.

    Raises:
        ConfigError: Fields contradict the mix; all of them are named.
    """
    problems = find_contradictions(fields, reward_weights)

    if problems:
        raise ConfigError("\n".join(problems.values()))

    weights = list(reward_weights.values())
    completed = {**{name: value for name, (value, _) in _FIXED.items()}, "reward_weights": weights, **fields}

    if completed["reward_weights"] is None:
        completed["reward_weights"] = weights
    if len(set(weights)) > 1 and completed.get("scale_rewards", "group") in ("group", True):
        # One column per source: each is normalized on its own and then weighted, so a weight acts (GDPO, 2601.05242).
        completed.setdefault("multi_objective_aggregation", "normalize_then_sum")

    return completed


def check_length(max_steps: int, run_slots: int, *, num_slots: int | None, stopping_strategy: str) -> None:
    """Check what was asked for of a schedule whose length the trainer decides.

    Args:
        max_steps: Of the trainer.
        run_slots: Slots that these steps need.
        num_slots: Slots that were asked for.
        stopping_strategy: What would decide the length otherwise.

    Raises:
        ConfigError: Fewer slots were asked for than are needed.
    """
    if num_slots is not None and num_slots < run_slots:
        raise ConfigError(f"max_steps={max_steps} needs {run_slots} slots, but num_slots={num_slots}. Leave one out.")

    if stopping_strategy == "all_exhausted":
        warnings.warn(
            f"max_steps={max_steps} decides the length of the run, so stopping_strategy='all_exhausted' has no "
            f"effect. Leave one of them out.",
            stacklevel=3,
        )


def find_contradictions(fields: Mapping[str, Any], reward_weights: Mapping[str, float]) -> dict[str, str]:
    """What is wrong with a user's `GRPOConfig` fields, by field; nothing is missing that a mix could fill in.

    Args:
        fields: As the user would pass them to `GRPOConfig`.
        reward_weights: Reward weight by source, in column order.
    """
    problems = {
        name: f"{name}={fields[name]!r} contradicts the mix: {reason}. Leave it out, or pass {value!r}."
        for name, (value, reason) in _FIXED.items()
        if name in fields and fields[name] != value
    }
    weights, given = list(reward_weights.values()), fields.get("reward_weights")

    if given is not None and list(given[: len(weights)]) != weights:
        problems["reward_weights"] = (
            f"reward_weights={list(given)!r} does not begin with the sources' own reward weights {weights!r}. "
            f"Set them with SourceReward(weight=...) and leave reward_weights out, or append to spec.reward_weights."
        )

    scale_rewards = fields.get("scale_rewards", "group")
    default = "normalize_then_sum" if scale_rewards in ("group", True) else None
    aggregation = fields.get("multi_objective_aggregation", default)
    cancelled = find_cancelled_weights(reward_weights, aggregation, scale_rewards)

    if cancelled:
        problems["multi_objective_aggregation"] = cancelled

    return problems


def find_cancelled_weights(
    reward_weights: Mapping[str, float],
    aggregation: str | None,
    scale_rewards: Any,
    *,
    prompts_per_batch: int | None = None,
) -> str | None:
    """Why reward weights that differ would change nothing under these settings. None: they act, or do not differ.

    Source: TRL 1.16, GRPOTrainer._generate_and_score_completions.
    """
    if len(set(reward_weights.values())) < 2:
        return None

    if prompts_per_batch == 1 and (aggregation == "normalize_then_sum" or scale_rewards == "batch"):
        return (
            f"reward weights {dict(reward_weights)!r} would have no effect: a generation batch has one prompt, so one "
            f"source, and is divided by its own standard deviation. Use at least two prompts a batch "
            f"(per_device_train_batch_size × processes × steps_per_generation ≥ 2 × num_generations), or "
            f"scale_rewards='none' with multi_objective_aggregation='sum_then_normalize'."
        )

    if (
        len(set(reward_weights.values())) < 2
        or aggregation == "normalize_then_sum"
        or scale_rewards not in ("group", True)
    ):
        return None

    return (
        f"reward weights {dict(reward_weights)!r} would have no effect: with scale_rewards='group' each group is "
        f"divided by its own standard deviation, and a group has one source. Set "
        f"multi_objective_aggregation='normalize_then_sum', or scale_rewards='none' or 'batch'."
    )


def check_settings(
    args: Any, *, reward_weights: Mapping[str, float], num_slots: int, prompts_per_batch: int | None
) -> BatchShape:
    """Check a finished `GRPOConfig` against the mix; all problems are reported at once.

    Args:
        args: The trainer's `GRPOConfig`.
        reward_weights: Reward weight by source, in column order.
        num_slots: Length of the schedule.
        prompts_per_batch: The batch that the schedule was laid out for. None: for none in particular.

    Raises:
        ConfigError: One or more settings break the mix; each is named with its remedy.
    """
    problems = [
        f"{name}={getattr(args, name)!r}: {reason}. Set {name}={value!r}."
        for name, (value, reason) in _FIXED.items()
        if name != "num_train_epochs" and bool(getattr(args, name)) != value
    ]
    shape = measure_batches(args)

    if prompts_per_batch is not None and prompts_per_batch != shape.prompts_per_batch:
        problems.append(
            f"the schedule is laid out for {prompts_per_batch} prompts in a generation batch, the trainer's has "
            f"{shape.prompts_per_batch}. Pass the same fields to spec.training_arguments(...) under the same launcher."
        )

    if num_slots < shape.prompts_per_batch:
        problems.append(
            f"the schedule has {num_slots} slots, less than one generation batch of {shape.prompts_per_batch} prompts, "
            f"so nothing would be trained. Raise num_slots=... or max_steps=..., or use a smaller batch."
        )
    else:
        problems += _check_length(args, shape, num_slots)

    given = list(args.reward_weights or [])
    expected = list(reward_weights.values())

    if given[: len(expected)] != expected and (given or len(set(expected)) > 1 or expected[0] != 1.0):
        problems.append(
            f"reward_weights={args.reward_weights!r} does not begin with the sources' weights {expected!r}. "
            f"Pass reward_weights=spec.reward_weights."
        )

    cancelled = find_cancelled_weights(
        reward_weights,
        args.multi_objective_aggregation,
        args.scale_rewards,
        prompts_per_batch=shape.prompts_per_batch,
    )
    problems += [cancelled] if cancelled else []

    if problems:
        raise ConfigError(
            "these trainer settings would silently break the mix:\n- "
            + "\n- ".join(problems)
            + "\nspec.training_arguments(...) returns fields that fit."
        )

    return shape


def check_max_sessions(limits: Mapping[str, int | None], num_rollouts: Mapping[str, int]) -> None:
    """Check that the rollouts of a batch, whose sessions are open together, do not wait for each other.

    Args:
        limits: Sessions that may be open at once in a process, by whose limit it is: "the mix", "source 'sort'".
        num_rollouts: The most rollouts of a batch on one process, by the same names.

    Raises:
        ConfigError: A limit is too low.
    """
    problems = [
        f"{holder}: max_sessions={limit}, and a batch has up to {num_rollouts[holder]} of its rollouts on one process, "
        f"whose sessions are open together; the last would wait for the first until its time is over. Raise it to "
        f"{num_rollouts[holder]}, or use a smaller batch."
        for holder, limit in limits.items()
        if limit is not None and limit < num_rollouts[holder]
    ]

    if problems:
        raise ConfigError("\n".join(problems))


def samples_groups_together(args: Any) -> bool:
    """Whether a group's completions are all sampled from the prompt of its first rollout.

    Source: TRL 1.16, `generation/vllm_generation.py`: in server mode every `num_generations`-th prompt is sent.
    """
    return bool(args.use_vllm and args.vllm_mode == "server")


def check_prompts(random: Sequence[str]) -> None:
    """Check, for a trainer that samples groups together, that no source's prompts differ within a group.

    Args:
        random: The sources that give two sessions of one task different prompts.

    Raises:
        ConfigError: There is one.
    """
    if random:
        raise ConfigError(
            f"vllm_mode='server' samples a whole group from the prompt of its first rollout, and the sources "
            f"{list(random)} give each session of a task a prompt of its own: rollouts would be trained on completions "
            f"to other prompts. Set vllm_mode='colocate', leave these sources out, or let their prompt depend on the "
            f"task alone."
        )


def check_streaming(dataset: Any) -> None:
    """Check that a trainer's dataset has rows that can be looked at.

    Raises:
        ConfigError: It is a stream.
    """
    from datasets import Dataset

    if not isinstance(dataset, Dataset):
        raise ConfigError(
            "the trainer's dataset is a stream, of which nobody knows whether its rows are the slots of the mix in "
            "order. Give it spec.train_dataset of this spec as it is."
        )


def check_rows(dataset: Any, schedule: Any) -> None:
    """Check that a trainer's dataset still is the schedule, with whatever columns were added to it.

    Args:
        dataset: The trainer's dataset.
        schedule: The mix's own dataset.

    Raises:
        ConfigError: The rows are not the schedule's, lost a column that routes them, or are a stream.
        RoutingError: A row names no source.
    """
    check_streaming(dataset)
    columns = ("environment", "slot", "task_index")
    missing = [name for name in columns if name not in dataset.column_names]

    if missing:
        raise ConfigError(f"the trainer's dataset has no columns {missing}. Give it spec.train_dataset.")

    sources = schedule.unique("environment")
    unknown = [name for name in dataset.unique("environment") if name not in sources]

    if unknown:
        raise RoutingError(f"rows name the environments {unknown}, which are not in the mix {sources}.")

    changed = [name for name in columns if list(dataset[name]) != list(schedule[name])]

    if changed:
        raise ConfigError(
            f"the trainer's dataset has {len(dataset)} rows that are not the schedule's {len(schedule)} slots in "
            f"order: the columns {changed} differ. Give it spec.train_dataset of this spec, and set the length of the "
            f"run with max_steps=... or num_slots=..."
        )


def _check_length(args: Any, shape: BatchShape, num_slots: int) -> list[str]:
    available = shape.count_steps(num_slots)

    if args.max_steps > available:
        return [
            f"max_steps={args.max_steps}, but the schedule's {num_slots} slots give {available} steps, after which "
            f"they would be replayed. Pass max_steps to spec.training_arguments(...), or num_slots="
            f"{shape.count_slots(args.max_steps)} to the spec."
        ]

    if args.max_steps <= 0 and args.num_train_epochs > 1:
        return [
            f"num_train_epochs={args.num_train_epochs:g}: the schedule would be replayed. Set num_train_epochs=1, and "
            f"the length of the run with max_steps=... or num_slots=..."
        ]

    return []
