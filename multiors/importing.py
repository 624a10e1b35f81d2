"""What a person names as 'module:name': a function or class of their own, imported when it is used.

Decides where it is looked for, as `python -m` would: in the current folder too. Knows nothing of what it is for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from multiors.errors import ConfigError

__all__ = ["import_callable", "import_named"]


def import_named(name: str, *, who: str, remedy: str) -> Any:
    """What 'module:name' names.

    Args:
        name: What the person wrote.
        who: What an error begins with, the name included.
        remedy: What an error of the import ends with.

    Raises:
        ConfigError: It cannot be imported.
    """
    module_name, _, attributes = name.partition(":")

    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))

    try:
        value: Any = import_module(module_name)
        for attribute in attributes.split("."):
            value = getattr(value, attribute)
    except Exception as error:  # a module of the user's runs here, and may raise anything
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{who} cannot be imported: {what}. {remedy}") from error

    return value


def import_callable(name: str, *, who: str, remedy: str) -> Callable[..., Any]:
    """The same, if it is a function or a class.

    Raises:
        ConfigError: It cannot be imported, or cannot be called.
    """
    value = import_named(name, who=who, remedy=remedy)

    if not callable(value):
        raise ConfigError(f"{who} is a {type(value).__name__}, which cannot be called.")

    found: Callable[..., Any] = value
    return found
