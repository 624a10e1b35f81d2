"""`--help` teaches: every command has examples, and each of them is understood."""

from __future__ import annotations

import re
import shlex

import pytest

from multiors.cli import main
from tests.commands import Run

COMMANDS = (
    *("init", "check", "preview", "train", "evaluate", "compare", "report", "serve", "schema", "quickstart"),
    "completion",
)


def read_examples(text: str) -> list[list[str]]:
    """The arguments of every example in a help text: without what stands beside it, and what its output goes to."""
    lines = [
        re.split(r"\s{2,}| [|>] ", line.strip())[0] for line in text.splitlines() if line.startswith("  multiors ")
    ]
    return [shlex.split(line)[1:] for line in lines]


def test_every_command_is_shown(run: Run) -> None:
    """The help of the whole names each, in an order that one would use them in."""
    shown = re.findall(r"^    (\w+)(?: +\S.*)?$", run("--help").out, re.MULTILINE)

    assert list(COMMANDS) == shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_of_its_own(run: Run, command: str) -> None:
    """Under the heading that all have."""
    told = run(command, "--help")

    assert 0 == told.exit_code
    assert "examples:" in told.out.splitlines()
    assert command in [arguments[0] for arguments in read_examples(told.out)]


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_examples_are_understood(run: Run, command: str | None) -> None:
    """With `--help` behind it, every example is read to its end, and nothing of it is refused."""
    examples = read_examples(run(*([command] if command else []), "--help").out)

    assert [] == [example for example in examples if 0 != run(*example, "--help").exit_code]


def test_train_says_how_fields_are_given(run: Run) -> None:
    """Any field of `GRPOConfig` is an option, though none is listed."""
    told = run("train", "--help").out

    assert "--learning-rate 2e-6 is --set training.learning_rate=2e-6" in " ".join(told.split())
    assert "--no-bf16" in told


def test_nothing_is_a_request_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command, the help is on stderr, and the exit code is that of wrong usage."""
    exit_code = main([])
    out, err = capsys.readouterr()

    assert (2, "") == (exit_code, out)
    assert "examples:" in err
