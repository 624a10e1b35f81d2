"""What sessions are opened with: toolsets, overrides, and secrets wherever their values come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, UnscoredReason
from multiors.errors import ConfigError, SessionError, SourceError
from tests.playing import factories, play
from tests.servers.launch import ServerHandle, serve
from tests.servers.platform import API_KEY, Platform, serve_platform


@pytest.fixture(scope="module")
def rich() -> Iterator[ServerHandle]:
    """`Sandboxed` and `Secretive`."""
    with serve("Sandboxed", "Secretive") as server:
        yield server


@pytest.fixture
def platform(rich: ServerHandle, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A platform whose environment requires two secrets, at the addresses that the variables name."""
    with serve_platform(
        {"lab/rich": rich.url}, secrets={"lab/rich": ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"]}
    ) as platform:
        monkeypatch.setenv("OPENREWARD_SESSION_URL", platform.session_url)
        monkeypatch.setenv("OPENREWARD_API_URL", platform.api_url)
        monkeypatch.setenv("OPENREWARD_API_KEY", API_KEY)
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        yield platform


# -- toolsets and overrides


def test_a_toolsets_tools_are_the_policys_too(rich: ServerHandle) -> None:
    """Each session has the tools of the toolset, beside the environment's own."""
    spec = MultiOpenRewardSpec(
        {"box": ORSSource(rich.url, env_name="sandboxed", toolset="codex", discover_task_tools=False)}
    )
    environment = play(factories(spec)["box"])
    said = environment.bash(command="ls")
    done = environment.submit()
    environment._close()

    assert ["ran ls\n\n(exit 0)", "done"] == [said, done]


def test_an_unknown_toolset_is_an_error_before_training(rich: ServerHandle) -> None:
    """The server's refusal, which lists its toolsets, names the source."""
    source = ORSSource(rich.url, env_name="sandboxed", toolset="spade")

    with pytest.raises(SourceError, match=r"source 'sandboxed': .* HTTP 400: .*unknown toolset 'spade'"):
        source.tools  # noqa: B018  # reading it asks the server


def test_overrides_are_for_platforms(rich: ServerHandle) -> None:
    """A server that is no platform ignores them, which is said; their values are in no message."""
    source = ORSSource(rich.url, env_name="secretive", env_overrides={"OPENAI_BASE_URL": "http://v4lue"})

    with pytest.warns(UserWarning, match=r"source 'secretive': env_overrides are sent to .* no platform") as told:
        source.tools  # noqa: B018  # reading it asks the server
    assert "v4lue" not in str(told[0].message)


def test_a_platform_gets_overrides(platform: Platform, rich: ServerHandle) -> None:
    """They go with the request for a session, and are no part of what is shown of a source."""
    source = ORSSource(
        "lab/rich",
        variant="secretive",
        env_overrides={"OPENAI_BASE_URL": "http://v4lue"},
        secrets={"OPENAI_API_KEY": "a", "ANTHROPIC_API_KEY": "b"},
    )
    play(source.environment_factory)._close()

    assert {"OPENAI_BASE_URL": "http://v4lue"} == platform.counts()["overrides"][-1]
    assert "v4lue" not in repr(source.blueprint)


@pytest.mark.parametrize("overrides", [["A"], {"A": 7}, {7: "a"}, {"": "a"}])
def test_overrides_are_text(overrides: Any) -> None:
    """Anything but names and text is an error at construction."""
    with pytest.raises(ConfigError, match=r"env_overrides (is no mapping of names|has a int for 'A')"):
        ORSSource("http://127.0.0.1:1", env_overrides=overrides)


# -- secrets


def told(source: ORSSource) -> dict[str, Any]:
    """The secrets that a session's environment was given."""
    environment = play(source.environment_factory)
    said: dict[str, Any] = json.loads(environment.tell())
    environment._close()
    return said


def test_a_sources_own_secret_comes_first(rich: ServerHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source, then mix, then environment variable; of what the source does not name nothing is sent."""
    monkeypatch.setenv("FROM_ENV", "env")
    monkeypatch.setenv("FROM_MIX", "env")
    monkeypatch.setenv("UNASKED", "env")
    source = ORSSource(rich.url, env_name="secretive", secrets={"OWN": "own", "FROM_MIX": None, "FROM_ENV": None})
    spec = MultiOpenRewardSpec({"s": source}, secrets={"OWN": "mix", "FROM_MIX": "mix", "ALSO_UNASKED": "mix"})
    with pytest.warns(UserWarning, match=r"the mix's secrets \['ALSO_UNASKED'\] go to no source"):
        environment = play(factories(spec)["s"])
    said = json.loads(environment.tell())
    environment._close()

    assert {"OWN": "own", "FROM_MIX": "mix", "FROM_ENV": "env"} == said


def test_a_secret_without_a_value_is_an_error_before_training(rich: ServerHandle) -> None:
    """All that are missing are named, with the places where they could have come from."""
    source = ORSSource(rich.url, env_name="secretive", secrets={"NOWHERE": None, "ELSEWHERE": None})

    with pytest.raises(SourceError, match=r"it names the secrets \['NOWHERE', 'ELSEWHERE'\], and there is no value"):
        source.tools  # noqa: B018  # reading it asks the server


def test_required_secrets_are_missed_before_training(platform: Platform) -> None:
    """What the platform says an environment requires must have a value before a session is opened."""
    with pytest.raises(SourceError, match=r"its environment requires the secrets \['ANTHROPIC_API_KEY'\]"):
        ORSSource("lab/rich", variant="secretive", secrets={"OPENAI_API_KEY": "own"}).tools  # noqa: B018  # asks
    assert {} == platform.counts()["open"]


def test_required_secrets_are_found(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """A required secret is taken from the mix or the environment variable without being named by the source."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "env")
    spec = MultiOpenRewardSpec({"rich": ORSSource("lab/rich", variant="secretive")}, secrets={"OPENAI_API_KEY": "mix"})
    blueprint = factories(spec)["rich"].blueprint  # type: ignore[attr-defined]  # ours

    assert {"OPENAI_API_KEY": "mix", "ANTHROPIC_API_KEY": "env"} == blueprint.options.secrets


def test_a_mix_takes_secrets_as_a_source_does() -> None:
    """A secret of another form is refused at construction, without its value."""
    with pytest.raises(ConfigError, match=r"the mix: the secret 'A' is neither text nor a pair") as raised:
        MultiOpenRewardSpec({"s": ORSSource("http://127.0.0.1:1")}, secrets={"A": ["s3cret"]})  # type: ignore[dict-item]
    assert "s3cret" not in str(raised.value)


# -- tools that only some tasks have


def test_tools_of_some_tasks_are_reported_and_refused_in_others(zoo_server: ServerHandle) -> None:
    """A task whose tools differ is named before training; calling a tool that it lacks is the policy's mistake."""
    source = ORSSource(zoo_server.url, env_name="pertasktools", indices=[0, 1])

    with (
        pytest.warns(UserWarning, match=r"tool 'act' has different parameters in different tasks \(first in task 1\)"),
        pytest.warns(
            UserWarning, match=r"1 tools are not in all of the 2 probed tasks; 'extra', for one, only in \[1\]"
        ),
    ):
        factory = source.environment_factory
    environment: Any = factory()
    environment.reset(task_index=0)
    with pytest.raises(SessionError, match=r"extra"):
        environment.extra()
    said = environment.look()
    environment._close()

    assert UnscoredReason.BAD_CALL == environment._episode().steps[0].failure
    assert "nothing here" == said


# -- how hard tasks are


@pytest.fixture
def graded(echo_server: ServerHandle, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A platform that knows rollouts of two tasks of `Echo`."""
    rows = [
        {"task_index": 0, "split": "train", "avg_reward": 0.25},
        {"task_index": 2, "split": "train", "avg_reward": 1.0},
        {"task_index": 0, "split": "test", "avg_reward": 0.5},
    ]
    with serve_platform({"lab/echo": echo_server.url}, difficulty={"lab/echo": rows}) as platform:
        monkeypatch.setenv("OPENREWARD_SESSION_URL", platform.session_url)
        monkeypatch.setenv("OPENREWARD_API_URL", platform.api_url)
        monkeypatch.setenv("OPENREWARD_API_KEY", API_KEY)
        yield platform


def test_task_difficulty_is_a_column(graded: Platform, echo_server: ServerHandle) -> None:
    """The average reward that the platform knows stands beside each task of the split, null where it knows none."""
    hard = ORSSource("lab/echo", indices=[2, 1, 0], task_difficulty=True)
    spec = MultiOpenRewardSpec({"hard": hard, "plain": ORSSource(echo_server.url, num_tasks=3)})
    rows = spec.train_dataset.to_list()
    by_task = {(row["environment"], row["task_index"]): row["avg_reward"] for row in rows}

    assert {0: 0.25, 1: None, 2: 1.0} == {index: by_task["hard", index] for index in range(3)}
    assert {None} == {by_task["plain", index] for index in range(3)}
    assert [1.0, None, 0.25] == list(hard.train_dataset["avg_reward"])


def test_without_asking_there_is_no_such_column(echo_server: ServerHandle) -> None:
    """The rows of a mix have one column more only where a source asks for it."""
    spec = MultiOpenRewardSpec({"plain": ORSSource(echo_server.url)})

    assert ["environment", "prompt", "task_index", "slot", "task"] == spec.train_dataset.column_names


def test_a_server_that_is_no_platform_knows_no_difficulty(echo_server: ServerHandle) -> None:
    """Asking a self-hosted server for it is an error before training."""
    source = ORSSource(echo_server.url, task_difficulty=True)

    with pytest.raises(SourceError, match=r"keeps no record of how hard its tasks are; .* Leave task_difficulty out"):
        source.task_list  # noqa: B018  # reading it asks the server


def test_a_platform_that_does_not_answer_for_secrets_is_said(
    graded: Platform, echo_server: ServerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not knowing which secrets are required stops nobody, and is no secret either."""
    monkeypatch.setenv("OPENREWARD_API_URL", "http://127.0.0.1:9")

    with pytest.warns(UserWarning, match=r"source 'lab/echo': .* not known which secrets the environment requires"):
        tools = ORSSource("lab/echo", open_timeout_s=30).tools

    assert "echo" in {tool.name for tool in tools}
