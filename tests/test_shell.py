"""What users are told to type next works where they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from multiors.shell import write_command


def find_script() -> Path:
    """The program `multiors` of this environment."""
    return Path(sys.executable).parent / "multiors"


def test_where_the_shell_finds_it_it_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """And arguments are quoted."""
    monkeypatch.setenv("PATH", str(find_script().parent))

    assert "multiors compare 'my runs/before' after" == write_command("compare", Path("my runs/before"), "after")


def test_elsewhere_it_is_called_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By its path; a program of another environment that the shell finds is not meant."""
    other = tmp_path / "multiors"
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [".venv/bin/multiors", "train", "run.yaml"])

    assert ".venv/bin/multiors check run.yaml" == write_command("check", "run.yaml")


def test_started_as_a_module_it_is_called_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under torchrun."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["/somewhere/multiors/__main__.py", "train", "run.yaml"])

    assert f"{sys.executable} -m multiors check run.yaml" == write_command("check", "run.yaml")


def test_what_is_said_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that `init` names runs in the shell in which `init` ran."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    begun = subprocess.run([find_script(), "init"], cwd=tmp_path, capture_output=True, text=True, check=True)
    command = begun.stderr.rpartition("next: ")[2]
    checked = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)

    assert f"{find_script()} check run.yaml\n" == command
    assert checked.stdout.startswith("source "), checked.stderr
