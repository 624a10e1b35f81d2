"""Random JSON values that a JSON schema takes.

Decides how a value is drawn: every listed choice with the same probability, numbers uniformly between their bounds, an
optional property in half of the cases. Follows types, enumerations, bounds, lengths, references and combinations;
patterns and formats of texts are not followed. A pure function of the schema and the generator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

__all__ = ["draw_value"]

_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_WORDS = ("alpha", "bravo", "delta", "echo", "lima", "oscar", "quebec", "tango", "yankee", "zulu")
_MAX_DEPTH = 6
_SPAN = 100  # of numbers with one bound or none
_MORE_ITEMS = 3


def draw_value(schema: object, rng: random.Random, *, root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """A value for the schema.

    Args:
        schema: A JSON schema; what is no object, such as true, takes anything.
        rng: All randomness comes from it.
        root: The schema that references are looked up in. None: `schema`.
        depth: How deep in the whole value this one is. From six on, what may be left out is.
    """
    if not isinstance(schema, Mapping):
        return rng.choice(_WORDS)

    root = schema if root is None else root
    schema = _resolve(schema, root, rng)

    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return rng.choice(schema["enum"])

    kind = _draw_type(schema, rng, depth)

    if kind == "object":
        return _draw_object(schema, rng, root, depth)
    if kind == "array":
        return _draw_array(schema, rng, root, depth)
    if kind == "string":
        return _draw_text(schema, rng)
    if kind in ("integer", "number"):
        return _draw_number(schema, rng, is_integer=kind == "integer")

    return rng.random() < 0.5 if kind == "boolean" else None


def _resolve(schema: Mapping[str, Any], root: Mapping[str, Any], rng: random.Random) -> Mapping[str, Any]:
    """The schema with its references and combinations replaced by one of what they allow."""
    for _ in range(2 * _MAX_DEPTH):  # a reference may lead to itself
        rest = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", "anyOf", "oneOf")}
        parts: list[Any] = []

        if "$ref" in schema:
            parts.append(_look_up(schema["$ref"], root))
        parts += _list_of(schema.get("allOf"))
        parts += [rng.choice(options) for key in ("anyOf", "oneOf") if (options := _list_of(schema.get(key)))]

        if not parts:
            break

        schema = rest
        for part in parts:
            schema = _merge(schema, part)

    return schema


def _merge(schema: Mapping[str, Any], part: object) -> Mapping[str, Any]:
    if not isinstance(part, Mapping):
        return schema

    merged = {**schema, **part}
    if isinstance(schema.get("properties"), Mapping) and isinstance(part.get("properties"), Mapping):
        merged["properties"] = {**schema["properties"], **part["properties"]}
    if isinstance(schema.get("required"), list) and isinstance(part.get("required"), list):
        merged["required"] = [*schema["required"], *part["required"]]
    return merged


def _look_up(reference: object, root: Mapping[str, Any]) -> object:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return {}

    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _draw_type(schema: Mapping[str, Any], rng: random.Random, depth: int) -> str:
    given = schema.get("type")
    kinds = [given] if isinstance(given, str) else _list_of(given)
    kinds = [kind for kind in kinds if kind in _TYPES]

    if not kinds:
        hints = {"properties": "object", "items": "array", "prefixItems": "array", "minimum": "number"}
        kinds = [kind for key, kind in hints.items() if key in schema][:1] or ["string"]
    if schema.get("nullable") is True and "null" not in kinds:
        kinds = [*kinds, "null"]
    if depth >= _MAX_DEPTH and "null" in kinds:
        return "null"

    return str(rng.choice(kinds))


def _draw_object(schema: Mapping[str, Any], rng: random.Random, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = [name for name in _list_of(schema.get("required")) if isinstance(name, str)]
    drawn = {}

    for name in [*properties, *(name for name in required if name not in properties)]:
        if name in required or (depth < _MAX_DEPTH and rng.random() < 0.5):
            drawn[name] = draw_value(properties.get(name), rng, root=root, depth=depth + 1)

    others = schema.get("additionalProperties")
    least = _bound(schema, "minProperties", 0)
    if isinstance(others, Mapping) or len(drawn) < least:
        more = rng.randint(0, _MORE_ITEMS) if depth < _MAX_DEPTH and isinstance(others, Mapping) else 0
        free = [word for word in _WORDS if word not in properties]
        number = min(len(free), max(least - len(drawn), more), max(0, _bound(schema, "maxProperties", 99) - len(drawn)))
        drawn |= {word: draw_value(others, rng, root=root, depth=depth + 1) for word in rng.sample(free, number)}

    return drawn


def _draw_array(schema: Mapping[str, Any], rng: random.Random, root: Mapping[str, Any], depth: int) -> list[Any]:
    first = _list_of(schema.get("prefixItems"))
    least = max(_bound(schema, "minItems", 0), len(first))
    most = min(_bound(schema, "maxItems", least + _MORE_ITEMS), least + _MORE_ITEMS)
    number = least if depth >= _MAX_DEPTH or (first and "items" not in schema) else rng.randint(least, max(least, most))
    drawn: list[Any] = []

    for position in range(number):
        item = first[position] if position < len(first) else schema.get("items")
        value = draw_value(item, rng, root=root, depth=depth + 1)

        for _ in range(20 if schema.get("uniqueItems") is True else 0):
            if value not in drawn:
                break
            value = draw_value(item, rng, root=root, depth=depth + 1)

        if schema.get("uniqueItems") is not True or value not in drawn:
            drawn.append(value)

    return drawn


def _draw_text(schema: Mapping[str, Any], rng: random.Random) -> str:
    least = _bound(schema, "minLength", 0)
    most = _bound(schema, "maxLength", max(least, 40))
    words = [rng.choice(_WORDS) for _ in range(rng.randint(1, 3))]
    text = " ".join(words)

    while len(text) < least:
        text += f" {rng.choice(_WORDS)}"
    return text[: max(least, most)]


def _draw_number(schema: Mapping[str, Any], rng: random.Random, *, is_integer: bool) -> float:
    step = schema.get("multipleOf")
    step = step if _is_number(step) and step > 0 else (1 if is_integer else None)
    low, high = _bounds(schema, "minimum", "exclusiveMinimum"), _bounds(schema, "maximum", "exclusiveMaximum")
    lowest = low[0] if low else (high[0] - _SPAN if high else -_SPAN / 2)
    highest = high[0] if high else lowest + _SPAN

    if step is None:
        if low and low[1]:
            lowest = math.nextafter(lowest, math.inf)
        if high and high[1]:
            highest = math.nextafter(highest, -math.inf)
        return min(max(rng.uniform(lowest, highest), lowest), highest)

    first, last = math.ceil(lowest / step), math.floor(highest / step)
    first += bool(low and low[1] and first * step == low[0])
    last -= bool(high and high[1] and last * step == high[0])
    value = rng.randint(first, max(first, last)) * step
    return int(value) if is_integer else value


def _bounds(schema: Mapping[str, Any], inclusive: str, exclusive: str) -> tuple[Any, bool] | None:
    """A bound and whether it is itself excluded, also as drafts before 6 write it."""
    bound, other = schema.get(inclusive), schema.get(exclusive)

    if _is_number(other) and not (_is_number(bound) and (bound > other if "min" in inclusive else bound < other)):
        return other, True

    return (bound, other is True) if _is_number(bound) else None


def _bound(schema: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = schema.get(name)
    return int(value) if _is_number(value) and 0 <= value < 10_000 else otherwise


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53


def _list_of(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []
