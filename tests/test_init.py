"""`multiors init` and `multiors schema`: a run file to begin with, and what editors know of run files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from multiors.config import load_run_file
from multiors.config.reading import parse_yaml
from multiors.shell import write_command
from tests.commands import Run
from tests.servers.launch import ServerHandle
from tests.servers.raw import serve_raw


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_file_is_written_that_can_be_used(run: Run) -> None:
    """It is valid as it stands, and by the schema; what comes next is said."""
    told = run("init")
    config = load_run_file(Path("run.yaml"))
    schema = json.loads(run("schema").out)

    assert (0, "", f"wrote run.yaml; next: {write_command('check', 'run.yaml')}\n") == told
    assert ["sort", "heat"] == list(config.sources)
    assert "# yaml-language-server: $schema=run.schema.json" == Path("run.yaml").read_text().splitlines()[0]
    assert [] == list(Draft202012Validator(schema).iter_errors(parse_yaml(Path("run.yaml").read_text()).values))


def test_what_is_commented_out_can_be_used_too(run: Run) -> None:
    """Without their sign, the lines with keys are a valid run file as well."""
    lines = run("init", "-").out.splitlines()
    keys = [
        line.replace("# ", "", 1) if line.lstrip().startswith("# ") and ": " in line.split("#")[1] else line
        for line in lines[lines.index("sources:                          # the environments, by a name of yours") :]
    ]
    Path("whole.yaml").write_text("\n".join(keys))
    config = load_run_file(Path("whole.yaml"))

    sort: Any = config.sources["sort"]

    assert ("${MY_SERVER_KEY}", "test", 50) == (
        sort.api_key,
        config.evaluation.split,
        config.evaluation.every_steps,
    )
    assert config.circuit_breaker is not None
    assert config.rollout_log is not None


def test_nothing_is_overwritten(run: Run) -> None:
    """A file that is there stays as it is."""
    Path("mine.yaml").write_text("mine")
    told = run("init", "mine.yaml")

    assert (1, "", "mine") == (told.exit_code, told.out, Path("mine.yaml").read_text())
    assert "multiors init: 'mine.yaml' is there, and nothing is overwritten." in told.err


def test_a_place_that_cannot_be_written_is_said(run: Run) -> None:
    """A folder that is not there is one message."""
    told = run("init", "none/run.yaml")

    assert (1, "") == (told.exit_code, told.out)
    assert "multiors init: 'none/run.yaml' cannot be written: No such file or directory." in told.err


def test_servers_are_asked_for_their_environments(
    run: Run, mixed_server: ServerHandle, echo_server: ServerHandle
) -> None:
    """Each is a source; names that are taken get a number."""
    told = run("init", "-", *("--url", mixed_server.url), *("--url", echo_server.url), *("--url", echo_server.url))
    Path("run.yaml").write_text(told.out)
    sources: Any = load_run_file(Path("run.yaml")).sources

    assert [
        ("sorting", mixed_server.url, "sorting"),
        ("thermostat", mixed_server.url, "thermostat"),
        ("echo", echo_server.url, "echo"),
        ("echo-2", echo_server.url, "echo"),
    ] == [(name, source.target[0], source.env_name) for name, source in sources.items()]


def test_names_of_a_server_are_text(run: Run) -> None:
    """Whatever it calls its environments, they have plain names here, and the file is valid."""
    names = ["a: {b}", "\x1b[31mred", "prompt", "# no", "", "lab/one", "no"]

    with serve_raw(answers={"/list_environments": names}) as server:
        told = run("init", "-", "--url", server.url)

    Path("run.yaml").write_text(told.out)
    sources = load_run_file(Path("run.yaml")).sources

    assert ["a-b", "31mred", "prompt-2", "no", "source", "lab-one", "no-2"] == list(sources)
    assert "\x1b" not in told.out


def test_a_server_that_is_away_is_said(run: Run) -> None:
    """And nothing is written."""
    told = run("init", "run.yaml", "--url", "http://127.0.0.1:9")

    assert (1, "") == (told.exit_code, told.out)
    assert "the server at http://127.0.0.1:9 cannot be used" in told.err
    assert not Path("run.yaml").exists()
