"""The callback that keeps a trainer and a mix consistent: settings before the first step, sessions after the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

__all__ = ["MixCallback"]


class MixCallback(TrainerCallback):
    """Checks the trainer's settings when it is built and when it starts, and closes every session when it ends.

    Args:
        check: Called with the trainer's arguments; raises where they break the mix.
        begin: Called with the trainer's arguments and dataset when training begins.
        end: Called when training has ended.
    """

    def __init__(
        self, *, check: Callable[[Any], Any], begin: Callable[[Any, Any], Any], end: Callable[[], None]
    ) -> None:
        self._check = check
        self._begin = begin
        self._end = end

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check at construction, where a mistake costs nothing yet."""
        self._check(args)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check again: arguments can be changed until `train()`."""
        self._begin(args, getattr(kwargs.get("train_dataloader"), "dataset", None))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close every session."""
        self._end()
