"""Every example runs, in its small form: on a CPU, with a tiny policy, against real servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.launch import ServerHandle, serve

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = pytest.mark.timeout(300)


def run_example(name: str, *arguments: object, folder: Path) -> str:
    """What an example printed that was run in a folder."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=folder)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_an_example_trains_under_a_curriculum_of_its_own(
    tiny_policy: Path, echo_server: ServerHandle, tmp_path: Path
) -> None:
    """The class decides, and the summary counts the rollouts of both sources."""
    with serve("Thermostat") as server:
        out = run_example(
            "custom_curriculum.py",
            *("--model", tiny_policy),
            *("--source", f"echo={echo_server.url}", "--source", f"heat={server.url}"),
            *("--max-steps", 2, "--batch", 8, "--cpu"),
            folder=tmp_path,
        )

    assert "env/echo/planned_share" in out
    assert ["echo", "heat"] == [line.split()[0] for line in out.splitlines() if line.startswith(("echo ", "heat "))]


def test_the_curriculum_of_the_example_is_short() -> None:
    """Less than sixty lines, with the training."""
    assert 60 > len((EXAMPLES / "custom_curriculum.py").read_text(encoding="utf-8").splitlines())
