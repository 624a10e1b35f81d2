"""Any field of `GRPOConfig` as an option of `multiors train`: `--learning-rate 1e-5` for
`--set training.learning_rate=1e-5`.

Decides which options are fields and what their values are. A switch takes `true` or `false`, or stands alone, or is
turned off as `--no-...`. Every other field takes one value; what is no text is YAML, as in `--report-to "[a, b]"`.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches

__all__ = ["expand_flags"]

_TRUTHS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}


def expand_flags(
    arguments: Sequence[str],
    own: Collection[str],
    list_fields: Callable[[], Mapping[str, str]],
    describe_unknown: Callable[[str], str],
) -> list[str]:
    """The arguments of the command, with its own options only.

    Args:
        arguments: As they were given.
        own: Names of the command's own options.
        list_fields: Gives the fields by name, and of each whether it is a "switch", "text", or "other". Called if there
            is an option to look up.
        describe_unknown: Says what is wrong with a name that is no field.

    Raises:
        ValueError: An option is neither, or has no value.
    """
    expanded: list[str] = []
    left = list(arguments)

    while left:
        argument = left.pop(0)
        option = argument.partition("=")[0]

        if argument == "--":
            return [*expanded, argument, *left]

        if option.startswith("--") and option not in own:
            name, is_off = _find_field(option, own, list_fields(), describe_unknown)
            value = "false" if is_off else _take_value(argument, list_fields()[name], left)
            expanded += ["--set", f"training.{name}={value}"]
        else:
            expanded.append(argument)

    return expanded


def _find_field(
    option: str, own: Collection[str], fields: Mapping[str, str], describe_unknown: Callable[[str], str]
) -> tuple[str, bool]:
    """The field of an option, and whether the option turns it off."""
    name = option.removeprefix("--").replace("-", "_")
    positive = name.removeprefix("no_")

    if name in fields:
        return name, False
    if name.startswith("no_") and fields.get(positive) == "switch":
        return positive, True

    near = get_close_matches(option, own, n=1, cutoff=0.8)
    hint = f"; or is it {near[0]}?" if near else ""
    raise ValueError(f"{option} is no option of this command: {describe_unknown(name)}{hint}")


def _take_value(argument: str, kind: str, left: list[str]) -> str:
    """The YAML of a field's value: behind the equals sign, or the next argument; a switch may stand alone."""
    option, sign, given = argument.partition("=")

    if kind == "switch" and not sign:
        return _TRUTHS[left.pop(0).lower()] if left and left[0].lower() in _TRUTHS else "true"

    if not sign:
        if not left or left[0].startswith("--"):
            raise ValueError(f"{option} has no value")
        given = left.pop(0)

    return _TRUTHS.get(given.lower(), given) if kind == "switch" else _quote(given) if kind == "text" else given


def _quote(text: str) -> str:
    """The text as YAML that is read as this text."""
    plain = (
        each if each.isascii() and each.isprintable() and each not in '"\\' else f"\\U{ord(each):08x}" for each in text
    )
    return f'"{"".join(plain)}"'
