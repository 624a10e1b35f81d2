"""The command line: what it prints where, its exit codes, and that a known error is one message."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.commands import Run, Said
from tests.servers.launch import ServerHandle
from tests.servers.raw import serve_raw

DEADLINE_S = 60.0


@pytest.fixture
def run_file(mixed_server: ServerHandle, tmp_path: Path) -> Path:
    """Two environments of one server."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "num_slots: 9\n"
        "seed: 3\n"
        "sources:\n"
        f"  sort: {{target: '{mixed_server.url}', env_name: sorting, weight: 2.0}}\n"
        f"  heat: {{target: '{mixed_server.url}', env_name: thermostat, weight: 1.0}}\n"
    )
    return path


def command(*arguments: object) -> list[str]:
    """The command in a process of its own."""
    return [sys.executable, "-m", "multiors.cli", *map(str, arguments)]


# -- usage


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "usage: multiors"),
        (("practise",), "invalid choice: 'practise'"),
        (("preview",), "the following arguments are required: run_file"),
        (("preview", "run.yaml", "--yaml"), "unrecognized arguments: --yaml"),
        (("quickstart", "--steps", "0"), "'0' is no whole number from 1 upwards"),
        (("quickstart", "--seed", "x"), "'x' is no whole number from 0 upwards"),
    ],
)
def test_wrong_usage_is_two(run: Run, arguments: tuple[str, ...], said: str) -> None:
    """What cannot be understood exits with 2 and says how it is meant, on stderr."""
    told = run(*arguments)

    assert (2, "") == (told.exit_code, told.out)
    assert said in told.err


@pytest.mark.parametrize(
    ("arguments", "said"), [(("--help",), "multiors preview run.yaml"), (("preview", "-h"), "run_file")]
)
def test_help_is_asked_for(run: Run, arguments: tuple[str, ...], said: str) -> None:
    """Help that was asked for is the result: on stdout, with examples and exit code 0."""
    told = run(*arguments)

    assert (0, "") == (told.exit_code, told.err)
    assert said in told.out


def test_the_version_is_the_packages(run: Run) -> None:
    """`--version` is what is installed."""
    assert Said(0, f"multiors {version('multiors')}\n", "") == run("--version")


def test_help_imports_nothing_heavy() -> None:
    """Help is quick: the trainer and the client load when a command needs them."""
    heavy = ("openreward", "trl", "torch", "transformers", "datasets", "pyarrow", "aiohttp", "numpy", "pydantic")
    script = (
        "import contextlib, sys\n"
        "from multiors.cli import main\n"
        "for arguments in (['--help'], ['preview', '--help'], ['quickstart', '--help'], ['--version']):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main(arguments)\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert "[]" == said.splitlines()[-1]


# -- preview


def test_preview_prints_the_plan(run: Run, run_file: Path) -> None:
    """The schedule as a table, on stdout, with what it repeats."""
    told = run("preview", run_file)
    lines = told.out.splitlines()

    assert (0, "9 slots (seed 3, max_slots)") == (told.exit_code, lines[0])
    assert ["sort", "4", "66.67%", "6", "1.50"] == lines[4].split()
    assert ["heat", "3", "33.33%", "3", "1.00"] == lines[5].split()
    assert "source 'sort' repeats its 4 tasks: each is drawn 1 or 2 times." in lines


def test_preview_shows_the_tools_when_asked(run: Run, run_file: Path) -> None:
    """A table per source, under its name."""
    told = run("preview", run_file, "--tools")
    without = run("preview", run_file)

    assert 0 == told.exit_code
    assert {"sort", "heat"} <= set(told.out.splitlines())
    assert all(name in told.out for name in ("compare", "submit", "read", "degrees"))
    assert "compare" not in without.out


def test_preview_as_json_is_nothing_but_json(run: Run, run_file: Path) -> None:
    """The same for machines."""
    told = run("preview", run_file, "--json", "--tools")
    read = json.loads(told.out)

    assert 0 == told.exit_code
    assert {"plan", "tools"} == set(read)
    assert [("sort", 6), ("heat", 3)] == [(source["name"], source["slots"]) for source in read["plan"]["sources"]]
    assert {"sort", "heat"} == set(read["tools"])
    assert {"plan"} == set(json.loads(run("preview", run_file, "--json").out))


def test_preview_leaves_no_session(run: Run, run_file: Path, mixed_server: ServerHandle) -> None:
    """Probing a task for tools opens a session, and closes it."""
    run("preview", run_file)

    assert {} == mixed_server.counts().active


def test_warnings_are_one_line_beside_the_result(flaky_server: ServerHandle, tmp_path: Path) -> None:
    """What was done instead is said on stderr, without Python's file and line, and the result stays clean."""
    path = tmp_path / "run.yaml"
    path.write_text(
        f"sources: {{a: {{target: '{flaky_server.url}', env_name: flaky, task_tools_discovery_index: 1}}}}\n"
    )
    told = subprocess.run(command("preview", path, "--json"), capture_output=True, text=True, check=False)

    assert (0, 7) == (told.returncode, json.loads(told.stdout)["plan"]["num_slots"])
    assert told.stderr.startswith("warning: source 'a': ")
    assert "warnings.warn" not in told.stderr


# -- errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: -1\n", "run.yaml' has 2 mistakes:\n- line 1: sources: Field required\n- line 1: seed: Input"),
        ("sources: {prompt: {target: x}}\n", "source name 'prompt' cannot be used"),
        ("sources: {a: {target: 'no name'}}\n", "source 'a': target 'no name' is neither a URL nor a catalogue name"),
        ("sources: {a: {target: lab/name}}\n", "source 'a': 'lab/name' is a catalogue name and no key is set"),
        (
            "sources: {a: {target: 'http://127.0.0.1:9'}}\n",
            "source 'a': the server at http://127.0.0.1:9 cannot be used",
        ),
        (
            "sources: {a: {target: 'http://127.0.0.1:9'}, b: {target: 'http://127.0.0.1:9/x'}}\n",
            "2 sources cannot be used:",
        ),
    ],
)
def test_a_known_error_is_one_message(run: Run, tmp_path: Path, text: str, message: str) -> None:
    """Exit code 1, nothing on stdout, and the message without a traceback."""
    path = tmp_path / "run.yaml"
    path.write_text(text)
    told = run("preview", path)

    assert (1, "") == (told.exit_code, told.out)
    assert told.err.startswith("multiors preview: ")
    assert "Traceback" not in told.err
    assert message in told.err


def test_a_missing_run_file_is_one_message(run: Run, tmp_path: Path) -> None:
    """A file that is not there is a known error."""
    told = run("preview", tmp_path / "none.yaml", "--json")

    assert (1, "") == (told.exit_code, told.out)
    assert (
        f"multiors preview: run file '{tmp_path / 'none.yaml'}' cannot be read: No such file or directory.\n"
        == told.err
    )


def test_an_interrupted_command_is_130(tmp_path: Path) -> None:
    """Ctrl-C while a server does not answer ends the command at once, in one word."""
    with serve_raw(hangs_on=("/list_environments",)) as server:
        path = tmp_path / "run.yaml"
        path.write_text(f"sources: {{a: {{target: '{server.url}'}}}}\n")
        process = subprocess.Popen(command("preview", path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            server.wait_until(lambda counts: "GET /list_environments" in counts.requests, deadline_s=DEADLINE_S)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()

    assert (130, "") == (process.returncode, out)
    assert "interrupted" in err.splitlines()
    assert "Traceback" not in err
