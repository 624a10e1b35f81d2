"""The rows of somebody's dataset as the tasks of a source.

Decides how a row is numbered, and what becomes of its prompt. A row reaches its environment and its reward functions as
TRL alone would hand it on: every column, unchanged; nothing of it passes through the mix's own columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from multiors.errors import RoutingError, SourceError

__all__ = ["TaskRows"]

_PICTURES = ("image", "images")  # TRL looks for these in every row of a batch (TRL 1.16, GRPOTrainer).
_EMPTY = [{"role": "user", "content": ""}]


class TaskRows:
    """A dataset's rows, by task.

    A task's index is the row's `task_index` where the dataset has such a column with a different whole number in each
    row; otherwise it is the row's number, from 0.

    Args:
        label: The source's name.
        dataset: What the spec gives as `train_dataset`.

    Raises:
        SourceError: Its rows cannot be counted, or cannot stand beside those of other sources.
    """

    def __init__(self, label: str, dataset: Any) -> None:
        from datasets import Dataset

        if not isinstance(dataset, Dataset) or not len(dataset):
            what = "has no rows" if isinstance(dataset, Dataset) else f"is a {type(dataset).__name__}"
            raise SourceError(
                f"source {label!r}: its train_dataset {what}; a mix counts the rows of a datasets.Dataset, one for "
                f"each task. Pass one, as in Dataset.from_dict({{'prompt': [...]}})."
            )

        pictures = [name for name in _PICTURES if name in dataset.column_names]

        if pictures:
            raise SourceError(
                f"source {label!r}: its rows have the column {pictures[0]!r}, and the trainer would look for pictures "
                f"in the rows of every source. Return them from reset() as blocks of the prompt, in another column."
            )

        self._label = label
        self._dataset = dataset
        self._plain = dataset.with_format(None)
        self.indices = self._number()
        self.prompts = self._read_prompts()
        self._position_by_index = {index: position for position, index in enumerate(self.indices)}
        self._specs: list[str] | None = None

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        names: list[str] = self._dataset.column_names
        return names

    @property
    def specs(self) -> list[str] | None:
        """Of each task, what its row holds beside prompt and index, as JSON text. None: it holds nothing."""
        names = [name for name in self.columns if name not in ("prompt", "task_index")]

        if self._specs is None and names:
            rows = self._plain.select_columns(names)
            self._specs = [json.dumps(row, default=str) for row in rows]

        return self._specs

    def find(self, task_index: object) -> dict[str, Any]:
        """The row of a task.

        Raises:
            RoutingError: There is no such task.
        """
        position = self._position_by_index.get(task_index) if isinstance(task_index, int) else None

        if position is None:
            raise RoutingError(
                f"source {self._label!r}: a row has task_index={task_index!r}, and the source has no such task. Give "
                f"the trainer spec.train_dataset of this spec, and set remove_unused_columns=False."
            )

        row: dict[str, Any] = self._dataset[position]
        return row

    def find_spec(self, task_index: int) -> str | None:
        """The JSON text of a task. None: there is none."""
        position = self._position_by_index.get(task_index)
        return None if position is None or self.specs is None else self.specs[position]

    def _number(self) -> list[int]:
        given = list(self._plain["task_index"]) if "task_index" in self.columns else []
        is_index = all(isinstance(index, int) and not isinstance(index, bool) for index in given)
        return given if given and is_index and len(set(given)) == len(given) else list(range(len(self._dataset)))

    def _read_prompts(self) -> list[list[dict[str, str]]] | None:
        """Messages with role and content for each row. None: all are one empty user message."""
        if "prompt" not in self.columns:
            return None

        prompts = [self._read_prompt(prompt, number) for number, prompt in enumerate(self._plain["prompt"])]
        return None if all(prompt == _EMPTY for prompt in prompts) else prompts

    def _read_prompt(self, prompt: object, number: int) -> list[dict[str, str]]:
        if isinstance(prompt, str):
            return [{"role": "user", "content": prompt}]

        messages: Sequence[Any] = prompt if isinstance(prompt, list) else ()

        if not messages or not all(_is_plain(message) for message in messages):
            raise SourceError(
                f"source {self._label!r}: the prompt of row {number} is neither text nor messages of nothing but role "
                f"and text, as rows of several sources in one table must be. Put the rest into another column, and "
                f"return it from reset()."
            )

        return [{"role": message["role"], "content": message["content"]} for message in messages]


def _is_plain(message: object) -> bool:
    """Whether a message has a role and text, and nothing else; Arrow fills in None for what other messages have."""
    if not isinstance(message, Mapping):
        return False

    held = {name for name, value in message.items() if value is not None}
    return held == {"role", "content"} and all(isinstance(message[name], str) for name in held)
