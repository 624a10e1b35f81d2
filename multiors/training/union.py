"""The union mode: one environment class with the tools of every source, all of them visible in every prompt.

For trainers without a dictionary of environments, and for runs where choosing the right tools is part of the task.
Decides under which names tools of different sources stand side by side, and that a call reaches the row's own source or
none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from multiors.errors import RoutingError, SessionError, SourceError
from multiors.ors.rollouts.ahead import Answer
from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.rollouts.comparison import Verdict
from multiors.ors.rollouts.environment import RolloutEnvironment
from multiors.ors.rollouts.factory import make_environment_class
from multiors.ors.rollouts.opening import Opening, open_ahead
from multiors.ors.rollouts.showing import Shown
from multiors.ors.tools import BoundTool, make_method
from multiors.records import Episode, StepRecord, UnscoredReason

__all__ = ["UnionEnvironment", "UnionEnvironmentFactory", "merge_tools"]


def merge_tools(blueprints: Mapping[str, Blueprint]) -> dict[str, tuple[str, BoundTool]]:
    """The tools of all sources by the name the policy sees: their own, or `<source>__<tool>` where two are named alike.

    Returns:
        (source, tool) by visible name, in source order.

    Raises:
        RoutingError: A prefixed name is taken by another tool.
    """
    counts = Counter(tool.name for blueprint in blueprints.values() for tool in blueprint.tools)
    merged: dict[str, tuple[str, BoundTool]] = {}

    for source, blueprint in blueprints.items():
        for tool in blueprint.tools:
            name = tool.name if counts[tool.name] == 1 else f"{source.replace('-', '_')}__{tool.name}"
            # A prefix must not make a name that Python refuses, or one that TRL hides.
            if not name.isidentifier() or name.startswith("_"):
                name = f"source_{name}"
            if name in merged:
                raise RoutingError(
                    f"tool {tool.name!r} of source {source!r} would be called {name!r}, which is taken by source "
                    f"{merged[name][0]!r}. Rename one of the two sources."
                )
            merged[name] = (source, tool)

    return merged


class UnionEnvironment:
    """One rollout's environment in the union mode; stands in for the environment of the row's source."""

    _sources: ClassVar[Mapping[str, Blueprint]]
    _tools: ClassVar[Mapping[str, tuple[str, BoundTool]]]

    _on_call: Callable[[], None] | None = None
    """As of a rollout's environment."""

    def __init__(self) -> None:
        self._environments: dict[str, RolloutEnvironment] = {}
        self._source: str | None = None
        self._strays: list[tuple[int, StepRecord]] = []

    def __repr__(self) -> str:
        return f"<union environment of {list(self._sources)}, now {self._source!r}>"

    def reset(self, *, environment: str | None = None, **columns: Any) -> Shown:
        """Open a session of the row's source and return its prompt.

        Raises:
            RoutingError: The row names no source of the mix.
        """
        self._release()

        if environment is None or environment not in self._sources:
            raise RoutingError(f"a row has environment={environment!r}, which is not in the mix {list(self._sources)}.")

        self._source = environment
        self._strays = []

        if environment not in self._environments:
            self._environments[environment] = make_environment_class(self._sources[environment], RolloutEnvironment)()

        return self._environments[environment].reset(**columns)

    @property
    def _active(self) -> RolloutEnvironment:
        if self._source is None:
            raise SessionError("a tool was called before reset().")

        return self._environments[self._source]

    @property
    def _blueprint(self) -> Blueprint | None:
        return None if self._source is None else self._sources[self._source]

    def _call(self, source: str, tool: BoundTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shown:
        if self._on_call is not None:
            self._on_call()

        if source == self._source:
            return self._active._call(tool, args, kwargs)

        told = "This tool belongs to another environment than the task's; nothing was called."
        stray = StepRecord(tool=tool.wire_name, arguments=dict(kwargs), output=told, failure=UnscoredReason.BAD_CALL)
        self._strays.append((0 if self._source is None else len(self._active._episode().steps), stray))
        raise SessionError(told)

    def _find_tool(self, name: str) -> BoundTool | None:
        """The tool of the row's own source behind a method. None: another source's, or no such method."""
        source, tool = self._tools.get(name, (None, None))
        return tool if source == self._source else None

    def _start_ahead(self, calls: Sequence[tuple[BoundTool, Mapping[str, Any]]]) -> None:
        self._active._start_ahead(calls)

    def _start_submission(self, message: str) -> Future[Answer] | None:
        return self._active._start_submission(message)

    def _finish_submission(self, message: str, answer: Future[Answer]) -> None:
        self._active._finish_submission(message, answer)

    def _is_open(self) -> bool:
        return self._active._is_open()

    def _as_candidate(self, completion: Any) -> dict[str, Any]:
        return self._active._as_candidate(completion)

    def _start_comparison(self, candidates: Sequence[Mapping[str, Any]]) -> Future[list[Verdict]]:
        return self._active._start_comparison(candidates)

    def _note_comparison(self, reason: UnscoredReason, detail: str) -> None:
        self._active._note_comparison(reason, detail)

    @property
    def _refusal(self) -> SourceError | None:
        return self._active._refusal

    @property
    def _num_messages(self) -> int | None:
        return self._active._num_messages

    def _end_ahead(self) -> int:
        return sum(environment._end_ahead() for environment in self._environments.values())

    def _episode(self) -> Episode:
        episode = self._active._episode()
        steps = list(episode.steps)

        for num_steps_before, stray in reversed(self._strays):
            steps.insert(num_steps_before, stray)

        return replace(episode, steps=tuple(steps))

    def _release(self) -> None:
        for environment in self._environments.values():
            environment._release()

    def _close(self) -> None:
        for environment in self._environments.values():
            environment._close()

    # What TRL's adapter shows of a rollout, for reward functions that read it.

    @property
    def reward(self) -> float | None:
        """Last reward of the rollout. None: unscored."""
        return self._active.reward

    @property
    def rewards(self) -> list[float | None]:
        """Step rewards in the order of the calls."""
        return self._active.rewards

    @property
    def metadata(self) -> list[Mapping[str, Any] | None]:
        """Step metadata in the order of the calls."""
        return self._active.metadata

    @property
    def finished(self) -> bool:
        """Whether a tool ended the episode."""
        return self._active.finished

    @property
    def last_output(self) -> str:
        """Text of the last tool result."""
        return self._active.last_output


@dataclass(frozen=True, slots=True)
class UnionEnvironmentFactory:
    """Makes union environments; pickles, and gives one class per mix and process."""

    identity: str
    """Tells mixes apart; travels with the pickle."""

    blueprints: Mapping[str, Blueprint]

    def __call__(self) -> UnionEnvironment:
        """A fresh environment, always of the same class in one process."""
        if self.identity not in _class_by_identity:
            _class_by_identity[self.identity] = _make_class(self.blueprints)

        return _class_by_identity[self.identity]()

    def open_ahead(
        self, *, environment: str | None = None, task_index: object = None, **_columns: Any
    ) -> Opening | None:
        """Start opening the session that a reset with this row will take. None: the row cannot be played."""
        if environment is None or environment not in self.blueprints or not isinstance(task_index, int):
            return None

        return open_ahead(self.blueprints[environment], task_index)


_class_by_identity: dict[str, type[UnionEnvironment]] = {}


def _make_class(blueprints: Mapping[str, Blueprint]) -> type[UnionEnvironment]:
    tools = merge_tools(blueprints)
    methods = {name: _make_union_method(name, source, tool) for name, (source, tool) in tools.items()}

    return type("Union", (UnionEnvironment,), {**methods, "_sources": dict(blueprints), "_tools": tools})


def _make_union_method(name: str, source: str, tool: BoundTool) -> Any:
    def call(environment: UnionEnvironment, _tool: BoundTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shown:
        return environment._call(source, tool, args, kwargs)

    return make_method(replace(tool, name=name), class_name="Union", call=call)
