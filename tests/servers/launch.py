"""Starting, stopping, freezing and counting server processes.

A test says `with serve(Echo) as server:` and gets a handle. Nothing here knows what a server answers: that is
`ors.py`, `platform.py` and `raw.py`, which run in the child (see `child.py`).
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tests.servers import child

__all__ = ["Configured", "Counts", "ServerHandle", "configured", "launch", "serve"]

_START_DEADLINE_S = 60.0
_STOP_DEADLINE_S = 5.0
_POLL_S = 0.01

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.servers.preload", "pytest"])


@dataclass(frozen=True)
class Counts:
    """What a server has seen since it started or since `ServerHandle.reset_counts`."""

    requests: Mapping[str, int] = field(default_factory=dict)
    """By method and route: ``"POST /{env}/call"``."""

    paths: Mapping[str, int] = field(default_factory=dict)
    """By method and path as asked: ``"POST /echo/call"``."""

    statuses: Mapping[str, int] = field(default_factory=dict)
    """By status code: ``"308"``."""

    max_in_flight: Mapping[str, int] = field(default_factory=dict)
    """By method and route, the most requests served at the same time."""

    active: Mapping[str, int] = field(default_factory=dict)
    """Open sessions by environment; environments without one are left out. Not reset."""

    max_active: int = 0
    """The most sessions open at the same time, of all environments together."""

    opened: Mapping[str, int] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)
    """Ended by a request; a session that expired is in neither `deleted` nor `active`."""

    tool_calls: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How often each tool ran, by environment and tool."""

    sessions: Sequence[Mapping[str, Any]] = ()
    """One per session, in order of opening: sid, environment, split, index, tool_calls (how often each tool ran), pings
    (how many were answered)."""

    resumed_calls: int = 0
    """Requests that asked for the result of a call under way, by task_id."""

    api_keys: Sequence[str] = ()
    """Distinct values of X-API-Key, sorted. Empty: no request carried one."""

    secrets: Sequence[Mapping[str, Any]] = ()
    """Distinct decoded X-Secrets headers. Empty: no request carried one."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """What only one kind of server counts."""

    def pings(self) -> dict[str, int]:
        """How often each session was pinged, by sid."""
        return {session["sid"]: session["pings"] for session in self.sessions}


class ServerHandle:
    """One server process. Its port stays the same over `restart`."""

    def __init__(self, build: str, options: dict[str, Any], ports: Sequence[int]) -> None:
        self._build = build
        self._options = options
        descriptor, name = tempfile.mkstemp(prefix="multiors-server-", suffix=".log")
        os.close(descriptor)
        self._log = Path(name)
        self.ports: list[int] = list(ports)
        self.path_prefix: str = options.get("path_prefix", "")
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path_prefix}"

    @property
    def pid(self) -> int:
        if self._process.pid is None:
            raise RuntimeError("the server process never started")
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def log(self) -> str:
        """What the process wrote to stdout and stderr."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self._process.kill()
        self._process.join()

    def pause(self) -> None:
        """Freeze the process: it accepts connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Frozen inside the block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def stop(self) -> None:
        """End the process in good order, and by force where it does not listen."""
        with suppress(ProcessLookupError):
            self.resume()
        self._process.terminate()
        self._process.join(_STOP_DEADLINE_S)
        self.kill()
        self._log.unlink(missing_ok=True)

    def restart(self) -> None:
        """Kill the process and start a new one, which knows no session, on the same ports."""
        self.kill()
        self._start()

    def counts(self) -> Counts:
        answer = self.ask("GET", "/_counts")
        return Counts(**{name.name: answer[name.name] for name in fields(Counts) if name.name in answer})

    def reset_counts(self) -> None:
        self.ask("DELETE", "/_counts")

    def pass_time(self, passed_s: float, *, pinged: Sequence[str] = (), deadline_s: float = 60.0) -> None:
        """Make every session of openreward's server as old as if so much time had passed without a request.

        Its own expiry, which looks every 5 s, then ends those that it has not heard of for 900 s.

        Args:
            passed_s: How much.
            pinged: Sessions, by sid; returns once each of them was pinged after the time had passed.
            deadline_s: How long to wait for these pings.
        """
        self.ask("POST", "/_clock", {"passed_s": passed_s})
        before = self.counts().pings()
        self.wait_until(lambda counts: all(counts.pings()[sid] > before[sid] for sid in pinged), deadline_s=deadline_s)

    def wait_until(self, holds: Callable[[Counts], bool], *, deadline_s: float = 10.0) -> Counts:
        """The counts, once `holds` is true of them.

        Raises:
            TimeoutError: It did not become true in time; the text shows the last counts.
        """
        ends = time.monotonic() + deadline_s
        while not holds(counts := self.counts()):
            if time.monotonic() > ends:
                raise TimeoutError(f"not so after {deadline_s} s: {counts}")
            time.sleep(_POLL_S)

        return counts

    def ask(self, method: str, path: str, body: Any = None, *, deadline_s: float = 10.0) -> Any:
        """The JSON answer to one request to the first port."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=deadline_s)
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body),
                headers={} if body is None else {"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status >= 400:
            raise RuntimeError(f"{method} {path} answered {response.status}: {text}")

        return json.loads(text)

    def _start(self) -> None:
        ours, theirs = _context.Pipe()
        self._process = _context.Process(
            target=child.main, args=(self._build, self._options, self.ports, theirs, str(self._log)), daemon=True
        )
        self._process.start()
        theirs.close()
        if not ours.poll(_START_DEADLINE_S):
            raise TimeoutError(f"the server did not start in {_START_DEADLINE_S} s: {self.log()}")
        try:
            said = ours.recv()
        except EOFError:
            raise RuntimeError(f"the server process ended before it listened: {self.log()}") from None
        if isinstance(said, str):
            raise RuntimeError(f"the server could not be built:\n{said}")
        self.ports = said
        self._wait_for_health()

    def _wait_for_health(self) -> None:
        """The socket listens before the application does: ask until it answers."""
        ends = time.monotonic() + _START_DEADLINE_S
        while True:
            try:
                self.counts()
            except (OSError, http.client.HTTPException):
                if time.monotonic() > ends or not self.is_alive:
                    raise RuntimeError(f"the server does not answer: {self.log()}") from None
                time.sleep(_POLL_S)
            else:
                return


@dataclass(frozen=True)
class Configured:
    """An environment class, by name, with class attributes to set in the server process."""

    path: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


def configured(environment: type | str, **attributes: Any) -> Configured:
    """The environment with class attributes of its server process set, as in ``configured(Slow, TOOL_S=0.2)``."""
    path = environment if isinstance(environment, str) else f"{environment.__module__}:{environment.__qualname__}"
    return Configured(path, attributes)


@contextmanager
def launch(build: str, options: dict[str, Any], *, ports: Sequence[int] = (0,)) -> Iterator[ServerHandle]:
    """Run what ``module:function`` builds in a process of its own, until the block ends."""
    handle = ServerHandle(build, options, ports)
    try:
        yield handle
    finally:
        handle.stop()


@contextmanager
def serve(
    *environments: type | str | Configured, port: int = 0, latency_s: float = 0.0, path_prefix: str = ""
) -> Iterator[ServerHandle]:
    """Serve environments on openreward's own server.

    Args:
        environments: Classes, ``"module:Class"``, the bare name of a class of `environments.py`, `features.py`,
            `shapes.py` or `misbehaving.py` beside this file, or what `configured` returns. The server's process imports
            them by name, so they stand at the top of a module. The first is the server's default environment.
        port: Port on the loopback interface. 0: any free one.
        latency_s: Seconds added to every request.
        path_prefix: Where the server lives on its host: ``"/ors"``. Every other path is a 404.
    """
    chosen = [item if isinstance(item, Configured) else configured(item) for item in environments]
    options = {"environments": chosen, "latency_s": latency_s, "path_prefix": path_prefix}
    with launch("tests.servers.ors:build", options, ports=(port,)) as handle:
        yield handle
