"""What does it take to hold thousands of sessions open in one process?

1,024 and 4,096 sessions of one environment on one local server: all are opened, left alone for as long as a silent
session is left unpinged, called once, and closed. `multiors` does it through the environments that a trainer gets,
opened ahead; `sdk` through the openreward SDK's own `AsyncSession`; `http` sends the bare requests with one `aiohttp`
client, and pings each session once, one after another: the limit. The latter two open, call and close 512 at a time,
which is how many openings and calls of a source the library has under way. Each side has a client process and a server
process of its own, so memory is what it itself took.

`memory_per_session_kb` is what the client's resident memory grew by from before the first opening, when everything was
imported and one session had been played, to when all were open; `server_memory_per_session_kb` is the same of the
server, with what the benchmark counts there. `idle` is the time without calls: `cpu_cores` is the client's processor
time over the wall's, of all its threads, and `pings` is what the server counted. `max_open_files` is the most files,
sockets among them, that the client was seen with. `multiors_with_1024_files` is `multiors` once more under a limit of
1,024 open files, without the idle time; `socket_need` is what the library says before training (null: nothing). A
failure of any kind ends the benchmark.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import logging
import multiprocessing
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks._http import connect
from benchmarks._report import parse_arguments, write_report
from tests.servers.launch import ServerHandle, serve

__all__ = ["main"]

_NUM_SESSIONS = (1024, 4096)
_IDLE_S = 30.0  # a session of a server that is no platform is pinged after so long a silence
_AT_ONCE = 512
_NUM_TASKS = 8
_FEW_FILES = 1024
_SAMPLE_S = 0.1
_DEADLINE_S = 120.0


@dataclass(frozen=True)
class _Load:
    """What a process is to do."""

    url: str
    server_pid: int
    num_sessions: int
    idle_s: float
    max_files: int | None = None
    """The limit of open files. None: as it is."""


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    sizes = (16,) if arguments.quick else _NUM_SESSIONS
    idle_s = 0.2 if arguments.quick else _IDLE_S
    results: dict[str, Any] = {}

    for size in sizes:
        sides = {name: _run(name, size, idle_s=idle_s) for name in ("http", "sdk", "multiors")}
        results[f"{size}_sessions"] = {**sides, "ratios": _compare(sides)}

    if not arguments.quick:
        found = _run("multiors", sizes[-1], max_files=_FEW_FILES)
        results[f"{sizes[-1]}_sessions"][f"multiors_with_{_FEW_FILES}_files"] = found

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = {"idle_s": idle_s, "at_once": _AT_ONCE, "open_files_limit": soft, "open_files_hard_limit": hard}
    write_report(arguments.json, results, settings=settings)


def _run(name: str, size: int, *, idle_s: float = 0.0, max_files: int | None = None) -> dict[str, Any]:
    """Play one side in a process of its own and watch how many files it opens."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)

    with serve("Echo") as server:
        load = _Load(server.url, server.pid, size, idle_s, max_files)
        process = context.Process(target=_play, args=(name, load, sender))
        process.start()
        sender.close()
        watched = psutil.Process(process.pid)
        max_open_files = 0

        while not receiver.poll(_SAMPLE_S):
            max_open_files = max(max_open_files, watched.num_fds())

        try:
            found: dict[str, Any] = receiver.recv()
        except EOFError:
            raise SystemExit(f"{name}, {size} sessions: the process failed; it said why") from None

        process.join()
        _check(name, size, server)

    found["max_open_files"] = max_open_files
    print(f"{size} sessions, {name}: {found}", file=sys.stderr)

    return found


def _check(name: str, size: int, server: ServerHandle) -> None:
    """Every session was opened, called once, and closed."""
    counts = server.wait_until(lambda counts: not counts.active, deadline_s=_DEADLINE_S)
    seen = (counts.opened["echo"], counts.deleted["echo"], counts.tool_calls["echo"]["echo"])

    if seen != (size + 1,) * 3:
        raise SystemExit(f"{name}: {size} sessions and one before were to be opened, closed and called, not {seen}")


def _compare(sides: Mapping[str, Any]) -> dict[str, float | None]:
    own, sdk, bare = (sides[name] for name in ("multiors", "sdk", "http"))

    return {
        "opened_per_s_to_http": _divide(own["opened_per_s"], bare["opened_per_s"]),
        "opened_per_s_to_sdk": _divide(own["opened_per_s"], sdk["opened_per_s"]),
        "memory_to_sdk": _divide(own["memory_per_session_kb"], sdk["memory_per_session_kb"]),
        "idle_cpu_to_http": _divide(own["idle"]["cpu_cores"], bare["idle"]["cpu_cores"]),
        "idle_cpu_to_sdk": _divide(own["idle"]["cpu_cores"], sdk["idle"]["cpu_cores"]),
    }


def _divide(own: float, other: float) -> float | None:
    return round(own / other, 2) if other else None


# -- in the process of one side


class _Probe:
    """Measures the process that it is made in."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._client, self._server = psutil.Process(), psutil.Process(load.server_pid)
        self._memory_bytes = (0, 0)
        self.found: dict[str, Any] = {}

    def begin(self) -> None:
        """Everything is imported, and one session was played."""
        self._memory_bytes = self._measure_memory()

    @contextmanager
    def timing(self, rate: str) -> Iterator[None]:
        """Note how many sessions a second the block got through."""
        started = time.perf_counter()
        yield
        self.found[rate] = round(self._load.num_sessions / (time.perf_counter() - started), 1)

    @contextmanager
    def idling(self) -> Iterator[None]:
        """Note what the open sessions take, at rest and over the block."""
        for name, before, now in zip(
            ("memory", "server_memory"), self._memory_bytes, self._measure_memory(), strict=True
        ):
            self.found[f"{name}_per_session_kb"] = round((now - before) / 1024 / self._load.num_sessions, 2)

        pings, cpu_s, started = self._count_pings(), time.process_time(), time.perf_counter()
        yield
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - started
        pings = self._count_pings() - pings

        if self._load.idle_s:
            self.found["idle"] = {"cpu_cores": round(cpu_s / wall_s, 4), "pings": pings}

    def _measure_memory(self) -> tuple[int, int]:
        gc.collect()
        return self._client.memory_info().rss, self._server.memory_info().rss

    def _count_pings(self) -> int:
        connection = http.client.HTTPConnection(urlsplit(self._load.url).netloc, timeout=_DEADLINE_S)
        connection.request("GET", "/_counts")
        counts = json.loads(connection.getresponse().read())
        connection.close()
        return int(counts["requests"].get("POST /ping", 0))


def _play(name: str, load: _Load, sender: Connection) -> None:
    if load.max_files is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (load.max_files, hard))

    probe = _Probe(load)

    if name == "multiors":
        _play_own(load, probe)
    else:
        asyncio.run({"sdk": _play_sdk, "http": _play_bare}[name](load, probe))

    sender.send(probe.found)


def _play_own(load: _Load, probe: _Probe) -> None:
    from multiors import ORSSource
    from multiors.ors.sessions.limits import describe_socket_need
    from multiors.ors.sessions.runtime import get_runtime

    factory: Any = ORSSource(load.url, env_name="echo", discover_task_tools=False).environment_factory
    probe.found["socket_need"] = describe_socket_need(load.num_sessions)

    def open_all(num_sessions: int) -> list[Any]:
        environments = [factory() for _ in range(num_sessions)]
        for index in range(num_sessions):
            factory.open_ahead(task_index=index % _NUM_TASKS)
        for index, environment in enumerate(environments):
            environment.reset(task_index=index % _NUM_TASKS)
        return environments

    def call_all(environments: Sequence[Any]) -> None:
        for environment in environments:
            environment._start_ahead([(environment._find_tool("echo"), {"text": "no"})])
        for environment in environments:
            environment.echo(text="no")

    def close_all(environments: Sequence[Any]) -> None:
        for environment in environments:
            environment._release()
        get_runtime().close_now([])

    first = open_all(1)
    call_all(first)
    close_all(first)
    probe.begin()

    with probe.timing("opened_per_s"):
        environments = open_all(load.num_sessions)
    with probe.idling():
        time.sleep(load.idle_s)
    with probe.timing("called_per_s"):
        call_all(environments)
    with probe.timing("closed_per_s"):
        close_all(environments)

    errors = {environment._episode().error for environment in environments} - {None}
    if errors:
        raise RuntimeError(f"not every session was played: {errors}")


async def _play_sdk(load: _Load, probe: _Probe) -> None:
    from openreward.api.environments.client import AsyncEnvironmentsAPI

    logging.getLogger("openreward").setLevel(logging.ERROR)  # it warns of each ping that was slow
    api = AsyncEnvironmentsAPI(load.url, None)
    environment = api.get("env", variant="echo")

    async def open_one(index: int) -> Any:
        session = await environment.session(split="train", index=index % _NUM_TASKS).__aenter__()
        await session.get_prompt()
        return session

    async def call_one(session: Any) -> None:
        await session.call_tool("echo", {"text": "no"})

    async def close_one(session: Any) -> None:
        await session.__aexit__(None, None, None)

    await _play_async(load, probe, open_one, call_one, close_one, idle=lambda _: asyncio.sleep(load.idle_s))
    await api.aclose()


async def _play_bare(load: _Load, probe: _Probe) -> None:
    async with connect(load.url, "echo") as client:

        async def idle(sessions: Sequence[Any]) -> None:
            started = time.perf_counter()

            for index, session in enumerate(sessions):
                due_s = index * load.idle_s / len(sessions)
                await asyncio.sleep(max(0.0, due_s - (time.perf_counter() - started)))
                await client.ping(session)

        async def call_one(session: Any) -> None:
            await client.call(session, "echo", {"text": "no"})

        await _play_async(load, probe, lambda index: client.open(index % _NUM_TASKS), call_one, client.close, idle=idle)


async def _play_async(
    load: _Load,
    probe: _Probe,
    open_one: Callable[[int], Awaitable[Any]],
    call_one: Callable[[Any], Awaitable[None]],
    close_one: Callable[[Any], Awaitable[None]],
    *,
    idle: Callable[[Sequence[Any]], Awaitable[None]],
) -> None:
    async def do_all(do_one: Callable[[Any], Awaitable[Any]], items: Sequence[Any]) -> list[Any]:
        room = asyncio.Semaphore(_AT_ONCE)

        async def do(item: Any) -> Any:
            async with room:
                return await do_one(item)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(do(item)) for item in items]

        return [task.result() for task in tasks]

    first = await do_all(open_one, [0])
    await do_all(call_one, first)
    await do_all(close_one, first)
    probe.begin()

    with probe.timing("opened_per_s"):
        sessions = await do_all(open_one, range(load.num_sessions))
    with probe.idling():
        await idle(sessions)
    with probe.timing("called_per_s"):
        await do_all(call_one, sessions)
    with probe.timing("closed_per_s"):
        await do_all(close_one, sessions)


if __name__ == "__main__":
    main()
