"""Specs of others in a mix: any object with TRL's three slots.

Used where a spec can only be taken by its slots. What it loses in a mix: task specifications come as the row's other
columns, failures are not told apart, and its sessions end when its environments do.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multiors.errors import SourceError
from multiors.ors.discovery import TaskList
from multiors.records import Episode, UnscoredReason
from multiors.rewards import Outcome, SourceReward
from multiors.training.readers import Reading

__all__ = ["SlotReader", "SlotSource"]

_SLOTS = ("train_dataset", "environment_factory", "reward_funcs")


class SlotSource:
    """A source made of the three slots of another spec.

    Args:
        label: The source's name.
        spec: Any object with `train_dataset` (rows with `task_index`), `environment_factory` and `reward_funcs`.

    Raises:
        SourceError: A slot is missing, or the rows have no `task_index`.
    """

    def __init__(self, label: str, spec: Any) -> None:
        self.label = label
        self.weight: float | None = None
        self.reward: Any = None
        self.task_curriculum: Any = None
        # Looked up without being read: reading a slot may ask a server.
        missing = [slot for slot in _SLOTS if inspect.getattr_static(spec, slot, None) is None]

        if missing:
            raise SourceError(
                f"source {label!r}: {type(spec).__name__!r} is no spec: it has no {missing}. Pass an ORSSource or an "
                f"OpenRewardSpec."
            )

        self._spec = spec

    @property
    def task_indices(self) -> list[int]:
        """The `task_index` of each row."""
        dataset = self._spec.train_dataset

        if "task_index" not in dataset.column_names or not len(dataset):
            raise SourceError(
                f"source {self.label!r}: its train_dataset has {len(dataset)} rows and the columns "
                f"{dataset.column_names}; a mix needs rows with 'task_index'."
            )

        return list(dataset["task_index"])

    @property
    def task_digest(self) -> tuple[str, str | None]:
        """A digest of the tasks' indices. None: what else rows hold may differ each time they are made."""
        return TaskList(self.task_indices, None).digest()

    @property
    def tasks(self) -> list[str]:
        """The other columns of each row as JSON text."""
        dataset = self._spec.train_dataset
        columns = [name for name in dataset.column_names if name not in ("prompt", "task_index")]
        return [json.dumps({name: row[name] for name in columns}, default=str) for row in dataset]

    @property
    def environment_factory(self) -> Callable[[], Any]:
        """The spec's own factory."""
        factory: Callable[[], Any] = self._spec.environment_factory
        return factory

    def make_reader(self) -> SlotReader:
        """A reader for the spec's rollouts."""
        functions = self._spec.reward_funcs
        probe = self.environment_factory()
        return SlotReader(type(probe), functions if isinstance(functions, list) else [functions])


class SlotReader:
    """Reads rollouts through the spec's own reward functions."""

    def __init__(self, environment_class: type, functions: Sequence[Callable[..., Sequence[float | None]]]) -> None:
        self._environment_class = environment_class
        self._functions = functions

    def owns(self, environment: object) -> bool:
        """Whether the spec's factory made it."""
        return type(environment) is self._environment_class

    def read(
        self, environments: Sequence[Any], reward: SourceReward, truncated: Sequence[bool], arguments: Mapping[str, Any]
    ) -> list[Reading]:
        """The sum of the spec's reward functions that scored each rollout."""
        values_FB = [function(**arguments) for function in self._functions] if environments else []
        read = []

        for row, environment in enumerate(environments):
            scored = [value for value in (values[row] for values in values_FB) if value is not None]
            episode = Episode(
                task_index=arguments["task_index"][row] if arguments.get("task_index") else None,
                steps=(),
                opened=True,
                finished=bool(getattr(environment, "finished", False)),
            )
            value = sum(scored) if scored else reward.unscored
            read.append(Reading(episode, Outcome(value, UnscoredReason.NO_SCORE if value is None else None)))

        return read

    def find_task(self, task_index: int) -> str | None:
        """Not known: rows are the spec's own."""
        return None

    def release(self, environment: object) -> None:
        """Nothing: the spec closes its sessions itself."""
