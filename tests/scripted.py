"""TRL's own trainer with a policy that says what a script tells it.

Only the sampling of one turn is replaced: prompts, tool loop, environments, rewards, advantages and the optimizer are
TRL's. Completions of a random policy would never call a tool.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from multiors import ConcurrentRollouts

__all__ = [
    "ConcurrentScriptedTrainer",
    "Script",
    "ScriptedTrainer",
    "call",
    "make_arguments",
    "make_trainer",
    "play_well",
    "small_fields",
    "train",
]

Script = Callable[[str, int], str]


def call(tool: str, **arguments: Any) -> str:
    """A tool call as the policy's chat template writes it."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def play_well(conversation: str, row: int) -> str:
    """Call the right tool of `Echo`, `Sorting` or `Thermostat` once; every third rollout answers wrongly."""
    if "<tool_response>" in conversation:
        return "done"

    if "Say " in conversation:
        word = conversation.rpartition("Say ")[2].partition(".")[0]
        return call("echo", text="wrong" if row % 3 == 0 else word)

    if "hidden numbers" in conversation:
        return call("submit", order=[0, 1] if row % 3 == 0 else [1, 0])

    return call("submit", mode="off" if row % 3 == 0 else "heat")


class ScriptedTrainer(GRPOTrainer):
    """`GRPOTrainer` whose policy follows `script(conversation so far, row of the batch)`."""

    script: Script = staticmethod(play_well)

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        conversations = [self._tokenizer.decode(ids) for ids in prompt_ids]
        replies = [self.script(text, row) for row, text in enumerate(conversations)]
        return [self._tokenizer(f"{reply}<|im_end|>")["input_ids"] for reply in replies], None


class ConcurrentScriptedTrainer(ConcurrentRollouts, ScriptedTrainer):
    """The same policy in the trainer whose environments open and answer at once."""


def make_arguments(spec: Any, output_dir: Path, **fields: Any) -> GRPOConfig:
    """Arguments of a small run on a CPU, through the spec."""
    return GRPOConfig(**spec.training_arguments(**{**small_fields(output_dir), **fields}))


def small_fields(output_dir: Path) -> dict[str, Any]:
    """The `GRPOConfig` fields of a small run on a CPU."""
    return {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "max_completion_length": 256,
        "max_tool_calling_iterations": 3,
        "disable_tqdm": True,
        "learning_rate": 1e-3,
    }


def make_trainer(
    spec: Any,
    policy: Path,
    args: GRPOConfig,
    *,
    script: Script = play_well,
    trainer_class: type[ScriptedTrainer] = ScriptedTrainer,
    **slots: Any,
) -> ScriptedTrainer:
    """A trainer with the spec's slots, and with what else its class takes; `slots` go before the spec's."""
    trainer = trainer_class(
        model=str(policy),
        args=args,
        train_dataset=slots.pop("train_dataset", None) or spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=slots.pop("reward_funcs", None) or spec.reward_funcs,
        callbacks=slots.pop("callbacks") if "callbacks" in slots else spec.callbacks,
        **slots,
    )
    trainer.script = script
    return trainer


def train(
    spec: Any, policy: Path, args: GRPOConfig, *, resume_from_checkpoint: Any = None, **options: Any
) -> ScriptedTrainer:
    """Train with what `make_trainer` takes and return the trainer."""
    trainer = make_trainer(spec, policy, args, **options)
    trainer.train(resume_from_checkpoint=resume_from_checkpoint)
    return trainer
