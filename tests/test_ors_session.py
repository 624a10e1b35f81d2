"""One tool call: it runs at most once, its text arrives byte for byte, and what goes wrong has exactly one reason."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError, SessionError, SourceError
from multiors.numeric import parse_step_reward
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.source import ORSSource
from multiors.records import UnscoredReason
from tests.servers.launch import ServerHandle, configured, serve
from tests.servers.misbehaving import Kind, long_text
from tests.servers.platform import API_KEY, serve_platform
from tests.servers.raw import Cut, serve_raw

ENDED = "The environment is gone; the episode cannot go on."
SLACK_S = 5.0  # for a busy machine, on top of a deadline


@contextmanager
def playing(server: ServerHandle | str, *, task_index: int = 0, **options: Any) -> Iterator[Any]:
    """A rollout's environment, reset to a task; its session is closed at the end, its server's counts start at zero."""
    url = server if isinstance(server, str) else server.url
    environment = ORSSource(url, discover_task_tools=False, **options).environment_factory()
    if isinstance(server, ServerHandle):
        server.reset_counts()
    environment.reset(task_index=task_index)
    try:
        yield environment
    finally:
        environment._close()


def failures(environment: Any) -> list[UnscoredReason | None]:
    """What went wrong with each call of the rollout."""
    return [step.failure for step in environment._episode().steps]


# -- texts


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_text_reaches_the_policy_byte_for_byte(flaky_server: ServerHandle, kind: Kind) -> None:
    """Long texts keep their white space and every character; only an empty answer is put into words, as TRL does."""
    with playing(flaky_server, env_name="longoutput") as environment:
        said = environment.print_text(kind=kind)

    assert (long_text(kind) or "(no output)") == said
    assert said == environment.last_output == environment._episode().steps[0].output


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("chunk_size", [1, 7])
def test_how_a_server_cuts_its_stream_does_not_matter(newline: str, chunk_size: int) -> None:
    """Either line ending, and chunks of any size, give the same text."""
    output = "  two spaces, a \t tab, a \n break, é \u2028 \U0001f680: : end "
    with serve_raw(output=output, newline=newline, chunk_size=chunk_size) as server, playing(server) as environment:
        said = environment.act()

    assert output == said


# -- once


@pytest.mark.parametrize("cut", ["no_response", "before_events"])
def test_a_call_that_broke_before_it_was_named_is_lost_and_not_repeated(cut: Cut) -> None:
    """Without a task_id the outcome of a broken call is unknown: the tool ran once, and the session is lost."""
    with serve_raw(cut=cut) as server, playing(server) as environment:
        with pytest.raises(SessionError, match=ENDED):
            environment.act()
        counts = server.counts()

    assert {"act": 1} == counts.details["executions"]
    assert 0 == counts.resumed_calls
    assert [UnscoredReason.SESSION_LOST] == failures(environment)
    assert environment.reward is None
    assert "the outcome of the call is unknown" in environment._episode().error


@pytest.mark.parametrize("cut", ["after_task_id", "mid_chunk"])
@pytest.mark.parametrize("cut_times", [1, 2])
def test_a_call_that_broke_after_it_was_named_is_resumed(cut: Cut, cut_times: int) -> None:
    """With a task_id the stream is asked for again: the tool ran once, and its whole answer arrives."""
    output = "whole " * 2000
    with serve_raw(cut=cut, cut_times=cut_times, output=output, finish_at=1) as server, playing(server) as environment:
        said = environment.act()
        counts = server.counts()

    assert output == said
    assert (1.0, True, [None]) == (environment.reward, environment.finished, failures(environment))
    assert {"act": 1} == counts.details["executions"]
    assert cut_times == counts.resumed_calls


def test_a_resumed_call_that_the_server_forgot_is_lost() -> None:
    """If the server does not know the task_id any more, the tool may have run: lost, never a tool error."""
    with serve_raw(cut="after_task_id", forgets_tasks=True) as server, playing(server) as environment:
        with pytest.raises(SessionError, match=ENDED):
            environment.act()
        counts = server.counts()

    assert {"act": 1} == counts.details["executions"]
    assert [UnscoredReason.SESSION_LOST] == failures(environment)


def test_resuming_is_bounded() -> None:
    """A stream that breaks every time is given up after a few attempts, and still the tool ran once."""
    with serve_raw(events=()) as server, playing(server) as environment:
        with pytest.raises(SessionError, match=ENDED):
            environment.act()
        counts = server.counts()

    assert {"act": 1} == counts.details["executions"]
    assert 5 == counts.requests["POST /{env}/call"]
    assert [UnscoredReason.SESSION_LOST] == failures(environment)


@pytest.mark.parametrize("told", ["cut_before_task_id", "cut_after_task_id"])
def test_a_proxy_that_cuts_a_call_does_not_run_it_twice(mixed_server: ServerHandle, told: str) -> None:
    """Behind a platform's proxy, too, a cut call runs once: lost before the task_id, delivered after it."""
    options: dict[str, Any] = {"env_name": "lab/mixed", "variant": "sorting", "api_key": API_KEY}
    with (
        serve_platform({"lab/mixed": mixed_server.url}) as platform,
        playing(platform.api_url, session_url=platform.session_url, **options) as environment,
    ):
        mixed_server.reset_counts()
        platform.tell(**{told: 1})
        if told == "cut_before_task_id":
            with pytest.raises(SessionError, match=ENDED):
                environment.submit(order=[1, 2, 0])
        else:
            environment.submit(order=[1, 2, 0])
        runs = mixed_server.counts().tool_calls

    assert {"sorting": {"submit": 1}} == runs
    assert (None if told == "cut_before_task_id" else 10.0) == environment.reward


@pytest.mark.parametrize("told", ["starting", "busy"])
def test_a_call_that_provably_did_not_run_is_sent_again(echo_server: ServerHandle, told: str) -> None:
    """After "still starting" or "too many requests", which come from in front of the environment, comes another try."""
    with (
        serve_platform({"lab/echo": echo_server.url}) as platform,
        playing(
            platform.api_url, env_name="lab/echo", session_url=platform.session_url, api_key=API_KEY
        ) as environment,
    ):
        echo_server.reset_counts()
        platform.tell(**{told: 1}, on="/call")
        said = environment.echo(text="oak")
        runs = echo_server.counts().tool_calls

    assert "oak" == said
    assert {"echo": {"echo": 1}} == runs


def test_a_status_that_says_nothing_of_the_call_is_not_answered_with_another(zoo_server: ServerHandle) -> None:
    """A bare 502 or 503 may hide a call that ran: lost, and not repeated."""
    with serve_raw(statuses={"/call": [502]}) as server, playing(server) as environment:
        with pytest.raises(SessionError, match=ENDED):
            environment.act()
        counts = server.counts()

    assert 1 == counts.requests["POST /{env}/call"]
    assert [UnscoredReason.SESSION_LOST] == failures(environment)


# -- deadlines


def test_a_tool_that_takes_too_long_is_lost_within_the_deadline() -> None:
    """A call ends at its deadline, its session is closed, and later calls do not reach the server."""
    with (
        serve(configured("Slow", TOOL_S=60.0)) as server,
        playing(server, call_timeout_s=0.3) as environment,
    ):
        started = time.monotonic()
        with pytest.raises(SessionError, match=ENDED):
            environment.work()
        took_s = time.monotonic() - started
        server.wait_until(lambda counts: not counts.active)
        with pytest.raises(SessionError, match=ENDED):
            environment.work()
        runs = server.counts().tool_calls

    assert took_s < 0.3 + SLACK_S
    assert {"slow": {"work": 1}} == runs
    assert [UnscoredReason.SESSION_LOST] * 2 == failures(environment)
    assert "no answer within 0.3 s" in environment._episode().error


def test_the_deadline_of_a_call_covers_its_retries() -> None:
    """A server that cannot be reached costs a call its deadline at most."""
    with serve_raw() as server, playing(server, call_timeout_s=0.7) as environment:
        server.kill()
        started = time.monotonic()
        with pytest.raises(SessionError, match=ENDED):
            environment.act()
        took_s = time.monotonic() - started
        server.restart()  # so that closing the session finds a server

    assert took_s < 0.7 + SLACK_S
    assert [UnscoredReason.SESSION_LOST] == failures(environment)


# -- rewards


@pytest.mark.parametrize(
    ("literal", "reward"),
    [
        ("1.0", 1.0),
        ("0.0", 0.0),
        ("-1.5", -1.5),
        ("3", 3.0),
        ("true", 1.0),
        ("false", 0.0),
        ("1e-400", 0.0),
        ("null", None),
    ],
)
def test_a_finite_number_is_the_reward(literal: str, reward: float | None) -> None:
    """JSON numbers and booleans are rewards, zero and negative ones too; null says nothing."""
    with serve_raw(rewards=(literal,)) as server, playing(server) as environment:
        environment.act()

    assert repr(reward) == repr(environment.reward)
    assert [None] == failures(environment)


@pytest.mark.parametrize(
    "literal", ["NaN", "Infinity", "-Infinity", "1e400", "1" * 400, '"0.7"', "[1.0]", '{"reward": 1.0}', '"x" ']
)
def test_a_reward_that_is_no_finite_number_is_the_servers_error(literal: str) -> None:
    """Anything else never becomes a number: the step is unscored with a reason, and the episode goes on."""
    with serve_raw(rewards=("0.5", literal, "0.25")) as server, playing(server) as environment:
        said = [environment.act() for _ in range(2)]
        after_the_bad_one = environment.reward
        environment.act()

    assert ["acted"] * 2 == said
    assert 0.5 == after_the_bad_one
    assert [0.5, None, 0.25] == environment.rewards
    assert [None, UnscoredReason.BAD_REWARD, None] == failures(environment)
    assert "source 'raw'" not in environment._episode().error
    assert "tool 'act' sent the reward" in environment._episode().error


@given(st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(), st.lists(st.floats())))
def test_a_step_reward_is_finite_or_missing(value: object) -> None:
    """A parsed step reward is a finite float or None, and None is a fault exactly where the server sent something."""
    reward, is_bad = parse_step_reward(value)

    assert reward is None or (type(reward) is float and math.isfinite(reward))
    assert is_bad == (reward is None and value is not None)


# -- replies that are none


@pytest.mark.parametrize(
    "result",
    [
        "no JSON",
        "null",
        "[]",
        "7",
        "{}",
        '{"ok": true}',
        '{"ok": true, "output": {"blocks": null}}',
        '{"ok": false}',
        "",
    ],
)
def test_a_reply_that_is_not_what_ors_defines_is_a_lost_session(result: str) -> None:
    """A reply that cannot be read leaves the outcome unknown: no number, no second execution."""
    with serve_raw(result=result) as server, playing(server) as environment:
        with pytest.raises(SessionError, match=ENDED):
            environment.act()
        executions = server.counts().details["executions"]

    assert {"act": 1} == executions
    assert [UnscoredReason.SESSION_LOST] == failures(environment)
    assert "the reply is not what ORS defines" in environment._episode().error


def test_an_answer_that_is_no_event_stream_is_a_lost_session() -> None:
    """JSON where ORS streams events is not read as an answer, and not asked for again."""
    reply = {"ok": True, "output": {"blocks": [], "metadata": None, "reward": 1.0, "finished": False}}
    with serve_raw(answers={"/call": reply}) as server, playing(server) as environment:
        with pytest.raises(SessionError, match=ENDED):
            environment.act()
        num_requests = server.counts().requests["POST /{env}/call"]

    assert 1 == num_requests
    assert [UnscoredReason.SESSION_LOST] == failures(environment)
    assert "not an event stream" in environment._episode().error


@pytest.mark.parametrize(
    ("options", "detail"), [({"lost_after": 0}, "HTTP 404"), ({"statuses": {"/call": [410]}}, "HTTP 410")]
)
def test_a_session_that_the_server_does_not_know_is_lost(options: dict[str, Any], detail: str) -> None:
    """404 and 410 end the episode: the session is lost, and nothing more is sent to it."""
    with serve_raw(**options) as server, playing(server) as environment:
        for _ in range(2):
            with pytest.raises(SessionError, match=ENDED):
                environment.act()
        counts = server.counts()

    assert 1 == counts.requests["POST /{env}/call"]
    assert {} == counts.details["executions"]
    assert [UnscoredReason.SESSION_LOST] * 2 == failures(environment)
    assert detail in environment._episode().error


def test_a_server_that_restarts_loses_the_session_but_not_the_score() -> None:
    """What was scored before the server forgot the session stays the reward; the next reset opens a new one."""
    with serve("Echo") as server, playing(server) as environment:
        environment.echo(text="wrong")
        server.restart()
        with pytest.raises(SessionError, match=ENDED):
            environment.echo(text="oak")
        lost = environment.reward, failures(environment)
        prompt = environment.reset(task_index=1)
        said = environment.echo(text="ash")

    assert (0.0, [None, UnscoredReason.SESSION_LOST]) == lost
    assert ("Say ash.", "ash", 1.0) == (prompt, said, environment.reward)


def test_a_session_that_the_keepalive_gave_up_is_lost(echo_server: ServerHandle) -> None:
    """If the SDK's keepalive declares a session dead, the next call is answered without a request."""
    from openreward.api._session.ping import ErrorResponse

    with playing(echo_server) as environment:
        session = environment._lease.session._session

        async def declare_dead() -> None:
            session._mark_dead(ErrorResponse(type="error", message="no pings"))

        get_runtime().run(declare_dead)
        with pytest.raises(SessionError, match=ENDED):
            environment.echo(text="oak")

    assert {} == echo_server.counts().tool_calls
    assert [UnscoredReason.SESSION_LOST] == failures(environment)


# -- the environment's own errors


@pytest.mark.parametrize("split", ["tool", "tool_type"])
def test_a_tool_that_raises_is_a_tool_error_and_ends_the_episode(flaky_server: ServerHandle, split: str) -> None:
    """If the environment's code fails, the policy is told so in one sentence, and later calls reach no server."""
    with playing(flaky_server, env_name="flaky", split=split) as environment:
        environment.rest()
        with pytest.raises(SessionError, match=r"^The tool failed; the episode cannot go on\.$"):
            environment.act()
        flaky_server.wait_until(lambda counts: not counts.active)
        flaky_server.reset_counts()
        with pytest.raises(SessionError, match=ENDED):
            environment.rest()

    assert "POST /{env}/call" not in flaky_server.counts().requests
    assert 0.5 == environment.reward
    assert [None, UnscoredReason.TOOL_ERROR, UnscoredReason.TOOL_ERROR] == failures(environment)


# -- the policy's errors


def test_refused_arguments_are_a_bad_call_and_the_episode_goes_on(echo_server: ServerHandle) -> None:
    """The server's reason reaches the policy, which may try again in the same session."""
    with playing(echo_server) as environment:
        with pytest.raises(SessionError, match=r"text.*(\n.*)*valid string"):
            environment.echo(text=7)
        said = environment.echo(text="oak")

    assert "oak" == said
    assert (1.0, [None, 1.0]) == (environment.reward, environment.rewards)
    assert [UnscoredReason.BAD_CALL, None] == failures(environment)
    assert {"echo": 1} == echo_server.counts().opened


@pytest.mark.parametrize("arguments", [{}, {"txt": "oak"}, {"text": "oak", "loud": True}])
def test_arguments_that_the_tool_does_not_have_are_a_bad_call(echo_server: ServerHandle, arguments: Any) -> None:
    """Missing and unknown arguments are refused with what the tool takes, before anything is sent."""
    with (
        playing(echo_server) as environment,
        pytest.raises(SessionError, match=r"^The tool 'echo' .*It takes: text\.$"),
    ):
        environment.echo(**arguments)

    assert "POST /{env}/call" not in echo_server.counts().requests
    assert [UnscoredReason.BAD_CALL] == failures(environment)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("half \ud83d of a pair", "half of a surrogate pair"),
        (math.nan, "not JSON"),
        (-math.inf, "not JSON"),
        ({"a", "set"}, "not JSON"),
        ([{"deep": "\udc00"}], "half of a surrogate pair"),
    ],
)
def test_arguments_that_json_cannot_carry_are_a_bad_call(echo_server: ServerHandle, value: object, reason: str) -> None:
    """What no JSON text can say is refused before anything is sent, and the episode goes on."""
    with playing(echo_server) as environment:
        with pytest.raises(SessionError, match=reason):
            environment.echo(text=value)
        before = echo_server.counts().tool_calls
        said = environment.echo(text="\U0001f680 \u0000 \u2028")

    assert {} == before
    assert "\U0001f680 \u0000 \u2028" == said
    assert [UnscoredReason.BAD_CALL, None] == failures(environment)


# -- what the policy is told


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ('{"ok": false, "reason": "input_validation", "error": "%s"}', UnscoredReason.BAD_CALL),
        ('{"ok": false, "error": "%s"}', UnscoredReason.BAD_CALL),
        (None, UnscoredReason.TOOL_ERROR),
        ("%s", UnscoredReason.SESSION_LOST),
    ],
)
def test_the_policy_is_told_no_secret_no_session_and_no_trace(
    result: str | None, reason: UnscoredReason, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a server puts into an error, the policy reads one short line without secrets, ids and escapes."""
    leak = "own-key s3cret t0ken {sid} \\u001b[31mred\\u001b[0m\\nTraceback (most recent call last):" + " x" * 5000
    fields: dict[str, Any] = {"events": (("error", json.loads(f'"{leak}"').replace("\n", " ")),)}
    if result is not None:
        fields = {"result": result % leak}
    secrets = {"HF_TOKEN": "s3cret", "other": ("t0ken", ["example.org"])}
    with serve_raw(**fields) as server, playing(server, api_key="own-key", secrets=secrets) as environment:
        sid = environment._lease.session.sid
        with pytest.raises(SessionError) as raised:
            environment.act()
    told = [str(raised.value), environment.last_output, environment._episode().error or "", caplog.text]

    assert [reason] == failures(environment)
    for text in told:
        assert [] == [each for each in ("own-key", "s3cret", "t0ken", sid, "\x1b") if each in text]
    assert "\n" not in told[0]
    assert len(told[0]) <= 500


# -- secrets


def test_secrets_reach_the_environment(echo_server: ServerHandle) -> None:
    """A session is created with its secrets: names the SDK knows with their hosts, others with the hosts given."""
    secrets = {"HF_TOKEN": "t", "plain": "p", "paired": ("q", ["example.org"]), "listed": ["r", ["example.org"]]}
    with playing(echo_server, secrets=secrets):
        (sent,) = echo_server.counts().secrets

    assert {"HF_TOKEN": "t", "plain": "p", "paired": "q", "listed": "r"} == {name: sent[name]["value"] for name in sent}
    assert ["example.org"] == sent["paired"]["allowed_domains"] == sent["listed"]["allowed_domains"]
    assert [] == sent["plain"]["allowed_domains"]
    assert "huggingface.co" in sent["HF_TOKEN"]["allowed_domains"]


def test_a_platform_must_be_told_where_an_unknown_secret_may_go(echo_server: ServerHandle) -> None:
    """A platform restricts secrets to hosts, so a bare secret of unknown name is an error that does not repeat it."""
    with serve_platform({"lab/echo": echo_server.url}) as platform:
        source = ORSSource(
            platform.api_url,
            env_name="lab/echo",
            session_url=platform.session_url,
            api_key=API_KEY,
            secrets={"MY_TOKEN": "s3cret"},
        )
        with pytest.raises(SourceError, match=r"source 'lab/echo': .* 'MY_TOKEN' may go to\. Pass it as") as raised:
            source.tools  # noqa: B018  # reading it asks the server

    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("secret", [7, ["s3cret"], ("s3cret", "example.org"), ("s3cret", ["h"], 1), {"s3cret": []}])
def test_a_secret_of_another_form_is_an_error_at_construction(secret: Any) -> None:
    """A secret is text, or text with its hosts; anything else is refused, and not repeated."""
    with pytest.raises(
        ConfigError, match=r"the secret 'MY_TOKEN' is neither text nor a pair\. Pass its value"
    ) as raised:
        ORSSource("http://127.0.0.1:1", secrets={"MY_TOKEN": secret})

    assert "s3cret" not in str(raised.value)
