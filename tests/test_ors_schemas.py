"""What of a server's JSON Schema reaches the policy: as types, in words, or as a loss that is reported."""

from __future__ import annotations

import json
from typing import Any, Literal, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.ors.tools import bind_tools, describe_tools, render_tools
from multiors.ors.tools.schemas import SchemaReading, read_input_schema
from tests.schema_strategies import UNREADABLE

DEFINITIONS = {
    "Point": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x"]},
    "Tone": {"enum": ["dark", "light"], "type": "string", "description": "How bright."},
    "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "value": {"type": "string"}}},
    "Json": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/Json"}}]},
    "a/b~c d": {"type": "integer"},
}
DEEP: list[Any] = []
DEEP_TOO: list[Any] = []
for _ in range(20_000):
    DEEP, DEEP_TOO = [DEEP], [DEEP_TOO]


def read(schema: object) -> SchemaReading:
    """The reading of a tool with the one required parameter `x`."""
    return read_input_schema({"properties": {"x": schema}, "required": ["x"], "$defs": DEFINITIONS})


def show(schema: object) -> dict[str, Any]:
    """What the policy sees of the parameter `x`, without the text for parameters that have no description."""
    tools = bind_tools([{"name": "act", "input_schema": {"properties": {"x": schema}, "$defs": DEFINITIONS}}])
    shown: dict[str, Any] = render_tools(tools)[0]["function"]["parameters"]["properties"]["x"]
    return {key: value for key, value in shown.items() if value != "No description given."}


# -- what types say


@pytest.mark.parametrize(
    ("schema", "annotation"),
    [
        ({"type": "string"}, str),
        ({"type": "integer"}, int),
        ({"type": "number"}, float),
        ({"type": "boolean"}, bool),
        ({"type": "null"}, type(None)),
        ({"type": "array"}, list),
        ({"type": "object"}, dict),
        ({}, Any),
        (True, Any),
        ({"enum": ["a", "b"]}, Literal["a", "b"]),
        ({"enum": [1, True, 1.5, "1"]}, Literal[1, True, 1.5, "1"]),
        ({"const": "fast"}, Literal["fast"]),
        ({"enum": ["a", None]}, Literal["a"] | None),
        ({"type": "array", "items": {"type": "string"}}, list[str]),
        ({"items": {"type": "array", "items": {"enum": ["a", "b"]}}}, list[list[Literal["a", "b"]]]),
        ({"type": "array", "items": {}}, list),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, dict[str, int]),
        ({"type": "object", "additionalProperties": True}, dict),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, int | None),
        ({"type": ["string", "null"]}, str | None),
        ({"type": ["string"]}, str),
        ({"type": "integer", "nullable": True}, int | None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, str | int),
        ({"oneOf": [{"const": "a"}, {"const": "b"}, {"type": "integer"}]}, Literal["a", "b"] | int),
        ({"anyOf": [{"type": "string"}, {}]}, Any),
        ({"anyOf": [{"type": "null"}, {"const": None}]}, type(None)),
        ({"$ref": "#/$defs/Json/anyOf/0"}, str),
        ({"anyOf": [{"type": "string"}, {"type": "string"}]}, str),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, list[str | None]),
        ({"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}]}, tuple[float, str]),
        ({"type": "array", "items": [{"type": "number"}, {"type": "string"}]}, tuple[float, str]),
        ({"$ref": "#/$defs/Tone"}, Literal["dark", "light"]),
        ({"$ref": "#/$defs/a~1b~0c%20d"}, int),
        ({"anyOf": [{"$ref": "#/$defs/Tone"}, {"type": "null"}]}, Literal["dark", "light"] | None),
        ({"allOf": [{"$ref": "#/$defs/Tone"}], "description": "Which."}, Literal["dark", "light"]),
        ({"allOf": [{"type": "number"}, {"type": ["integer", "string"]}]}, int),
        ({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, Literal["b"]),
        ({"type": "string", "anyOf": [{"enum": ["a"]}, {"enum": ["b"]}]}, Literal["a", "b"]),
    ],
)
def test_a_schema_that_types_can_say_has_no_loss(schema: object, annotation: object) -> None:
    """The annotation says all of the schema, and no words are needed."""
    reading = read(schema)
    (parameter,) = reading.parameters

    assert annotation == parameter.annotation
    assert "" == parameter.remark
    assert () == reading.losses


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}),
        ({"enum": [2, 1]}, {"type": "integer", "enum": [2, 1]}),
        ({"enum": ["q", None]}, {"type": "string", "enum": ["q"], "nullable": True}),
        ({"items": {"type": "integer"}}, {"type": "array", "items": {"type": "integer"}}),
        (
            {"additionalProperties": {"type": "boolean"}},
            {"type": "object", "additionalProperties": {"type": "boolean"}},
        ),
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"type": ["string", "integer"]}, {"type": ["integer", "string"]}),
        ({"type": "string", "default": "a"}, {"type": "string", "description": 'Default "a"'}),
        (
            {"type": "string", "description": "Who", "default": "a"},
            {"type": "string", "description": 'Who. Default "a"'},
        ),
        ({"$ref": "#/$defs/Tone"}, {"type": "string", "enum": ["dark", "light"], "description": "How bright."}),
        (
            {"$ref": "#/$defs/Tone", "description": "T."},
            {"type": "string", "enum": ["dark", "light"], "description": "T."},
        ),
        (
            {"prefixItems": [{"type": "number"}, {"enum": ["m"]}]},
            {"type": "array", "prefixItems": [{"type": "number"}, {"type": "string", "enum": ["m"]}]},
        ),
        (
            {"anyOf": [{"type": "string"}, {"items": {"type": "string"}}]},
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        ),
        (
            {"$ref": "#/$defs/Point"},
            {"type": "object", "description": "Object with x (number, required), y (number)"},
        ),
        ({"type": "integer", "minimum": 1, "maximum": 9}, {"type": "integer", "description": "Between 1 and 9"}),
        ({}, {}),
    ],
)
def test_the_policy_sees_the_schema(schema: object, shown: dict[str, Any]) -> None:
    """Enums, item types, nesting, null and defaults are in what transformers renders."""
    assert shown == show(schema)


# -- what words say


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "at least 1"),
        ({"type": "number", "maximum": 0.5}, "at most 0.5"),
        ({"type": "integer", "minimum": 1, "maximum": 10}, "between 1 and 10"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "more than 0 and at most 1"),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, "more than 0"),
        ({"type": "number", "exclusiveMaximum": 7}, "less than 7"),
        ({"type": "integer", "multipleOf": 5}, "a multiple of 5"),
        ({"type": "string", "pattern": "^[A-Z]{3}$"}, "pattern ^[A-Z]{3}$"),
        ({"type": "string", "format": "date-time"}, "format date-time"),
        ({"type": "string", "contentEncoding": "base64"}, "encoding base64"),
        ({"type": "string", "minLength": 1}, "at least 1 character"),
        ({"type": "string", "minLength": 2, "maxLength": 20}, "2 to 20 characters"),
        ({"type": "string", "minLength": 0, "maxLength": 20}, "at most 20 characters"),
        ({"type": "array", "minItems": 2, "maxItems": 2}, "exactly 2 items"),
        ({"type": "array", "maxItems": 1}, "at most 1 item"),
        ({"type": "array", "uniqueItems": True}, "no duplicates"),
        ({"type": "array", "items": {"type": "integer", "minimum": 0}}, "array of integer (at least 0)"),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, "array of string"),
        (
            {"prefixItems": [{"type": "string"}, {"type": "number"}], "items": {"type": "boolean"}},
            "array of string, then number, then any number of boolean",
        ),
        ({"type": "object", "minProperties": 1}, "at least 1 entry"),
        (
            {"additionalProperties": {"type": "string", "maxLength": 3}},
            "object with values of string (at most 3 characters)",
        ),
        (
            {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "number"}},
            "object with a (string), any other names with values of number",
        ),
        (
            {"properties": {"age": {"type": "integer", "minimum": 0, "default": 3, "description": "In\nyears."}}},
            'object with age (integer, at least 0, default 3, "In years.")',
        ),
        ({"properties": {"no name": {"const": "v"}}, "required": ["no name"]}, 'object with "no name" ("v", required)'),
        ({"properties": {"a": True}, "required": ["b"]}, "object with a (anything), b (anything, required)"),
        ({"type": "string", "not": {"const": "x"}}, 'not {"const": "x"}'),
        ({"minimum": 3, "minLength": 2}, "at least 3; at least 2 characters"),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, "at least 1"),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}, "integer (at least 1) or string"),
        ({"type": ["integer", "null"], "minimum": 1}, "at least 1"),
        (
            {"allOf": [{"minimum": 1}, {"minimum": 3}, {"maximum": 9}, {"maximum": 7}], "type": "integer"},
            "between 3 and 7",
        ),
        (
            {"allOf": [{"$ref": "#/$defs/Point"}, {"properties": {"z": {"type": "string"}}, "required": ["z"]}]},
            "object with x (number, required), y (number), z (string, required)",
        ),
        ({"enum": ["a", {"b": 1}]}, '"a" or {"b": 1}'),
        ({"properties": {"a": False}}, "object with a (nothing is accepted)"),
    ],
)
def test_what_types_cannot_say_is_said_in_words(schema: object, words: str) -> None:
    """Bounds, patterns and nested names reach the policy as text, and are reported as a loss of type."""
    reading = read(schema)

    assert words == reading.parameters[0].remark
    assert (f"x: in words only: {words}",) == reading.losses


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"default": 5}, "default 5"),
        ({"default": None}, "default null"),
        ({"default": {"a": [1, "b"]}}, 'default {"a": [1, "b"]}'),
        ({"examples": [1, 2, 3, 4]}, "for example 1, 2 or 3"),
        ({"deprecated": True}, "deprecated"),
        ({"default": "x" * 300}, 'default "' + "x" * 198 + "…"),
    ],
)
def test_defaults_and_examples_are_words_but_no_loss(extra: dict[str, Any], words: str) -> None:
    """What a schema says beside the type is for the policy only, and short."""
    reading = read({"type": "string", **extra})

    assert words == reading.parameters[0].remark
    assert () == reading.losses


def test_a_default_is_the_schemas_own_value() -> None:
    """The default is a copy: changing the server's schema later changes nothing."""
    schema: dict[str, Any] = {"default": {"a": [1]}}
    (parameter,) = read(schema).parameters
    schema["default"]["a"].append(2)

    assert {"a": [1]} == parameter.default


# -- losses


@pytest.mark.parametrize(
    ("schema", "loss"),
    [
        ({"type": "file"}, 'x: the type "file" is unknown and read as anything'),
        ({"type": {"a": 1}}, 'x: the type {"a": 1} is unknown and read as anything'),
        ({"$ref": "#/$defs/Nobody"}, 'x: the reference "#/$defs/Nobody" leads nowhere'),
        ({"$ref": "https://example.com/s#/a"}, 'x: the reference "https://example.com/s#/a" leads nowhere'),
        ({"$ref": "#anchor"}, 'x: the reference "#anchor" leads nowhere'),
        ({"$ref": "#/$defs/Node"}, "x: Node contains itself and is cut off there"),
        ({"enum": []}, "x: an enum without values is left out"),
        ({"enum": [str(i) for i in range(300)]}, "x: the 300 values of an enum are not all shown"),
        ({"enum": ["y" * 9_000]}, "x: the 1 values of an enum are not all shown"),
        ({"enum": [["y" * 4_000] * 4]}, "x: the 1 values of an enum are not all shown"),
        ({"anyOf": [{"const": i} for i in range(40)]}, "x: 8 of 40 alternatives are left out"),
        ({"default": float("nan")}, "x: its default is no JSON"),
        ({"default": {1: 2}}, "x: its default is no JSON"),
        ({"default": "\ud800"}, "x: its default is no JSON"),
        ({"default": DEEP}, "x: its default is no JSON"),
        ({"default": [10**5_000]}, "x: its default is no JSON"),
        ({"allOf": [{"not": DEEP}, {"not": DEEP_TOO}]}, 'x: one of two values of "not" is left out'),
        ({"properties": {f"p{i}": {"type": "string"} for i in range(900)}}, "x: its words are cut to 4000 characters"),
        ("string", "x: a schema that is no object is read as anything"),
        (
            {"allOf": [{"type": "string"}, {"type": "array"}]},
            'x: the types ["string", "array"] exclude each other; the first is shown',
        ),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, 'x: one of two values of "pattern" is left out'),
    ],
)
def test_what_cannot_be_read_is_reported(schema: object, loss: str) -> None:
    """What reaches the policy in no form is a loss, not an exception."""
    assert loss in read(schema).losses


@pytest.mark.parametrize(
    ("schema", "names", "loss"),
    [
        ("object", [], "the input schema is no object; the tool has no parameters"),
        ({"properties": [], "required": ["a"]}, ["a"], "'properties' is no object; only what is required is known"),
        ({"properties": {1: {}, "a": {}}}, ["a"], "properties whose names are no text are left out"),
        ({"type": "array", "items": {}}, [], 'the whole input is of type "array", not an object'),
        (
            {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
            ["a"],
            "further parameters of any name cannot be passed",
        ),
        (
            {"properties": {"a": {}}, "dependentRequired": {}},
            ["a"],
            "'dependentRequired' of the whole input is not shown",
        ),
        (
            {"properties": {"a": {}}, "required": ["b"]},
            ["a", "b"],
            "b: required by the server, but not described by it",
        ),
        (
            {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
            ["a", "b"],
            "alternatives of the whole input are shown as one list of parameters",
        ),
    ],
)
def test_a_broken_input_schema_keeps_what_can_be_called(schema: object, names: list[str], loss: str) -> None:
    """Every parameter that is known stays, and the rest is reported."""
    reading = read_input_schema(schema)

    assert names == [parameter.wire_name for parameter in reading.parameters]
    assert loss in reading.losses


def test_no_schema_is_a_tool_without_parameters() -> None:
    """None is how ORS says that a tool takes nothing."""
    assert SchemaReading() == read_input_schema(None)


def test_the_whole_input_may_be_a_reference() -> None:
    """Parameters behind a reference at the root are found."""
    reading = read_input_schema({"$ref": "#/$defs/Point", "$defs": DEFINITIONS})

    assert [("x", float, True), ("y", float, False)] == [
        (p.wire_name, p.annotation, p.required) for p in reading.parameters
    ]
    assert () == reading.losses


def test_alternatives_of_the_whole_input_require_what_all_require() -> None:
    """A parameter of one alternative only is optional; one that differs takes either type."""
    first = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]}
    second = {"properties": {"a": {"type": "integer"}, "c": {}}, "required": ["a", "c"]}
    reading = read_input_schema({"oneOf": [first, second]})

    assert [("a", str | int, True), ("b", str, False), ("c", Any, False)] == [
        (p.wire_name, p.annotation, p.required) for p in reading.parameters
    ]


def test_a_huge_enum_forbids_no_value() -> None:
    """An enum that is not shown in full is shown as its values' type, with the first of them in words."""
    (parameter,) = read({"enum": [*(str(i) for i in range(300)), None]}).parameters

    assert Union[str, None] == parameter.annotation  # noqa: UP007 - as it is built
    assert 'one of 301 values such as "0", "1", "2", "3", "4"' == parameter.remark


def test_enum_values_that_are_no_utf8_are_not_shown_as_values() -> None:
    """A tokenizer could not encode a lone surrogate; the type stays."""
    (parameter,) = read({"enum": ["a", "\ud800b"]}).parameters

    assert Literal["a"] | str == parameter.annotation
    assert '"a" or "b"' == parameter.remark


def test_a_structure_that_holds_itself_is_cut_at_the_second_level() -> None:
    """A recursive reference is read once and then named."""
    node, value = read({"$ref": "#/$defs/Node"}).parameters[0], read({"$ref": "#/$defs/Json"}).parameters[0]

    assert (dict, "object with next (nested Node), value (string)") == (node.annotation, node.remark)
    assert (str | list, "string or array of nested Json") == (value.annotation, value.remark)


@pytest.mark.parametrize("keyword", ["items", "allOf", "anyOf", "properties", "additionalProperties", "prefixItems"])
def test_endless_nesting_is_cut(keyword: str) -> None:
    """Depth beyond Python's own recursion limit is read without one, and ends in a loss."""
    schema: dict[str, Any] = {"type": "string"}

    for _ in range(20_000):
        inner = {"properties": {"x": schema}} if keyword == "properties" else {keyword: schema}
        schema = inner if keyword in ("items", "properties", "additionalProperties") else {keyword: [schema, {}]}

    assert any("cut off" in loss or "left out" in loss for loss in read(schema).losses)


@pytest.mark.parametrize("part", [{"allOf": "D"}, {"anyOf": "D"}, {"properties": {"a": "D", "b": "D"}}])
def test_references_cannot_multiply_without_end(part: dict[str, Any]) -> None:
    """A few references that each stand for many are read within a budget."""

    def point(i: int) -> dict[str, Any]:
        reference = {"$ref": f"#/$defs/D{i + 1}"}
        return {
            key: dict.fromkeys(value, reference) if isinstance(value, dict) else [reference] * 20
            for key, value in part.items()
        }

    definitions = {f"D{i}": point(i) for i in range(60)}
    schema = {"properties": {"x": {"$ref": "#/$defs/D0"}}, "$defs": definitions}
    reading = read_input_schema(schema)

    assert 1 == len(reading.parameters)
    assert any("cut off" in loss or "left out" in loss for loss in reading.losses)
    assert 4_000 >= len(reading.parameters[0].remark)


def test_ten_thousand_parameters_are_all_bound() -> None:
    """A huge schema loses detail, never a parameter, and its report stays short."""
    names = [f"p{i}" for i in range(10_000)]
    reading = read_input_schema({"properties": {name: {"type": "integer", "minimum": 1} for name in names}})

    assert names == [parameter.wire_name for parameter in reading.parameters]
    assert {int} == {parameter.annotation for parameter in reading.parameters}
    assert (51, "and 9950 more") == (len(reading.losses), reading.losses[-1])


# -- anything


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("\ud800\x1b[1m"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["a", "b", "x", "class", "a-b", "", "Returns", "\ud800"])
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object", "file", ""])
REFERENCES = st.sampled_from(
    ["#", "#/", "#/$defs/A", "#/$defs/B", "#/properties/a", "#/anyOf/0", "#x", "http://x", "%", ""]
)


def _make_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several, by_name = st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES | JSON_LIKE, max_size=3),
        "properties": by_name,
        "$defs": st.fixed_dictionaries({"A": inner, "B": inner}),
        "required": st.lists(NAMES | JSON_LIKE, max_size=3),
        "items": inner | several,
        **dict.fromkeys(["anyOf", "oneOf", "allOf", "prefixItems"], several),
        **dict.fromkeys(["additionalProperties", "additionalItems", "not"], inner),
        "enum": st.lists(JSON_LIKE, max_size=4),
        **dict.fromkeys(["const", "default"], JSON_LIKE),
        "$ref": REFERENCES,
        **dict.fromkeys(
            ["minimum", "maxLength", "exclusiveMinimum", "minItems"], st.integers() | st.floats() | JSON_LIKE
        ),
        **dict.fromkeys(["description", "pattern", "format"], st.text(max_size=10) | JSON_LIKE),
        **dict.fromkeys(["nullable", "uniqueItems"], st.booleans() | JSON_LIKE),
    }
    chosen = st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True)
    return chosen.flatmap(lambda keys: st.fixed_dictionaries({key: keywords[key] | JSON_LIKE for key in keys}))


SCHEMAS = st.recursive(JSON_LIKE | st.fixed_dictionaries({"type": TYPES}), _make_schemas, max_leaves=12)


@given(SCHEMAS | st.dictionaries(NAMES, SCHEMAS, max_size=4).map(lambda properties: {"properties": properties}))
def test_any_schema_binds_and_is_shown(schema: object) -> None:
    """Whatever a server sends, transformers can show the tool, in UTF-8, and no listed parameter is lost."""
    tools = bind_tools([{"name": "act", "description": "Act.", "input_schema": schema}])
    (rendered,) = render_tools(tools)
    shown = rendered["function"]["parameters"]["properties"]
    properties = schema.get("properties") if isinstance(schema, dict) else None
    listed = set(properties) if isinstance(properties, dict) else set()

    assert [parameter.name for parameter in tools[0].parameters] == list(shown)
    assert listed <= {parameter.wire_name for parameter in tools[0].parameters}
    assert json.dumps(rendered, ensure_ascii=False, allow_nan=False).encode()
    assert not UNREADABLE.search(describe_tools(tools))


@given(SCHEMAS)
def test_a_schema_reads_the_same_each_time(schema: object) -> None:
    """Reading changes nothing in what the server sent, and depends on nothing else."""
    before = repr(schema)
    first = read_input_schema({"properties": {"x": schema}})

    assert first == read_input_schema({"properties": {"x": schema}})
    assert before == repr(schema)
