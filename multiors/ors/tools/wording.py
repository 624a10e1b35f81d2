"""Server text and JSON made fit to read: for the policy, a terminal and a docstring parser.

Removes what no reader should act on (terminal sequences, control and direction characters, lone surrogates), defuses
the few words that transformers' docstring parser takes for structure, and writes JSON values and schema bounds as
short text of bounded size. Never applied to what travels: tool results, arguments and wire names stay byte for byte.

Keep in step with `parse_google_format_docstring` and the `(choices: ...)` rule in transformers'
`utils/chat_template_utils.py`.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = [
    "clean_text",
    "clip",
    "defuse_sections",
    "describe_bounds",
    "is_json",
    "is_number",
    "is_scalar",
    "join_words",
    "json_words",
    "one_line",
    "quote_name",
]

# Terminal sequences as ECMA-48 writes them: CSI and OSC with their parameters, then the short escapes.
_TERMINAL_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b[ -/]*[0-~]"
)
# Invisible characters that reorder, hide or smuggle text; joiners stay, because scripts and emoji need them. The last
# two are the marks that transformers puts around control tokens.
_INVISIBLE = re.compile(
    "[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\U000f0000\U000f0001]"
)
_LINE_BREAK = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n{3,}")
# Longer runs of spaces are only alignment, and transformers' parser is quadratic in them.
_LONG_RUN = re.compile(r" {33,}")
_SECTION = re.compile(r"(Args|Returns|Raises):")
_CHOICES = re.compile(r"\((choices):", re.IGNORECASE)

_MAX_DEPTH = 20
_MAX_JSON_CHARS = 10_000
_MAX_BITS = 8_192  # Python refuses to write integers of more than 4,300 digits

# Keywords that no few words can say; they are shown as they are.
_KEYWORDS_IN_JSON = (
    *("not", "if", "then", "else", "contains", "propertyNames", "patternProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
)


def clean_text(text: str) -> str:
    """Keep the readable part of a text, with its line breaks and indentation.

    Returns:
        Dedented text without outer blank space, terminal sequences, control characters or lone surrogates; tabs are
        spaces and at most one blank line follows another line. Empty if nothing readable is left.
    """
    text = _LINE_BREAK.sub("\n", _TERMINAL_SEQUENCE.sub("", text)).expandtabs(4)
    text = _CONTROL.sub("", _INVISIBLE.sub("", text))
    text = "\n".join(_LONG_RUN.sub(" " * 32, line).rstrip() for line in text.split("\n"))
    return inspect.cleandoc(_BLANK_LINES.sub("\n\n", text.strip()))


def one_line(text: str) -> str:
    """Fold a text into one clean line."""
    return " ".join(clean_text(text).split())


def clip(text: str, limit: int) -> str:
    """Keep at most `limit` characters; an ellipsis marks that some were cut."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def defuse_sections(text: str) -> str:
    """Put a space before the colon of words that transformers reads as docstring sections or as choices."""
    return _CHOICES.sub(r"(\1 :", _SECTION.sub(r"\1 :", text))


def is_number(value: object) -> bool:
    """Whether a value is a JSON number: finite, and no boolean."""
    return type(value) in (int, float) and is_scalar(value)


def is_scalar(value: object) -> bool:
    """Whether a value can be written as a JSON scalar, and so stand in a `Literal`."""
    if isinstance(value, bool | None):
        return True
    if type(value) is int:
        return value.bit_length() <= _MAX_BITS
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is str and _LONE_SURROGATE.search(value) is None


def is_json(value: object, depth: int = 0) -> bool:
    """Whether a value is JSON of sane depth, without NaN, lone surrogates or keys that are no text."""
    if depth > _MAX_DEPTH:
        return False
    if type(value) is list:
        return all(is_json(each, depth + 1) for each in value)
    if type(value) is dict:
        return all(type(key) is str and is_scalar(key) and is_json(each, depth + 1) for key, each in value.items())
    return is_scalar(value)


def json_words(value: object) -> str:
    """A value as JSON on one clean line of bounded size; what is no JSON shows as its type's name."""
    text = ""

    for piece in _write_json(value, 0):
        text += piece
        if len(text) > _MAX_JSON_CHARS:
            break
    return clip(one_line(text), _MAX_JSON_CHARS)


def _write_json(value: object, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        yield "…"
    elif type(value) is str:
        yield json.dumps(value[:_MAX_JSON_CHARS], ensure_ascii=False)
    elif type(value) is list:
        yield "["
        for i, each in enumerate(value):
            yield ", " if i else ""
            yield from _write_json(each, depth + 1)
        yield "]"
    elif type(value) is dict:
        yield "{"
        for i, (key, each) in enumerate(value.items()):
            yield ", " if i else ""
            yield from _write_json(key, depth + 1)
            yield ": "
            yield from _write_json(each, depth + 1)
        yield "}"
    else:
        yield json.dumps(value) if is_scalar(value) else f"<{type(value).__name__}>"


def quote_name(name: str) -> str:
    """A server's name inside a sentence: bare if it reads as one word, else quoted and clean."""
    return name if name.isidentifier() and len(name) <= 64 else clip(json_words(name), 80)


def join_words(words: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return " or ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])


def describe_bounds(schema: Mapping[str, Any], kind: str | None) -> tuple[str, ...]:
    """What a schema asks of values of one JSON type beyond the type, each in a few words.

    Args:
        schema: A schema; values of the wrong type are skipped.
        kind: The JSON type meant; None means any, and all bounds count.
    """
    phrases: list[str] = []

    if kind in ("integer", "number", None):
        phrases += _describe_range(schema)
    if kind in ("string", None):
        phrases += _describe_count(schema, "Length", "character", "characters")
        for keyword, name in (("pattern", "pattern"), ("format", "format"), ("contentEncoding", "encoding")):
            if isinstance(schema.get(keyword), str):
                phrases.append(f"{name} {clip(one_line(schema[keyword]), 200)}")
    if kind in ("array", None):
        phrases += _describe_count(schema, "Items", "item", "items")
        phrases += ["no duplicates"] if schema.get("uniqueItems") is True else []
    if kind in ("object", None):
        phrases += _describe_count(schema, "Properties", "entry", "entries")

    for keyword in _KEYWORDS_IN_JSON:
        if keyword in schema:
            phrases.append(f"{keyword} {clip(json_words(schema[keyword]), 200)}")
    return tuple(phrases)


def _describe_range(schema: Mapping[str, Any]) -> list[str]:
    ends = []

    for limit, exclusive, inside, outside in (
        ("minimum", "exclusiveMinimum", "at least", "more than"),
        ("maximum", "exclusiveMaximum", "at most", "less than"),
    ):
        if is_number(schema.get(exclusive)):
            ends.append((outside, json_words(schema[exclusive])))
        elif is_number(schema.get(limit)):
            # Draft 4 wrote `exclusiveMinimum: true` beside the limit.
            ends.append((outside if schema.get(exclusive) is True else inside, json_words(schema[limit])))

    if [word for word, _ in ends] == ["at least", "at most"]:
        phrases = [f"between {ends[0][1]} and {ends[1][1]}"]
    else:
        phrases = [" and ".join(f"{word} {value}" for word, value in ends)] if ends else []
    if is_number(schema.get("multipleOf")):
        phrases.append(f"a multiple of {json_words(schema['multipleOf'])}")
    return phrases


def _describe_count(schema: Mapping[str, Any], suffix: str, one: str, many: str) -> list[str]:
    limits = (schema.get(f"min{suffix}"), schema.get(f"max{suffix}"))
    low, high = (value if is_number(value) else None for value in limits)

    if high is not None:
        unit = one if high == 1 else many
        if low == high:
            return [f"exactly {json_words(high)} {unit}"]
        return [f"{json_words(low)} to {json_words(high)} {unit}" if low else f"at most {json_words(high)} {unit}"]
    return [f"at least {json_words(low)} {one if low == 1 else many}"] if low else []
