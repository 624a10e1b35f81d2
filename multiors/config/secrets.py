"""`${VARIABLE}` in a run file: the only form in which a key or secret may stand in it.

Decides what the form is, and where the value comes from when a spec is built. The value is nowhere kept: what is
written of a run file, and shown, has the variable's name.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from multiors.errors import ConfigError

__all__ = ["KeyVariable", "SecretVariables", "resolve_secret"]

_PATTERN = r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$"
_VARIABLE = re.compile(_PATTERN)


def _check_variable(value: object) -> object:
    if not isinstance(value, str) or not _VARIABLE.match(value):
        raise PydanticCustomError(
            "secret",
            "a key or secret does not stand in a run file. Put it into an environment variable, and write its name "
            "here, as in ${MY_KEY}",
        )

    return value


def _check_variables(value: object) -> object:
    """Names alone, or with the variables that have their values, or these with the hosts that they may go to."""
    if isinstance(value, list):
        value = dict.fromkeys(value) if all(isinstance(name, str) for name in value) else None
    if not isinstance(value, dict) or not all(isinstance(name, str) and name for name in value):
        raise PydanticCustomError("secret", "secrets are a list of names, or names with ${VARIABLE} behind each")

    for variable in value.values():
        match variable:
            case None:
                pass
            case [given, [*hosts]] if all(isinstance(host, str) for host in hosts):
                _check_variable(given)
            case _:
                _check_variable(variable)

    return value


_SECRET = {"type": "string", "pattern": _PATTERN}
_HOSTS = {"type": "array", "items": {"type": "string"}}
_WITH_HOSTS = {"type": "array", "prefixItems": [_SECRET, _HOSTS], "items": False, "minItems": 2}
_NAMES = {"type": "array", "items": {"type": "string", "minLength": 1}}
_BY_NAME = {"type": "object", "additionalProperties": {"anyOf": [_SECRET, _WITH_HOSTS, {"type": "null"}]}}

KeyVariable = Annotated[str, BeforeValidator(_check_variable), WithJsonSchema(_SECRET)]
"""`${VARIABLE}`."""

SecretVariables = Annotated[
    dict[str, Any], BeforeValidator(_check_variables), WithJsonSchema({"anyOf": [_NAMES, _BY_NAME]})
]
"""Secrets by name: None, `${VARIABLE}`, or that and hosts."""


def resolve_secret(variable: str, key: str) -> str:
    """The value of an environment variable.

    Args:
        variable: As it stands in the run file, `${VARIABLE}`.
        key: Where it stands.

    Raises:
        ConfigError: It is not set, or empty.
    """
    name = variable[2:-1]
    value = os.environ.get(name)

    if not value:
        state = "not set" if value is None else "empty"
        raise ConfigError(f"{key}: the environment variable {name!r} is {state}. Set it where this runs.")

    return value
