"""What can be said about a mix without its servers, and once its tasks are counted.

Decides which trainer settings contradict the mix, whether its sessions can be open together, and what its schedule will
hold. Works on a draft of the spec, so that the spec itself is not laid out for any batches.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from multiors.checks.findings import Notebook
from multiors.errors import MultiORSError
from multiors.mixing.curricula import SourceTasks
from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.sessions.limits import describe_socket_need
from multiors.ors.tools import BoundTool
from multiors.spec import MultiOpenRewardSpec
from multiors.training import (
    BatchShape,
    check_prompts,
    complete_fields,
    describe_refusal,
    find_contradictions,
    measure_batches,
    merge_tools,
    samples_groups_together,
)

__all__ = ["Training", "check_plan", "check_random_prompts", "check_shared_tools", "check_training", "for_this_machine"]

# The precision of a run says nothing about its batches, and cannot be had where there is no accelerator.
_ON_A_CPU = {"use_cpu": True, "bf16": False, "fp16": False, "tf32": None}


class _Draft(MultiOpenRewardSpec):
    """A copy of a spec that knows the tasks of each source, and asks nobody."""

    def __init__(self, spec: MultiOpenRewardSpec, tasks: Sequence[SourceTasks], *, keeps_batches: bool) -> None:
        self.__dict__.update(spec.__dict__)
        self._known = list(tasks)
        self._layout = self._dataset = None
        self._runs = []

        if not keeps_batches:
            self._shape = self._run_slots = None

    def _prepare(self) -> None:
        pass

    def _tasks(self) -> list[SourceTasks]:
        return self._known


@dataclass(frozen=True, slots=True)
class Training:
    """Trainer settings that can be used."""

    fields: Mapping[str, Any]
    """Fields of `GRPOConfig` as they were given, without those that contradict the mix."""

    args: Any
    """The `GRPOConfig` that they make, with what the mix adds."""


def check_training(spec: MultiOpenRewardSpec, training: Mapping[str, Any] | None, notes: Notebook) -> Training | None:
    """Check trainer settings as far as no server is needed.

    Returns:
        What can be used of them. None: none were given, or the trainer refuses them.
    """
    if training is None:
        message = "no training arguments were given; batches, limits of sessions and reward weights were not checked."
        notes.write("training", "note", message)
        return None

    weights = dict(zip(spec.sources, spec.reward_weights, strict=True))
    problems = find_contradictions(training, weights)

    for name, problem in problems.items():
        notes.write("training", "error", problem, field=name)

    fields = {name: value for name, value in training.items() if name not in problems}

    try:
        args = _make_config(complete_fields(fields, weights))
    except (TypeError, ValueError, ImportError, RuntimeError, OSError) as error:
        notes.write("training", "error", f"GRPOConfig refuses these fields: {describe_refusal(error)}")
        return None

    _check_batches(measure_batches(args), len(spec.sources), notes)
    return Training(fields, args)


def check_plan(
    spec: MultiOpenRewardSpec,
    training: Training | None,
    tasks: Mapping[str, SourceTasks | None],
    notebooks: Mapping[str | None, Notebook],
) -> None:
    """Check what the schedule will hold, and whether its batches fit the limits of sessions.

    Args:
        spec: The mix.
        training: Trainer settings. None: not known; then those count that the spec was told before.
        tasks: What is known of them, by source. None: they could not be counted.
        notebooks: By source, and the mix's under None.
    """
    notes = notebooks[None]
    known = [each for each in tasks.values() if each is not None]

    if len(known) < len(tasks):
        missing = [name for name, each in tasks.items() if each is None]
        notes.write("plan", "note", f"not made, because the tasks of {missing} could not be counted.", plan=None)
        return

    draft = _Draft(spec, known, keeps_batches=training is None)

    if training is not None:
        _check_settings(draft, training, notes)

        if not notes.has("training", "error"):
            notes.write("training", "ok", "the training arguments go together with the mix.")

    if not _check_curricula(spec, known, notes):
        return

    if draft._shape is None and spec._rules.scheduled is not None:
        message = "not made: the curriculum counts batches, and no training arguments were given."
        notes.write("plan", "note", message, plan=None)
        return

    try:
        plan = draft.plan()
    except MultiORSError as error:
        notes.write("plan", "error", str(error), plan=None)
        return

    notes.write("plan", "ok", str(plan).splitlines()[0], plan=plan.to_json())
    not_drawn = {source.name for source in plan.sources if source.slots == 0}

    for name, remark in plan.remarks:
        notebooks[name].write("plan", "warning" if name in not_drawn else "note", remark)


def _check_curricula(spec: MultiOpenRewardSpec, tasks: Sequence[SourceTasks], notes: Notebook) -> bool:
    rules = spec._rules

    if not rules.has_curriculum:
        return True

    try:
        rules.check(tasks)
    except MultiORSError as error:
        notes.write("curriculum", "error", str(error))
        notes.write("plan", "note", "not made, because a curriculum does not fit the sources.", plan=None)
        return False

    notes.write("curriculum", "ok", f"{', '.join(rules.names)}.", curricula=rules.names)
    return True


def check_random_prompts(training: Training | None, random: Sequence[str], notes: Notebook) -> None:
    """Check prompts that differ from session to session against how a trainer samples groups.

    Args:
        training: Trainer settings. None: not known.
        random: The sources that give two sessions of one task different prompts.
        notes: The mix's.
    """
    if training is not None and samples_groups_together(training.args):
        try:
            check_prompts(random)
        except MultiORSError as error:
            notes.write("prompt", "error", str(error), sources=list(random))


def check_shared_tools(blueprints: Mapping[str, Blueprint], notes: Notebook) -> list[BoundTool]:
    """The tools that every prompt shows in the union mode, under the names they have there.

    Args:
        blueprints: By source; of those whose tools could be had.
        notes: The mix's.
    """
    try:
        merged = merge_tools(blueprints)
    except MultiORSError as error:
        notes.write("tools", "error", str(error))
        return []

    named = ", ".join(merged)
    notes.write("tools", "ok", f"every prompt shows the tools of all sources: {named}.", tools=list(merged))
    return [replace(tool, name=name) for name, (_, tool) in merged.items()]


def _check_settings(draft: _Draft, training: Training, notes: Notebook) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)

        try:
            args = _make_config(draft.training_arguments(**for_this_machine(training.fields)))
        except MultiORSError as error:
            notes.write("training", "error", str(error))
            return

    for warning in caught:
        if warning.category is UserWarning:
            notes.write("training", "warning", str(warning.message))

    try:
        draft._check_settings(args)
    except MultiORSError as error:
        lines = str(error).splitlines()
        listed = [line.removeprefix("- ") for line in lines if line.startswith("- ")]

        for problem in listed or lines:
            notes.write("batches", "error", problem)


def _make_config(fields: Mapping[str, Any]) -> Any:
    from trl import GRPOConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the trainer's own says it again
        return GRPOConfig(**for_this_machine(fields))


def for_this_machine(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `GRPOConfig` that can be looked at here, with the precision of a CPU where that is all there is."""
    import torch

    return dict(fields) if torch.accelerator.is_available() else {**fields, **_ON_A_CPU}


def _check_batches(shape: BatchShape, num_sources: int, notes: Notebook) -> None:
    notes.write(
        "batches",
        "ok",
        f"a generation batch has {shape.prompts_per_batch} × {shape.num_generations} rollouts (prompts × generations), "
        f"{shape.rollouts_per_process} of them on each process at once, each in a session of its own.",
        prompts_per_batch=shape.prompts_per_batch,
        num_generations=shape.num_generations,
        rollouts_per_process=shape.rollouts_per_process,
    )

    if shape.prompts_per_batch == 1 and num_sources > 1:
        notes.write(
            "batches",
            "warning",
            f"a generation batch has one prompt, so one of {num_sources} sources: shares hold over many batches only. "
            f"Use at least two prompts a batch (per_device_train_batch_size × processes × steps_per_generation ≥ "
            f"2 × num_generations).",
        )

    socket_need = describe_socket_need(shape.rollouts_per_process)

    if socket_need:
        notes.write("batches", "warning", socket_need)
