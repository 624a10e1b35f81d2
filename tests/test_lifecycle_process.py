"""What servers see of a trainer's process that is interrupted, killed, or ended by an exception.

The runs are `tests/small_run.py` with the trainer whose environments open and answer at once;
`test_training_processes.py` has those of TRL's trainer.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.launch import Counts, ServerHandle, configured, serve
from tests.small_run import Options, get_command
from tests.warm import Warm

# Each process imports TRL first, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(300)
DEADLINE_S = 120.0
NUM_ROLLOUTS = 4
# openreward's server ends a session after 900 s of silence, and looks for such sessions every 5 s.
PATIENCE_S = 900.0


@contextmanager
def trainer_process(policy: Path, folder: Path, *servers: ServerHandle, **options: Any) -> Iterator[Any]:
    """A process that trains on the only environment of each server, one after the other; killed at the end."""
    chosen = Options(
        policy=str(policy),
        folder=str(folder),
        runs=[{"only": [server.url, None, None]} for server in servers],
        fields={"max_steps": 1, "num_generations": 2, "per_device_train_batch_size": NUM_ROLLOUTS},
        concurrent=True,
        **options,
    )

    with Warm(get_command(chosen), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def was_asked(request: str) -> Callable[[Counts], bool]:
    """Whether a server got a request of every rollout."""
    return lambda counts: counts.requests.get(request, 0) >= NUM_ROLLOUTS


def test_ctrl_c_amid_concurrent_openings_and_calls_leaves_no_session(tiny_policy: Path, tmp_path: Path) -> None:
    """Interrupted while sessions are created, while they get ready, and in their calls: all end, and none overtakes.

    Those of the openings end while the process goes on; those of the calls, and of the policy's turn, at the latest
    with it.
    """
    with (
        serve(configured("Slow", SETUP_S=300.0), latency_s=0.3) as creating,
        serve(configured("Slow", SETUP_S=300.0)) as opening,
        serve(configured("Slow", TOOL_S=300.0)) as working,
        serve("Echo") as quick,
        trainer_process(tiny_policy, tmp_path, creating, opening, working, quick, interrupted=True) as process,
    ):
        for server, request in ((creating, "POST /create"), (opening, "GET /{env}/messages")):
            server.wait_until(was_asked(request), deadline_s=DEADLINE_S)
            process.send_signal(signal.SIGINT)

        working.wait_until(was_asked("POST /{env}/call"), deadline_s=DEADLINE_S)
        ended = [
            server.wait_until(lambda counts: counts.deleted == {"slow": NUM_ROLLOUTS}, deadline_s=DEADLINE_S)
            for server in (creating, opening)
        ]
        is_still_training = process.poll() is None
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=DEADLINE_S)
        ended += [working.counts(), quick.counts()]

    names = ["slow", "slow", "slow", "echo"]
    assert is_still_training
    assert -signal.SIGINT == process.returncode, stderr
    assert [{name: NUM_ROLLOUTS} for name in names] == [counts.opened for counts in ended]
    assert [{name: NUM_ROLLOUTS} for name in names] == [counts.deleted for counts in ended]
    assert [{}] * 4 == [counts.active for counts in ended]
    assert "never awaited" not in stderr
    assert "could not be closed" not in stderr


def test_a_killed_trainer_keeps_no_session_alive(tiny_policy: Path, tmp_path: Path) -> None:
    """While it lives, its sessions outlast the server's patience; after SIGKILL the server's own expiry ends them."""
    with (
        serve(configured("Slow", TOOL_S=3000.0)) as server,
        trainer_process(tiny_policy, tmp_path, server, interrupted=True, keepalive_s=0.1) as process,
    ):
        calling = server.wait_until(was_asked("POST /{env}/call"), deadline_s=DEADLINE_S)

        for _ in range(3):
            server.pass_time(0.6 * PATIENCE_S, pinged=list(calling.pings()), deadline_s=DEADLINE_S)

        process.kill()
        process.wait()
        killed = server.counts()
        server.pass_time(PATIENCE_S + 1)
        expired = server.wait_until(lambda counts: not counts.active, deadline_s=DEADLINE_S)

    assert {"slow": NUM_ROLLOUTS} == killed.opened == killed.active
    assert killed.pings() == expired.pings()
    assert {} == expired.deleted


def test_a_policy_that_fails_ends_its_process_without_a_session(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """After an exception between two turns, with nobody to close the spec, sessions end with the process."""
    echo_server.reset_counts()

    with trainer_process(tiny_policy, tmp_path, echo_server, fails=True) as process:
        _, stderr = process.communicate(timeout=DEADLINE_S)

    counts = echo_server.counts()
    assert 1 == process.returncode
    assert "RuntimeError: the policy broke" in stderr
    assert {"echo": NUM_ROLLOUTS} == counts.opened == counts.deleted
    assert {} == counts.active
