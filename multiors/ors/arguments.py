"""What a source's arguments may be: everything that can be known to be wrong without a server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from multiors.errors import ConfigError
from multiors.ors.target import is_url, show_target

__all__ = [
    "check_choice",
    "check_count",
    "check_failures",
    "check_overrides",
    "check_seconds",
    "check_targets",
    "check_tasks",
]


def check_targets(target: object, env_name: str | None) -> tuple[str, ...]:
    """The addresses that a target names.

    Raises:
        ConfigError: It is neither text nor a list of URLs, each of which stands there once.
    """
    targets = [target] if isinstance(target, str) else target
    label = env_name or show_target(str(target))

    if not isinstance(targets, Sequence) or not targets or not all(_is_text(each) for each in targets):
        raise ConfigError(
            f"source {label!r}: target={show_target(repr(target))} is no text. Pass 'owner/name', 'http://host:port', "
            f"or a list of URLs of equal servers."
        )

    different = {each.strip().rstrip("/").lower() for each in targets}

    if len(targets) > 1 and (len(different) < len(targets) or not all(is_url(each) for each in targets)):
        raise ConfigError(
            f"source {label!r}: {[show_target(each) for each in targets]!r} names equal servers, so each is a URL "
            f"and stands there once."
        )

    return tuple(targets)


def check_tasks(label: str, num_tasks: object, indices: Sequence[object] | None) -> None:
    """Check which tasks a source asks for.

    Raises:
        ConfigError: Both ways of saying it are used, or one names no task.
    """
    if num_tasks is not None and indices is not None:
        raise ConfigError(f"source {label!r}: num_tasks={num_tasks} and indices=... were both given. Pass one of them.")

    if num_tasks is not None:
        check_count(label, "num_tasks", num_tasks, minimum=1)

    if indices is not None and not indices:
        raise ConfigError(f"source {label!r}: indices=[] names no task. Pass at least one, or leave it out.")

    for index in indices or ():
        check_count(label, "indices", index, minimum=0)


def check_count(label: str, name: str, value: object, *, minimum: int) -> None:
    """Check a whole number.

    Raises:
        ConfigError: It is none, or too small.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError(f"source {label!r}: {name} holds {value!r}; it takes whole numbers from {minimum} upwards.")


def check_failures(label: str, on_failure: object, max_failing_rollouts: object) -> None:
    """Check when failures end the training.

    Raises:
        ConfigError: It is said in no known way, or in two.
    """
    check_choice(label, "on_failure", on_failure, ("unscored", "stop"))

    if max_failing_rollouts is not None:
        check_count(label, "max_failing_rollouts", max_failing_rollouts, minimum=0)

    if max_failing_rollouts is not None and on_failure == "stop":
        raise ConfigError(
            f"source {label!r}: on_failure='stop' ends the training at the first failure, so "
            f"max_failing_rollouts={max_failing_rollouts} would have no effect. Leave one of them out."
        )


def check_seconds(label: str, name: str, value: object) -> None:
    """Check a duration.

    Raises:
        ConfigError: It is no positive number.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ConfigError(f"source {label!r}: {name}={value!r} is not a positive number of seconds.")


def check_choice(label: str, name: str, value: object, choices: Sequence[str]) -> None:
    """Check one of several words.

    Raises:
        ConfigError: It is none of them.
    """
    if value not in choices:
        raise ConfigError(f"source {label!r}: {name}={value!r} is not known. Pass one of {list(choices)}.")


def check_overrides(label: str, overrides: object) -> None:
    """Check environment variables for an environment's container; a value never stands in the message.

    Raises:
        ConfigError: It is no mapping of text to text.
    """
    if overrides is None:
        return

    if not isinstance(overrides, Mapping) or not all(_is_text(name) for name in overrides):
        raise ConfigError(f"source {label!r}: env_overrides is no mapping of names to text. Pass {{'NAME': 'value'}}.")

    for name, value in overrides.items():
        if not isinstance(value, str):
            raise ConfigError(
                f"source {label!r}: env_overrides has a {type(value).__name__} for {name!r}; environment variables are "
                f"text. Pass it in quotes."
            )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
