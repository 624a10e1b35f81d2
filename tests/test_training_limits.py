"""Failures that end the training, and the table that a run leaves behind."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord
from multiors.errors import ConfigError, SessionError
from tests.scripted import make_arguments, train
from tests.servers.launch import ServerHandle, configured, serve
from tests.small_run import Options, answer, run_processes

# Each process imports TRL first, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(300)

SHAPE = {"per_device_train_batch_size": 4, "num_generations": 2}


def mix(
    weak: ServerHandle, echo: ServerHandle, *, records: list[RolloutRecord], **arguments: Any
) -> MultiOpenRewardSpec:
    """A source that may fail and one that works, each with half of the slots."""
    return MultiOpenRewardSpec(
        {
            "weak": ORSSource(weak.url, discover_task_tools=False, **arguments),
            "echo": ORSSource(echo.url, discover_task_tools=False),
        },
        on_rollouts=records.extend,
    )


def test_stop_ends_the_training_with_every_session_closed(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first failure is the last thing that happens, and the table shows it."""
    caplog.set_level(logging.INFO, "multiors.training")
    records: list[RolloutRecord] = []

    with serve(configured("Brittle", BROKEN=list(range(32)))) as weak:
        spec = mix(weak, echo_server, records=records, on_failure="stop")
        args = make_arguments(spec, tmp_path, max_steps=3, **SHAPE)
        with pytest.raises(SessionError, match=r"source 'weak': a rollout failed, and on_failure='stop'.*is stuck"):
            train(spec, tiny_policy, args, script=answer)
        open_sessions = [server.wait_until(lambda counts: not counts.active).active for server in (weak, echo_server)]

    assert {1} == {record.step for record in records}
    assert [{}, {}] == open_sessions
    assert 1 == caplog.text.count("rollouts of the run:")
    assert "source 'weak': unscored: 2 tool_error." in caplog.text


def test_failures_are_counted_over_all_processes(echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """Four failures a batch, two on each process: with six borne, both processes stop at the second batch."""
    with serve(configured("Brittle", BROKEN=list(range(32)))) as weak:
        options = Options(
            policy=str(tiny_policy),
            folder=str(tmp_path),
            runs=[{"weak": [weak.url, None, 1.0], "echo": [echo_server.url, "echo", 1.0]}],
            fields={"max_steps": 4, "per_device_train_batch_size": 4, "num_generations": 2},
            limits={"weak": {"max_failing_rollouts": 6}},
            is_stopped=True,
        )
        ranks = run_processes(options, 2)
        left = weak.wait_until(lambda counts: not counts.active).active

    told = "source 'weak': 7 rollouts failed since the training began, which is more than max_failing_rollouts=6; the"
    assert {} == left
    assert [True, True] == [rank["error"].startswith(told) for rank in ranks]
    assert ranks[0]["error"] == ranks[1]["error"]
    assert [[1, 2], [1, 2]] == [sorted({record["step"] for record in rank["records"]}) for rank in ranks]
    assert ranks[0]["summary"] == ranks[1]["summary"]


def test_what_an_error_interrupts_is_shown_when_the_spec_is_left(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that ends with somebody else's error has its table all the same, and `summary` has the numbers."""
    caplog.set_level(logging.INFO, "multiors.training")

    def script(conversation: str, row: int) -> str:
        if len(records) >= 4:
            raise RuntimeError("the policy broke")
        return answer(conversation, row)

    records: list[RolloutRecord] = []
    source = ORSSource(echo_server.url, discover_task_tools=False)

    spec = MultiOpenRewardSpec({"echo": source}, on_rollouts=records.extend)
    args = make_arguments(spec, tmp_path, max_steps=3, **SHAPE)

    with pytest.raises(RuntimeError, match="the policy broke"), spec:
        train(spec, tiny_policy, args, script=script)

    summary = spec.summary().sources["echo"]
    assert (4, 4, 0.5) == (summary.num_rollouts, summary.num_scored, summary.mean_reward)
    assert 1 == caplog.text.count("rollouts of the run:\nsource  rollouts")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on_failure": "retry"}, r"on_failure='retry' is not known\. Pass one of \['unscored', 'stop'\]"),
        ({"max_failing_rollouts": -1}, "max_failing_rollouts holds -1; it takes whole numbers from 0"),
        ({"max_failing_rollouts": True}, "max_failing_rollouts holds True"),
        ({"on_failure": "stop", "max_failing_rollouts": 3}, "max_failing_rollouts=3 would have no effect"),
    ],
)
def test_limits_that_mean_nothing_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Unknown words, counts that are none, and two limits of which one decides are errors."""
    with pytest.raises(ConfigError, match=message):
        ORSSource("http://127.0.0.1:9", **arguments)
