"""The object that TRL resets, calls and reads: its episode, its score, what a failure means, and when it lets go."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multiors.errors import RoutingError, SessionError
from multiors.ors.rollouts.environment import RolloutEnvironment
from multiors.ors.rollouts.factory import EnvironmentFactory
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.source import ORSSource
from multiors.records import Episode, StepRecord, UnscoredReason
from tests.servers.launch import ServerHandle, serve
from tests.servers.raw import serve_raw

UNOPENED = "The environment could not be opened. There is nothing to do here."
FINISHED = "The episode has already finished; this call was not made."
ROLLOUTS = json.loads((Path(__file__).parent / "data" / "step_rewards.json").read_text())["rollouts"]


@pytest.fixture(scope="module")
def factory(echo_server: ServerHandle) -> EnvironmentFactory:
    """Makes environments of `Echo`."""
    return ORSSource(echo_server.url).environment_factory


@pytest.fixture
def idle(echo_server: ServerHandle) -> ServerHandle:
    """The server of `factory` without an open session, its counts at zero."""
    get_runtime().close_now(list(get_runtime()._open))
    echo_server.reset_counts()
    return echo_server


@contextmanager
def fresh(server: ServerHandle, **options: Any) -> Iterator[Any]:
    """An environment before its first reset; its session is closed at the end, its server's counts start at zero."""
    environment = ORSSource(server.url, discover_task_tools=False, **options).environment_factory()
    server.reset_counts()
    try:
        yield environment
    finally:
        environment._close()


def asked(server: ServerHandle) -> dict[str, int]:
    """Requests that a server got, by route, without keepalives: these may still come for sessions just closed."""
    return {route: n for route, n in server.counts().requests.items() if route != "POST /ping"}


# -- an episode


def test_a_reset_opens_a_session_for_the_task(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """The prompt is the environment's, and the session is for exactly the row's task."""
    environment = factory()
    prompt = environment.reset(task_index=3, prompt=[], environment="echo", task='{"id": 1}', anything=object())
    counts = idle.counts()
    environment._close()

    assert "Say fir." == prompt
    assert [("echo", "train", 3)] == [(s["environment"], s["split"], s["index"]) for s in counts.sessions]
    assert {"echo": 1} == counts.active


def test_a_second_reset_closes_the_first_session_and_forgets_its_episode(
    idle: ServerHandle, factory: EnvironmentFactory
) -> None:
    """An environment has one session at a time, and every reset starts from nothing."""
    environment: Any = factory()
    environment.reset(task_index=0)
    environment.echo(text="oak")
    environment.reset(task_index=1)
    counts = idle.wait_until(lambda counts: counts.active == {"echo": 1})
    state = environment.reward, environment.rewards, environment.metadata, environment.finished, environment.last_output
    environment._close()

    assert {"echo": 2} == counts.opened
    assert (None, [], [], False, "") == state
    assert Episode(1, (), opened=True, finished=False) == replace(environment._episode(), session=None, opening_s=None)


def test_a_session_costs_as_few_requests_as_the_sdk_allows(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """An episode of one call is six requests, none redirected, if it is too short for the keepalive."""
    environment: Any = factory()
    environment.reset(task_index=0)
    environment.echo(text="oak")
    environment._close()

    assert {
        "POST /create_session": 1,
        "POST /create": 1,
        "GET /{env}/messages": 1,
        "POST /{env}/call": 1,
        "POST /delete": 1,
        "POST /delete_session": 1,
    } == asked(idle)
    assert {"200"} == set(idle.counts().statuses)


def test_an_episode_is_recorded_step_by_step(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """The episode holds what was sent, what came back, and how long it took, under the server's names."""
    environment: Any = factory()
    environment.reset(task_index=0)
    environment.hint()
    environment.echo("oak")
    environment._close()
    episode = environment._episode()

    assert (0, True, True, None) == (episode.task_index, episode.opened, episode.finished, episode.error)
    assert [
        StepRecord("hint", {}, "o", None, finished=False),
        StepRecord("echo", {"text": "oak"}, "oak", 1.0, finished=True),
    ] == [StepRecord(s.tool, s.arguments, s.output, s.reward, s.finished, s.failure) for s in episode.steps]
    assert all(step.duration_s > 0 for step in episode.steps)


def test_finished_ends_the_episode(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """Rule 18: after `finished` a call is answered without touching the server, and changes no score."""
    environment: Any = factory()
    environment.reset(task_index=0)
    environment.echo(text="oak")
    before = idle.counts().requests["POST /{env}/call"]
    said = [environment.echo(text="wrong"), environment.hint(), environment.echo(txt="no such argument")]
    after = idle.counts().requests["POST /{env}/call"]
    environment._close()

    assert [FINISHED] * 3 == said
    assert before == after == 1
    assert (1.0, [1.0], True) == (environment.reward, environment.rewards, environment.finished)
    assert 1 == len(environment._episode().steps)


def test_an_episode_that_the_server_says_is_over_is_finished() -> None:
    """If only the server knows that the episode ended, the reply with the reward was lost: the policy is not blamed."""
    refusal = '{"ok": false, "reason": "episode_finished", "error": "The episode has finished."}'
    with serve_raw(result=refusal) as server, fresh(server) as environment:
        environment.reset(task_index=0)
        said = [environment.act(), environment.act()]
        num_calls = server.counts().requests["POST /{env}/call"]

    assert [FINISHED] * 2 == said
    episode = environment._episode()
    assert episode.finished
    assert [UnscoredReason.SESSION_LOST] == [step.failure for step in episode.steps]
    assert "a reply that was lost" in (episode.error or "")
    assert 1 == num_calls


@pytest.mark.parametrize("rollout", ROLLOUTS, ids=[json.dumps(rollout["steps"]) for rollout in ROLLOUTS])
def test_the_last_finite_reward_is_the_outcome(rollout: dict[str, Any]) -> None:
    """Rules 2 and 5: zero and negative rewards count; null and bad ones do not erase; a bad one is noted as such."""
    literals = [json.dumps(step).strip('"') for step in rollout["steps"]]
    finish_at = len(literals) if rollout["finished"] else None
    with serve_raw(rewards=literals or ("null",), finish_at=finish_at) as server, fresh(server) as environment:
        environment.reset(task_index=0)
        for _ in literals:
            environment.act()
    bad = [step.failure is UnscoredReason.BAD_REWARD for step in environment._episode().steps]

    assert rollout["outcome_last"] == environment.reward
    assert rollout["finished"] == environment.finished
    assert [literal in ("NaN", "Infinity") for literal in literals] == bad


def test_a_failed_call_does_not_erase_a_score(flaky_server: ServerHandle) -> None:
    """Rule 2: what was scored before the environment broke stays scored."""
    with fresh(flaky_server, env_name="scriptedrewards") as environment:
        environment.reset(task_index=0)
        environment.step()
        environment.step()
        with pytest.raises(SessionError, match="The tool failed"):
            environment.step()

    assert (1.0, [1.0, None, None]) == (environment.reward, environment.rewards)


# -- arguments and names on the wire


def test_left_out_arguments_are_left_out_on_the_wire(zoo_server: ServerHandle) -> None:
    """Only what the policy gave is sent: no default, no null, and nested values as they are."""
    with fresh(zoo_server, env_name="arguments") as environment:
        environment.reset(task_index=0)
        said = [
            environment.send(count=3),
            environment.send(count=3, note=None),
            environment.send(3, path=[{"x": 1, "y": 2.5}], headers={"a b": "c"}),
        ]

    assert [
        {"count": 3},
        {"count": 3, "note": None},
        {"count": 3, "headers": {"a b": "c"}, "path": [{"x": 1.0, "y": 2.5}]},
    ] == [json.loads(each) for each in said]


def test_renamed_tools_reach_the_server_under_their_own_names(tools_server: ServerHandle) -> None:
    """Whatever a tool had to be called in Python, the server is asked for the name it knows."""
    with fresh(tools_server) as environment:
        tools = [tool for tool in environment._blueprint.tools if not any(p.required for p in tool.parameters)]
        environment.reset(task_index=0)
        for tool in tools:
            getattr(environment, tool.name)()
        runs = tools_server.counts().tool_calls

    assert any(tool.name != tool.wire_name for tool in tools)
    assert {"anytools": {tool.wire_name: 1 for tool in tools}} == runs


def test_renamed_arguments_reach_the_server_under_their_own_names() -> None:
    """Parameters, too, keep the server's names on the wire."""
    schema = {"type": "object", "properties": {"from": {"type": "string"}, "a-b": {"type": "integer"}}}
    tools = ({"name": "import", "description": "Import.", "input_schema": schema},)
    with serve_raw(tools=tools) as server, fresh(server) as environment:
        environment.reset(task_index=0)
        environment.import_(from_="x", a_b=1)
        executions = server.counts().details["executions"]

    assert {"import": 1} == executions
    assert [("import", {"from": "x", "a-b": 1})] == [(s.tool, s.arguments) for s in environment._episode().steps]


def test_only_reset_and_the_tools_are_public_methods(factory: EnvironmentFactory) -> None:
    """TRL shows the policy every public method, so there are no others."""
    environment = factory()
    public = {name for name in dir(environment) if not name.startswith("_")}
    methods = {name for name in public if callable(getattr(environment, name))}

    assert {"reset", "echo", "hint"} == methods
    assert {"reward", "rewards", "metadata", "finished", "last_output"} == public - methods


# -- as TRL's adapter


def test_an_episode_looks_as_with_trls_adapter(idle: ServerHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both are defined, prompt, texts, reward, rewards, metadata and finished are those of TRL's own adapter."""
    from trl.experimental.openreward import OpenRewardSpec

    monkeypatch.setenv("OPENREWARD_API_URL", idle.url)
    monkeypatch.setenv("OPENREWARD_SESSION_URL", idle.url)
    theirs = OpenRewardSpec(idle.url)
    seen = []

    for environment in (theirs.environment_factory(), ORSSource(idle.url).environment_factory()):
        observed: list[Any] = [environment.reset(task_index=4)]
        for tool, arguments in (
            ("hint", {}),
            ("echo", {"text": "  wrong\n"}),
            ("echo", {"text": 7}),
            ("echo", {"text": "yew"}),
        ):
            with suppress(SessionError):
                said = getattr(environment, tool)(**arguments)
                observed.append(None if said.startswith("Error:") else said)
            observed.append((environment.reward, environment.finished, len(environment.rewards)))
        observed += [environment.rewards, environment.metadata, environment.last_output]
        environment._close()
        seen.append([each for each in observed if each is not None])
    theirs._sdk_client.close()

    assert seen[0] == seen[1]
    assert [None, 0.0, None, 1.0] == seen[0][-3]


def test_metadata_is_kept_step_by_step(zoo_server: ServerHandle) -> None:
    """What a tool says beside its text stands at the position of its call."""
    with fresh(zoo_server, env_name="counting") as environment:
        environment.reset(task_index=1)
        environment.bump()
        with pytest.raises(SessionError, match="unknown argument"):
            environment.bump(by=2)
        environment.bump()

    assert [{"n": 1}, None, {"n": 2}] == environment.metadata
    assert [1.0, None, 2.0] == environment.rewards


# -- resets that fail


@pytest.mark.parametrize("split", ["init", "setup", "prompt"])
def test_a_task_that_cannot_be_opened_does_not_stop_training(flaky_server: ServerHandle, split: str) -> None:
    """If the environment fails while it opens, the rollout is played without it, unscored, and no session is left."""
    with fresh(flaky_server, env_name="flaky", split=split) as environment:
        prompt = environment.reset(task_index=1)
        flaky_server.wait_until(lambda counts: not counts.active)
        with pytest.raises(SessionError, match=UNOPENED):
            environment.act()
        episode = environment._episode()

    assert UNOPENED == prompt
    assert (1, False, False, None) == (episode.task_index, episode.opened, episode.finished, environment.reward)
    assert [UnscoredReason.UNREACHABLE] == [step.failure for step in episode.steps]
    assert "POST /{env}/call" not in asked(flaky_server)
    assert "the session did not open: " in episode.error
    assert f"flaky {split}" in episode.error


def test_a_server_that_is_down_does_not_stop_training_and_may_come_back(caplog: pytest.LogCaptureFixture) -> None:
    """A dead server makes rollouts unreachable, reported once loudly; when it is back, the next reset works."""
    with serve("Echo") as server, fresh(server, open_timeout_s=0.5) as environment:
        server.kill()
        parts = ("until it is", "within 0.5 s: TimeoutError", "still does not answer", "answers again")
        with caplog.at_level(logging.DEBUG, "multiors.ors"):
            prompts = [environment.reset(task_index=0) for _ in range(2)]
        error = environment._episode().error
        server.restart()
        prompt = environment.reset(task_index=0)
        said = environment.echo(text="oak")

    assert [UNOPENED] * 2 == prompts
    assert "could not be reached before and still does not answer" in error
    assert [
        (logging.WARNING, "until it is"),
        (logging.WARNING, "within 0.5 s: TimeoutError"),
        (logging.DEBUG, "still does not answer"),
        (logging.WARNING, "answers again"),
    ] == [
        (record.levelno, next(part for part in parts if part in record.getMessage()))
        for record in caplog.records
        if record.name == "multiors.ors"
    ]
    assert ("Say oak.", "oak", 1.0, None) == (prompt, said, environment.reward, environment._episode().error)


def test_a_server_that_hangs_while_opening_costs_a_deadline() -> None:
    """A prompt that never comes ends at the deadline, and the half-open session is closed."""
    with serve_raw(hangs_on=("/prompt",)) as server, fresh(server, open_timeout_s=0.3) as environment:
        prompt = environment.reset(task_index=0)
        counts = server.counts()

    assert UNOPENED == prompt
    assert "TimeoutError" in environment._episode().error
    assert ({"raw": 1}, {}) == (counts.deleted, counts.active)


def test_a_session_in_another_form_than_the_sdk_reads_costs_a_deadline() -> None:
    """A JSON answer where ORS streams the session's id ends at the deadline; the SDK alone would ask for ever."""
    with serve_raw(create_session="json") as server, fresh(server, open_timeout_s=0.3) as environment:
        prompt = environment.reset(task_index=0)

    assert UNOPENED == prompt
    assert "TimeoutError" in environment._episode().error


@pytest.mark.parametrize(
    "options",
    [
        {"statuses": {"/create": [500]}},
        {"statuses": {"/prompt": [404]}},
        {"answers": {"/prompt": {"text": "no list"}}},
        {"answers": {"/prompt": ["text"]}},
        {"answers": {"/prompt": None}},
    ],
)
def test_whatever_a_server_answers_while_opening_is_no_crash(options: dict[str, Any]) -> None:
    """Refusals and answers of another shape than ORS defines make a rollout unreachable, nothing more."""
    with serve_raw(**options) as server, fresh(server, retries=0) as environment:
        prompt = environment.reset(task_index=0)
        active = server.counts().active

    assert UNOPENED == prompt
    assert {} == active
    assert environment._episode().error.startswith("the session did not open: ")


def test_an_error_while_opening_does_not_show_the_sessions_id() -> None:
    """The SDK writes session ids into its errors; ours, which reach logs and records, have none."""
    with serve_raw(statuses={"/prompt": [401]}) as server, fresh(server) as environment:
        environment.reset(task_index=0)

    assert "sid=" not in environment._episode().error


@pytest.mark.parametrize("task_index", [None, "3", 1.0, True, [1]])
def test_a_row_without_a_task_index_is_a_routing_error(
    idle: ServerHandle, factory: EnvironmentFactory, task_index: Any
) -> None:
    """A missing or odd task index never silently becomes task 0."""
    with pytest.raises(
        RoutingError, match=r"a row has task_index=.*, which is no whole number\. Train on the train_dataset"
    ):
        factory().reset(task_index=task_index)

    assert {} == asked(idle)


def test_a_task_index_may_be_an_integer_of_numpy(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """What stands for a whole number is one."""
    environment = factory()
    prompt = environment.reset(task_index=np.int64(2))  # type: ignore[arg-type]  # as a row may hold it
    environment._close()

    assert "Say elm." == prompt


def test_a_tool_before_the_first_reset_is_an_error(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """Without a task there is no session to call, and no episode to record it in."""
    environment: Any = factory()
    with pytest.raises(SessionError, match=r"'echo' was called before reset\(\)"):
        environment.echo(text="oak")

    assert {} == asked(idle)
    assert ([], [], Episode(None, (), opened=False, finished=False)) == (
        environment.rewards,
        environment.metadata,
        environment._episode(),
    )


# -- prompts and outputs that are not only text


# -- letting go


def test_close_waits_and_release_does_not(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """Both end the session and keep what was observed; doing it again does nothing."""
    closed, released = factory(), factory()
    for environment in (closed, released):
        environment.reset(task_index=0)
        environment.echo(text="oak")  # type: ignore[attr-defined]  # a tool
    closed._close()
    after_close = idle.counts().deleted
    released._release()
    idle.wait_until(lambda counts: not counts.active)
    closed._close()
    released._release()

    assert {"echo": 1} == after_close
    assert {"echo": 2} == idle.counts().deleted
    assert (1.0, 1.0) == (closed.reward, released.reward)


def test_a_call_after_release_is_a_lost_session(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """A session that was let go is not opened again behind the policy's back."""
    environment: Any = factory()
    environment.reset(task_index=0)
    environment._release()
    with pytest.raises(SessionError, match="The environment is gone"):
        environment.echo(text="oak")
    idle.wait_until(lambda counts: not counts.active)

    assert [UnscoredReason.SESSION_LOST] == [step.failure for step in environment._episode().steps]
    assert {} == idle.counts().tool_calls


def test_dropped_environments_leave_no_session(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """Rule 17: environments that nobody closed close their sessions when they are gone."""
    environments = [factory() for _ in range(4)]
    for environment in environments:
        environment.reset(task_index=0)
    opened = idle.counts().active
    del environments, environment
    gc.collect()

    assert {"echo": 4} == opened
    assert {"echo": 4} == idle.wait_until(lambda counts: counts.deleted == opened).deleted


# -- factories and classes


def test_a_source_has_one_class_in_a_process(factory: EnvironmentFactory) -> None:
    """TRL compares classes exactly: every environment of a source, also of its unpickled factory, has the same one."""
    unpickled: EnvironmentFactory = pickle.loads(pickle.dumps(factory))

    assert type(factory()) is type(factory()) is type(unpickled())
    assert factory == unpickled
    assert issubclass(type(factory()), RolloutEnvironment)


def test_equal_sources_have_classes_of_their_own(echo_server: ServerHandle, factory: EnvironmentFactory) -> None:
    """Two sources with the same settings are told apart, and each class is named like its source."""
    source = ORSSource(echo_server.url, discover_task_tools=False)
    twin = source.named("twin")
    classes = [type(each()) for each in (factory, source.environment_factory, twin.environment_factory)]

    assert 3 == len(set(classes))
    assert [echo_server.url, echo_server.url, "twin"] == [each.__name__ for each in classes]


def _play_in_child(factory: EnvironmentFactory, channel: Connection) -> None:
    environment: Any = factory()
    prompt = environment.reset(task_index=5)
    channel.send((prompt, environment.echo(text="box"), environment.reward, type(environment).__name__))


def test_a_spawned_worker_plays_with_the_pickled_factory(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """AsyncGRPO spawns its rollout worker: the factory goes there by pickle, plays, and leaves no session behind."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_play_in_child, args=(factory, theirs))
    worker.start()
    theirs.close()
    received = ours.recv() if ours.poll(60) else None
    worker.join(60)

    assert ("Say box.", "box", 1.0, idle.url) == received
    assert 0 == worker.exitcode
    assert ({"echo": 1}, {}) == (idle.counts().opened, idle.counts().active)
