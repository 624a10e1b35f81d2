"""`multiors serve` in a process of its own, and an ORS session over plain HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

__all__ = ["Serving", "ask_tasks", "command", "open_session", "serve_command"]

_STOP_DEADLINE_S = 60.0


class Serving(NamedTuple):
    """A server that answers."""

    process: subprocess.Popen[str]
    url: str
    environments: dict[str, dict[str, Any]]
    """What it said of each, by name."""

    log: Path
    """Its standard error."""


def command(*arguments: object) -> list[str]:
    """The command line of the server."""
    return [sys.executable, "-m", "multiors", "serve", *map(str, arguments)]


@contextmanager
def serve_command(*arguments: object, folder: Path, **variables: str) -> Iterator[Serving]:
    """Serve from a folder on any free port, until the block is left."""
    log = folder / "server.log"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **variables}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command(*arguments, "--port", 0, "--json"),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env=environment,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server did not start: {log.read_text()}")
            said = json.loads(line)
            yield Serving(process, said["url"], {each["name"]: each for each in said["environments"]}, log)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_DEADLINE_S)
            finally:
                process.kill()


def ask_tasks(url: str, environment: str, split: str, start: int, stop: int) -> list[dict[str, Any]]:
    """Specifications of a range of tasks."""
    answer = httpx.post(f"{url}/{environment}/task_range", json={"split": split, "start": start, "stop": stop})
    answer.raise_for_status()
    tasks: list[dict[str, Any]] = answer.json()["tasks"]
    return tasks


class _Session:
    """One episode."""

    def __init__(self, client: httpx.Client, environment: str, created: httpx.Response) -> None:
        self._client = client
        self._environment = environment
        self.created = created

    def prompt(self) -> str:
        blocks = self._client.get(f"/{self._environment}/prompt").raise_for_status().json()
        return "".join(block["text"] for block in blocks)

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = self._client.post(f"/{self._environment}/call", json={"name": tool, "input": arguments})
        answer.raise_for_status()
        result: dict[str, Any] = json.loads(answer.text.split("event: end\r\ndata: ")[1])
        return result


@contextmanager
def open_session(url: str, environment: str, **task: Any) -> Iterator[_Session]:
    """A session of a task: split=... and index=..., or task_spec=..."""
    with httpx.Client(base_url=url, timeout=60) as client:
        opened = client.post("/create_session", json={})
        client.headers["X-Session-ID"] = opened.text.split("data: ")[1].split()[0]
        created = client.post("/create", json={"env_name": environment, **task})
        yield _Session(client, environment, created)
        with suppress(httpx.ConnectError):  # the test may have ended the server
            client.post("/delete")
