"""A run file, read and written: what a mistake in it is called, where it stands, and how the whole is kept.

Every mistake is named with its key path, and its line or the override that it came with.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from multiors.config.curricula import CURRICULUM_KEYS
from multiors.config.fields import (
    describe_unknown_adapter_field,
    describe_unknown_field,
    has_peft,
    make_adapter_model,
    make_training_model,
    suggest,
)
from multiors.config.models import (
    CircuitBreakerConfig,
    EvaluationConfig,
    GroupScoreConfig,
    ModelConfig,
    PartConfig,
    RewardConfig,
    RolloutLogConfig,
    RunConfig,
    drop_tag,
    find_source_model,
)
from multiors.config.overrides import Override, apply_overrides
from multiors.config.reading import Location, dump_yaml, find_repeated_keys, follow, read_yaml
from multiors.errors import ConfigError

__all__ = ["dump_run_file", "load_run_file", "load_training_file"]

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

_TOP: dict[str, type[BaseModel]] = {
    "circuit_breaker": CircuitBreakerConfig,
    "rollout_log": RolloutLogConfig,
    "model": ModelConfig,
    "evaluation": EvaluationConfig,
}
_IN_SOURCES: dict[int, type[BaseModel]] = {4: RewardConfig, 5: GroupScoreConfig, 6: PartConfig}


class _Mistake(NamedTuple):
    location: Location
    text: str


class _Read(NamedTuple):
    """What mistakes are looked up in."""

    path: Path
    node: yaml.Node | None
    values: Any
    overrides: Sequence[Override]


def load_run_file(path: Path, overrides: Sequence[Override] = ()) -> RunConfig:
    """Read and check a run file.

    Args:
        path: Of the file.
        overrides: Values that stand in the file's place, the last one last.

    Raises:
        ConfigError: It cannot be read, is no YAML, or has mistakes; each is named with key path and line.
    """
    node, written = read_yaml(path, "run file")
    repeated = find_repeated_keys(node)

    if repeated:
        mistakes = [_Mistake(location, "stands here twice") for location in repeated]
        raise ConfigError(_describe(_Read(path, node, written, ()), mistakes))

    if not isinstance(written, dict):
        raise ConfigError(f"run file {str(path)!r} holds no mapping. It begins with 'sources:'.")

    values = apply_overrides(written, overrides)
    mistakes = _find_field_mistakes("training", values.get("training"), make_training_model, describe_unknown_field)
    if has_peft():  # else it is said where the adapter would be trained
        mistakes += _find_field_mistakes("peft", values.get("peft"), make_adapter_model, describe_unknown_adapter_field)
    config = None

    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        mistakes += [
            _Mistake(drop_tag(each["loc"]), f"{_describe_mistake(each)}{_describe_new_source(each['loc'], written)}")
            for each in error.errors()
        ]

    if mistakes or config is None:
        raise ConfigError(_describe(_Read(path, node, values, overrides), mistakes))

    return config


def load_training_file(path: Path) -> dict[str, Any]:
    """Read a YAML file of `GRPOConfig` fields; what they mean is not looked at.

    Raises:
        ConfigError: It cannot be read, or is no YAML mapping of names to values.
    """
    _, values = read_yaml(path, "training file")

    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"training file {str(path)!r} holds no mapping of GRPOConfig fields, as in 'max_steps: 100'.")

    return values


def dump_run_file(config: RunConfig) -> str:
    """A text that is read as this configuration: what was written and set, with variables in the place of keys."""
    return dump_yaml(config.model_dump(mode="json", exclude_unset=True))


def _find_field_mistakes(
    place: str, fields: Any, make_model: Callable[[], type[BaseModel]], describe_unknown: Callable[[str], str]
) -> list[_Mistake]:
    """What is wrong with the fields of others, each by itself. Their package is not asked if there are none."""
    if not isinstance(fields, dict) or not fields:
        return []

    try:
        make_model().model_validate(fields)
    except ValidationError as error:
        by_field: dict[str | int, list[ErrorDetails]] = {}
        for each in error.errors():
            by_field.setdefault(each["loc"][0], []).append(each)
        return [
            _Mistake((place, name), _describe_field(name, found, describe_unknown)) for name, found in by_field.items()
        ]

    return []


def _describe_field(name: str | int, mistakes: Sequence[ErrorDetails], describe_unknown: Callable[[str], str]) -> str:
    """What is wrong with a field, which may have several types."""
    if mistakes[0]["type"] in ("extra_forbidden", "invalid_key"):
        return describe_unknown(str(name))

    # Texts that have a class of their own in transformers are texts here.
    expected = dict.fromkeys(each["msg"] for each in mistakes if each["type"] not in ("is_instance_of", "enum"))
    begin = "Input should be "
    said = " or ".join(message.removeprefix(begin) for message in expected)
    return f"{begin if next(iter(expected), '').startswith(begin) else ''}{said} {_show(mistakes[0]['input'], said)}"


def _show(value: object, message: str) -> str:
    """What was found; YAML takes a number in quotes for a text."""
    is_quoted = isinstance(value, str) and (
        ("valid number" in message and _NUMBER.fullmatch(value)) or ("valid integer" in message and value.isdecimal())
    )
    return f"(got {value!r}{': write it without quotes' if is_quoted else ''})"


def _describe_mistake(mistake: ErrorDetails) -> str:
    # Of an unknown key the value is not shown: it may be the secret that someone put here.
    if mistake["type"] == "extra_forbidden":
        keys = _list_keys(mistake["loc"][:-1])
        near = suggest(str(mistake["loc"][-1]), keys)
        return "there is no such key here" + (near or f"; the keys are {', '.join(keys)}")

    message = mistake["msg"].removeprefix("Value error, ")
    value = mistake["input"]

    if mistake["type"] == "unknown_curriculum" and isinstance(value, dict):
        if "name" not in value:
            return message.replace("no curriculum is named so", "a curriculum needs its key 'name'")
        value = value["name"]

    shows_value = mistake["type"] not in ("missing", "secret") and not isinstance(value, dict)
    return f"{message} {_show(value, message)}" if shows_value else message


def _describe_new_source(location: Sequence[str | int], written: Mapping[str, Any]) -> str:
    """What to add where an override made a source that the file has not: another one was meant, perhaps."""
    sources = written.get("sources")

    if location[:1] != ("sources",) or len(location) < 2 or not isinstance(sources, dict) or location[1] in sources:
        return ""

    return f". The file has no source {location[1]!r}{suggest(str(location[1]), list(map(str, sources)))}"


def _list_keys(location: Sequence[str | int]) -> list[str]:
    """The keys that may stand at a place of the run file: its depth says which, since sources may have any name.

    Behind a source's name stands which kind of source it is.
    """
    if location[:1] == ("curriculum",) or location[3:4] == ("task_curriculum",):
        return list(CURRICULUM_KEYS[str(location[-1])])

    if not location:
        return list(RunConfig.model_fields)

    if location[0] != "sources":
        return list(_TOP[str(location[0])].model_fields)

    model = find_source_model(location[2]) if len(location) == 3 else _IN_SOURCES[len(location)]
    return list(model.model_fields)


def _describe(text: _Read, mistakes: Sequence[_Mistake]) -> str:
    placed = sorted([(*_place(text, location), said) for location, said in mistakes], key=lambda each: each[0])
    lines = [f"- {source}: {name}: {said}" for _, source, name, said in placed]
    return "\n".join([f"run file {str(text.path)!r} has {len(lines)} mistake{'s' * (len(lines) > 1)}:", *lines])


def _place(text: _Read, location: Location) -> tuple[int, str, str]:
    """Line, who wrote it, and the path as it is written; what overrides wrote comes last."""
    override = _find_override(text, location)

    if override is not None:
        return sys.maxsize, "command line", _name_place(_follow_values(text.values, location), location)

    written = follow(text.node, location)
    first = text.node.start_mark.line + 1 if text.node else 1
    line = written[-1][1] if written else first
    return line, f"line {line}", _name_place([step for step, _ in written], location)


def _find_override(text: _Read, location: Location) -> Override | None:
    """The last override that wrote what stands at a place, or what it is in."""
    depth = len(follow(text.node, location))
    steps = [str(step) for step in location]

    for override in reversed(text.overrides):
        same = (one == other for one, other in zip(override.path, steps, strict=False))
        shared = len(list(takewhile(bool, same)))
        if shared == len(override.path) or shared > depth:
            return override

    return None


def _name_place(written: Sequence[str | int], location: Location) -> str:
    """The path as it is written, and the last step of it also where that is missing."""
    # A key that is missing is named; what stands in a list's or a choice's place without being written is not.
    is_missing = location and isinstance(location[-1], str) and location[-1] not in {*written, *CURRICULUM_KEYS}
    return ".".join(map(str, [*written, location[-1]] if is_missing else written)) or "the file"


def _follow_values(values: Any, location: Location) -> list[str | int]:
    """The steps of a location that stand in the values."""
    written: list[str | int] = []

    for step in location:
        if isinstance(values, dict) and str(step) in map(str, values):
            values = next(value for key, value in values.items() if str(key) == str(step))
            written.append(step)
        elif isinstance(values, list) and isinstance(step, int) and step < len(values):
            values = values[step]
            written.append(step)

    return written
