"""Arguments for one call of a tool that nobody knows, made from its schema.

Decides the smallest value that a schema asks for: its constant, first alternative, default or example, else a lower
bound, zero, false, or text and lists as short as allowed. Only what is required is passed. What a server then makes of
them is its own affair: patterns and formats are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from multiors.ors.tools.references import SchemaDocument, items_of, names_in
from multiors.ors.tools.wording import is_json, is_number

__all__ = ["make_arguments"]

_MAX_DEPTH = 8
_MAX_ITEMS = 8
_MAX_CHARS = 1_000
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def make_arguments(schema: object) -> dict[str, Any]:
    """Arguments, by the server's names, for each required parameter of a tool.

    Args:
        schema: The tool's `input_schema`, as the server sent it.
    """
    document = SchemaDocument(schema)
    return _make_object(document, document.flatten_root(), 0)


def _make_object(document: SchemaDocument, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    return {name: _make(document, properties.get(name, True), depth + 1) for name in names_in(schema.get("required"))}


def _make(document: SchemaDocument, schema: object, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None if isinstance(schema, dict) else ""

    flat = document.flatten(schema, ()).schema

    if "const" in flat:
        return flat["const"]

    for given in (items_of(flat.get("enum"))[:1], [flat[key] for key in ("default",) if key in flat]):
        if given:
            return given[0]

    examples = [example for example in items_of(flat.get("examples")) if is_json(example)]

    if examples:
        return examples[0]

    options = items_of(flat.get("anyOf")) or items_of(flat.get("oneOf"))

    if options:
        option = next((each for each in options if each != {"type": "null"}), options[0])
        return _make(document, option, depth + 1)

    return _make_of_type(document, flat, depth)


def _make_of_type(document: SchemaDocument, schema: Mapping[str, Any], depth: int) -> Any:
    kinds = schema.get("type")
    kind = next((each for each in items_of(kinds) if each != "null"), kinds)

    if kind == "object" or (kind is None and "properties" in schema):
        return _make_object(document, schema, depth)
    if kind == "array":
        size = _make_count(schema.get("minItems"), _MAX_ITEMS)
        first = items_of(schema.get("prefixItems"))
        return [_make(document, first[i] if i < len(first) else schema.get("items"), depth + 1) for i in range(size)]
    if kind in ("integer", "number"):
        return _make_number(schema, kind == "integer")
    if kind == "boolean":
        return False
    if kind == "null":
        return None

    return "a" * _make_count(schema.get("minLength"), _MAX_CHARS)


def _make_number(schema: Mapping[str, Any], is_whole: bool) -> float:
    limits = {name: Fraction(schema[name]) for name in (*_BOUNDS, "multipleOf") if is_number(schema.get(name))}
    step = limits["multipleOf"] if limits.get("multipleOf", 0) > 0 else Fraction(1)
    low, above = limits.get("minimum"), limits.get("exclusiveMinimum")
    high, below = limits.get("maximum"), limits.get("exclusiveMaximum")
    value = Fraction(0)

    if low is not None:
        value = math.ceil(low / step) * step
    elif above is not None:
        value = (math.floor(above / step) + 1) * step
    elif high is not None:
        value = min(value, math.floor(high / step) * step)
    elif below is not None:
        value = min(value, (math.ceil(below / step) - 1) * step)

    if not is_whole and "multipleOf" not in limits and above is not None and below is not None and value >= below:
        value = (above + below) / 2

    return int(value) if is_whole or value.denominator == 1 else float(value)


def _make_count(least: object, most: int) -> int:
    return min(int(least), most) if is_number(least) and isinstance(least, int | float) and least > 0 else 0
