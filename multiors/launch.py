"""From a run file to a trained model: the trainer that it describes, its callbacks, and what is left in its folder.

Trains as a script would, with the public names, in as many processes as the launcher has started. The first of them
writes the run file that repeats the run. TRL, accelerate and their engines do everything else.
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from multiors.config import RunConfig, build_spec, dump_run_file, has_peft
from multiors.errors import ConfigError, MultiORSError
from multiors.evaluation.policies.choosing import holds_model, is_checkpoint
from multiors.mixing import Plan
from multiors.rewards import RunSummary
from multiors.rollout_log import find_files
from multiors.spec import MultiOpenRewardSpec
from multiors.training import describe_refusal
from multiors.training.others import TRLSource
from multiors.training.processes import gather, is_first_process

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RUN_FILE", "Resume", "Trained", "choose_checkpoint", "find_checkpoint", "find_output", "train_run"]

RUN_FILE = "run.yaml"
"""Name of the run file that a run leaves in its output folder."""

Resume = Path | Literal["last", "auto"] | None
"""A checkpoint; the last one of the output folder; that, if there is one; or none."""

_PACKAGES = ("multiors", "trl", "transformers", "accelerate", "torch", "datasets", "openreward")
_DEFAULT_OUTPUT = "trainer_output"  # that of TrainingArguments (transformers 5.24)
_REFUSALS = (TypeError, ValueError, ImportError, RuntimeError, OSError)


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training left."""

    output: Path
    """Its folder, with the trained model in it."""

    checkpoint: Path | None
    """The last one. None: none was saved."""

    num_steps: int
    """Optimizer steps, those before a resume included."""

    summary: RunSummary
    """What became of the rollouts of all processes."""

    evaluations: Path | None
    """Folder of the evaluations made while training. None: none were asked for."""

    is_first: bool
    """Whether this process speaks for all."""

    resumed_from: Path | None = None
    """Checkpoint that the run went on from; then `summary` is of the rollouts since."""


def find_output(config: RunConfig) -> Path:
    """The folder that a run writes to."""
    return Path(config.training.get("output_dir") or _DEFAULT_OUTPUT)


def find_checkpoint(output: Path) -> Path | None:
    """The last checkpoint in a folder. None: there is none."""
    from transformers.trainer_utils import get_last_checkpoint

    found = get_last_checkpoint(str(output)) if output.is_dir() else None
    return None if found is None else Path(found)


def choose_checkpoint(output: Path, resume: Resume) -> Path | None:
    """The checkpoint to go on from. None: the run begins.

    Raises:
        ConfigError: It is not there, or a run that begins would write over another one.
    """
    last = find_checkpoint(output)

    if isinstance(resume, Path):
        if not (resume / "trainer_state.json").is_file():
            raise ConfigError(f"--resume: {str(resume)!r} is no checkpoint. Pass a folder that a training has saved.")
        return resume

    if resume == "last" and last is None:
        raise ConfigError(
            f"--resume: there is no checkpoint in {str(output)!r}. Leave --resume out, or pass --resume auto to begin "
            f"where there is none."
        )

    if resume is None and (last is not None or holds_model(output)):
        raise ConfigError(
            f"the output folder {str(output)!r} holds an earlier run, and nothing is overwritten. Pass --resume to go "
            f"on with it, or --output-dir with another folder."
        )

    return None if resume is None else last


def train_run(
    config: RunConfig,
    *,
    resume: Resume = None,
    on_begin: Callable[[Plan], None] | None = None,
    on_interrupt: Callable[[RunSummary], None] | None = None,
) -> Trained:
    """Train what a run file describes.

    Args:
        config: The run file.
        resume: Where to begin.
        on_begin: Called with the plan before the first step, in the first process.
        on_interrupt: Called in the first process if the training is interrupted, with what became of the rollouts of
            this process.

    Raises:
        ConfigError: The run file names no model, one that cannot be loaded, or fields that the trainer refuses; or an
            adapter, and peft is not installed.
        SourceError: A source cannot be used.
    """
    if config.model is None:
        raise ConfigError("the run file names no model. Write model: NAME into it, or pass --set model=NAME.")

    adapter = _make_adapter(config)
    output = find_output(config)
    _check_folder(output)
    _check_model(config.model.name)
    checkpoint = choose_checkpoint(output, resume)

    with build_spec(config) as spec:
        args = _make_arguments(spec, config)
        _check_agreement(checkpoint)
        trainer, evaluations = _make_trainer(spec, config, args, adapter)

        is_first = is_first_process()

        if is_first:
            _warn_of_another_log(config, checkpoint)
            _keep_run_file(config, output, checkpoint)
        if is_first and on_begin is not None:
            on_begin(spec.plan())

        try:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except KeyboardInterrupt:
            if is_first and on_interrupt is not None:
                on_interrupt(spec.summary())
            raise

        trainer.save_model()
        last, steps = find_checkpoint(output), trainer.state.global_step

    trainer.accelerator.end_training()  # ends trackers, and the group of processes
    return Trained(output, last, steps, spec.summary(), evaluations, is_first, checkpoint)


def _check_folder(output: Path) -> None:
    """Check that a folder can be made, or written to, before anything else takes time.

    Raises:
        ConfigError: It cannot.
    """
    there = next((path for path in (output, *output.parents) if path.exists()), Path())

    if not there.is_dir() or not os.access(there, os.W_OK):
        reason = "may not be written to" if there.is_dir() else "is no folder"
        raise ConfigError(
            f"the output folder {str(output)!r} cannot be written: {str(there)!r} {reason}. Choose another with "
            f"--output-dir."
        )


def _make_arguments(spec: MultiOpenRewardSpec, config: RunConfig) -> Any:
    from trl import GRPOConfig

    fields = {"output_dir": _DEFAULT_OUTPUT, **_of_this_machine(config.training), **config.training}

    if config.model is not None and config.model.init_kwargs:
        fields["model_init_kwargs"] = config.model.init_kwargs

    with _refusing("training: GRPOConfig refuses these fields"):
        return GRPOConfig(**spec.training_arguments(**fields))


def _of_this_machine(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What trains where there is no accelerator: TRL's own defaults, bfloat16 among them, do not."""
    import torch

    if torch.accelerator.is_available() or fields.get("use_cpu") is False:
        return {}

    return {"use_cpu": True, **({} if "bf16" in fields or fields.get("fp16") else {"bf16": False})}


def _make_adapter(config: RunConfig) -> Any:
    """The `LoraConfig` of the adapter that is trained. None: the whole model is."""
    if config.peft is None:
        return None
    if not has_peft():
        raise ConfigError(
            "peft: the run file asks for an adapter, and the package peft is not installed. Run "
            "pip install 'multiors[peft]'."
        )

    from peft import LoraConfig

    with _refusing("peft: LoraConfig refuses these fields"):
        return LoraConfig(**{"task_type": "CAUSAL_LM", **config.peft})


def _check_agreement(checkpoint: Path | None) -> None:
    """Check that all processes begin at one place; on several machines their folders may differ."""
    chosen = gather([None if checkpoint is None else checkpoint.name])

    if len(set(chosen)) > 1:
        raise ConfigError(
            f"--resume: the processes see different checkpoints: {chosen}. Put output_dir on a disk that all machines "
            f"share."
        )


def _check_model(name: str) -> None:
    """Check that a folder is there; whatever else there may be is on the hub."""
    is_path = name.startswith((".", "/", "~")) or is_checkpoint(name)

    if is_path and not Path(name).is_dir():
        raise ConfigError(
            f"model {name!r} cannot be trained: there is no such folder. Write the path of a folder that holds a "
            f"model, or a name on the hub, as in Qwen/Qwen3-4B."
        )


def _make_trainer(spec: MultiOpenRewardSpec, config: RunConfig, args: Any, adapter: Any) -> tuple[Any, Path | None]:
    """The trainer, and where it evaluates, if it does."""
    from trl import GRPOTrainer

    from multiors.evaluation.callback import EvaluationCallback
    from multiors.training.concurrent import ConcurrentGRPOTrainer

    model = config.model.name if config.model is not None else ""
    trainer_class = ConcurrentGRPOTrainer if config.trainer == "concurrent" else GRPOTrainer
    slots = {"train_dataset": spec.train_dataset, "environment_factory": spec.environment_factory}

    where = "" if Path(model).is_dir() else " (no folder here)"

    with _refusing(f"model {model!r}{where} cannot be trained"):
        trainer = trainer_class(
            model=model,
            args=args,
            reward_funcs=spec.reward_funcs,
            callbacks=spec.callbacks,
            peft_config=adapter,
            **slots,
        )

    asked = config.evaluation

    if asked.every_steps is None:
        return trainer, None

    counts: dict[str, Any] = {"num_tasks": asked.num_tasks, "episodes_per_task": asked.episodes}
    callback = EvaluationCallback(
        trainer,
        _choose_evaluated(spec),
        every_steps=asked.every_steps,
        split=asked.split,
        seed=asked.seed,
        **{name: given for name, given in counts.items() if given is not None},
    )
    trainer.add_callback(callback)
    return trainer, callback.output


def _choose_evaluated(spec: MultiOpenRewardSpec) -> dict[str, Any]:
    """The sources that can be evaluated while training, by name; that others are left out is said.

    Raises:
        ConfigError: There is none.
    """
    others = [name for name, source in spec.sources.items() if isinstance(source, TRLSource)]
    chosen = {name: source for name, source in spec.sources.items() if name not in others}

    if not chosen:
        raise ConfigError(
            "evaluation.every_steps: no source of the run file is an ORS environment, and only a trainer plays others. "
            "Leave it out."
        )

    if others:
        warnings.warn(
            f"evaluation.every_steps: the sources {others} are no ORS environments, which only a trainer plays; they "
            f"are left out.",
            stacklevel=4,
        )

    return chosen


def _warn_of_another_log(config: RunConfig, checkpoint: Path | None) -> None:
    """Say that rollouts of several runs go into one folder, where they are read as those of one."""
    folder = None if config.rollout_log is None or checkpoint is not None else Path(config.rollout_log.folder)

    if folder is None or not folder.is_dir() or not find_files(folder):
        return

    warnings.warn(
        f"the rollout log {str(folder)!r} holds rollouts of another run, and what reads it takes "
        f"them for one. Give each run a folder of its own, as with --set rollout_log=FOLDER.",
        stacklevel=3,
    )


def _keep_run_file(config: RunConfig, output: Path, checkpoint: Path | None) -> None:
    """Write the run file that repeats the run. One with which the run began, and which says otherwise, is kept."""
    path = output / RUN_FILE
    body = dump_run_file(config)
    packages = (*_PACKAGES, *(("peft",) if config.peft is not None else ()))
    used = ", ".join([*(f"{name} {version(name)}" for name in packages), f"Python {platform.python_version()}"])
    begun = "" if checkpoint is None else f"# Resumed from {checkpoint.name}.\n"
    head = f"# The run file of this run, with what was set on the command line.\n# {used}\n{begun}"

    output.mkdir(parents=True, exist_ok=True)

    if checkpoint is not None and path.is_file() and _without_comments(path) != body:
        path.rename(path.with_stem(f"{path.stem}-until-{checkpoint.name}"))

    path.write_text(head + body, encoding="utf-8")


def _without_comments(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """What others refuse is an error of the run file, in one message."""
    try:
        yield
    except MultiORSError:
        raise
    except _REFUSALS as error:
        raise ConfigError(f"{what}: {describe_refusal(error)}") from error
