"""`multiors completion`: what a real shell completes with the script that it prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.commands import Run

# Calls the function that the script has registered as bash does at the Tab key, the last argument being typed.
COMPLETE = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
registered=$(complete -p multiors)
[[ $registered =~ -F\ ([^ ]+) ]]
"${BASH_REMATCH[1]}" multiors "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf "%s\n" "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    """What was printed, by shell."""
    return {}


@pytest.fixture
def script(run: Run, scripts: dict[str, str], tmp_path: Path) -> Path:
    """The script of bash."""
    scripts.setdefault("bash", run("completion", "bash").out)
    path = tmp_path / "multiors.bash"
    path.write_text(scripts["bash"])
    return path


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("tr",), ["train"]),
        (("co",), ["compare", "completion"]),
        (("train", "--learning"), ["--learning-rate"]),
        (("train", "--no-bf16-"), ["--no-bf16-full-eval"]),
        (("train", "run.yaml", "--resu"), ["--resume"]),
        (("evaluate", "run.yaml", "--pol"), ["--policy"]),
        (("compare", "a", "b", "--score", ""), ["reward", "outcome"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("check", "run."), ["run.yaml"]),
        (("evaluate", "run.yaml", "--output", ""), ["runs"]),
    ],
)
def test_bash_completes(script: Path, tmp_path: Path, typed: tuple[str, ...], expected: list[str]) -> None:
    """Commands, options, fields of the trainer, choices, files, and folders where a folder is meant."""
    folder = tmp_path / "work"
    (folder / "runs").mkdir(parents=True)
    (folder / "run.yaml").touch()
    command = ["bash", "--norc", "-c", COMPLETE, "bash", str(script), "multiors", *typed]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60, check=True)

    assert (expected, "") == (done.stdout.split(), done.stderr)


@pytest.mark.parametrize(
    ("shell", "holds"),
    [("zsh", ["#compdef multiors", "--learning-rate"]), ("fish", ["complete -c multiors", "learning-rate"])],
)
def test_other_shells_have_a_script(run: Run, shell: str, holds: list[str]) -> None:
    """In their own language."""
    told = run("completion", shell)

    assert (0, []) == (told.exit_code, [each for each in holds if each not in told.out])


def test_another_shell_is_wrong_usage(run: Run) -> None:
    """The message names those that there are."""
    told = run("completion", "tcl")

    assert (2, "") == (told.exit_code, told.out)
    assert "invalid choice: 'tcl'" in told.err
