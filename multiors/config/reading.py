"""YAML as run files have it: read into values and into nodes, which know their lines, and written again.

As in YAML 1.2, which is what editors read, 1e-5 is a number, and `no` is a word. What is written is read back as it
was. Knows no key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from multiors.errors import ConfigError

__all__ = ["Document", "Location", "dump_yaml", "find_repeated_keys", "follow", "parse_yaml", "read_yaml"]

Location: TypeAlias = tuple[str | int, ...]
"""Keys and positions from the top of a document."""

# PyYAML has YAML 1.1.
_FLOAT, _BOOL = "tag:yaml.org,2002:float", "tag:yaml.org,2002:bool"
_EXPONENT = re.compile(r"^[-+]?(?:[0-9]+\.?|[0-9]*\.[0-9]+)[eE][-+]?[0-9]+$")
_TRUTH = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")


class _Loader(yaml.SafeLoader):
    """Reads plain values."""


class _Dumper(yaml.SafeDumper):
    """Writes plain values, each where it stands."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, _TRUTH, list("tTfF"))
_Loader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))
_Dumper.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))  # text that looks so gets quotes


class Document(NamedTuple):
    """A text that is YAML."""

    node: yaml.Node | None
    values: Any


def parse_yaml(text: str) -> Document:
    """The document of a text.

    Raises:
        ValueError: It is no YAML; the text says why.
    """
    try:
        return Document(yaml.compose(text, Loader=_Loader), yaml.load(text, Loader=_Loader))
    # Besides its own errors, the reader lets through those of dates that do not exist.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(" ".join(_say_what(error).split())) from error


def _say_what(error: Exception) -> str:
    """The reader's words and place, without the line and the caret below it, for a message has one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)

    words = ", ".join(filter(None, (error.context, error.problem)))
    return f"{words} (line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"


def read_yaml(path: Path, kind: str) -> Document:
    """The document of a file.

    Args:
        path: Of the file.
        kind: What it is, for messages.

    Raises:
        ConfigError: It cannot be read, or is no YAML.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{kind} {str(path)!r} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # also that of bytes that are no UTF-8
        raise ConfigError(f"{kind} {str(path)!r} is no YAML: {error}.") from error


def dump_yaml(values: Any) -> str:
    """Values as a text that is read back as the same."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def follow(node: yaml.Node | None, location: Location) -> list[tuple[str | int, int]]:
    """The steps of a location that are written, each with its line from 1; a choice among models is not."""
    written: list[tuple[str | int, int]] = []

    for step in location:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(step)]
            if found:
                node = found[-1][1]
                written.append((step, found[-1][0].start_mark.line + 1))
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            written.append((step, node.start_mark.line + 1))

    return written


def find_repeated_keys(node: yaml.Node | None) -> Sequence[Location]:
    """Where a key stands twice. YAML lets the later one silently win: two sources of one name would become one."""
    return _find_repeated(node, (), set())


def _find_repeated(node: yaml.Node | None, location: Location, seen: set[int]) -> list[Location]:
    # An alias stands for a node that was looked at; it may even stand inside it.
    if id(node) in seen or not isinstance(node, yaml.MappingNode | yaml.SequenceNode):
        return []

    seen.add(id(node))
    repeated: list[Location] = []
    children: list[tuple[str | int, yaml.Node]]

    if isinstance(node, yaml.SequenceNode):
        children = list(enumerate(node.value))
    else:
        children = [(key.value, value) for key, value in node.value]
        names = [name for name, _ in children]
        repeated = [(*location, name) for name in dict.fromkeys(names) if names.count(name) > 1]

    return repeated + [each for step, value in children for each in _find_repeated(value, (*location, step), seen)]
