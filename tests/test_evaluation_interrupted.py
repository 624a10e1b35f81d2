"""An evaluation whose process is interrupted or killed, at any moment, and run again: nothing is lost or repeated."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from multiors import read_rollouts
from multiors.evaluation import read_evaluation
from tests.evaluation_run import Options
from tests.servers.launch import ServerHandle, configured, serve
from tests.warm import Warm

# Each process imports the openreward SDK first, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(300)
DEADLINE_S = 120.0
NUM_TASKS, EPISODES_PER_TASK = 40, 2
NUM_EPISODES = NUM_TASKS * EPISODES_PER_TASK


@contextmanager
def evaluation(server: ServerHandle, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that plays what is left; killed at the end."""
    options = Options(server.url, str(folder), EPISODES_PER_TASK)
    command = [sys.executable, "-m", "tests.evaluation_run", json.dumps(asdict(options))]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}

    with Warm(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def hear(process: subprocess.Popen[str]) -> str:
    """The next word of a process."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_for_calls(server: ServerHandle, number: int) -> None:
    """Wait until so many tool calls were made since the server began."""
    server.wait_until(lambda counts: sum(counts.tool_calls.get("slow", {}).values()) >= number, deadline_s=DEADLINE_S)


@pytest.fixture
def server() -> Iterator[ServerHandle]:
    """Episodes that take a moment, some of it to open, some to play."""
    with serve(configured("Slow", NUM_TASKS=NUM_TASKS, SETUP_S=0.05, TOOL_S=0.1)) as handle:
        yield handle


def read_all(folder: Path) -> Counter[tuple[Any, ...]]:
    """How often each episode was written down."""
    return Counter((record.source, record.task_index, record.episode) for record in read_rollouts(folder))


@pytest.mark.parametrize("seed", [0, 1])
def test_ctrl_c_at_any_moment_loses_only_what_was_under_way(server: ServerHandle, tmp_path: Path, seed: int) -> None:
    """Every session is closed when the interrupt comes out, and the same command then plays what is missing, once."""
    points = [0, *sorted(random.Random(seed).sample(range(1, 60), 4))]
    active = []

    with evaluation(server, tmp_path) as process:
        for point in points:
            begins = hear(process)
            wait_for_calls(server, point)
            process.send_signal(signal.SIGINT)
            heard = hear(process)
            active.append((begins, heard, server.counts().active))
            print(file=process.stdin, flush=True)

        ending = [hear(process), hear(process)]
        counts = server.counts()

    expected = read_evaluation(tmp_path).manifest.list_episodes()
    assert [("begins", "interrupted", {})] * len(points) == active
    assert ["begins", "ended"] == ending
    assert Counter(expected) == read_all(tmp_path)
    assert NUM_EPISODES == len(list(read_evaluation(tmp_path).episodes()))
    assert ({}, counts.opened) == (counts.active, counts.deleted)
    assert counts.opened["slow"] <= NUM_EPISODES + 8 * len(points)


@pytest.mark.parametrize("seed", [0])
def test_a_killed_evaluation_goes_on_where_it_was(server: ServerHandle, tmp_path: Path, seed: int) -> None:
    """What was written counts; what was being written, or played, is played again; nothing is counted twice."""
    for point in sorted(random.Random(seed).sample(range(5, 60), 2)):
        with evaluation(server, tmp_path) as process:
            wait_for_calls(server, point)
            process.kill()
            process.wait()

    with evaluation(server, tmp_path) as process:
        ending = [hear(process), hear(process)]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*, the last, is cut off", UserWarning)
        written, run = read_all(tmp_path), read_evaluation(tmp_path)
        played = [(record.source, record.task_index, record.episode) for record in run.episodes()]

    assert ["begins", "ended"] == ending
    assert Counter(run.manifest.list_episodes()) == written
    assert sorted(run.manifest.list_episodes()) == sorted(played)
