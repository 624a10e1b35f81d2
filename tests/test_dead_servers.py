"""A server that is away costs one deadline, not one for each session and call; and it is taken back when it answers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord, UnscoredReason
from tests.playing import factories, play
from tests.scripted import ConcurrentScriptedTrainer, ScriptedTrainer, call, make_arguments, train
from tests.servers.launch import ServerHandle, serve
from tests.servers.raw import serve_raw

AWAY = {"/health": [503] * 1000}
"""What stands before a server that is away: a gateway that says so."""


def make_spec(server: ServerHandle, **options: Any) -> MultiOpenRewardSpec:
    """One source with short deadlines."""
    source = ORSSource(server.url, discover_task_tools=False, open_timeout_s=0.5, call_timeout_s=0.5, **options)
    return MultiOpenRewardSpec({"away": source})


def test_sessions_of_a_server_that_is_away_are_not_tried_one_by_one() -> None:
    """The first session that does not open in time is the last one that is asked for."""
    with serve_raw(hangs_on=("/create_session",), statuses=AWAY) as server:
        spec = make_spec(server)
        environments = [play(factories(spec)["away"]) for _ in range(5)]
        asked = server.counts().requests["POST /create_session"]

    assert 1 == asked
    assert {UnscoredReason.UNREACHABLE} == {environment._ended_by for environment in environments}
    assert all("still does not answer" in environment._episode().error for environment in environments[1:])


def test_calls_of_a_server_that_is_away_are_not_made_one_by_one() -> None:
    """The first call that is not answered in time is the last one that is made, whatever session it is of."""
    with serve_raw(hangs_on=("/call",), statuses=AWAY) as server:
        spec = make_spec(server)
        environments = [play(factories(spec)["away"]) for _ in range(5)]
        for environment in environments:
            with pytest.raises(RuntimeError, match=r"The environment is gone; the episode cannot go on\."):
                environment.act()
        made = sum(n for route, n in server.counts().requests.items() if route.endswith("/call"))

    assert 1 == made
    assert {UnscoredReason.SESSION_LOST} == {environment._ended_by for environment in environments}


def test_a_slow_environment_is_not_a_server_that_is_away() -> None:
    """Where the server itself answers, one call that takes too long says nothing of the others."""
    with serve_raw(hangs_on=("/call",)) as server:
        spec = make_spec(server)
        environments = [play(factories(spec)["away"], ("act", {})) for _ in range(2)]
        made = sum(n for route, n in server.counts().requests.items() if route.endswith("/call"))

    assert 2 == made
    assert {UnscoredReason.SESSION_LOST} == {environment._ended_by for environment in environments}


@pytest.mark.parametrize("trainer_class", [ScriptedTrainer, ConcurrentScriptedTrainer])
def test_training_goes_on_past_a_dead_server_and_takes_it_back(
    trainer_class: Any, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rollouts of the dead server are unscored, those of the other are scored, and once it is back its are too."""
    records: list[RolloutRecord] = []

    def restart(batch: list[RolloutRecord]) -> None:
        records.extend(batch)
        if batch[0].source == "dead" and batch[0].step == 2:
            server.restart()

    def answer(conversation: str, row: int) -> str:
        word = conversation.rpartition("Say ")[2].partition(".")[0]
        return "done" if "<tool_response>" in conversation else call("echo", text=word)

    with serve("Echo") as server:
        spec = MultiOpenRewardSpec(
            {
                "dead": ORSSource(server.url, discover_task_tools=False, open_timeout_s=5.0),
                "alive": ORSSource(echo_server.url, discover_task_tools=False),
            },
            on_rollouts=restart,
        )
        arguments = make_arguments(
            spec, tmp_path, per_device_train_batch_size=4, num_generations=2, max_steps=3, beta=0.0
        )
        spec.environment_factory  # noqa: B018  # asks the servers while both are there
        server.kill()
        with caplog.at_level(logging.WARNING, "multiors.ors"):
            train(spec, tiny_policy, arguments, script=answer, trainer_class=trainer_class)

    by_step = {
        source: [[r.reward for r in records if (r.source, r.step) == (source, step)] for step in (1, 2, 3)]
        for source in ("dead", "alive")
    }

    assert [[None, None], [None, None], [1.0, 1.0]] == by_step["dead"]
    assert [[1.0, 1.0]] * 3 == by_step["alive"]
    assert {UnscoredReason.UNREACHABLE} == {r.reason for r in records if r.reward is None}
    assert 1 == sum("No session is sent to it until it is" in record.getMessage() for record in caplog.records)
    assert 1 == sum("answers again" in record.getMessage() for record in caplog.records)
