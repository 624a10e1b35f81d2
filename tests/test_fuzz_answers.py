"""Ten thousand broken answers: each is an error of its own kind, with a reason, and none is a number or a hang."""

from __future__ import annotations

import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar
from unicodedata import category

import pytest

from multiors.errors import SessionError, SourceError
from multiors.ors.faults import OPEN_ERRORS
from multiors.ors.rollouts.ahead import Answer as Asked
from multiors.ors.rollouts.ahead import ask
from multiors.ors.rollouts.comparison import start_comparison
from multiors.ors.rollouts.opening import Opening
from multiors.ors.sessions.calls import CallFailed, ToolReply
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.source import ORSSource
from multiors.records import UnscoredReason
from tests.broken_answers import break_answer
from tests.servers.launch import ServerHandle
from tests.servers.replay import CALL, SCORE_GROUP, Answer, serve_replay, tell

T = TypeVar("T")

# Long enough for a busy machine; a broken stream is resumed until then, and hundreds wait at the same time.
DEADLINE_S = 4.0
SHARE = 10 if os.environ.get("FAST") else 1
NUM_CALLS, NUM_GROUPS, NUM_OPENINGS, NUM_SOURCES = 5_000 // SHARE, 1_200 // SHARE, 1_800 // SHARE, 2_000 // SHARE
NUM_ROLLOUTS = 280 // SHARE
NUM_THREADS = 256

OPENING_ROUTES = ("/create_session", "/create", "/prompt", "/messages")
CLOSING_ROUTES = ("/delete", "/delete_session", "/ping")
TASK_ROUTES = ("/list_environments", "/num_tasks", "/task_range", "/tasks", "/splits")
TOOL_ROUTES = ("/tools", "/task_tools")
NO_SUCH_ROUTE = Answer(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ending="stay")
NO_SUCH_SPLIT = Answer(b'HTTP/1.1 400 Bad\r\nContent-Length: 27\r\n\r\n{"detail": "Invalid split"}', ending="stay")

pytestmark = [
    pytest.mark.timeout(300),
    # What a source says of odd tools and of tasks that could not be probed.
    pytest.mark.filterwarnings("ignore:source '.*:UserWarning"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerHandle]:
    """Answers what a test tells it."""
    with serve_replay() as handle:
        yield handle


@pytest.fixture(scope="module")
def factory(server: ServerHandle) -> Any:
    """Makes environments of the case that its endpoint names; as such they answer soundly."""
    deadlines: dict[str, Any] = {"open_timeout_s": DEADLINE_S, "call_timeout_s": DEADLINE_S}
    return ORSSource(server.url, env_name="sound", images="show", **deadlines).environment_factory


def pose_as(factory: Any, case: str, *, has_messages: bool = False) -> Any:
    """The factory of a source of its own on the same server."""
    options = replace(factory.blueprint.options, has_messages=has_messages)
    endpoints = tuple(replace(each, deployment=case, environment=case) for each in factory.blueprint.endpoints)
    posing = replace(factory.blueprint, label=case, identity=case, endpoints=endpoints, options=options)
    return replace(factory, blueprint=posing)


def make_cases(routes: Sequence[str], number: int, *, seed: int) -> dict[str, dict[str, Answer]]:
    """Broken answers to each route in turn, by case."""
    rng = random.Random(seed)
    cases = [(f"case-{seed}-{i}", routes[i % len(routes)]) for i in range(number)]
    return {case: {route: break_answer(route, case, rng)} for case, route in cases}


def play_all(play: Callable[[str], T], cases: Iterable[str]) -> dict[str, T | Exception]:
    """What each case came to, many played at the same time."""
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        futures = {case: threads.submit(play, case) for case in cases}

    errors = {case: future.exception() for case, future in futures.items()}
    return {case: error if isinstance(error, Exception) else futures[case].result() for case, error in errors.items()}


def unexpected(outcomes: Mapping[str, object], *expected: type) -> dict[str, object]:
    """Those outcomes that are of no expected type."""
    return {case: outcome for case, outcome in outcomes.items() if not isinstance(outcome, expected)}


# -- calls


@pytest.fixture(scope="module")
def call_outcomes(server: ServerHandle, factory: Any) -> dict[str, Asked | Exception]:
    """What thousands of calls came to that were answered brokenly, all in one session."""
    cases = make_cases([CALL], NUM_CALLS, seed=1)
    tell(server, cases)
    opening = Opening(factory.blueprint, 0)
    session = opening.wait()
    outcomes = play_all(lambda case: get_runtime().run(ask, session, case, {}), cases)
    opening.discard()
    return outcomes


def test_a_broken_answer_to_a_call_is_a_reply_or_has_a_reason(call_outcomes: dict[str, Asked | Exception]) -> None:
    """Whatever comes back, the call ends as a reply or as one of the reasons of a call, and never as an exception."""
    replies = [answer.reply for answer in call_outcomes.values() if isinstance(answer, Asked)]
    reasons = Counter(reply.reason for reply in replies if isinstance(reply, CallFailed))

    assert NUM_CALLS == len(call_outcomes)
    assert {} == unexpected(call_outcomes, Asked)
    assert {UnscoredReason.SESSION_LOST, UnscoredReason.BAD_CALL, UnscoredReason.TOOL_ERROR} >= set(reasons)
    assert any(isinstance(reply, ToolReply) for reply in replies)
    assert reasons[UnscoredReason.SESSION_LOST] > 0


def test_a_broken_answer_never_becomes_a_number(call_outcomes: dict[str, Asked | Exception], factory: Any) -> None:
    """A rollout that was answered so has a finite reward or none, and each step without one says why if it must."""
    environments = []

    for answer in call_outcomes.values():
        if isinstance(answer, Asked):
            environment = factory()
            environment._clear(0)
            with suppress(SessionError):
                environment._record_answer("act", {}, answer)
            environments.append(environment)

    rewards = [environment.reward for environment in environments]
    failed = [environment._steps[0].failure is not None for environment in environments]
    assert [] == [reward for reward in rewards if reward is not None and not math.isfinite(reward)]
    assert [] == [reward for reward, is_failed in zip(rewards, failed, strict=True) if is_failed and reward is not None]
    assert any(reward == 1.0 for reward in rewards)


def note(factory: Any, verdict: tuple[UnscoredReason, str]) -> str:
    """What the record of a rollout says that could not be compared."""
    environment = factory()
    environment._clear(0)
    environment._note_comparison(*verdict)
    return str(environment._episode().error)


def test_a_broken_comparison_of_a_group_is_a_number_or_has_a_reason(server: ServerHandle, factory: Any) -> None:
    """Each rollout of the group has a finite score, or a reason and a clean line that says why not."""
    cases = make_cases([SCORE_GROUP], NUM_GROUPS, seed=5)
    tell(server, cases)
    opening = Opening(factory.blueprint, 0)
    session = opening.wait()

    def play(case: str) -> list[Any]:
        candidates: list[dict[str, Any]] = [{"messages": [], "metadata": each} for each in (case, None)]
        return start_comparison(session, candidates).result()

    outcomes = play_all(play, cases)
    opening.discard()
    verdicts = [verdict for outcome in outcomes.values() if isinstance(outcome, list) for verdict in outcome]
    scores = [verdict for verdict in verdicts if isinstance(verdict, float)]
    told = [note(factory, verdict) for verdict in verdicts if isinstance(verdict, tuple)]
    assert {} == unexpected(outcomes, list)
    assert 2 * NUM_GROUPS == len(verdicts) == len(scores) + len(told)
    assert all(map(math.isfinite, scores))
    assert [] == [line for line in told if any(category(each) in ("Cc", "Cf", "Zl", "Zp") for each in line)]
    assert {0.5, 1.0} <= set(scores)


def test_arguments_too_deep_to_send_are_the_policys_fault(server: ServerHandle, factory: Any) -> None:
    """What JSON cannot be written of is refused before anything is sent."""
    tell(server, {})
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    opening = Opening(factory.blueprint, 0)
    answer = get_runtime().run(ask, opening.wait(), "act", {"x": deep})
    opening.discard()

    assert isinstance(answer.reply, CallFailed)
    assert UnscoredReason.BAD_CALL is answer.reply.reason


# -- sessions


def test_a_broken_answer_while_opening_is_an_error_that_a_reset_expects(server: ServerHandle, factory: Any) -> None:
    """A session opens or does not, in its time, with an error that does not stop training; none stays open."""
    cases = make_cases(OPENING_ROUTES, NUM_OPENINGS, seed=2)
    tell(server, cases)

    def play(case: str) -> str | None:
        opening = Opening(pose_as(factory, case, has_messages="/messages" in cases[case]).blueprint, 0)
        try:
            return opening.wait().sid
        except OPEN_ERRORS:
            return None
        finally:
            opening.discard()

    outcomes = play_all(play, cases)
    get_runtime().close_now([])
    counts = server.wait_until(lambda counts: not counts.active)
    assert {} == unexpected(outcomes, str, type(None))
    assert {str, type(None)} == set(map(type, outcomes.values()))
    assert counts.opened["replay"] > 0


def test_broken_answers_in_whole_rollouts_stop_nothing(server: ServerHandle, factory: Any) -> None:
    """Reset, call and close go through whatever each of them is answered, and leave no session."""
    cases: dict[str, dict[str, Answer]] = {}
    routes = (*OPENING_ROUTES, *CLOSING_ROUTES)
    for seed, route in enumerate(routes, 10):
        cases |= make_cases([route], NUM_ROLLOUTS // len(routes), seed=seed)
    tell(server, cases)

    def play(case: str) -> float | None:
        environment = pose_as(factory, case, has_messages="/messages" in cases[case])()
        environment.reset(task_index=0)
        with suppress(SessionError):
            environment.act()
        environment._close()
        reward: float | None = environment.reward
        return reward

    rewards = play_all(play, cases)

    server.wait_until(lambda counts: not counts.active)
    assert {} == unexpected(rewards, float, type(None))
    assert {None, 1.0} == set(rewards.values())


# -- before training


@pytest.mark.parametrize(("routes", "seed"), [(TASK_ROUTES, 3), (TOOL_ROUTES, 4)])
def test_a_broken_answer_before_training_is_an_error_that_names_the_source(
    server: ServerHandle, routes: Sequence[str], seed: int
) -> None:
    """A source has its tasks and tools, or one error of its own kind that says which source it is."""
    cases = make_cases(routes, NUM_SOURCES // 2, seed=seed)
    for by_route in cases.values():
        # Asked for only where others do not help.
        if "/tasks" in by_route:
            by_route["/task_range"] = NO_SUCH_ROUTE
        elif "/splits" in by_route:
            by_route["/task_range"] = NO_SUCH_SPLIT
    tell(server, cases)

    def play(case: str) -> int:
        include_metadata = "/num_tasks" not in cases[case]
        source = ORSSource(server.url, env_name=case, open_timeout_s=DEADLINE_S, include_metadata=include_metadata)
        if routes is TOOL_ROUTES:
            return len(source.describe_tools())
        return len(source.task_list.indices)

    outcomes = play_all(play, cases)
    errors = {case: str(error) for case, error in outcomes.items() if isinstance(error, SourceError)}
    server.wait_until(lambda counts: not counts.active)
    assert {} == unexpected(outcomes, SourceError, int)
    assert {} == {case: text for case, text in errors.items() if not text.startswith(f"source {case!r}: ")}
    assert {} == {case: text for case, text in errors.items() if not text.isprintable() or len(text) > 1_500}
    assert 0 < len(errors) < len(outcomes)


# -- each of these once got through


def http(status: str, body: str, *headers: str, kind: str = "application/json") -> Answer:
    """A well-formed answer."""
    raw = body.encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(raw)}", *headers, "", ""]
    return Answer("\r\n".join(lines).encode() + raw, ending="stay")


def events(*said: str) -> Answer:
    """A stream of events, each `name: data`."""
    pairs = [each.partition(": ") for each in said]
    text = "".join(f"event: {name}\ndata: {data}\n\n" for name, _, data in pairs)
    return http("200 OK", text, kind="text/event-stream")


def nest(levels: int) -> str:
    """A list in a list in a list."""
    return "[" * levels + "]" * levels


def end(output: str) -> Answer:
    """A call's result with something in place of its reward."""
    return events("task_id: t", f'end: {{"ok": true, "output": {{"blocks": [], "reward": {output}}}}}')


CALL_ANSWERS = {
    "deep reply": events("task_id: t", f"end: {nest(100_000)}"),
    "deep reward": end(nest(960)),
    "deep refusal": http("404 Not Found", f'{{"detail": {nest(100_000)}}}'),
    "infinite reward": end("1e999"),
    "reward of 5,000 digits": end("9" * 5_000),
    "odd digit in a header": http("418 Odd", "", "Retry-After: \u00b2"),
    "redirect to another host": http("308 Moved", "", "Location: http://127.0.0.2:1/call"),
    "redirect to a mailbox": http("308 Moved", "", "Location: mailto:a@example.com"),
    "redirect to no address": http("302 Found", "", "Location: //["),
}


@pytest.mark.parametrize("answer", CALL_ANSWERS.values(), ids=CALL_ANSWERS)
def test_an_odd_answer_to_a_call_leaves_a_rollout_unscored(server: ServerHandle, factory: Any, answer: Answer) -> None:
    """The policy is told, or reads what there is; the step has no reward and says why."""
    tell(server, {"act": {CALL: answer}})
    environment = factory()
    environment.reset(task_index=0)
    with suppress(SessionError):
        environment.act()
    environment._close()
    (step,) = environment._episode().steps

    assert environment.reward is None
    assert step.failure in (UnscoredReason.SESSION_LOST, UnscoredReason.BAD_REWARD)


OPENING_ANSWERS = {
    "deep prompt": ("/prompt", http("200 OK", nest(100_000))),
    "prompt of a number": ("/prompt", http("200 OK", '[{"type": "text", "text": 1.5}]')),
    "deep error": ("/prompt", http("500 Odd", f'{{"detail": {nest(100_000)}}}')),
    "refused politely": ("/create_session", events("error: no room")),
    "no id": ("/create_session", events("task_id: ", "end: ")),
    "odd digit in a header": ("/create", http("429 Busy", "", "Retry-After: \u00b2")),
    "redirect to another host": ("/create", http("307 Moved", "", "Location: http://127.0.0.2:1/create")),
}


@pytest.mark.parametrize(("route", "answer"), OPENING_ANSWERS.values(), ids=OPENING_ANSWERS)
def test_an_odd_answer_while_opening_leaves_a_rollout_unscored(
    server: ServerHandle, factory: Any, route: str, answer: Answer
) -> None:
    """A reset goes on without an environment, and no session stays open."""
    tell(server, {"odd": {route: answer}})
    environment = pose_as(factory, "odd")()
    told = environment.reset(task_index=0)
    environment._close()
    counts = server.wait_until(lambda counts: not counts.active)

    assert "could not be opened" in told
    assert not environment._episode().opened
    assert {} == counts.active


SOURCE_ANSWERS = {
    "deep list": ("/list_environments", http("200 OK", nest(100_000)), "does not speak ORS: RecursionError"),
    "deep task": ("/task_range", http("200 OK", f'{{"tasks": {nest(100_000)}}}'), "does not speak ORS: RecursionError"),
    "error of FastAPI": ("/task_range", http("422 Odd", '{"detail": [{"msg": "no such field"}]}'), "no such field"),
    "bad request of FastAPI": ("/task_range", http("400 Odd", '{"detail": [{"msg": "no field"}]}'), "no field"),
    "infinite number": ("/num_tasks", http("200 OK", '{"num_tasks": Infinity}'), "does not speak ORS"),
    "number of 30 digits": ("/num_tasks", http("200 OK", f'{{"num_tasks": {"9" * 30}}}'), "does not speak ORS"),
    "true for a number": ("/num_tasks", http("200 OK", '{"num_tasks": true}'), "does not speak ORS"),
}


@pytest.mark.parametrize(("route", "answer", "told"), SOURCE_ANSWERS.values(), ids=SOURCE_ANSWERS)
def test_an_odd_answer_before_training_is_shown(server: ServerHandle, route: str, answer: Answer, told: str) -> None:
    """The error names the source and says what the server sent."""
    tell(server, {"odd": {route: answer}})
    source = ORSSource(server.url, env_name="odd", include_metadata=route != "/num_tasks")

    with pytest.raises(SourceError, match=f"^source 'odd': .*{re.escape(told)}"):
        len(source.task_list.indices)


# -- silence

SILENT = [Answer(b"", ending="hang"), Answer(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n", ending="hang")]
SHORT_S = 0.5


@pytest.mark.parametrize("answer", SILENT, ids=["no byte", "half a head"])
def test_a_server_that_falls_silent_costs_a_deadline(server: ServerHandle, factory: Any, answer: Answer) -> None:
    """Asking, opening and calling end after their time, each with its own kind of error."""
    cases = {route.strip("/"): {route: answer} for route in ("/list_environments", "/tools", "/create", "/prompt")}
    tell(server, {**cases, "act": {CALL: answer}})
    options: dict[str, Any] = {"open_timeout_s": SHORT_S, "call_timeout_s": SHORT_S, "discover_task_tools": False}
    made: Any = ORSSource(server.url, env_name="sound", **options).environment_factory
    environment = made()
    environment.reset(task_index=0)

    with pytest.raises(SessionError, match="The environment is gone"):
        environment.act()
    for name in ("list_environments", "tools"):
        with pytest.raises(SourceError, match=f"^source '{name}': .* did not answer within {SHORT_S} s"):
            ORSSource(server.url, env_name=name, **options).describe_tools()
    unopened = [pose_as(made, name)() for name in ("create", "prompt")]
    told = [each.reset(task_index=0) for each in unopened]
    environment._close()
    server.wait_until(lambda counts: not counts.active)
    assert f"no answer within {SHORT_S} s" in environment._episode().error
    assert all("could not be opened" in each for each in told)
    assert [False, False] == [each._episode().opened for each in unopened]
