"""An evaluation every so many steps of a training: the model as it is, played as `multiors evaluate` plays.

Decides when, into which folder, and what is logged. The training is as it would be without: the model's mode and
torch's random numbers are put back, the sessions are others than the training's, and an evaluation that fails is
missing, and said so. Knows a trainer of transformers, no mix: a source is evaluated whether it is trained on or not.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback

from multiors.errors import ConfigError
from multiors.evaluation.comparing import summarize
from multiors.evaluation.folder import EvaluationRun, is_evaluation
from multiors.evaluation.policies import LocalPolicy, Policy, Sampling
from multiors.evaluation.running.episode import Limits
from multiors.evaluation.running.runner import check_counts
from multiors.evaluation.running.sharing import Played, Processes, play_together
from multiors.evaluation.running.sources import EvaluatedSource, prepare_evaluation

__all__ = ["EvaluationCallback"]

logger = logging.getLogger("multiors.evaluation")

_STATE_KEY = "multiors evaluation"
_FOLDER = "evaluations"


class EvaluationCallback(TrainerCallback):
    """Plays the model on every source each `every_steps` steps and after the last, and logs what it is worth.

    Logged are `eval_<source>/score`, `eval_<source>/scored` (the fraction that has a score) and `eval_macro`, which
    trackers show as `eval/<source>/score` and so on. What is undefined is not logged. Each evaluation is a folder
    `step-000100` that `read_evaluation` and `multiors compare` read. A resumed training goes on with those of the
    training that it resumes. The model is sampled as in training: by temperature, top_p, top_k and token limits.

    With several processes each plays a part of the episodes.

    Args:
        trainer: The trainer, to which this is added: `trainer.add_callback(EvaluationCallback(trainer, spec, ...))`.
        spec: A `MultiOpenRewardSpec`, or sources by name.
        every_steps: Optimizer steps between two evaluations.
        output: Folder of the evaluations. None: `evaluations` in the trainer's output folder.
        num_tasks: Tasks of each source, at most, chosen by `seed`. None: all.
        episodes_per_task: How often each task is played.
        split: Whose tasks are played. None: that of each source.
        seed: Decides tasks and every episode's luck, the same at each step.
        limits: How long an episode may be. None: as in training.

    Raises:
        ConfigError: An argument is wrong, or no process has the whole model.
    """

    def __init__(
        self,
        trainer: Any,
        spec: Any,
        *,
        every_steps: int,
        output: str | os.PathLike[str] | None = None,
        num_tasks: int | None = 32,
        episodes_per_task: int = 1,
        split: str | None = None,
        seed: int = 0,
        limits: Limits | None = None,
    ) -> None:
        check_counts(every_steps=every_steps, num_tasks=num_tasks, episodes_per_task=episodes_per_task)
        check_counts(least=0, seed=seed)
        _check_whole(trainer.accelerator.state)
        self.trainer = trainer
        self.output = Path(trainer.args.output_dir, _FOLDER) if output is None else Path(output)
        self._sources = getattr(spec, "sources", spec)
        self._every_steps = every_steps
        self._num_tasks = num_tasks
        self._episodes_per_task = episodes_per_task
        self._split = split
        self._seed = seed
        self._limits = limits or _find_limits(trainer.args)
        self._processes = Processes(trainer.accelerator.process_index, trainer.accelerator.num_processes, gather_object)
        self._prepared: dict[str, EvaluatedSource] = {}
        self._training = ""
        self._last_step = -1
        self._has_failed = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask the sources, and find out whether evaluations that are there are this training's.

        Raises:
            ConfigError: A source cannot be evaluated, or the folder holds evaluations of another training.
            SourceError: A source cannot be used.
        """
        self._training = self._processes.agree(lambda: self._find_training(state))[0]
        state.stateful_callbacks[_STATE_KEY] = {"training": self._training}
        self._last_step, self._has_failed = state.global_step, False
        self._processes.agree(self._prepare)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate, if it is time."""
        step = state.global_step

        # The last step has no event of its own that comes before trackers end.
        if step > self._last_step and (step % self._every_steps == 0 or control.should_training_stop):
            self._last_step = step
            values = self._evaluate(step)
            should_log = control.should_log

            if values:
                # GRPOTrainer's own would add what training has gathered for its next entry, and forget it (TRL 1.16).
                Trainer.log(self.trainer, values)

            control.should_log = should_log  # whoever logs says that all is logged, what training has to say included

    def make_policy(self, step: int) -> Policy:
        """Who plays: the trainer's model, as it is."""
        args, model = self.trainer.args, self.trainer.accelerator.unwrap_model(self.trainer.model)
        processor = self.trainer.processing_class
        return LocalPolicy(
            model,
            tokenizer=getattr(processor, "tokenizer", processor),
            sampling=Sampling(
                temperature=args.temperature,
                top_p=args.top_p,
                top_k=args.top_k or None,
                max_tokens=args.max_completion_length,
            ),
            max_batch_size=args.per_device_eval_batch_size,
            name=f"step {step}",
            thinking=(args.chat_template_kwargs or {}).get("enable_thinking"),
        )

    def _evaluate(self, step: int) -> dict[str, float]:
        """What to log. Nothing, if it failed."""
        try:
            with _undisturbed(self.trainer.model):
                run = play_together(
                    self.output / f"step-{step:06d}",
                    Played(
                        self._prepared,
                        seed=self._seed,
                        episodes_per_task=self._episodes_per_task,
                        limits=self._limits,
                        about={"training": self._training, "step": step},
                    ),
                    lambda: self.make_policy(step),
                    self._processes,
                )
                return self._processes.agree(lambda: _measure(run))[0]
        except Exception as error:  # noqa: BLE001  # an evaluation stands beside the training, and must not end it
            self._tell(step, error)
            return {}

    def _tell(self, step: int, error: Exception) -> None:
        """Say once that an evaluation is missing."""
        if self._processes.is_first and not self._has_failed:
            logger.warning(
                "the evaluation at step %d failed, and nothing is logged of it: %s: %s Training goes on; later ones "
                "are tried, and not told of if they fail too.",
                step,
                type(error).__name__,
                error,
            )

        self._has_failed = True

    def _prepare(self) -> None:
        self._prepared = self._prepared or prepare_evaluation(
            self._sources,
            num_tasks=self._num_tasks,
            split=self._split,
            seed=self._seed,
            sees_images=self.make_policy(0).sees_images,
        )

    def _find_training(self, state: Any) -> str:
        """Which training this is: a new one, or that of the checkpoint."""
        saved = state.stateful_callbacks.get(_STATE_KEY) if state.global_step else None

        if saved is not None:
            return str(saved["training"])

        if self._processes.is_first and any(map(is_evaluation, self.output.glob("step-*"))):
            raise ConfigError(
                f"the folder {str(self.output)!r} holds evaluations of another training. Choose another output=..., "
                f"or move them away."
            )

        return uuid.uuid4().hex


def _measure(run: EvaluationRun | None) -> dict[str, float]:
    """What to log of an evaluation; nothing in other processes than the first."""
    if run is None:
        return {}

    result = summarize(run)
    values: dict[str, float | None] = {"eval_macro": result.macro.value}

    for name, source in result.sources.items():
        values[f"eval_{name}/score"] = source.score.value
        values[f"eval_{name}/scored"] = source.scored_fraction

    return {name: value for name, value in values.items() if value is not None}


def _find_limits(args: Any) -> Limits:
    """As in training. Where a trainer has no limit of turns, tokens are one."""
    turns = args.max_tool_calling_iterations
    limits = {} if turns is None else {"max_turns": turns}
    return Limits(max_completion_tokens=args.max_completion_length, **limits)


def _check_whole(state: Any) -> None:
    """Check that each process has all of the model's parameters.

    Raises:
        ConfigError: They are spread over the processes.
    """
    deepspeed = getattr(state, "deepspeed_plugin", None)
    spread = {
        "FSDP": getattr(state, "fsdp_plugin", None) is not None,
        "DeepSpeed ZeRO-3": deepspeed is not None and deepspeed.zero_stage == 3,
    }

    for name, is_used in spread.items():
        if is_used:
            raise ConfigError(
                f"EvaluationCallback: with {name} no process has the whole model, which must be there to be played. "
                f"Save checkpoints (save_steps=...), and evaluate them with `multiors evaluate`."
            )


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """Torch's random numbers and the model's mode are afterwards what they were before."""
    kind, was_training = model.device.type, model.training

    with torch.random.fork_rng([] if kind == "cpu" else [model.device], device_type=kind):
        try:
            yield
        finally:
            model.train(was_training)
