"""`multiors check`: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from multiors.commands.looking import print_table
from tests.commands import Run
from tests.servers.launch import ServerHandle


@pytest.fixture
def run_file(mixed_server: ServerHandle, tmp_path: Path) -> Path:
    """Two environments of one server."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "sources:\n"
        f"  sort: {{target: '{mixed_server.url}', env_name: sorting, open_timeout_s: 60}}\n"
        f"  heat: {{target: '{mixed_server.url}', env_name: thermostat, open_timeout_s: 60}}\n"
    )
    return path


def test_a_mix_without_errors_is_zero(run: Run, run_file: Path) -> None:
    """The table is the result; the rest is not."""
    told = run("check", run_file, "--timeout", 60)
    lines = told.out.splitlines()

    assert (0, "2 sources: 0 errors, 0 warnings, 2 notes.") == (told.exit_code, lines[-1])
    assert ["sort", "ok", "server"] == lines[2].split()[:3]


def test_an_error_is_one(run: Run, run_file: Path) -> None:
    """Whatever else was found, and the report is complete all the same."""
    with run_file.open("a") as file:
        file.write("  dead: {target: 'http://127.0.0.1:9'}\n")
    told = run("check", run_file, "--timeout", 60)

    assert (1, "") == (told.exit_code, told.err)
    assert told.out.splitlines()[-1].startswith("3 sources: 1 error, ")
    assert "compare, submit." in told.out


def test_a_warning_is_zero(run: Run, run_file: Path, tmp_path: Path) -> None:
    """A job need not stop for it."""
    training = tmp_path / "training.yaml"
    training.write_text("{num_generations: 4, per_device_train_batch_size: 4, max_steps: 5}")
    told = run("check", run_file, "--training", training, "--timeout", 60)

    assert 0 == told.exit_code
    assert "a generation batch has one prompt" in told.out


def test_json_is_nothing_but_json(run: Run, run_file: Path) -> None:
    """The same for machines, with what was not measured as null."""
    told = run("check", run_file, "--json", "--probe", "--timeout", 60)
    read = json.loads(told.out)
    prompt = next(finding for finding in read["findings"] if finding["subject"] == "prompt")

    assert (0, True, ["sort", "heat"]) == (told.exit_code, read["ok"], read["sources"])
    assert None is prompt["facts"]["tokens"]
    assert ["probe", "probe"] == [each["subject"] for each in read["findings"] if each["subject"] == "probe"]


def test_prompts_are_measured_with_the_tokenizer_that_is_named(run: Run, run_file: Path, tiny_policy: Path) -> None:
    """A folder will do."""
    told = run("check", run_file, "--json", "--tokenizer", tiny_policy, "--timeout", 60)
    tokens = [each["facts"]["tokens"] for each in json.loads(told.out)["findings"] if each["subject"] == "prompt"]

    assert 2 == len(tokens)
    assert min(tokens) > 10


def test_prompts_are_measured_with_the_model_that_is_trained(run: Run, run_file: Path, tiny_policy: Path) -> None:
    """If it is a folder here; nothing is fetched for it."""
    measured = {}

    for model in (tiny_policy, "nobody/nothing"):
        told = run("check", run_file, "--json", "--set", f"model={model}", "--timeout", 60)
        prompts = [each for each in json.loads(told.out)["findings"] if each["subject"] == "prompt"]
        measured[model] = [each["facts"]["tokens"] is not None for each in prompts]

    assert {tiny_policy: [True, True], "nobody/nothing": [False, False]} == measured


def test_settings_come_from_a_file(run: Run, run_file: Path, tmp_path: Path) -> None:
    """What contradicts the mix is an error."""
    training = tmp_path / "training.yaml"
    training.write_text("shuffle_dataset: true\nnum_generations: 4\nper_device_train_batch_size: 8\nmax_steps: 5\n")
    told = run("check", run_file, "--training", training, "--timeout", 60)

    assert 1 == told.exit_code
    assert "shuffle_dataset=True contradicts the mix" in told.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--training", "none.yaml"), "training file 'none.yaml' cannot be read: No such file or directory."),
        (("--training", "list.yaml"), "training file 'list.yaml' holds no mapping of GRPOConfig fields"),
        (("--tokenizer", "./none"), "--tokenizer './none' cannot be loaded: "),
    ],
)
def test_what_cannot_be_read_is_one_message(
    run: Run, run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    """Nothing is asked, and nothing is on stdout."""
    monkeypatch.chdir(tmp_path)
    Path("list.yaml").write_text("[1, 2]")
    told = run("check", run_file, *options)

    assert (1, "") == (told.exit_code, told.out)
    assert told.err.startswith(f"multiors check: {message}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("check",), "the following arguments are required: run_file"),
        (("check", "run.yaml", "--timeout", "0"), "'0' is not a positive number of seconds"),
        (("check", "run.yaml", "--timeout", "soon"), "'soon' is not a positive number of seconds"),
    ],
)
def test_wrong_usage_is_two(run: Run, arguments: tuple[str, ...], said: str) -> None:
    """As of the other commands."""
    told = run(*arguments)

    assert (2, "") == (told.exit_code, told.out)
    assert said in told.err


def test_a_terminal_gets_a_table_in_which_nothing_is_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are text, and a long message is broken into lines, none of it lost."""
    words = [f"word{number}" for number in range(60)]
    print_table([("a", "error", "tools", f"[red]{' '.join(words)}[/red]")], "1 source: 1 error.")
    out = capsys.readouterr().out

    assert ["[red]word0", *words[1:-1], "word59[/red]"] == [word for word in out.split() if "word" in word]
    assert "1 source: 1 error." == out.splitlines()[-1]


def test_the_package_is_the_command() -> None:
    """`python -m multiors` does what `multiors` does."""
    told = subprocess.run(
        [sys.executable, "-m", "multiors", "--version"], capture_output=True, text=True, check=True
    ).stdout

    assert f"multiors {version('multiors')}\n" == told
