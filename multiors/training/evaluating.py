"""What a trainer evaluates in between: whether it does, and under which names it logs that.

TRL calls the columns in evaluation as in training. Of several datasets it logs each under the same names, so that the
last one is what remains (TRL 1.16, `GRPOTrainer.log`; only what transformers measures has the dataset's name). Here the
names are told apart before they are logged, so that trackers, `state.log_history` and what `evaluate()` returns agree.
Leans on `GRPOTrainer._metrics` (pinned in `tests/test_trl_contract.py`): where it is gone, TRL's names remain.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["EvaluationMetrics", "is_training"]

_OF_THE_RUN = ("num_tokens",)


def is_training(arguments: Mapping[str, Any]) -> bool:
    """Whether a batch is trained on; in evaluation, rows may come in any order and are no part of the run.

    Args:
        arguments: TRL's keyword arguments of reward functions.
    """
    trainer = _find_trainer(arguments)
    return trainer is None or bool(trainer.model.training)


class EvaluationMetrics:
    """The names of what is logged of the datasets that a trainer evaluates.

    Args:
        sources: All sources of the mix.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self.datasets: Mapping[str, Any] = {}
        """By name, those that may be evaluated without being the trainer's own."""

        self._sources = tuple(sources)
        self._given: set[str] = set()
        self._trainer: weakref.ref[Any] | None = None

    def note(self, arguments: Mapping[str, Any]) -> None:
        """A batch is scored; from TRL's keyword arguments of reward functions it is known by whom."""
        trainer = _find_trainer(arguments)
        self._trainer = None if trainer is None else weakref.ref(trainer)

    def rename(self, dataset: Any) -> None:
        """Give the metrics of a batch the name of its dataset, where the trainer evaluates several.

        What is named after the source that the dataset is called after keeps its name; the columns of other sources,
        which have no value there, are left out.
        """
        trainer = None if self._trainer is None else self._trainer()
        metrics = getattr(trainer, "_metrics", {}).get("eval")
        name = self._find_name(getattr(trainer, "eval_dataset", None), dataset)

        if metrics is None or name is None:
            return

        for key in [key for key in metrics if key not in self._given and key not in _OF_THE_RUN]:
            if self._is_of_another_source(key, metrics[key]):
                del metrics[key]
            elif not key.startswith((f"env/{name}/", f"rewards/{name}/")):
                self._given.add(f"{name}_{key}")
                metrics[f"{name}_{key}"] += metrics.pop(key)

    def _find_name(self, evaluated: Any, dataset: Any) -> str | None:
        """What a dataset is called. None: it is not one of several."""
        if evaluated is dataset:
            return None

        by_name = {**self.datasets, **(evaluated if isinstance(evaluated, Mapping) else {})}
        return next((name for name, each in by_name.items() if each is dataset), None)

    def _is_of_another_source(self, key: str, values: Sequence[float]) -> bool:
        return key.startswith(tuple(f"rewards/{name}/" for name in self._sources)) and all(map(math.isnan, values))


def _find_trainer(arguments: Mapping[str, Any]) -> Any:
    """Whose batch it is. None: not known, as where columns are called by hand."""
    return getattr(arguments.get("log_metric"), "__self__", None)
