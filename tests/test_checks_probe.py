"""The preflight's probe: one episode with made-up arguments, and what an answer to it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from multiors import CheckReport, MultiOpenRewardSpec, ORSSource
from multiors.checks import CheckFinding
from multiors.checks.arguments import make_arguments
from tests.checked import found, look
from tests.servers.launch import ServerHandle, serve
from tests.servers.raw import serve_raw


@pytest.fixture(scope="module")
def arguments_server() -> Iterator[ServerHandle]:
    """`Arguments` alone."""
    with serve("Arguments") as server:
        yield server


def probe(server: ServerHandle, **options: Any) -> tuple[CheckReport, CheckFinding]:
    """The report on one source, and its probe."""
    report = look(MultiOpenRewardSpec({"a": ORSSource(server.url, **options)}), probe=True)
    return report, report.of("a", "probe")[0]


def test_a_probe_calls_one_tool_in_one_session() -> None:
    """The first tool that needs no arguments, once, on the first task; then the session ends."""
    with serve("Thermostat") as server:
        _, finding = probe(server, indices=[1, 2])
        counts = server.wait_until(lambda counts: not counts.active)

    assert {"thermostat": {"read": 1}} == counts.tool_calls
    assert ("ok", 1, "read", {}) == (
        finding.level,
        *(finding.facts[name] for name in ("task_index", "tool", "arguments")),
    )


def test_a_probe_makes_up_what_a_tool_requires(arguments_server: ServerHandle) -> None:
    """Where every tool needs arguments the first is called with values that its schema allows."""
    _, finding = probe(arguments_server)

    assert ("ok", {"count": 0}, 1.0) == (finding.level, finding.facts["arguments"], finding.facts["reward"])


def test_a_probe_reports_reward_end_and_times(echo_server: ServerHandle) -> None:
    """An observed 0.0 is a reward; a call without one has None."""
    _, finding = probe(echo_server)

    assert (None, False, None) == tuple(finding.facts[name] for name in ("reward", "finished", "failure"))
    assert finding.facts["opening_ms"] > 0
    assert "hint({}) took " in finding.message


def test_a_probe_submits_nothing_to_a_terminal_tool() -> None:
    """There the episode is opened and closed, and that is all."""
    with serve("OnlyTerminal") as server:
        _, finding = probe(server)
        counts = server.wait_until(lambda counts: not counts.active)

    assert {} == counts.tool_calls
    assert ("ok", None) == (finding.level, finding.facts["tool"])


def test_a_tool_that_raises_on_made_up_arguments_is_a_warning(flaky_server: ServerHandle) -> None:
    """It may not raise on a policy's; what it said is shown without its secrets' place in a stack trace."""
    report, finding = probe(flaky_server, env_name="flaky", split="tool")

    assert ("warning", "tool_error") == (finding.level, finding.facts["failure"])
    assert report.ok


@pytest.mark.parametrize(
    ("scenario", "failure"), [({"rewards": ("NaN",)}, "bad_reward"), ({"cut": "before_events"}, "session_lost")]
)
def test_an_environment_that_fails_in_a_probe_is_an_error(scenario: dict[str, Any], failure: str) -> None:
    """Such rollouts would be unscored."""
    with serve_raw(**scenario) as server:
        report, finding = probe(server)

    assert ("error", failure) == (finding.level, finding.facts["failure"])
    assert not report.ok


def test_arguments_that_are_refused_are_only_noted() -> None:
    """They were made up."""
    with serve_raw(result=json.dumps({"ok": False, "error": "text is too short"})) as server:
        _, finding = probe(server)

    assert ("note", "bad_call") == (finding.level, finding.facts["failure"])
    assert "text is too short" in finding.message


@pytest.mark.parametrize("place", ["init", "setup", "prompt"])
def test_a_task_whose_session_does_not_open_is_an_error_without_a_probe(flaky_server: ServerHandle, place: str) -> None:
    """It is said once, with the task, and nothing is played."""
    source = ORSSource(flaky_server.url, env_name="flaky", split=place, discover_task_tools=False)
    report = look(MultiOpenRewardSpec({"a": source}), probe=True)
    opened = "its session did not open"

    assert [("error", f"task 0: {opened}"), ("error", f"task 3: {opened}")] == sorted(
        (level, message.partition(": the server")[0]) for level, message in found(report, "a", "prompt")
    )
    assert [] == report.of("a", "probe")


# -- made-up arguments


class Inner(BaseModel):
    name: str = Field(min_length=3)
    weight: float | None


class Everything(BaseModel):
    word: str
    size: int = Field(ge=3, le=9)
    share: float = Field(gt=0, lt=1)
    below: int = Field(lt=-4)
    third: int = Field(ge=7, multiple_of=5)
    kind: Literal["red", "green"]
    fixed: Literal[7]
    maybe: str | None
    flag: bool
    inner: Inner
    many: list[Inner] = Field(min_length=2)
    pair: tuple[int, str]
    any_keys: dict[str, int]
    optional: int = 3


def test_made_up_arguments_are_valid() -> None:
    """They have what is required and nothing else, within all bounds that a schema can state in numbers."""
    arguments = make_arguments(Everything.model_json_schema())

    assert set(Everything.model_json_schema()["required"]) == set(arguments)
    assert arguments == Everything.model_validate(arguments).model_dump(exclude={"optional"}, mode="json")


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["b", "a"]}, "b"),
        ({"default": 4, "type": "integer", "minimum": 9}, 4),
        ({"examples": ["x"], "type": "string"}, "x"),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, False),
        ({"type": ["null", "integer"], "maximum": -2}, -2),
        ({"type": "null"}, None),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2}, ["", ""]),
        ({}, ""),
        (True, ""),
    ],
)
def test_the_value_that_is_made_up(schema: Any, expected: Any) -> None:
    """What a schema offers comes first, then the smallest value of its type."""
    assert {"x": expected} == make_arguments({"type": "object", "properties": {"x": schema}, "required": ["x"]})


_KEYS = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "items",
        "enum",
        "anyOf",
        "minimum",
        "multipleOf",
        "minItems",
        "x",
        "$ref",
        "allOf",
    ]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_no_schema_is_too_odd_for_made_up_arguments(schema: Any) -> None:
    """Whatever a server sends as a schema, there are arguments."""
    inside = make_arguments({"type": "object", "properties": {"x": schema}, "required": ["x"]})

    assert ["x"] == list(inside)
    assert isinstance(make_arguments(schema), dict)
