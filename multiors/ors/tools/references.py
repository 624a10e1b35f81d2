"""A JSON Schema document as one tree: references followed, `allOf` merged, within a budget.

Decides how two schemas that must both hold become one. What cannot be merged or followed is a loss, never an exception.
It does not know types, words or tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from multiors.ors.tools.wording import clip, is_number, json_words, quote_name

__all__ = ["ANNOTATIONS", "FlatSchema", "SchemaDocument", "items_of", "names_in"]

_MAX_NODES = 4_000  # subschemas looked at for one tool, so that references cannot multiply without end
_MAX_PARTS = 32  # references and `allOf` members that make up one schema

# Keywords that speak about a schema; all others take part when a schema is combined with each of its options.
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "nullable", "discriminator"}
    | {"definitions", "$defs", "$id", "$schema", "$comment"}
)
_LOWER_BOUNDS = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_UPPER_BOUNDS = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_NOT_SHOWN_AT_ROOT = ("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "patternProperties")


class FlatSchema(NamedTuple):
    """A schema with its own references followed and its `allOf` merged; those of its parts are still there."""

    schema: dict[str, Any]
    references: tuple[str, ...]
    """What was followed to get here, from the outermost schema on."""

    recursion: str | None
    """Name of the schema that this one contains itself in. None: not recursive."""


class SchemaDocument:
    """One tool's input schema: what references point into, what was lost, and what may still be read."""

    def __init__(self, root: object) -> None:
        self._root = root
        self.nodes_left = _MAX_NODES
        self.losses: list[str] = []
        self.at = ""
        """What losses are about: a parameter, or the empty text for the whole input."""

    def lose(self, what: str) -> None:
        """Note that something of the schema will not reach the policy as the server wrote it."""
        self.losses.append(f"{self.at}: {what}" if self.at else what)

    def flatten(self, schema: dict[str, Any], references: tuple[str, ...]) -> FlatSchema:
        """Follow `$ref` and merge `allOf`; what stands beside them wins where only one value can."""
        flat: dict[str, Any] = {}
        pending: list[tuple[object, tuple[str, ...]]] = [(schema, references)]
        followed, recursion = references, None

        for _ in range(_MAX_PARTS):
            if not pending:
                return FlatSchema(flat, followed, recursion)
            part, path = pending.pop(0)
            if not isinstance(part, dict):
                continue
            inner: list[tuple[object, tuple[str, ...]]] = [(each, path) for each in items_of(part.get("allOf"))]
            reference = part.get("$ref")

            if isinstance(reference, str):
                target = self.resolve(reference)
                if reference in path:
                    recursion = quote_name(reference.rsplit("/", 1)[-1])
                    target = {"type": target["type"]} if isinstance(target, dict) and "type" in target else {}
                inner.insert(0, (target, (*path, reference)))
                followed = (*followed, reference)

            self.nodes_left -= len(part["properties"]) if isinstance(part.get("properties"), dict) and flat else 0
            self.merge(flat, {key: value for key, value in part.items() if key not in ("$ref", "allOf")})
            pending = inner + pending

        self.lose("too many references and 'allOf' in one schema; the rest is left out")
        return FlatSchema(flat, followed, recursion)

    def flatten_root(self) -> dict[str, Any]:
        """The schema of all parameters as one object schema; alternatives become one list of parameters."""
        if not isinstance(self._root, dict):
            self.lose("the input schema is no object; the tool has no parameters")
            return {}

        root = self.flatten(self._root, ()).schema
        options = items_of(root.get("anyOf")) or items_of(root.get("oneOf"))
        alternatives = [self.flatten(each, ()).schema for each in options[:_MAX_PARTS] if isinstance(each, dict)]

        if alternatives:
            self.lose("alternatives of the whole input are shown as one list of parameters")
            common = set.intersection(*(set(names_in(each.get("required"))) for each in alternatives))
            for each in alternatives:
                self.merge(root, {"properties": each.get("properties", {})}, combine="anyOf")
            root["required"] = [*names_in(root.get("required")), *sorted(common)]

        if "type" in root and "object" not in names_in(root["type"]):
            self.lose(f"the whole input is of type {clip(json_words(root['type']), 80)}, not an object")
        for keyword in _NOT_SHOWN_AT_ROOT:
            if keyword in root:
                self.lose(f"{keyword!r} of the whole input is not shown")
        if isinstance(root.get("additionalProperties"), dict) and root["additionalProperties"]:
            self.lose("further parameters of any name cannot be passed")
        return root

    def resolve(self, reference: str) -> object:
        """The schema a reference points to; only JSON pointers into the same document are followed."""
        document, _, pointer = reference.partition("#")
        target = self._root
        steps = pointer.split("/")
        is_found = not document and not steps[0]

        for step in steps[1:] if is_found else []:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key in map(str, range(min(len(target), 1_000))):
                target = target[int(key)]
            else:
                is_found = False
                break

        if is_found:
            return target
        self.lose(f"the reference {clip(json_words(reference), 80)} leads nowhere")
        return None

    def merge(
        self, into: dict[str, Any], other: Mapping[str, Any], *, combine: Literal["allOf", "anyOf"] = "allOf"
    ) -> None:
        """Add `other` to `into`, which wins where only one value can.

        Args:
            into: Changed in place; what its keys hold is not.
            other: Must hold too.
            combine: How two properties of one name join: a value must fit both (`allOf`) or either (`anyOf`).
        """
        for key, value in other.items():
            mine = into.get(key)

            if key not in into:
                into[key] = value
            elif key == "properties" and isinstance(mine, dict) and isinstance(value, dict):
                joined = dict(mine)
                for name, schema in value.items():
                    is_new = name not in joined or _is_same(joined[name], schema)
                    joined[name] = schema if is_new else {combine: [joined[name], schema]}
                into[key] = joined
            elif key == "required":
                into[key] = [*items_of(mine), *items_of(value)]
            elif key == "type":
                into[key] = self._intersect_types(mine, value)
            elif key == "enum" and isinstance(mine, list) and isinstance(value, list):
                allowed = {json_words(each) for each in value}
                into[key] = [each for each in mine if json_words(each) in allowed]
            elif key in _LOWER_BOUNDS | _UPPER_BOUNDS and is_number(mine) and is_number(value):
                into[key] = max(mine, value) if key in _LOWER_BOUNDS else min(mine, value)
            elif key not in ANNOTATIONS and not _is_same(mine, value):
                self.lose(f"one of two values of {clip(json_words(key), 40)} is left out")

    def _intersect_types(self, mine: object, other: object) -> object:
        left, right = names_in(mine), names_in(other)
        # Every integer is a number.
        both = [name for name in left if name in right or (name == "integer" and "number" in right)]
        both += [name for name in right if name == "integer" and "number" in left and name not in both]

        if not both:
            self.lose(f"the types {clip(json_words([mine, other]), 80)} exclude each other; the first is shown")
            return mine
        return both[0] if len(both) == 1 else both


def items_of(value: object) -> list[Any]:
    """A list as it is; nothing for all else."""
    return value if isinstance(value, list) else []


def names_in(value: object) -> list[str]:
    """The names in a keyword that holds one name or a list of them."""
    return [value] if isinstance(value, str) else [each for each in items_of(value) if isinstance(each, str)]


def _is_same(first: object, second: object) -> bool:
    try:
        return bool(first == second)
    except RecursionError:  # deeper than Python compares
        return False
