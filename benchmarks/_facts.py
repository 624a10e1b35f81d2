"""What a tool's JSON Schema says, taken apart into facts, and whether another schema of the tool still says them.

Reads schemas on its own and shares no code with what it judges. A fact survives typed, where the schema that the model
sees has it in the same place, or in words, where the descriptions in it do. See `schema_fidelity.py` for what counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["KINDS", "Fact", "Survival", "find_survival", "list_facts"]

KINDS = ("tool", "parameter", "type", "enum", "items", "nesting", "required", "default", "description", "bounds")

Survival = Literal["typed", "words", "lost"]
Path = tuple[str, ...]

_BOUNDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern"),
    *("format", "minItems", "maxItems", "uniqueItems"),
)
_ITEM, _VALUE = "[]", "{}"
# How far behind a nested name its type and its other facts may stand.
_REACH = 160


@dataclass(frozen=True)
class Fact:
    """One thing that a tool's schema says."""

    kind: str
    path: Path
    """The parameter, then the way into it: a property's name, `[]` for items, `[0]` for one of them, `{}` for values.
    Empty: the tool."""

    value: Any = None


# -- taking apart


def list_facts(spec: Mapping[str, Any]) -> list[Fact]:
    """All that a tool's specification says, from its name to the bounds of its innermost values."""
    facts = [Fact("tool", ())]
    if str(spec.get("description") or "").strip():
        facts.append(Fact("description", (), spec["description"]))

    schema = spec.get("input_schema") or {}
    required = schema.get("required", [])
    properties = schema.get("properties", {})
    for name in dict.fromkeys([*properties, *required]):
        facts += [Fact("parameter", (name,)), Fact("required", (name,), name in required)]
        if name in properties:
            facts += _walk(properties[name], (name,), schema, ())
    return facts


def _walk(schema: Any, path: Path, root: Mapping[str, Any], seen: tuple[str, ...]) -> Iterator[Fact]:
    """The facts of one schema; what contains itself is followed once."""
    if not isinstance(schema, dict):
        return
    schema, seen, is_recursive = _resolve(schema, root, seen)
    if is_recursive:
        return

    options = [each for keyword in ("anyOf", "oneOf") for each in schema.get(keyword, [])]
    types = _types_of(schema, root)
    if types and "enum" not in schema and "const" not in schema:
        yield Fact("items" if path[-1][0] in "[{" else "type", path, types)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if values:
        yield Fact("enum", path, values)
    if "default" in schema:
        yield Fact("default", path, schema["default"])
    if str(schema.get("description") or "").strip():
        yield Fact("description", path, schema["description"])
    for keyword in _BOUNDS:
        if keyword in schema:
            yield Fact("bounds", path, schema[keyword])
    for option in options:
        yield from (
            fact for fact in _walk(option, path, root, seen) if fact.kind not in ("type", "items") or fact.path != path
        )
    yield from _walk_inside(schema, path, root, seen)


def _walk_inside(
    schema: Mapping[str, Any], path: Path, root: Mapping[str, Any], seen: tuple[str, ...]
) -> Iterator[Fact]:
    for name, inner in schema.get("properties", {}).items():
        yield Fact("nesting", (*path, name))
        if name in schema.get("required", []):
            yield Fact("required", (*path, name), True)
        yield from _walk(inner, (*path, name), root, seen)
    for i, inner in enumerate(schema.get("prefixItems", [])):
        yield from _walk(inner, (*path, f"[{i}]"), root, seen)
    yield from _walk(schema.get("items"), (*path, _ITEM), root, seen)
    yield from _walk(schema.get("additionalProperties"), (*path, _VALUE), root, seen)


def _resolve(
    schema: dict[str, Any], root: Mapping[str, Any], seen: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    """The schema with its references followed and its `allOf` laid together; whether it contains itself."""
    while "$ref" in schema or "allOf" in schema:
        reference = schema.get("$ref")
        if reference in seen:
            return {}, seen, True
        parts = list(schema.get("allOf", []))
        if reference is not None:
            seen = (*seen, reference)
            parts.append(_follow(reference, root))
        rest = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        schema = {key: value for part in parts for key, value in part.items()} | rest
    return schema, seen, False


def _follow(reference: str, root: Mapping[str, Any]) -> dict[str, Any]:
    target: Any = root
    for step in reference.removeprefix("#/").split("/"):
        target = target[step]
    return dict(target)


def _types_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a resolved schema names, its alternatives' too."""
    kind = schema.get("type", [])
    types = {kind} if isinstance(kind, str) else set(kind)
    for option in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        types |= _types_of(_resolve(option, root, ())[0], root)
    return frozenset(types)


# -- looking for


def find_survival(fact: Fact, shown: Mapping[str, Any] | None, names: Mapping[str, str]) -> Survival:
    """Whether the model is told a fact.

    Args:
        fact: What the server says.
        shown: The function's schema as the model sees it. None: the tool is not offered.
        names: What the model calls each parameter.
    """
    if shown is None:
        return "lost"
    if fact.kind == "tool":
        return "typed"
    if fact.path == ():
        return "words" if _flat(fact.value) in _flat(shown["description"]) else "lost"

    name = names.get(fact.path[0], fact.path[0])
    parameter = shown["parameters"]["properties"].get(name)
    if parameter is None:
        return "lost"
    if fact.kind == "parameter":
        return "typed"
    if fact.kind == "required" and len(fact.path) == 1:
        return "typed" if fact.value == (name in shown["parameters"].get("required", [])) else "lost"

    nodes = _find_nodes(parameter, fact.path[1:])
    if nodes and _is_typed(fact, nodes):
        return "typed"
    return "words" if _is_in_words(fact, str(parameter.get("description", ""))) else "lost"


def _find_nodes(node: Mapping[str, Any], path: Path) -> list[Mapping[str, Any]]:
    """The places in the shown schema where a path leads, in every alternative."""
    nodes = [node, *node.get("anyOf", [])]
    for step in path:
        inner: list[Any] = []
        for each in nodes:
            if step == _ITEM:
                inner.append(each.get("items"))
            elif step == _VALUE:
                inner.append(each.get("additionalProperties"))
            elif re.fullmatch(r"\[\d+\]", step):
                inner += each.get("prefixItems", [])[int(step[1:-1]) :][:1]
            else:
                inner.append(each.get("properties", {}).get(step))
        found = [each for each in inner if isinstance(each, dict)]
        nodes = [each for outer in found for each in (outer, *outer.get("anyOf", []))]
    return nodes


def _is_typed(fact: Fact, nodes: Sequence[Mapping[str, Any]]) -> bool:
    if fact.kind in ("type", "items"):
        types = [each.get("type", []) for each in nodes]
        shown = {name for each in types for name in ([each] if isinstance(each, str) else each)}
        shown |= {"null"} if any(each.get("nullable") for each in nodes) else set()
        return bool(shown == fact.value)
    if fact.kind == "enum":
        values = [value for each in nodes for value in each.get("enum", [])]
        values += [None] if any(each.get("nullable") for each in nodes) else []
        return {json.dumps(each) for each in fact.value} <= {json.dumps(each) for each in values}
    if fact.kind == "default":
        return any("default" in each and each["default"] == fact.value for each in nodes)
    if fact.kind == "description":
        return any(_flat(fact.value) in _flat(each.get("description", "")) for each in nodes[1:])
    return fact.kind == "nesting"


def _is_in_words(fact: Fact, text: str) -> bool:
    """Whether a parameter's description says a fact: behind the innermost name of its path, where it has one."""
    text = _flat(text)
    inner = [step for step in fact.path[1:] if step[0] not in "[{"]
    if inner:
        found = [match.end() for match in re.finditer(rf"(?<!\w){re.escape(inner[-1])}(?!\w)", text)]
        return bool(found) if fact.kind == "nesting" else any(_says(fact, text[at : at + _REACH]) for at in found)
    return _says(fact, text)


def _says(fact: Fact, text: str) -> bool:
    if fact.kind in ("type", "items"):
        return all(_has(name, text) for name in fact.value)
    if fact.kind == "enum":
        return all(_has(_write(value), text) for value in fact.value)
    if fact.kind == "default":
        _, is_said, rest = text.lower().partition("default")
        return bool(is_said) and _has(_flat(json.dumps(fact.value)).lower(), rest[:_REACH])
    if fact.kind == "description":
        return _flat(fact.value) in text
    if fact.kind == "required":
        return _has("required", text)
    return fact.value is True or _has(_write(fact.value), text)


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _has(word: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(_flat(word))}(?!\w)", text) is not None


def _flat(text: Any) -> str:
    """A text on one line, without what no reader sees: terminal sequences and control characters."""
    text = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]|[\x00-\x08\x0b-\x1f\x7f]", "", str(text))
    # A section's colon may be set apart, which no reader minds.
    return " ".join(re.sub(r"(Args|Returns|Raises) ?:", r"\1:", text).split())
