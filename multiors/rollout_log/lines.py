"""A rollout record as one line of JSON, and back.

Decides what becomes of values that JSON has not (images, numbers of numpy and torch, NaN), that a line holds no secret,
and what is cut from a record that is too large. Knows no file. `FORMAT_VERSION` goes up when `parse` would misread what
an older `render` wrote.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from multiors.records import RolloutRecord, StepRecord, UnscoredReason
from multiors.redaction import Redactor

__all__ = ["FORMAT", "FORMAT_VERSION", "is_clipped", "parse", "parse_header", "render", "render_header"]

FORMAT = "multiors rollouts"
FORMAT_VERSION = 1

_RECORD_FIELDS = tuple(field.name for field in fields(RolloutRecord))
_STEP_FIELDS = tuple(field.name for field in fields(StepRecord))
_LONG_FIELDS = ("messages", "prompt", "steps")
_NEVER_SECRET = frozenset({"source", "parts", "reason"})

_LEAST_TEXT = 64
_MAX_DEPTH = 100
_MAX_BITS = 14_000


def render_header(sources: list[str], **facts: Any) -> bytes:
    """The first line of a file."""
    return _encode({"format": FORMAT, "version": FORMAT_VERSION, "sources": sources, **facts})[1]


def render(record: RolloutRecord, redactor: Redactor, *, limit_bytes: int) -> bytes:
    """A record as a line with its line end, without the redactor's secrets and within the limit.

    Raises:
        TypeError: It holds an object that is no JSON.
        ValueError: It does not fit even without its texts.
    """
    values = {name: getattr(record, name) for name in _RECORD_FIELDS}
    values["steps"] = [{name: getattr(step, name) for name in _STEP_FIELDS} for step in record.steps]
    text, line = _encode(values)

    if redactor.is_in(text):
        plain = json.loads(text)
        hidden = {name: each if name in _NEVER_SECRET else redactor.hide_in(each) for name, each in plain.items()}
        text, line = _encode(hidden)

    return line if len(line) <= limit_bytes else _clip_line(text, limit_bytes)


def parse(line: bytes | str) -> RolloutRecord:
    """The record of a line.

    Raises:
        ValueError: The line holds no record.
    """
    try:
        values = json.loads(line)
        known = {name: values[name] for name in _RECORD_FIELDS if name in values}
        known["reason"] = _parse_reason(known["reason"])
        known["steps"] = tuple(_parse_step(step) for step in known["steps"])
        known |= {name: tuple(known[name]) for name in ("messages", "prompt") if name in known}
        return RolloutRecord(**known)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"this is no rollout record: {type(error).__name__}: {error}") from error


def is_clipped(line: bytes) -> bool:
    """Whether a part of the record was left out because it was too large."""
    return b'"clipped"' in line and json.loads(line).get("clipped") is True


def parse_header(line: bytes | str) -> Mapping[str, Any]:
    """The header of a file that this version reads.

    Raises:
        ValueError: The line is no header, or one of another format.
    """
    try:
        header = json.loads(line)
    except (RecursionError, ValueError):
        header = None

    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError("its first line is not the header of a rollout log")

    if header.get("version") != FORMAT_VERSION:
        raise ValueError(
            f"it is in format {header.get('version')!r}, and this version of multiors reads format {FORMAT_VERSION}"
        )

    return header


def _parse_step(values: Mapping[str, Any]) -> StepRecord:
    known = {name: values[name] for name in _STEP_FIELDS if name in values}
    return StepRecord(**{**known, "failure": _parse_reason(values.get("failure"))})


def _parse_reason(value: str | None) -> UnscoredReason | None:
    return None if value is None else UnscoredReason(value)


def _describe(value: Any) -> Any:
    """What stands for a value that JSON has not."""
    if type(value).__module__.startswith("PIL."):
        return f"[image of {value.width} x {value.height} pixels, {value.mode}]"
    if hasattr(value, "tolist"):  # numbers and arrays of numpy and torch
        return value.tolist()
    if isinstance(value, bytes | bytearray):
        return f"[{len(value)} bytes]"
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)

    raise TypeError(f"a {type(value).__name__} is no JSON")


_OPTIONS: dict[str, Any] = {"allow_nan": False, "default": _describe, "separators": (",", ":")}
_encoder = json.JSONEncoder(ensure_ascii=False, **_OPTIONS)
_ascii_encoder = json.JSONEncoder(ensure_ascii=True, **_OPTIONS)


def _encode(value: Mapping[str, Any]) -> tuple[str, bytes]:
    """The value as JSON text and as a line."""
    try:
        text = _encoder.encode(value)
    except (RecursionError, TypeError, ValueError):  # NaN, keys that are no text, endless nesting
        value = _simplify(value, ())
        text = _encoder.encode(value)

    try:
        return text, f"{text}\n".encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which UTF-8 has not
        text = _ascii_encoder.encode(value)
        return text, f"{text}\n".encode()


def _simplify(value: Any, inside: tuple[int, ...]) -> Any:
    """The value with nothing in it that JSON has not; `inside` are the ids of what it stands in."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _MAX_BITS else f"[whole number of {value.bit_length()} bits]"
    if isinstance(value, float):
        return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if id(value) in inside or len(inside) > _MAX_DEPTH:
        return "[nested too deeply]"

    inside = (*inside, id(value))

    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _simplify(each, inside) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_simplify(each, inside) for each in value]

    return _simplify(_describe(value), inside)


def _clip_line(text: str, limit_bytes: int) -> bytes:
    """The line with its long texts cut, all to one length, so that it fits."""
    longest = limit_bytes // 2

    while longest >= _LEAST_TEXT:
        line = _encode({**_clip(json.loads(text), longest), "clipped": True})[1]

        if len(line) <= limit_bytes:
            return line

        longest //= 2

    # Thousands of steps or messages: none of them fits.
    rest: dict[str, Any] = {name: [] for name in _LONG_FIELDS}
    line = _encode({**_clip(json.loads(text), _LEAST_TEXT), **rest, "clipped": True})[1]

    if len(line) > limit_bytes:
        raise ValueError("a record does not fit into the log even without its texts")

    return line


def _clip(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        is_long = len(value) > longest + _LEAST_TEXT
        return f"{value[:longest]}… [clipped: {longest} of {len(value)} characters]" if is_long else value
    if isinstance(value, dict):
        return {_clip(key, longest): _clip(each, longest) for key, each in value.items()}
    if isinstance(value, list):
        return [_clip(each, longest) for each in value]

    return value
