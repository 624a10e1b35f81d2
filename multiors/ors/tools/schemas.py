"""JSON Schema as a server sends it → the Python types that transformers can show to the policy, and words for the rest.

Decides what a type says and what only words can say: transformers' type hints know scalars, `Literal`, `list[T]`,
`dict[str, T]`, `tuple` and unions; nested names, bounds, patterns and defaults become one line of text. Nothing here
raises for what a server sent: what cannot be read is `Any` and a loss. Reading is bounded in depth and size, whatever
the references do. It does not know Python names, methods or the wire.

Keep in step with `_parse_type_hint` in transformers' `utils/chat_template_utils.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin

from multiors.ors.tools.references import ANNOTATIONS, FlatSchema, SchemaDocument, items_of, names_in
from multiors.ors.tools.wording import (
    clip,
    describe_bounds,
    is_json,
    is_scalar,
    join_words,
    json_words,
    one_line,
    quote_name,
)

__all__ = ["ParameterReading", "SchemaReading", "read_input_schema"]

_MAX_DEPTH = 10  # levels of nesting; real schemas stay under 6
_MAX_OPTIONS = 32
_MAX_ENUM_VALUES = 256
_MAX_ENUM_CHARS = 8_000
_MAX_TUPLE = 32
_MAX_WORDS = 4_000
_MAX_NESTED_TEXT = 200
_MAX_LOSSES = 50

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


@dataclass(frozen=True, slots=True)
class ParameterReading:
    """One parameter of a tool, as far as its schema could be read."""

    wire_name: str
    annotation: Any
    required: bool
    default: Any
    """The schema's default. None also where there is none, or none that is JSON."""

    description: str
    """The server's own description on one line; empty if it gave none."""

    remark: str
    """What the annotation does not say, in words on one line; empty if it says everything."""


@dataclass(frozen=True, slots=True)
class SchemaReading:
    """What a tool's whole input schema says."""

    parameters: tuple[ParameterReading, ...] = ()
    """In the server's order; names that are only required come last."""

    description: str = ""
    """The schema's own description, as sent; empty if it has none."""

    losses: tuple[str, ...] = ()
    """What the policy reads in words instead of types, or not at all. Defaults are always in words and not listed."""


def read_input_schema(schema: object) -> SchemaReading:
    """Read a tool's `input_schema`.

    Args:
        schema: Anything a server can send. None means that the tool takes nothing.

    Returns:
        The parameters, and what was lost. Never raises for what was sent.
    """
    if schema is None:
        return SchemaReading()

    document = SchemaDocument(schema)
    root = document.flatten_root()
    properties = root.get("properties", {})

    if not isinstance(properties, dict):
        document.lose("'properties' is no object; only what is required is known")
        properties = {}
    if any(not isinstance(name, str) for name in properties):
        document.lose("properties whose names are no text are left out")

    required = set(names_in(root.get("required")))
    listed = [name for name in properties if isinstance(name, str)]
    parameters = [
        _read_parameter(document, name, properties.get(name), name in properties, name in required)
        for name in dict.fromkeys([*listed, *names_in(root.get("required"))])
    ]
    description = root.get("description")
    losses = list(dict.fromkeys(document.losses))
    return SchemaReading(
        parameters=tuple(parameters),
        description=description if isinstance(description, str) else "",
        losses=(*losses[:_MAX_LOSSES], *([f"and {len(losses) - _MAX_LOSSES} more"] if losses[_MAX_LOSSES:] else [])),
    )


def _read_parameter(
    document: SchemaDocument, name: str, schema: object, is_listed: bool, required: bool
) -> ParameterReading:
    document.at = quote_name(name)

    if not is_listed:
        document.lose("required by the server, but not described by it")

    reading = _Reader(document).read(schema if is_listed else True, 0, ())
    loss = "; ".join([*([] if reading.is_complete else [reading.words]), *reading.notes])
    remark = "; ".join([*([loss] if loss else []), *reading.afterthoughts])

    if loss:
        document.lose(f"in words only: {clip(loss, 200)}")
    if len(remark) > _MAX_WORDS:
        document.lose(f"its words are cut to {_MAX_WORDS} characters")

    document.at = ""
    return ParameterReading(
        wire_name=name,
        annotation=reading.annotation,
        required=required,
        default=reading.default,
        description=reading.description,
        remark=clip(remark, _MAX_WORDS),
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """One schema: its type, and what the type does not say."""

    annotation: Any
    words: str
    is_complete: bool = True
    """Whether the annotation alone says what `words` say."""

    notes: tuple[str, ...] = ()
    """Bounds and the like, which no annotation says."""

    afterthoughts: tuple[str, ...] = ()
    """Default and examples: in words, but no loss."""

    description: str = ""
    default: Any = None

    @property
    def phrase(self) -> str:
        """The whole reading in words, for use inside another one's."""
        notes = (*self.notes, *self.afterthoughts)
        return f"{self.words} ({', '.join(notes)})" if notes else self.words

    @property
    def is_typed(self) -> bool:
        """Whether the annotation says all that is asked of a value."""
        return self.is_complete and not self.notes


_ANYTHING = _Reading(Any, "anything")
_NULL = _Reading(type(None), "null")


class _Reader:
    """Reads schemas of one document into types and words."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._lose = document.lose

    def read(self, schema: object, depth: int, references: tuple[str, ...]) -> _Reading:
        """Read one schema; `depth` counts the levels above it, `references` are those that led to it."""
        self._document.nodes_left -= 1

        if schema is False:
            return replace(_ANYTHING, words="nothing is accepted", is_complete=False)
        if not isinstance(schema, dict):
            if schema is not True:
                self._lose("a schema that is no object is read as anything")
            return _ANYTHING
        if depth > _MAX_DEPTH or self._document.nodes_left < 0:
            self._lose(f"what is {'nested deeper' if depth > _MAX_DEPTH else 'left of a huge schema'} is cut off")
            return _bare(schema)

        flat = self._document.flatten(schema, references)
        reading = self._annotate(self._read_flat(flat, depth), flat.schema)
        return _unite([reading, _NULL]) if flat.schema.get("nullable") is True else reading

    def _read_flat(self, flat: FlatSchema, depth: int) -> _Reading:
        schema = flat.schema

        if flat.recursion is not None:
            self._lose(f"{flat.recursion} contains itself and is cut off there")
            return replace(_bare(schema), words=f"nested {flat.recursion}", is_complete=False)

        for keyword in ("anyOf", "oneOf"):
            if items_of(schema.get(keyword)):
                return self._read_options(flat, keyword, schema[keyword], depth)

        if "const" in schema:
            return self._read_enum([schema["const"]])
        if items_of(schema.get("enum")):
            return self._read_enum(schema["enum"])
        if "enum" in schema:
            self._lose("an enum without values is left out")

        kind = schema.get("type") or _guess_type(schema)

        if isinstance(kind, list):
            return self._read_options(flat, "type", [{"type": each} for each in kind], depth)
        if kind == "object":
            return self._read_object(flat, depth)
        if kind == "array":
            return self._read_array(flat, depth)
        if isinstance(kind, str) and kind in _TYPES:
            return _Reading(_TYPES[kind], kind, notes=describe_bounds(schema, kind))
        if kind is not None:
            self._lose(f"the type {clip(json_words(kind), 80)} is unknown and read as anything")
        return replace(_ANYTHING, notes=describe_bounds(schema, None))

    def _read_options(self, flat: FlatSchema, keyword: str, options: Sequence[object], depth: int) -> _Reading:
        if len(options) > _MAX_OPTIONS:
            self._lose(f"{len(options) - _MAX_OPTIONS} of {len(options)} alternatives are left out")
            options = options[:_MAX_OPTIONS]

        shared = {key: value for key, value in flat.schema.items() if key != keyword and key not in ANNOTATIONS}

        if shared:
            options = [{"allOf": [each, shared]} if isinstance(each, dict) else each and shared for each in options]
        return _unite([self.read(each, depth + 1, flat.references) for each in options])

    def _read_enum(self, values: Sequence[Any]) -> _Reading:
        shown = [json_words(value) for value in values[:_MAX_ENUM_VALUES]]

        if len(values) > _MAX_ENUM_VALUES or sum(map(len, shown)) > _MAX_ENUM_CHARS:
            # A `Literal` with some of the values would forbid the others.
            self._lose(f"the {len(values)} values of an enum are not all shown")
            words = f"one of {len(values)} values such as {', '.join(clip(each, 40) for each in shown[:5])}"
            return _Reading(_join_types(_type_of(value) for value in values), words, is_complete=False)

        types = [_generic(Literal, value) if is_scalar(value) else _type_of(value) for value in values]
        return _Reading(_join_types(types), join_words(shown), is_complete=all(map(is_scalar, values)))

    def _read_object(self, flat: FlatSchema, depth: int) -> _Reading:
        schema = flat.schema
        properties = schema["properties"] if isinstance(schema.get("properties"), dict) else {}
        required = names_in(schema.get("required"))
        parts = [
            self._describe_property(name, properties.get(name, True), name in required, depth + 1, flat.references)
            for name in dict.fromkeys([*properties, *required][: max(self._document.nodes_left, 0)])
        ]
        values = schema.get("additionalProperties")
        notes = describe_bounds(schema, "object")

        if not isinstance(values, dict) or not values:
            return _Reading(dict, f"object with {', '.join(parts)}" if parts else "object", not parts, notes)

        value = self.read(values, depth + 1, flat.references)

        if parts or "patternProperties" in schema:
            # A type of the values would forbid those whose names have a schema of their own.
            words = f"object with {', '.join([*parts, 'any other names'])} with values of {value.phrase}"
            return _Reading(dict, words, is_complete=False, notes=notes)
        annotation = dict if value.annotation is Any else _generic(dict, str, value.annotation)
        return _Reading(annotation, f"object with values of {value.phrase}", value.is_typed, notes)

    def _describe_property(
        self, name: object, schema: object, required: bool, depth: int, references: tuple[str, ...]
    ) -> str:
        reading = self.read(schema, depth, references)
        details = [reading.words, *(["required"] if required else []), *reading.notes, *reading.afterthoughts]
        details += [json_words(clip(reading.description, _MAX_NESTED_TEXT))] if reading.description else []
        if len(reading.description) > _MAX_NESTED_TEXT:
            self._lose(f"the description of a nested property is cut to {_MAX_NESTED_TEXT} characters")
        return f"{quote_name(name) if isinstance(name, str) else json_words(name)} ({', '.join(details)})"

    def _read_array(self, flat: FlatSchema, depth: int) -> _Reading:
        schema = flat.schema
        items = schema.get("items")
        # Before draft 2020-12 a list of `items` was what `prefixItems` is now.
        first = items_of(schema.get("prefixItems")) or items_of(items)
        rest = schema.get("additionalItems") if isinstance(items, list) else items
        item = self.read(rest, depth + 1, flat.references) if isinstance(rest, dict) and rest else None
        notes = describe_bounds(schema, "array")

        if not first:
            if item is None:
                return _Reading(list, "array", notes=notes)
            annotation = list if item.annotation is Any else _generic(list, item.annotation)
            return _Reading(annotation, f"array of {item.phrase}", item.is_typed, notes)

        readings = [self.read(each, depth + 1, flat.references) for each in first[:_MAX_TUPLE]]
        words = f"array of {', then '.join(reading.phrase for reading in readings)}"
        words += f", then any number of {item.phrase}" if item else ""

        # transformers shows tuples of two and more; one of one it refuses.
        if len(first) == 1 or len(first) > _MAX_TUPLE:
            return _Reading(list, words, is_complete=False, notes=notes)
        is_complete = item is None and all(reading.is_typed for reading in readings)
        return _Reading(_generic(tuple, *(reading.annotation for reading in readings)), words, is_complete, notes)

    def _annotate(self, reading: _Reading, schema: Mapping[str, Any]) -> _Reading:
        """Add what a schema says about itself: description, default, examples."""
        thoughts = list(reading.afterthoughts)
        examples = [clip(json_words(example), 80) for example in items_of(schema.get("examples"))[:3]]

        if "default" in schema:
            thoughts = [f"default {clip(json_words(schema['default']), 200)}"]
            if is_json(schema["default"]):
                reading = replace(reading, default=copy.deepcopy(schema["default"]))
            else:
                self._lose("its default is no JSON")
        if examples:
            thoughts.append(f"for example {join_words(examples)}")
        if schema.get("deprecated") is True:
            thoughts.append("deprecated")

        description = schema.get("description")
        text = one_line(description) if isinstance(description, str) else ""
        return replace(reading, description=text or reading.description, afterthoughts=tuple(thoughts))


def _unite(readings: Sequence[_Reading]) -> _Reading:
    """One reading for a value that fits any of several."""
    annotation = _join_types(reading.annotation for reading in readings)
    proper = {reading.phrase: reading for reading in readings if reading.annotation is not type(None)}

    if not proper:
        return readings[0]
    if len(proper) > 1:
        is_complete = all(reading.is_typed for reading in readings)
        return _Reading(annotation, join_words(list(dict.fromkeys(r.phrase for r in readings))), is_complete)

    (only,) = proper.values()
    is_nullable = any(reading.annotation is type(None) for reading in readings)
    return replace(only, annotation=annotation, words=f"{only.words} or null" if is_nullable else only.words)


def _bare(schema: Mapping[str, Any]) -> _Reading:
    """A reading of the outermost type alone."""
    kind = schema.get("type")
    kind = kind if isinstance(kind, str) and kind in _TYPES else _guess_type(schema)
    return _Reading(_TYPES[kind], kind) if kind else _ANYTHING


def _guess_type(schema: Mapping[str, Any]) -> str | None:
    if any(keyword in schema for keyword in ("properties", "additionalProperties", "patternProperties", "required")):
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else None


def _type_of(value: object) -> Any:
    return type(value) if type(value) in _TYPES.values() else Any


def _generic(origin: Any, *parameters: Any) -> Any:
    return origin[parameters if len(parameters) > 1 else parameters[0]]


def _join_types(types: Iterable[Any]) -> Any:
    """The union of types: all literals in one, null last, and `Any` instead of a union with it."""
    plain: list[Any] = []
    literals: list[Any] = []

    for each in types:
        for member in get_args(each) if get_origin(each) is Union else (each,):
            if get_origin(member) is not Literal:
                plain.append(member)
            else:
                literals += get_args(member)

    is_nullable = type(None) in plain or None in literals
    values = list({(type(value), value): value for value in literals if value is not None}.values())
    members = [*([_generic(Literal, *values)] if values else []), *(each for each in plain if each is not type(None))]

    if Any in members:
        members = [Any]
    if is_nullable or not members:
        members.append(type(None) if is_nullable else Any)
    return _generic(Union, *members)
