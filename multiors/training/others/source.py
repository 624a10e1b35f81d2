"""`TRLSource`: whatever fits TRL's three slots, as a source of a mix."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Literal

from multiors.errors import ConfigError, SourceError
from multiors.ors.arguments import check_failures
from multiors.ors.discovery import TaskList
from multiors.rewards import RewardPart, as_source_reward
from multiors.training.others.environment import (
    PlayedEnvironment,
    check_reset,
    describe_tools,
    make_environment_class,
)
from multiors.training.others.reader import OtherReader
from multiors.training.others.rows import TaskRows

__all__ = ["TRLSource", "check_slots"]

_SLOTS = ("train_dataset", "environment_factory", "reward_funcs")


class TRLSource:
    """An environment that is no ORS server, as a source of a mix: a class with tools, its rows and its rewards.

    Give it an object with TRL's three slots, as TRL's `HarborSpec` is one, or the slots themselves. Such an object can
    also stand in a mix as it is; this class is for settings beside it.

    Args:
        spec: The object with the slots. None: the slots are given by name.
        train_dataset: A `datasets.Dataset` with one row for each task. All columns are passed to `reset`.
        environment_factory: Makes an environment: its class, or anything that is called without arguments.
        reward_funcs: One reward function of TRL's kind, or several, which are added up. None: the environments have
            `get_reward()`.
        weight: Share of the mix, relative to the other sources'.
        reward: How what these functions return becomes the reward, and your own functions beside them.
        task_curriculum: Decides which rows are drawn.
        on_failure: Whether a failure of an environment leaves its rollout unscored, or ends the training ("stop").
        max_failing_rollouts: One failing rollout more ends the training. None: any number is borne.

    Raises:
        ConfigError: The slots or settings contradict each other.
        SourceError: A slot is missing.

    Example:
        >>> from datasets import Dataset
        >>> class Coin:
        ...     def reset(self, side, **row):
        ...         self.side, self.is_right = side, None
        ...         return "Guess heads or tails."
        ...
        ...     def guess(self, side: str) -> str:
        ...         '''Guess.
        ...
        ...         Args:
        ...             side: heads or tails.
        ...         '''
        ...         self.is_right = side == self.side
        ...         return self.side
        ...
        ...     def get_reward(self):
        ...         return None if self.is_right is None else float(self.is_right)
        >>> rows = Dataset.from_dict({"side": ["heads", "tails"]})
        >>> TRLSource(train_dataset=rows, environment_factory=Coin, weight=2.0).task_indices
        [0, 1]
    """

    def __init__(
        self,
        spec: Any = None,
        /,
        *,
        train_dataset: Any = None,
        environment_factory: Callable[[], Any] | None = None,
        reward_funcs: Any = None,
        weight: float | None = None,
        reward: Any = None,
        task_curriculum: Any = None,
        on_failure: Literal["unscored", "stop"] = "unscored",
        max_failing_rollouts: int | None = None,
    ) -> None:
        slots = dict(zip(_SLOTS, (train_dataset, environment_factory, reward_funcs), strict=True))
        given = [name for name, value in slots.items() if value is not None]

        if spec is not None and given:
            raise ConfigError(f"TRLSource got an object with slots, and {given} beside it. Pass one or the other.")

        self._spec: Any = SimpleNamespace(**slots) if spec is None else spec
        self.label = "TRLSource" if spec is None else type(spec).__name__
        self.weight = weight
        self.reward = reward
        self.task_curriculum = task_curriculum
        self.on_failure = on_failure
        self.max_failing_rollouts = max_failing_rollouts
        self._check()
        self._lock = threading.RLock()
        self._spares: list[Any] = []

    def __repr__(self) -> str:
        return f"TRLSource({self.label!r})"

    def named(self, label: str) -> TRLSource:
        """The same source under the name that it has in a mix; what was asked of its slots is asked anew."""
        named = copy.copy(self)
        named.label = label
        named._lock = threading.RLock()
        named._spares = []

        for name in ("rows", "environment_class", "_functions"):
            named.__dict__.pop(name, None)

        named._check()
        return named

    # What the mix reads

    @cached_property
    def rows(self) -> TaskRows:
        """The rows of its dataset as tasks."""
        with self._asking("train_dataset"):
            dataset = self._spec.train_dataset

        return TaskRows(self.label, dataset)

    @property
    def task_indices(self) -> list[int]:
        """Of each task."""
        return self.rows.indices

    @property
    def task_digest(self) -> tuple[str, str | None]:
        """A digest of the tasks' indices. None: what else rows hold may differ each time they are made."""
        return TaskList(self.task_indices, None).digest()

    @property
    def environment_factory(self) -> Callable[[], PlayedEnvironment]:
        """Makes the environments that TRL plays; always of one class."""
        return self.environment_class

    def describe_tools(self) -> str:
        """A table of the tools as the policy sees them."""
        return describe_tools(self.environment_class)

    def make_reader(self) -> OtherReader:
        """A reader for its rollouts.

        Raises:
            SourceError: Nothing says what a rollout is worth.
        """
        environment_class = self.environment_class
        own_reward = getattr(self._own_class, "get_reward", None)

        if not self._functions and own_reward is None:
            raise SourceError(
                f"source {self.label!r}: nothing says what a rollout is worth: it has no reward_funcs, and its "
                f"environments have no get_reward(). Give it one of them."
            )

        return OtherReader(
            self.label,
            environment_class,
            self._functions,
            own_reward=own_reward,
            find_task=self.rows.find_spec,
        )

    # What its environments need

    @cached_property
    def environment_class(self) -> type[PlayedEnvironment]:
        """The class of its environments; the first object of the user's is made to see what tools it has.

        Raises:
            SourceError: The object is no environment, or does not take the columns of the rows.
        """
        with self._lock:
            own = self._make()
            self._own_class = type(own)
            made = make_environment_class(self, own)
            check_reset(own, self.rows.find(self.task_indices[0]), self.label)
            self._spares.append(own)
            return made

    def take_environment(self) -> Any:
        """An object of the user's that no rollout uses."""
        with self._lock:
            own = self._spares.pop() if self._spares else self._make()

        if type(own) is not self._own_class:
            raise SourceError(
                f"source {self.label!r}: its factory made a {type(own).__name__}, and a {self._own_class.__name__} "
                f"before, whose tools the policy is shown. Make a source of each."
            )

        return own

    def find_row(self, task_index: object) -> dict[str, Any]:
        """The row of a task."""
        return self.rows.find(task_index)

    # Inside

    def _make(self) -> Any:
        factory = self._spec.environment_factory

        if not callable(factory):
            raise SourceError(
                f"source {self.label!r}: its environment_factory is a {type(factory).__name__}, which makes no "
                f"environment. Pass a class or a function; several environments are a source each."
            )

        with self._asking("environment_factory"):
            return factory()

    @cached_property
    def _functions(self) -> list[RewardPart]:
        with self._asking("reward_funcs"):
            given = getattr(self._spec, "reward_funcs", None)

        listed: Sequence[Any] = given if isinstance(given, list | tuple) else [] if given is None else [given]

        for function in listed:
            if not callable(function) or _is_model(function):
                raise SourceError(
                    f"source {self.label!r}: the reward {function!r} is no function, and reward models are not used "
                    f"here. Write a function that returns a number or None for each rollout."
                )

        return _name_apart([RewardPart(function) for function in listed])

    def _check(self) -> None:
        """Check what can be known without reading a slot.

        Raises:
            ConfigError: A setting is wrong, or makes no sense here.
            SourceError: A slot is missing.
        """
        check_slots(self.label, self._spec)
        check_failures(self.label, self.on_failure, self.max_failing_rollouts)
        reduction = as_source_reward(self.reward).reduction

        if reduction != "last":
            raise ConfigError(
                f"source {self.label!r}: SourceReward(reduction={reduction!r}) says how the rewards of tool calls "
                f"become one, and its calls have none: its reward functions say what a rollout is worth. Leave it out."
            )

    @contextmanager
    def _asking(self, slot: str) -> Iterator[None]:
        """Say whose slot it was where an error of a user's happened; the error stays what it is."""
        try:
            yield
        except Exception as error:
            error.add_note(f"in the {slot} of source {self.label!r}")
            raise


def check_slots(label: str, spec: Any) -> None:
    """Check that an object has TRL's slots, without reading one: that may ask a server.

    Raises:
        SourceError: It lacks one that a mix cannot do without.
    """
    missing = [slot for slot in _SLOTS[:2] if inspect.getattr_static(spec, slot, None) is None]

    if missing:
        raise SourceError(
            f"source {label!r}: a {type(spec).__name__} is no source: it has no {missing}. Pass an ORSSource, an "
            f"OpenRewardSpec, or an object with TRL's slots {list(_SLOTS)}."
        )


def _is_model(function: Any) -> bool:
    from torch import nn

    return isinstance(function, nn.Module)


def _name_apart(functions: Sequence[RewardPart]) -> list[RewardPart]:
    """The functions, each under a name of its own."""
    apart: list[RewardPart] = []

    for part in functions:
        number = sum(each.name.partition("#")[0] == part.name for each in apart)
        apart.append(part if not number else RewardPart(part.function, name=f"{part.name}#{number + 1}"))

    return apart
