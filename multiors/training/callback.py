"""The callback that keeps a trainer and a mix consistent: settings before the first step, sessions after the last.

What must be in a checkpoint is put into the trainer's state after every step, where a checkpoint takes it from. (An
`ExportableState` would be asked in the middle of a step too, and cannot be resumed from a checkpoint that lacks it.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

__all__ = ["MixCallback"]


class MixCallback(TrainerCallback):
    """Checks the trainer's settings when it is built and when it starts, and closes every session when it ends.

    Args:
        check: Called with the trainer's arguments; raises where they break the mix.
        see: Called with the trainer's tokenizer or processor, which says whether its model takes images.
        begin: Called with the trainer's arguments, dataset and state when training begins.
        save: Called with the trainer's state after each step.
        name: Called with the dataset of each batch that is evaluated, before what it was worth is logged.
        end: Called with the trainer's arguments and state when training has ended.
    """

    def __init__(
        self,
        *,
        check: Callable[[Any], Any],
        see: Callable[[Any], None],
        begin: Callable[[Any, Any, Any], Any],
        save: Callable[[Any], None],
        name: Callable[[Any], None],
        end: Callable[[Any, Any], None],
    ) -> None:
        self._check = check
        self._see = see
        self._begin = begin
        self._save = save
        self._name = name
        self._end = end

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check at construction, where a mistake costs nothing yet."""
        self._check(args)
        self._see(kwargs.get("processing_class"))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check again: arguments can be changed until `train()`."""
        self._begin(args, getattr(kwargs.get("train_dataloader"), "dataset", None), state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep what a checkpoint of this step must hold."""
        self._save(state)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Name what is logged of a batch after its dataset."""
        self._name(getattr(kwargs.get("eval_dataloader"), "dataset", None))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close every session, and show what became of the run."""
        self._end(args, state)
