"""Ten thousand tools with any schemas, names and texts: each binds, is shown, and takes what its server takes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from multiors.ors.tools import BoundTool, bind_arguments, bind_tools, describe_tools, render_tools
from tests.schema_strategies import UNREADABLE, GeneratedTool, listings

NUM_LISTINGS, SIZE = (100, 10) if os.environ.get("FAST") else (1_000, 10)


def takes(shown: Mapping[str, Any], value: object) -> bool:
    """Whether a schema as transformers writes it takes a value."""
    kind = shown.get("type")
    kinds = kind if isinstance(kind, list) else [str(kind)]
    if value is None and (shown.get("nullable") or "null" in kinds):
        return True
    if "anyOf" in shown:
        return any(takes(each, value) for each in shown["anyOf"])
    if "enum" in shown:
        return any(value == each and type(value) is type(each) for each in shown["enum"])
    return kind is None or any(_is_of(each, shown, value) for each in kinds)


def _is_of(kind: str, shown: Mapping[str, Any], value: object) -> bool:
    if kind == "array" and isinstance(value, list):
        first = shown.get("prefixItems", [])
        rest = shown.get("items", {})
        return all(takes(schema, each) for schema, each in zip(first, value, strict=False)) and all(
            takes(rest, each) for each in value[len(first) :]
        )
    if kind == "object" and isinstance(value, dict):
        return all(takes(shown.get("additionalProperties", {}), each) for each in value.values())
    types: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}
    return type(value) in types.get(kind, ()) or (kind == "boolean" and type(value) is bool)


def make_arguments(tool: BoundTool, generated: GeneratedTool) -> Iterator[dict[str, Any]]:
    """Arguments by the server's names: with each value of each parameter once, and all that the others need."""
    whole = {name: each.values[0] for name, each in generated.parameters.items()}
    whole |= {each.wire_name: "ghost" for each in tool.parameters if each.required and each.wire_name not in whole}
    yield whole
    for name, parameter in generated.parameters.items():
        for value in parameter.values[1:]:
            yield {**whole, name: value}


def check_call(tool: BoundTool, by_wire_name: Mapping[str, Any]) -> None:
    """A call by Python names reaches the server by its own, with the values that were given."""
    names = {parameter.wire_name: parameter.name for parameter in tool.parameters}
    sent = bind_arguments(tool, (), {names[wire_name]: value for wire_name, value in by_wire_name.items()})

    assert list(by_wire_name) == list(sent)
    assert all(sent[name] is value for name, value in by_wire_name.items())


def check_values(generated: GeneratedTool, properties: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """What the policy is shown takes every value that the server takes."""
    refused = {
        name: (parameter.schema, properties[names[name]], value)
        for name, parameter in generated.parameters.items()
        for value in parameter.values
        if parameter.is_sound and not takes(properties[names[name]], value)
    }
    assert {} == refused


def check_listing(listing: Sequence[GeneratedTool], template: str) -> None:
    """The tools of one server, from what it lists to what the policy reads and calls."""
    from transformers.utils.chat_template_utils import render_jinja_template

    tools = bind_tools([generated.spec for generated in listing])
    rendered = render_tools(tools)
    by_name: dict[str, GeneratedTool] = {}
    for generated in listing:
        by_name.setdefault(generated.spec["name"], generated)
    ((text,), _) = render_jinja_template([[{"role": "user", "content": "Go."}]], tools=rendered, chat_template=template)
    table = describe_tools(tools)

    assert list(by_name) == [tool.wire_name for tool in tools]
    assert all(json.dumps(schema, ensure_ascii=False) in text for schema in rendered)
    assert text.encode()
    assert not UNREADABLE.search(table)
    for tool, schema, generated in zip(tools, rendered, by_name.values(), strict=True):
        shown = schema["function"]["parameters"]
        names = {parameter.wire_name: parameter.name for parameter in tool.parameters}
        assert set(generated.parameters) <= set(names)
        assert list(names.values()) == list(shown["properties"])
        assert [each.name for each in tool.parameters if each.required] == shown.get("required", [])
        check_values(generated, shown["properties"], names)
        for arguments in make_arguments(tool, generated):
            check_call(tool, arguments)


@pytest.fixture(scope="module")
def template() -> str:
    """A chat template that TRL trains with."""
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / "qwen3_instruct_2507.jinja").read_text(encoding="utf-8")


@pytest.mark.timeout(600)  # about a minute on a quiet core
def test_ten_thousand_tools_bind_are_shown_and_take_what_their_servers_take(template: str) -> None:
    """No tool and no parameter is lost, no value that a server takes is refused, and every call keeps its names."""
    num_tools = 0

    @settings(max_examples=NUM_LISTINGS, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(listings(SIZE))
    def check(listing: list[GeneratedTool]) -> None:
        nonlocal num_tools
        num_tools += len(listing)
        check_listing(listing, template)

    check()
    assert num_tools >= NUM_LISTINGS * SIZE


# -- what once was refused


SHRUNK: dict[str, tuple[dict[str, Any], Any]] = {
    "values of named patterns": (
        {"patternProperties": {"^k": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
        {"k": 1, "n": None},
    ),
    "values of named patterns, in an array": (
        {"items": {"patternProperties": {"^k": {"const": "v"}}, "additionalProperties": {"type": "number"}}},
        [{"k": "v"}, {"n": 0.5}],
    ),
}


@pytest.mark.parametrize(("schema", "value"), SHRUNK.values(), ids=SHRUNK)
def test_a_value_that_was_refused_is_taken(schema: dict[str, Any], value: object) -> None:
    """What fuzzing found stays found: the shown schema takes what the server's does."""
    (shown,) = render_tools(bind_tools([{"name": "act", "input_schema": {"properties": {"x": schema}}}]))

    assert takes(shown["function"]["parameters"]["properties"]["x"], value)


def test_a_nested_description_that_is_cut_is_reported() -> None:
    """What is too long inside a parameter's own words is a loss with a line of its own."""
    nested = {"type": "object", "properties": {"y": {"type": "string", "description": "w" * 201}}}
    (tool,) = bind_tools([{"name": "act", "input_schema": {"properties": {"x": nested}}}])

    assert "x: the description of a nested property is cut to 200 characters" in tool.losses
