"""Environments by `module:Class`: found, and looked at before they are served.

A server of openreward's takes classes that cannot work: it fails with the first session, or leaves a tool out silently.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from openreward.environments import Environment

from multiors.errors import ConfigError
from multiors.importing import import_named

__all__ = ["find_environment", "keep_apart"]

_NAME = re.compile(r"[\w.-]+")


def find_environment(path: str) -> type[Environment]:
    """The class that `module:Class` names.

    Raises:
        ConfigError: It cannot be imported, or cannot be served.
    """
    value: Any = import_named(
        path, who=f"environment {path!r}", remedy="Write 'module:Class', to be imported from the current folder."
    )
    mistakes = _find_mistakes(value)
    if mistakes:
        raise ConfigError(f"environment {path!r} cannot be served: {' '.join(mistakes)}")
    found: type[Environment] = value
    return found


def keep_apart(environments: Sequence[type[Environment]]) -> list[type[Environment]]:
    """The same environments, none of which derives from another.

    The SDK keeps splits and tasks on the class that was asked, where classes that derive from it take them for theirs.
    """
    return [
        type(each.__name__, (each,), {"__doc__": each.__doc__, "__module__": each.__module__})
        if any(each is not other and issubclass(other, each) for other in environments)
        else each
        for each in environments
    ]


def _find_mistakes(value: Any) -> list[str]:
    if not (inspect.isclass(value) and issubclass(value, Environment)):
        return ["it is not a class that derives from openreward.environments.Environment."]
    environment: Any = value
    mistakes = []
    if inspect.isabstract(environment):
        missing = sorted(environment.__abstractmethods__)
        mistakes.append(f"it lacks {', '.join(f'{name}()' for name in missing)}.")
    elif not _takes_a_task(environment):
        mistakes.append(
            f"__init__{inspect.signature(environment)} does not take task_spec=... and secrets=..., with which the "
            f"server makes it."
        )
    if not _NAME.fullmatch(environment.name()):
        mistakes.append(f"its name {environment.name()!r} is part of addresses; use letters, digits, '_', '.' and '-'.")
    mistakes += [
        f"its tool {name!r} would be left out; a tool has at most one parameter, a pydantic model, and returns "
        f"'-> ToolOutput'."
        for name in _find_silent_tools(environment)
    ]
    return mistakes


def _takes_a_task(environment: type[Environment]) -> bool:
    try:
        inspect.signature(environment).bind(task_spec={}, secrets={})
    except TypeError:
        return False
    return True


def _find_silent_tools(environment: type[Environment]) -> list[str]:
    """Methods that are marked as tools, and whose annotations the SDK does not take for those of a tool."""
    marked = [name for name in dir(environment) if getattr(getattr(environment, name, None), "_env_tool", False)]
    return [name for name in marked if not _is_tool(environment, name)]


def _is_tool(environment: type[Environment], name: str) -> bool:
    try:
        return bool(environment._is_tool(getattr(environment, name)))
    except NameError:  # an annotation that names nothing
        return False
