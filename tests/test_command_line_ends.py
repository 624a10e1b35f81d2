"""How commands end when somebody stops them, or stops reading, and what they look like on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiors.evaluation import read_evaluation
from tests.commands import Run
from tests.servers.launch import ServerHandle, configured, serve
from tests.warm import Warm

# Each process imports the openreward SDK first, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(300)
DEADLINE_S = 200.0
NUM_TASKS = 24


@pytest.fixture(scope="module")
def slow_server() -> Iterator[ServerHandle]:
    """Episodes of which many are under way when somebody stops them."""
    with serve(configured("Slow", NUM_TASKS=NUM_TASKS, TOOL_S=0.3)) as server:
        yield server


@pytest.fixture
def folder(slow_server: ServerHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run file and a policy, in which commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slowly.py").write_text(
        "def work(start, messages):\n    return 'Done.' if messages[-1]['role'] == 'tool' else [('work', {})]\n"
    )
    (tmp_path / "run.yaml").write_text(
        f"sources: {{slow: {{target: '{slow_server.url}', discover_task_tools: false, max_sessions: 2}}}}\n"
    )
    return tmp_path


def start(folder: Path, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **options.pop("variables", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [sys.executable, "-m", "multiors", *map(str, arguments)]
    return Warm(command, **pipes, text=True, cwd=folder, env=environment)


EVALUATE = ("evaluate", "run.yaml", "--policy", "slowly:work", "--output", "out", "--episodes", 1)


def test_a_stopped_evaluation_says_what_it_has_and_goes_on(folder: Path, slow_server: ServerHandle, run: Run) -> None:
    """Ctrl-C and a polite kill leave no session open, and the same command plays what is missing."""
    ends = []

    for number in (signal.SIGINT, signal.SIGTERM):
        slow_server.reset_counts()
        process = start(folder, *EVALUATE)
        try:
            slow_server.wait_until(lambda seen: sum(seen.deleted.values()) >= 4, deadline_s=DEADLINE_S)
            process.send_signal(number)
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
        said = re.search(
            r"^(\d+) of 24 episodes are kept in out; the same command plays the others$", err, re.MULTILINE
        )
        kept = int(said[1]) if said else 0
        ends.append((process.returncode, out, err.splitlines()[-1], slow_server.counts().active))
        assert kept == len(list(read_evaluation("out").episodes())), err
        assert kept < NUM_TASKS

    told = run(*EVALUATE)

    assert [(130, "", "interrupted", {}), (143, "", "interrupted", {})] == ends
    assert (0, NUM_TASKS) == (told.exit_code, len(list(read_evaluation("out").episodes())))
    assert re.search(r"; \d+ were played before", told.err)


@pytest.mark.parametrize("arguments", [("init", "-"), ("report", "trainer_state.json", "--json")])
def test_nobody_reads_the_result(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """As after `| head -1`: the exit code is a broken pipe's, and nothing is said."""
    rows = [{"step": step, "env/a/share": 1.0, "rewards/a/mean": 0.5} for step in range(2000)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = start(tmp_path, *arguments, stdout=writer)
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        os.close(writer)

    assert (141, "") == (process.returncode, err)


def look(folder: Path, *arguments: object, **variables: str) -> str:
    """What a command shows on a terminal."""
    parent, child = pty.openpty()
    process = start(folder, *arguments, stdout=child, stderr=child, variables={"TERM": "xterm", **variables})
    os.close(child)
    shown = b""
    try:
        while part := os.read(parent, 65536):
            shown += part
    except OSError:  # the other side has closed it
        pass
    finally:
        process.wait(timeout=DEADLINE_S)
        os.close(parent)
    return shown.decode()


def test_no_color_is_respected(folder: Path) -> None:
    """On a terminal of somebody who wants none, bars and tables have no colour; they are there all the same."""
    colours = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;)")
    coloured = look(folder, *EVALUATE, "--num-tasks", 2)
    plain = look(folder, *EVALUATE, "--num-tasks", 2, NO_COLOR="1")

    assert colours.search(coloured)
    assert not colours.search(plain)
    assert ["slow", "2/2"] == [each for each in ("slow", "2/2") if each in plain]
