"""Policies that are programs: what they answer, and that random calls are valid."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.evaluation.policies import NeverCalls, RandomCalls, ScriptedPolicy, Start
from multiors.evaluation.policies.random_values import draw_value
from multiors.ors.tools.binding import bind_arguments, bind_tools, render_tools
from tests.conversing import SAY, asked, begin, converse, tool
from tests.schema_strategies import listings, wild_schemas

SPECS = json.loads((Path(__file__).parents[1] / "benchmarks" / "data" / "tool_schemas.json").read_text())["tools"]
SPECS += [
    case["spec"]
    for case in json.loads((Path(__file__).parent / "data" / "tool_specifications.json").read_text())["cases"]
]
SEEDS = st.integers(0, 2**63 - 1)


def calls_of(message: Any) -> list[dict[str, Any]]:
    """The calls of a message, without their frame."""
    return [call["function"] for call in message.get("tool_calls", [])]


def validate(value: Any, schema: Any) -> None:
    """Check a value by the schema as jsonschema understands it.

    Raises:
        jsonschema.ValidationError: It does not take the value.
    """
    jsonschema.Draft202012Validator(schema).validate(value)


# -- random calls


@pytest.mark.parametrize("seed", range(5))
def test_every_random_call_is_valid_for_every_tool(seed: int) -> None:
    """It has a tool's name, arguments that its schema takes, and binds to the server's own tool."""
    bound = {each.name: each for each in bind_tools(SPECS)}
    tools = render_tools(bound.values())
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    reached = set()

    for each in tools:
        start = begin(seed, tools=[each])
        call = calls_of(anyio.run(partial(converse, RandomCalls(), asked("Go."), start=start))[0].message)[0]
        validate(call["arguments"], _as_nullable(schemas[call["name"]]))
        bind_arguments(bound[call["name"]], (), call["arguments"])
        reached.add(call["name"])

    assert set(schemas) == reached


def _as_nullable(schema: Any) -> Any:
    """The schema with OpenAPI's `nullable`, which jsonschema does not know, as a type."""
    if isinstance(schema, list):
        return [_as_nullable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema

    changed = {key: _as_nullable(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [changed, {"type": "null"}]} if schema.get("nullable") is True else changed


@given(st.sampled_from(SPECS), SEEDS)
def test_values_are_valid_for_schemas_as_servers_send_them(spec: dict[str, Any], seed: int) -> None:
    """Bounds, references, unions, nested and recursive structures are kept; patterns are not followed."""
    schema = spec["input_schema"] or {"type": "object"}
    if "$ref" in schema or not isinstance(schema.get("properties", {}), dict) or "pattern" in json.dumps(schema):
        return

    value = draw_value(schema, random.Random(seed))

    validate(value, schema)


_numbers = st.integers(-1000, 1000)
_bounds = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": _numbers,
        "exclusiveMinimum": _numbers,
        "maximum": _numbers.map(lambda n: n + 2010),
        "exclusiveMaximum": _numbers.map(lambda n: n + 2010),
        "multipleOf": st.sampled_from([1, 2, 0.5, 3]),
    },
)
_texts = st.fixed_dictionaries({"type": st.just("string"), "minLength": st.integers(0, 60)}) | st.fixed_dictionaries(
    {"type": st.just("string"), "maxLength": st.integers(0, 60)}
)
_arrays = st.fixed_dictionaries(
    {"type": st.just("array"), "items": _bounds},
    optional={"minItems": st.integers(0, 4), "maxItems": st.integers(4, 9), "uniqueItems": st.booleans()},
)
_leaves = _bounds | _texts | _arrays | st.just({"enum": ["a", 1, None]}) | st.just({"type": ["boolean", "null"]})
_objects = st.builds(
    lambda properties, required, others: {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name in required],
        "additionalProperties": others,
    },
    st.dictionaries(st.sampled_from("abcd"), _leaves, max_size=3),
    st.sets(st.sampled_from("abcd")),
    st.booleans() | _leaves,
)


@given(_objects | _leaves | st.lists(_objects, min_size=1, max_size=3).map(lambda each: {"anyOf": each}), SEEDS)
def test_values_keep_every_bound(schema: dict[str, Any], seed: int) -> None:
    """Numbers, lengths, numbers of items, required and further properties."""
    validate(draw_value(schema, random.Random(seed)), schema)


@given(wild_schemas, SEEDS)
def test_no_schema_is_too_wild(schema: Any, seed: int) -> None:
    """Whatever a server calls a schema, a value comes out, and it is the same for the same seed."""
    first, second = draw_value(schema, random.Random(seed)), draw_value(schema, random.Random(seed))

    assert repr(first) == repr(second)


@given(listings(2), SEEDS)
def test_random_arguments_bind_to_any_servers_tools(listing: Sequence[Any], seed: int) -> None:
    """Every required argument is there and none is unknown."""
    for bound, rendered in [(each, render_tools([each])[0]) for each in bind_tools([each.spec for each in listing])]:
        arguments = draw_value(rendered["function"]["parameters"], random.Random(seed))

        bind_arguments(bound, (), arguments)


def test_every_choice_is_as_likely() -> None:
    """Of an enumeration, and whether an optional argument is there."""
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "null"}}, "required": ["a"]}
    drawn = [draw_value(schema, random.Random(seed)) for seed in range(1000)]

    assert 450 < sum(each["a"] == "x" for each in drawn) < 550
    assert 450 < sum("b" in each for each in drawn) < 550


@pytest.mark.anyio
async def test_random_calls_depend_on_the_episode_alone() -> None:
    """The same seed makes the same calls, another seed others; after so many calls it says that it is done."""
    turns = [asked("Go."), asked("Go on."), asked("And?")]
    same = [await converse(RandomCalls(num_calls=2), *turns, start=begin(seed)) for seed in (1, 1, 2)]
    calls = [[calls_of(reply.message) for reply in replies] for replies in same]

    assert calls[0] == calls[1]
    assert calls[0] != calls[2]
    assert [1, 1, 0] == [len(each) for each in calls[0]]
    assert same[0][2].message["content"]


@pytest.mark.anyio
async def test_random_calls_reach_every_tool() -> None:
    """Each is as likely as any other."""
    tools = [SAY, tool("look"), tool("move", to={"enum": ["left", "right"]})]
    replies = [(await converse(RandomCalls(), asked("Go."), start=begin(seed, tools=tools)))[0] for seed in range(60)]

    assert {"say", "look", "move"} == {calls_of(reply.message)[0]["name"] for reply in replies}


@pytest.mark.anyio
async def test_without_tools_nothing_is_called() -> None:
    """There is nothing to choose from."""
    replies = await converse(RandomCalls(), asked("Go."), start=begin(tools=[]))

    assert [] == calls_of(replies[0].message)


# -- scripts


@pytest.mark.anyio
async def test_silence_is_one_sentence() -> None:
    """It calls no tool, whatever it is told."""
    replies = await converse(NeverCalls(), asked("Call say."))

    assert [] == calls_of(replies[0].message)
    assert replies[0].message["content"].endswith(".")


async def _later(start: Start, messages: Sequence[Any]) -> Any:
    return f"heard {messages[-1]['content']}"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (lambda start, messages: "text", {"content": "text"}),
        (_later, {"content": "heard Go."}),
        (
            lambda start, messages: [("say", {"text": "a"})],
            {
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "say", "arguments": {"text": "a"}}}],
            },
        ),
        (
            lambda start, messages: {"content": "x", "reasoning_content": "y"},
            {"content": "x", "reasoning_content": "y"},
        ),
        (lambda start, messages: [], {"content": "", "tool_calls": []}),
    ],
)
async def test_a_script_answers_with_a_text_calls_or_a_message(script: Any, expected: dict[str, Any]) -> None:
    """Also when it takes its time."""
    replies = await converse(ScriptedPolicy(script), asked("Go."))

    assert {"role": "assistant", **expected} == replies[0].message


@pytest.mark.anyio
async def test_a_script_sees_the_whole_conversation() -> None:
    """Its own answers included."""
    seen: list[int] = []

    def count(start: Start, messages: Sequence[Any]) -> str:
        seen.append(len(messages))
        return "ok"

    await converse(ScriptedPolicy(count), asked("A."), asked("B."))

    assert [1, 3] == seen


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [None, 7, [("say",)], [("say", "x")], [(1, {})]])
async def test_a_script_that_answers_with_something_else_is_an_error(answer: Any) -> None:
    """It says what was answered and what may be."""
    with pytest.raises(ConfigError, match="the policy 'oracle' answered with"):
        await converse(ScriptedPolicy(lambda start, messages: answer, name="oracle"), asked("Go."))


@pytest.mark.anyio
async def test_an_error_of_a_script_keeps_its_type() -> None:
    """A note says in which episode it was."""

    def fail(start: Start, messages: Sequence[Any]) -> str:
        raise KeyError("oops")

    with pytest.raises(KeyError, match="oops") as raised:
        await converse(ScriptedPolicy(fail, name="oracle"), asked("Go."))

    assert ["policy='oracle' source='a' task_index=0"] == [note for note in raised.value.__notes__ if "policy" in note]


def test_baselines_say_what_they_are() -> None:
    """Two evaluations of the same are the same."""
    assert RandomCalls(num_calls=3).describe() == RandomCalls(num_calls=3).describe()
    assert RandomCalls().describe() != RandomCalls(num_calls=3).describe()
    assert "silent" == NeverCalls().describe()["name"]


def test_no_random_call_at_all_is_refused() -> None:
    """There is another policy for it."""
    with pytest.raises(ConfigError, match="NeverCalls"):
        RandomCalls(num_calls=0)
