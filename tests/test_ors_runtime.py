"""One background loop for all ORS traffic, and the end of every session: threads, loops, forks, exits, interrupts."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from multiors.ors.rollouts.factory import EnvironmentFactory
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.source import ORSSource
from tests.commands import run_python
from tests.playing import keep_alive
from tests.servers.launch import Counts, ServerHandle, configured, serve
from tests.servers.raw import serve_raw

_DEADLINE_S = 30


@pytest.fixture(scope="module")
def factory(echo_server: ServerHandle) -> EnvironmentFactory:
    """Makes environments of `Echo`."""
    return ORSSource(echo_server.url).environment_factory


@pytest.fixture(scope="module")
def slow_server() -> Iterator[ServerHandle]:
    """`Slow`, whose setup takes longer than any test."""
    with serve(configured("Slow", SETUP_S=60.0)) as server:
        yield server


@pytest.fixture
def idle(echo_server: ServerHandle) -> ServerHandle:
    """The server of `factory` without an open session, its counts at zero."""
    get_runtime().close_now(list(get_runtime()._open))
    echo_server.reset_counts()
    return echo_server


def _start_script(script: str, *factories: EnvironmentFactory) -> subprocess.Popen[bytes]:
    """Run a script in a new interpreter; its `factories` are those given here, and its standard input stays open."""
    # Frozen, because the script forks: else each child's end copies the whole heap.
    prelude = "import gc, pickle, sys\nfactories = pickle.load(sys.stdin.buffer)\ngc.freeze()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(factories))
    process.stdin.flush()
    return process


def _finish_script(process: subprocess.Popen[bytes]) -> tuple[list[str], str]:
    """The lines that a script printed, and what it wrote to standard error."""
    try:
        out, errors = process.communicate(timeout=_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return out.decode().splitlines(), errors.decode()


# -- the loop


def test_rollouts_in_threads_overlap() -> None:
    """Sessions that are opened in several threads are opened at the same time."""
    with serve("Echo", latency_s=0.1) as server, ThreadPoolExecutor(8) as threads:
        factory = ORSSource(server.url, discover_task_tools=False).environment_factory
        environments = [factory() for _ in range(8)]
        list(threads.map(lambda environment: environment.reset(task_index=0), environments))
        counts = server.counts()
        list(threads.map(lambda environment: environment._close(), environments))

    assert 8 == counts.max_in_flight["POST /create"]


def test_nothing_writes_an_environment_variable(idle: ServerHandle) -> None:
    """Whatever a source does, the process's environment variables stay as they were."""
    before = dict(os.environ)
    source = ORSSource(idle.url)
    environment: Any = source.environment_factory()
    environment.reset(task_index=source.task_list.indices[0])
    environment.echo(text="oak")
    environment._close()

    assert before == dict(os.environ)


def test_a_runtime_that_was_shut_down_starts_again(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """Shutting down closes every session; what comes after gets a new loop."""
    factory().reset(task_index=0)
    get_runtime().shut_down()
    after_shutdown = idle.counts()
    environment: Any = factory()
    environment.reset(task_index=0)
    said = environment.echo(text="oak")
    environment._close()

    assert {} == after_shutdown.active
    assert "oak" == said


# -- the end of sessions


def test_sessions_of_one_source_are_closed_together(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """Closing what a source opened waits for it, and leaves the sessions of other sources open."""
    other = ORSSource(idle.url).environment_factory
    mine, theirs = [factory() for _ in range(3)], other()
    for environment in [*mine, theirs]:
        environment.reset(task_index=0)
    get_runtime().close_owned_by([factory.blueprint.identity])
    counts = idle.counts()
    theirs._close()

    assert {"echo": 1} == counts.active
    assert {} == idle.counts().active
    assert 0 == get_runtime().num_open_sessions


@pytest.mark.parametrize("collect_on_the_loop", [False, True])
def test_a_dropped_environment_closes_its_session(
    idle: ServerHandle, factory: EnvironmentFactory, collect_on_the_loop: bool
) -> None:
    """When an environment is garbage its session is closed, whichever thread happens to collect it."""

    async def collect() -> None:
        gc.collect()

    environment: Any = factory()
    environment.reset(task_index=0)
    environment.itself = environment  # only the collector can free it
    gc.disable()
    try:
        del environment
        if collect_on_the_loop:
            get_runtime().run(collect)
        else:
            gc.collect()
    finally:
        gc.enable()

    assert {"echo": 1} == idle.wait_until(lambda counts: bool(counts.deleted)).deleted


def test_a_session_that_cannot_be_closed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """If the server refuses to delete a session, a warning says so, without the session's id; nothing raises."""
    with serve_raw(statuses={"/delete": [500]}) as server:
        environment: Any = ORSSource(server.url, discover_task_tools=False).environment_factory()
        environment.reset(task_index=0)
        sid = environment._lease.session.sid
        server.reset_counts()
        with caplog.at_level(logging.WARNING, "multiors.ors"):
            environment._close()
        paths = server.counts().paths

    assert [f"1 of the sessions of {server.url} could not be closed"] == [
        record.getMessage().partition(" (")[0] for record in caplog.records if record.name == "multiors.ors"
    ]
    assert sid not in caplog.text
    assert 1 == paths["POST /delete_session"]


# -- loops, forks, exits and interrupts, in interpreters of their own

_CASES = """
import asyncio, json, os, signal, threading

echo, sorting = factories

def play(index):
    environment = echo()
    prompt = environment.reset(task_index=index)
    said = environment.echo(text="elm")
    environment._close()
    return [prompt, said, environment.reward]

def modules():
    play(0)
    return sorted({"trl", "torch", "transformers", "datasets"} & set(sys.modules))

async def play_in_loop():
    return play(2)

def loop():
    results = [asyncio.run(play_in_loop())]
    thread = threading.Thread(target=lambda: results.append(asyncio.run(play_in_loop())))
    thread.start()
    thread.join()
    return results

def fork():
    mine = echo()
    mine.reset(task_index=0)
    read, write = os.pipe()
    if os.fork() == 0:
        theirs = sorting()
        os.write(write, f"{theirs.reset(task_index=0)} {theirs.compare(i=0, j=1)}\\n".encode())
        sys.stdin.buffer.readline()  # until the test has seen this session's ping
        sys.exit()
    said = os.read(read, 100).decode().strip()
    os.wait()
    return [said, mine.echo(text="oak")]

def leave_open():
    environments.extend(echo() for _ in range(3))
    for i, environment in enumerate(environments):
        environment.reset(task_index=i)
    environments[0].echo(text="oak")

def end():
    leave_open()

def exception():
    leave_open()
    raise RuntimeError("on purpose")

def exit():
    leave_open()
    sys.exit(3)

def interrupt():
    leave_open()
    signal.raise_signal(signal.SIGINT)

environments = []
for case in (modules, loop, fork, end, exception, exit, interrupt):
    pid = os.fork()
    if pid == 0:
        print(json.dumps([case.__name__, case()]), flush=True)
        break
    print(json.dumps([case.__name__, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]), flush=True)
"""


class Report(NamedTuple):
    results: dict[str, Any]
    statuses: dict[str, int]
    errors: str
    echo: Counts
    sorting: Counts


@pytest.fixture(scope="module")
def report(echo_server: ServerHandle, mixed_server: ServerHandle, factory: EnvironmentFactory) -> Report:
    """What came of each of `_CASES`, all forked from one interpreter before it opened anything."""
    get_runtime().close_now(list(get_runtime()._open))
    blueprint = ORSSource(mixed_server.url, env_name="sorting", discover_task_tools=False).blueprint
    sorting = EnvironmentFactory(keep_alive(blueprint, 0.1))
    echo_server.reset_counts()
    mixed_server.reset_counts()
    process = _start_script(_CASES, factory, sorting)
    assert process.stdin is not None
    mixed_server.wait_until(lambda counts: counts.requests.get("POST /ping", 0) >= 1, deadline_s=_DEADLINE_S)
    process.stdin.write(b"\n")
    lines, errors = _finish_script(process)
    pairs = [json.loads(line) for line in lines]

    return Report(
        results={name: value for name, value in pairs if not isinstance(value, int)},
        statuses={name: value for name, value in pairs if isinstance(value, int)},
        errors=errors,
        echo=echo_server.counts(),
        sorting=mixed_server.counts(),
    )


def test_a_factory_plays_in_a_fresh_interpreter(report: Report) -> None:
    """A pickled factory needs nothing of the process that made it, and loads neither TRL nor a model library."""
    assert [] == report.results["modules"]
    assert 0 == report.statuses["modules"]


def test_synchronous_calls_work_inside_a_running_loop(report: Report) -> None:
    """In a notebook, where a loop already runs, in the main thread or another, an environment plays as anywhere."""
    assert [["Say elm.", "elm", 1.0]] * 2 == report.results["loop"]


def test_a_forked_child_has_a_loop_of_its_own(report: Report) -> None:
    """After a fork the child plays, keeps its session alive and closes it; the parent's session stays open."""
    assert ["Sort 3 hidden numbers. sorting: not less", "oak"] == report.results["fork"]
    assert 1 <= report.sorting.requests["POST /ping"]
    assert {"sorting": 1} == report.sorting.opened == report.sorting.deleted


def test_an_exit_closes_every_session(report: Report) -> None:
    """However an interpreter ends, its open sessions are closed, and it ends as it would have without them."""
    expected = {"modules": 0, "loop": 0, "fork": 0, "end": 0, "exception": 1, "exit": 3, "interrupt": -signal.SIGINT}

    assert expected == report.statuses
    assert {"echo": 1 + 2 + 1 + 4 * 3} == report.echo.opened == report.echo.deleted
    assert {} == report.echo.active
    assert "never awaited" not in report.errors
    assert "was destroyed" not in report.errors
    assert "could not be closed" not in report.errors


_INTERRUPTED = """
import os, threading

opening, working = factories
names = ["reset", "tool", "thread"]
name = None
for each in names:
    pid = os.fork()
    if pid == 0:
        name = each
        break
    print(pid, flush=True)

if name is None:
    for _ in names:
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
elif name == "reset":
    opening().reset(task_index=0)
elif name == "tool":
    environment = working()
    environment.reset(task_index=0)
    environment.work()
else:
    threading.Thread(target=lambda: opening().reset(task_index=1), daemon=True).start()
    threading.Event().wait()
"""


def test_an_interrupt_during_a_request_leaves_no_session(slow_server: ServerHandle) -> None:
    """Ctrl-C in the middle of opening a session or of a tool call ends the program and its sessions, in any thread."""
    with serve(configured("Slow", TOOL_S=60.0)) as working_server:
        process = _start_script(
            _INTERRUPTED,
            *(
                ORSSource(server.url, discover_task_tools=False).environment_factory
                for server in (slow_server, working_server)
            ),
        )
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(3)]
        slow_server.wait_until(lambda counts: counts.active == {"slow": 2}, deadline_s=_DEADLINE_S)
        working_server.wait_until(lambda counts: bool(counts.tool_calls.get("slow")), deadline_s=_DEADLINE_S)
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        statuses, _ = _finish_script(process)
        left = [slow_server.counts(), working_server.counts()]

    assert [str(-signal.SIGINT)] * 3 == statuses
    assert [{}, {}] == [counts.active for counts in left]
    assert [2, 1] == [counts.requests["POST /delete"] for counts in left]


_INTERRUPTED_START = """
import signal, sys
from multiors.ors.sessions.runtime import get_runtime

async def nothing():
    return "ran"

def interrupt(frame, event, _):
    if event == "call" and frame.f_code.co_name in ("wait", "result"):
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

sys.setprofile(interrupt)
try:
    get_runtime().run(nothing)
except KeyboardInterrupt:
    sys.stdout.write(f"interrupted {get_runtime().run(nothing)}")
"""


def test_an_interrupt_while_the_loop_starts_does_not_hang() -> None:
    """Ctrl-C comes out at once, and the loop is there for what comes next."""
    told = run_python(_INTERRUPTED_START)

    assert ("interrupted ran", 0) == (told.stdout, told.returncode)
