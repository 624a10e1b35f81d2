"""A server that dies, or forgets a session, costs the rollouts it held and no others; a session in use is kept alive.

Looks at the servers' own counts, with TRL's trainer and the concurrent one, or with environments played by hand.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord, UnscoredReason
from multiors.errors import SessionError
from multiors.ors.rollouts.factory import EnvironmentFactory
from tests.playing import keep_alive, play
from tests.scripted import ConcurrentScriptedTrainer, ScriptedTrainer, call, make_arguments, play_well, train
from tests.servers.launch import Counts, ServerHandle, serve
from tests.small_run import set_keepalive

# The library is patient with servers that are away, and a machine may be slow.
pytestmark = pytest.mark.timeout(300)
SMALL = {"per_device_train_batch_size": 4, "num_generations": 2}
# openreward's server ends a session after 900 s of silence, and looks for such sessions every 5 s.
PATIENCE_S = 900.0
DEADLINE_S = 60.0
NEVER_S = 3600.0

both_trainers = pytest.mark.parametrize("trainer_class", [ScriptedTrainer, ConcurrentScriptedTrainer])


def make_factory(server: ServerHandle, *, keepalive_s: float) -> EnvironmentFactory:
    """Makes environments of a server's only environment, which are pinged after a silence."""
    blueprint = ORSSource(server.url, discover_task_tools=False).blueprint
    return EnvironmentFactory(keep_alive(blueprint, keepalive_s))


def has_none_open(counts: Counts) -> bool:
    """Whether a server has no open session."""
    return not counts.active


# -- a server that dies


@both_trainers
def test_a_server_that_dies_and_comes_back_is_played_on_again(
    trainer_class: type[ScriptedTrainer], echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Dead in the middle of an episode is `session_lost`, dead at its beginning `unreachable`; then scores come again.

    The rollouts of the other source are scored all the while.
    """
    records: list[RolloutRecord] = []

    with serve("Sorting") as mortal:

        def restart_when_missed(batch: list[RolloutRecord]) -> None:
            records.extend(batch)
            if any(record.reason is UnscoredReason.UNREACHABLE for record in batch):
                mortal.restart()

        def script(conversation: str, row: int) -> str:
            if "hidden numbers" not in conversation or "could not be opened" in conversation:
                return play_well(conversation, row)
            if "<tool_response>" not in conversation:
                return call("compare", i=0, j=1)
            if {1} == {record.step for record in records} and mortal.is_alive:
                mortal.kill()
            return call("submit", order=[0]) if conversation.count("<tool_response>") == 1 else "done"

        spec = MultiOpenRewardSpec(
            {"sort": ORSSource(mortal.url), "echo": ORSSource(echo_server.url)}, on_rollouts=restart_when_missed
        )
        args = make_arguments(spec, tmp_path, max_steps=4, **SMALL)
        trainer = train(spec, tiny_policy, args, trainer_class=trainer_class, script=script)
        counts = mortal.counts()

    lost, away = UnscoredReason.SESSION_LOST, UnscoredReason.UNREACHABLE
    assert [None, None, lost, lost, away, away, None, None] == [r.reason for r in records if r.source == "sort"]
    assert [0.0, 0.0, None, None, None, None, 0.0, 0.0] == [r.reward for r in records if r.source == "sort"]
    assert {None} == {r.reason for r in records if r.source == "echo"}
    assert (4, 8) == (trainer.state.global_step, sum(r.source == "echo" for r in records))
    assert {"sorting": 2} == counts.opened == counts.deleted
    assert {} == counts.active


@contextmanager
def heard(logger: str, text: str) -> Iterator[Event]:
    """An event that is set when a log says a text."""
    event = Event()

    class Listening(logging.Handler):
        """Listens for the text."""

        def emit(self, record: logging.LogRecord) -> None:
            """Listen."""
            if text in record.getMessage():
                event.set()

    handler = Listening()
    logging.getLogger(logger).addHandler(handler)

    try:
        yield event
    finally:
        logging.getLogger(logger).removeHandler(handler)


def open_together(factory: EnvironmentFactory, num_rollouts: int) -> list[Any]:
    """Environments whose sessions were opened at the same time, as `ConcurrentGRPOTrainer` does it."""
    for _ in range(num_rollouts):
        factory.open_ahead(task_index=0)

    environments: list[Any] = [factory() for _ in range(num_rollouts)]

    for environment in environments:
        environment.reset(task_index=0)

    return environments


def bump(environments: Sequence[Any]) -> list[float | None]:
    """What a call of each environment's tool scored, the calls made at the same time."""

    def bump_one(environment: Any) -> float | None:
        with suppress(SessionError):
            environment.bump()
        reward: float | None = environment.reward
        return reward

    with ThreadPoolExecutor(len(environments)) as threads:
        return list(threads.map(bump_one, environments))


def end(environments: Sequence[Any]) -> None:
    """Close the environments' sessions, at once."""
    for environment in environments:
        environment._release()

    environments[0]._close()


def test_an_equal_server_takes_the_sessions_of_one_that_died() -> None:
    """Of two equal servers, a dead one is left out until it answers; no rollout is lost but those it held."""
    opened, rewards = [], []

    with serve("Counting") as mortal, serve("Counting") as other:
        factory = ORSSource([mortal.url, other.url], discover_task_tools=False).environment_factory

        before = open_together(factory, 4)
        opened.append([mortal.counts().opened, other.counts().opened])
        mortal.kill()
        rewards.append(bump(before))
        end(before)

        during = open_together(factory, 4)
        opened.append([other.counts().opened])
        rewards.append(bump(during))
        end(during)

        with heard("multiors.ors", "answers again") as event:
            mortal.restart()
            answered = event.wait(DEADLINE_S)

        after = open_together(factory, 4)
        opened.append([mortal.counts().opened, other.counts().opened])
        rewards.append(bump(after))
        end(after)
        counts = [mortal.counts(), other.counts()]

    assert answered
    assert [[{"counting": 2}] * 2, [{"counting": 6}], [{"counting": 2}, {"counting": 8}]] == opened
    assert [2, 0, 0] == [each.count(None) for each in rewards]
    assert [{}, {}] == [seen.active for seen in counts]
    assert [seen.opened for seen in counts] == [seen.deleted for seen in counts]


# -- a session that expires, and one that is kept alive


def expire(server: ServerHandle) -> None:
    """Let the server end its sessions, because it has not heard of them."""
    server.pass_time(PATIENCE_S + 1)
    server.wait_until(has_none_open, deadline_s=DEADLINE_S)


@both_trainers
def test_a_session_that_expires_in_an_episode_is_lost_but_no_earlier_score(
    trainer_class: type[ScriptedTrainer], tiny_policy: Path, tmp_path: Path
) -> None:
    """Its rollout is unscored with `session_lost`, or keeps the score it had; nothing is left to delete."""
    records: list[RolloutRecord] = []

    with serve("ScriptedRewards") as server:

        def script(conversation: str, row: int) -> str:
            if "<tool_response>" not in conversation:
                return call("score", value="0.5" if row % 2 else "null")
            if not has_none_open(server.counts()):
                expire(server)
            return call("score", value="1.0") if conversation.count("<tool_response>") == 1 else "done"

        source = ORSSource(server.url, discover_task_tools=False)
        spec = set_keepalive(MultiOpenRewardSpec({"score": source}, on_rollouts=records.extend), NEVER_S)
        args = make_arguments(spec, tmp_path, max_steps=1, **SMALL)
        train(spec, tiny_policy, args, trainer_class=trainer_class, script=script)
        counts = server.counts()

    lost = UnscoredReason.SESSION_LOST
    assert [None, 0.5, None, 0.5] == [record.reward for record in records]
    assert [lost, None, lost, None] == [record.reason for record in records]
    assert [[None, lost]] * 4 == [[step.failure for step in record.steps] for record in records]
    assert ({"scriptedrewards": 4}, {}, {}) == (counts.opened, counts.deleted, counts.active)


def test_a_session_outlives_its_servers_patience_in_a_long_call_and_between_calls() -> None:
    """Three times 540 s pass in a tool, and before the next call; only a session that nobody pings expires by then."""
    with ThreadPoolExecutor(1) as threads, serve("Held") as server:
        lively, silent = (make_factory(server, keepalive_s=keepalive_s) for keepalive_s in (0.05, NEVER_S))
        working, idle, forgotten = environments = [play(lively), play(lively), play(silent)]
        sids = [environment._lease.session.sid for environment in (working, idle)]
        work = threads.submit(working.work)
        server.wait_until(lambda counts: bool(counts.tool_calls), deadline_s=DEADLINE_S)

        for _ in range(3):
            server.pass_time(0.6 * PATIENCE_S, pinged=sids)
        survived = server.wait_until(lambda counts: counts.active != {"held": 3}, deadline_s=DEADLINE_S)

        lone = play(lively, ("let_go", {}))
        outputs = [work.result(), working.finish(), idle.finish()]
        with pytest.raises(SessionError, match="environment is gone"):
            forgotten.finish()
        end([*environments, lone])
        counts = server.counts()

    assert {"held": 2} == survived.active
    assert ["worked", "finished", "finished"] == outputs
    assert [1.0, 1.0, None] == [environment.reward for environment in environments]
    assert ({"held": 3}, {}) == (counts.deleted, counts.active)


def test_a_session_is_pinged_only_after_a_silence(echo_server: ServerHandle) -> None:
    """While calls follow each other faster than the keepalive, a session is not pinged, however long it lasts."""
    keepalive_s = 0.25
    factory = make_factory(echo_server, keepalive_s=keepalive_s)
    moments_s = [time.monotonic()]
    environment = play(factory)
    sid = environment._lease.session.sid

    while moments_s[-1] < moments_s[0] + 4 * keepalive_s:
        moments_s.append(time.monotonic())
        environment.echo(text="no")

    num_pings = echo_server.counts().pings()[sid]
    moments_s.append(time.monotonic())
    environment._close()

    # From before one request until after the next: on a slow machine some may last long enough for a ping.
    silences_s = [after - before for before, after in zip(moments_s, moments_s[2:], strict=False)]
    assert num_pings <= sum(silence_s // keepalive_s for silence_s in silences_s)
