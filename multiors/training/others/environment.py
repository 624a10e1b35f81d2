"""An object of somebody's environment class, played by TRL and watched for the mix.

Decides what an exception of that class means for the rollout, and what of the rollout is recorded. TRL is shown the
class's own tools, by their own signatures and docstrings, on a class of each source's own; what the tools return or
raise, TRL sees unchanged. The object behind it is the user's, and is what their functions are given.

The law here
- What `reset` raises leaves the rollout without an environment: it is played, and stays unscored.
- A tool that raises ValueError, or cannot take the policy's arguments, has refused the call. Whatever else it raises is
  the environment's failure, and the rollout stays unscored whatever is said of it later.
- An object whose `reset` failed is not used again.
"""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any, ClassVar, Protocol

import numpy as np

from multiors.errors import MultiORSError, SessionError, SourceError
from multiors.ors.text import one_line
from multiors.records import Episode, StepRecord, UnscoredReason

__all__ = ["PlayedEnvironment", "describe_tools", "make_environment_class"]

logger = logging.getLogger("multiors.training")

_UNOPENED = "The environment could not be opened. There is nothing to do here."
_NO_TOOLS = ("reset", "get_reward")  # TRL's own names (TRL 1.16, GRPOTrainer.__init__)
# Of what is a ValueError to Python: what comes of a server that does not answer as it should.
_NO_REFUSALS = (OSError, UnicodeError, json.JSONDecodeError)


class Owner(Protocol):
    """The source that an environment is of."""

    label: str

    def take_environment(self) -> Any:
        """An object of the user's class that no rollout uses."""

    def find_row(self, task_index: object) -> dict[str, Any]:
        """The row of a task."""


class PlayedEnvironment:
    """One rollout's environment. Each source has a subclass of its own, with the tools of the user's class."""

    _owner: ClassVar[Owner]
    _tool_names: ClassVar[tuple[str, ...]]
    _reported: ClassVar[set[str]]

    _task_index: int | None
    _row: Mapping[str, Any]
    _steps: list[StepRecord]
    _opened: bool
    _failure: UnscoredReason | None
    _error: str | None
    _opening_s: float | None

    def __init__(self) -> None:
        self._own: Any = None
        self._is_usable = False
        self._clear(None, {})

    def __repr__(self) -> str:
        return f"<environment of source {self._owner.label!r}, task_index={self._task_index}: {self._own!r}>"

    def __getattr__(self, name: str) -> Any:
        """What the user's object has besides tools, for functions that are given this one."""
        if name.startswith("_") or self._own is None:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

        return getattr(self._own, name)

    def reset(self, *, task_index: int | None = None, **_columns: Any) -> Any:
        """Begin a task with the row that the user's dataset has for it; what their `reset` returns.

        Raises:
            RoutingError: The source has no such task.
            SourceError: Their `reset` does not take the columns of the row, or returns what no trainer takes.
        """
        row = self._owner.find_row(task_index)
        self._clear(task_index, row)
        started_s = time.monotonic()

        try:
            if not self._is_usable:
                self._own = self._owner.take_environment()
            check_reset(self._own, row, self._owner.label)
            self._is_usable = False
            shown = self._own.reset(**row)
        except MultiORSError:
            raise
        except Exception as error:  # noqa: BLE001  code of the user's, which may raise anything
            self._fail(UnscoredReason.UNREACHABLE, f"reset() raised {_describe_error(error)}")
            return _UNOPENED

        if shown is not None and not isinstance(shown, str | list):
            raise SourceError(
                f"source {self._owner.label!r}: reset() returned a {type(shown).__name__}, and TRL takes text, a list "
                f"of content blocks, or None. Return one of them."
            )

        self._is_usable = self._opened = True
        self._opening_s = time.monotonic() - started_s
        return shown

    @contextmanager
    def _watched(self, tool: str, arguments: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Record a call; what it returned is put into the list."""
        returned: list[Any] = []
        was_finished, started_s = self._find_end() is True, time.monotonic()
        failure, output = None, ""

        try:
            if not self._opened:
                raise SessionError(_UNOPENED)
            yield returned
            output = _describe_result(returned[0])
        except Exception as error:
            failure, output = self._judge(tool, arguments, error), str(error)
            raise
        finally:
            self._steps.append(
                StepRecord(
                    tool=tool,
                    arguments=dict(arguments),
                    output=output,
                    finished=self._find_end() is True and not was_finished,
                    failure=failure,
                    duration_s=time.monotonic() - started_s,
                )
            )

    def _judge(self, tool: str, arguments: Mapping[str, Any], error: Exception) -> UnscoredReason:
        """Whose doing it is that a call raised."""
        if not self._opened:
            return UnscoredReason.UNREACHABLE

        is_refusal = isinstance(error, ValueError) and not isinstance(error, _NO_REFUSALS)

        if is_refusal or not _takes(getattr(self._own, tool), arguments):
            return UnscoredReason.BAD_CALL

        self._fail(UnscoredReason.TOOL_ERROR, f"{tool}() raised {_describe_error(error)}")
        return UnscoredReason.TOOL_ERROR

    @property
    def finished(self) -> bool:
        """Whether the episode is over, as the user's object says it."""
        return self._find_end() is True

    def _find_end(self) -> bool | None:
        """Whether the user's object says that its episode is over. None: it says nothing of that."""
        flags = [getattr(self._own, name, None) for name in ("finished", "done")]
        said = [bool(flag) for flag in flags if isinstance(flag, bool | np.bool_)]
        return any(said) if said else None

    def _episode(self) -> Episode:
        """What happened since the last `reset`."""
        return Episode(
            task_index=self._task_index,
            steps=tuple(self._steps),
            opened=self._opened,
            finished=self._find_end() is True,
            error=self._error,
            opening_s=self._opening_s,
        )

    def _fail(self, reason: UnscoredReason, detail: str) -> None:
        """Note a failure of the environment's; the first of a kind in this process is told."""
        self._failure = self._failure or reason
        self._error = self._error or detail
        level = logging.DEBUG if reason in self._reported else logging.WARNING
        self._reported.add(reason)
        logger.log(level, "source %r, task %s: %s", self._owner.label, self._task_index, detail)

    def _clear(self, task_index: int | None, row: Mapping[str, Any]) -> None:
        self._task_index = task_index
        self._row = row
        self._steps = []
        self._opened = False
        self._failure = None
        self._error = None
        self._opening_s = None


def make_environment_class(owner: Owner, own: Any) -> type[PlayedEnvironment]:
    """The class that TRL is given for objects like `own`.

    Tools are what TRL takes for tools: the functions of the object's class that are not underscored.

    Raises:
        SourceError: It has no `reset`, or a method that TRL would show to the policy and transformers cannot render.
    """
    functions = dict(inspect.getmembers(type(own), predicate=inspect.isfunction))

    if "reset" not in functions or inspect.iscoroutinefunction(functions["reset"]):
        what = "has no method reset()" if "reset" not in functions else "has an async reset(), which no trainer awaits"
        raise SourceError(
            f"source {owner.label!r}: an environment of class {type(own).__name__!r} {what}. Write "
            f"def reset(self, **row)."
        )

    names = tuple(name for name in functions if name not in _NO_TOOLS and not name.startswith("_"))
    tools = {name: _make_tool(name, getattr(own, name)) for name in names}
    attributes = {"_owner": owner, "_tool_names": names, "_reported": set(), **tools}
    made = type(type(own).__name__, (PlayedEnvironment,), attributes)
    _render(made, owner.label)
    return made


def check_reset(own: Any, columns: Mapping[str, Any], label: str) -> None:
    """Check that an object's `reset` takes the columns of its rows.

    Raises:
        SourceError: It does not; no task of the source could ever begin.
    """
    if not _takes(own.reset, columns):
        raise SourceError(
            f"source {label!r}: reset{inspect.signature(own.reset)} does not take the columns of its rows, "
            f"{list(columns)}. Write def reset(self, **row)."
        )


def describe_tools(environment_class: type[PlayedEnvironment]) -> str:
    """A table of the tools as the policy sees them."""
    names = environment_class._tool_names
    width = max([len("tool"), *map(len, names)])
    lines = [f"{'tool':<{width}}  parameters"]

    for name in names:
        parameters = list(inspect.signature(getattr(environment_class, name)).parameters.values())[1:]
        lines.append(f"{name:<{width}}  {one_line(', '.join(map(str, parameters))) or '(none)'}")

    return "\n".join(lines)


def _make_tool(name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls the user's, and looks like it."""

    def call(self: PlayedEnvironment, /, *args: Any, **kwargs: Any) -> Any:
        with self._watched(name, kwargs) as returned:
            returned.append(getattr(self._own, name)(*args, **kwargs))

        return returned[0]

    async def await_call(self: PlayedEnvironment, /, *args: Any, **kwargs: Any) -> Any:
        with self._watched(name, kwargs) as returned:
            returned.append(await getattr(self._own, name)(*args, **kwargs))

        return returned[0]

    method: Any = update_wrapper(
        await_call if inspect.iscoroutinefunction(tool) else call, getattr(tool, "__func__", tool)
    )
    signature = inspect.signature(tool)
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(parameters=[receiver, *signature.parameters.values()])
    method.__name__ = name
    made: Callable[..., Any] = method
    return made


def _render(environment_class: type[PlayedEnvironment], label: str) -> None:
    """Check that transformers can show every tool, as it must for the first prompt."""
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    instance = environment_class()

    for name in environment_class._tool_names:
        try:
            get_json_schema(getattr(instance, name))
        except (DocstringParsingException, TypeHintParsingException, TypeError, ValueError, NameError) as error:
            raise SourceError(
                f"source {label!r}: TRL shows the policy every public method as a tool, and transformers cannot show "
                f"{name!r}: {one_line(str(error))}. Give it a docstring with an entry in Args: and a type hint for "
                f"each parameter, or a name that begins with an underscore."
            ) from error


def _takes(function: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError:
        return False
    except ValueError:  # it has no signature to be asked for
        return True

    return True


def _describe_error(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")


def _describe_result(result: object) -> str:
    """The text of a tool's result; a remark where something else stood."""
    if not isinstance(result, list):
        return str(result)

    blocks = [block if isinstance(block, Mapping) else {"text": block} for block in result]
    return "\n".join(str(block["text"]) if "text" in block else f"[{block.get('type')}]" for block in blocks)
