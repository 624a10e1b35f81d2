"""The union mode: one class with every source's tools, each call for the row's own source or for nobody."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord, UnscoredReason
from multiors.errors import RoutingError, SessionError
from multiors.training import UnionEnvironmentFactory, merge_tools
from multiors.training.union import UnionEnvironment
from tests.playing import play, score
from tests.servers.launch import ServerHandle
from tests.servers.raw import serve_raw

RIGHT = ("echo", {"text": "oak"})


def mix(mixed: ServerHandle, echo: ServerHandle, **options: Any) -> MultiOpenRewardSpec:
    """Two sources with a tool `submit` each, and one without."""
    return MultiOpenRewardSpec(
        {
            "sort": ORSSource(mixed.url, env_name="sorting"),
            "heat-1": ORSSource(mixed.url, env_name="thermostat"),
            "echo": ORSSource(echo.url),
        },
        tools="union",
        **options,
    )


def factory_of(spec: MultiOpenRewardSpec) -> UnionEnvironmentFactory:
    """The one factory of a union."""
    factory = spec.environment_factory
    assert isinstance(factory, UnionEnvironmentFactory)
    return factory


def shown_tools(environment: object) -> dict[str, Any]:
    """The tools as TRL collects them: public functions of the class but `reset`."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    return {name: function for name, function in members if not name.startswith("_") and name != "reset"}


def test_only_clashing_names_get_a_prefix(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """Tools of one name are told apart by their source's name as an identifier; the others keep theirs."""
    merged = merge_tools(factory_of(mix(mixed_server, echo_server)).blueprints)

    assert {
        "compare": ("sort", "compare"),
        "sort__submit": ("sort", "submit"),
        "read": ("heat-1", "read"),
        "heat_1__submit": ("heat-1", "submit"),
        "echo": ("echo", "echo"),
        "hint": ("echo", "hint"),
    } == {name: (source, tool.wire_name) for name, (source, tool) in merged.items()}


def test_the_class_shows_the_tools_of_all(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """TRL and transformers see every tool with its own schema, and nothing else."""
    from transformers.utils import get_json_schema

    environment = factory_of(mix(mixed_server, echo_server))()
    schemas = {name: get_json_schema(tool)["function"] for name, tool in shown_tools(environment).items()}

    assert {"compare", "sort__submit", "read", "heat_1__submit", "echo", "hint"} == set(schemas)
    assert all(name == schema["name"] for name, schema in schemas.items())
    assert {"order"} == set(schemas["sort__submit"]["parameters"]["properties"])
    assert ["heat", "cool", "off"] == schemas["heat_1__submit"]["parameters"]["properties"]["mode"]["enum"]


@pytest.mark.parametrize(
    ("source", "tool"), [("3d", "source_3d__act"), ("_x", "source__x__act"), ("-y", "source__y__act")]
)
def test_a_prefix_is_a_name_that_is_shown(source: str, tool: str) -> None:
    """A source name that begins with a digit or an underscore neither breaks nor hides its tools."""
    with serve_raw() as server:
        sources = {source: ORSSource(server.url), "other": ORSSource(server.url)}
        environment = factory_of(MultiOpenRewardSpec(sources, tools="union"))()

    assert {tool, "other__act"} == set(shown_tools(environment))


def test_two_sources_that_would_share_a_prefix_are_refused() -> None:
    """Where two tools would get one name, the error names the tool and both sources."""
    with serve_raw() as server:
        sources = {"a-b": ORSSource(server.url), "a_b": ORSSource(server.url)}
        factory = factory_of(MultiOpenRewardSpec(sources, tools="union"))

    with pytest.raises(
        RoutingError, match=r"tool 'act' of source 'a_b' would be called 'a_b__act', which is taken by source 'a-b'"
    ):
        factory()


def test_the_row_decides_whose_session_opens(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """`reset(environment=...)` opens a session of that source alone, and an earlier one ends."""
    with mix(mixed_server, echo_server) as spec:
        environment = factory_of(spec)()
        mixed_server.reset_counts()
        prompts = [environment.reset(environment=name, task_index=1) for name in ("echo", "sort", "heat-1", "echo")]
        open_last = [server.counts().active for server in (echo_server, mixed_server)]
        environment._close()

    assert ["Say ash.", "Sort 2 hidden numbers.", 'Thermostat: {"celsius": 31.0}', "Say ash."] == prompts
    assert {"sorting": 1, "thermostat": 1} == mixed_server.counts().opened
    assert {"echo": 1} == open_last[0]
    assert [{}, {}] == [server.counts().active for server in (echo_server, mixed_server)]


@pytest.mark.parametrize("name", [None, "ecko"])
def test_a_row_of_no_source_is_refused(mixed_server: ServerHandle, echo_server: ServerHandle, name: str | None) -> None:
    """Without a name, or with an unknown one, nothing is opened."""
    environment = factory_of(mix(mixed_server, echo_server))()

    with pytest.raises(
        RoutingError, match=rf"a row has environment={name!r}, which is not in the mix \['sort', 'heat-1'"
    ):
        environment.reset(environment=name, task_index=0)


def test_a_stray_call_touches_no_server(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """A tool of another source is answered, counted as a bad call, and costs the rollout nothing it has earned."""
    records: list[RolloutRecord] = []

    with mix(mixed_server, echo_server, on_rollouts=records.extend) as spec:
        factory = factory_of(spec)
        mixed_server.reset_counts()
        stray = ("heat_1__submit", {"mode": "heat"})
        rollouts = [
            ("echo", play(factory, stray, environment="echo")),
            ("echo", play(factory, RIGHT, stray, environment="echo")),
        ]
        scored = score(spec.reward_funcs, rollouts)

    assert {} == mixed_server.counts().tool_calls
    assert [None, 1.0] == scored.rewards["echo"]
    assert [UnscoredReason.BAD_CALL, None] == [record.reason for record in records]
    assert [["submit"], ["echo", "submit"]] == [[step.tool for step in record.steps] for record in records]
    assert [1.0, 1.0] == scored.metrics["env/echo/tool_errors"]


def test_a_stray_call_is_answered_shortly(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """The policy reads that nothing was called, as a failure."""
    with mix(mixed_server, echo_server) as spec:
        environment: Any = play(factory_of(spec), environment="echo")

        with pytest.raises(
            SessionError, match=r"^This tool belongs to another environment than the task's; nothing was"
        ):
            environment.read()


def test_a_tool_before_reset_is_refused(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """Without a row there is no source to call."""
    environment: Any = factory_of(mix(mixed_server, echo_server))()

    with pytest.raises(SessionError, match="nothing was called"):
        environment.read()
    with pytest.raises(SessionError, match=r"before reset\(\)"):
        environment.reward  # noqa: B018  # a property


def test_reward_functions_read_it_like_any_environment(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """What TRL's adapter shows of a rollout is that of the row's source."""
    with mix(mixed_server, echo_server) as spec:
        rollout = play(factory_of(spec), ("echo", {"text": "no"}), RIGHT, environment="echo")
        rewards = spec.reward_funcs(environments=[rollout])

    assert (1.0, [0.0, 1.0], [None, None]) == (rollout.reward, rollout.rewards, rollout.metadata)
    assert (True, "oak", [1.0]) == (rollout.finished, rollout.last_output, rewards)


def test_the_next_rollout_starts_clean(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """TRL uses an environment again: nothing of the last rollout is left, whatever its source."""
    with mix(mixed_server, echo_server) as spec:
        rollout = play(factory_of(spec), RIGHT, ("read", {}), environment="echo")
        rollout.reset(environment="sort", task_index=0)
        other = (rollout.reward, rollout._episode().steps)
        rollout.reset(environment="echo", task_index=0)
        again = (rollout.reward, rollout._episode().steps, rollout.finished)

    assert ((None, ()), (None, (), False)) == (other, again)


def test_the_factory_pickles_and_gives_one_class(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """A copy from a pickle makes environments of the same class; another mix makes others."""
    spec, other = mix(mixed_server, echo_server), mix(mixed_server, echo_server)
    factory = factory_of(spec)
    copy = pickle.loads(pickle.dumps(factory))

    assert type(factory()) is type(factory()) is type(copy()) is type(factory_of(spec)())
    assert type(factory()) is not type(factory_of(other)())
    assert issubclass(type(copy()), UnionEnvironment)
