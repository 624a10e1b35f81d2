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
from typing import Any

import pytest

from multiors.ors.environment import EnvironmentFactory
from multiors.ors.runtime import get_runtime
from multiors.ors.source import ORSSource
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
    prelude = "import pickle, sys\nfactories = pickle.load(sys.stdin.buffer)\n"
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


def is_quiet(counts: Counts) -> bool:
    """Whether a server has no open session."""
    return not counts.active


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
    environment = source.environment_factory()
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

    assert {"echo": 1} == idle.wait_until(is_quiet).deleted


def test_a_session_that_cannot_be_closed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """If the server refuses to delete a session, a warning says so, without the session's id; nothing raises."""
    with serve_raw(statuses={"/delete": [500]}) as server:
        environment = ORSSource(server.url, discover_task_tools=False).environment_factory()
        environment.reset(task_index=0)
        sid = environment._lease.session.sid
        server.reset_counts()
        with caplog.at_level(logging.WARNING, "multiors.ors"):
            environment._close()
        paths = server.counts().paths

    assert [f"A session of {server.url} could not be closed"] == [
        record.getMessage().partition(" (")[0] for record in caplog.records if record.name == "multiors.ors"
    ]
    assert sid not in caplog.text
    assert 1 == paths["POST /delete_session"]


# -- exits, forks and interrupts, in interpreters of their own

_EXITS = """
import os, signal, sys

ways = {"end": 0, "exception": 1, "sys.exit": 3, "interrupt": -signal.SIGINT}
way = None
for each in ways:
    pid = os.fork()
    if pid == 0:
        way = each
        break
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(each, status == ways[each], flush=True)

if way is not None:
    environments = [factories[0]() for _ in range(3)]
    for i, environment in enumerate(environments):
        environment.reset(task_index=i)
    environments[0].echo(text="oak")
    if way == "exception":
        raise RuntimeError("on purpose")
    if way == "sys.exit":
        sys.exit(3)
    if way == "interrupt":
        signal.raise_signal(signal.SIGINT)
"""


def test_an_exit_closes_every_session(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """However an interpreter ends, its open sessions are closed, and it ends as it would have without them."""
    ended, errors = _finish_script(_start_script(_EXITS, factory))
    counts = idle.counts()

    assert ["end True", "exception True", "sys.exit True", "interrupt True"] == ended
    assert {"echo": 12} == counts.opened == counts.deleted
    assert "never awaited" not in errors
    assert "was destroyed" not in errors


_FORK = """
import os

factory = factories[0]
mine = factory()
print("parent", mine.reset(task_index=0), flush=True)
pid = os.fork()
if pid == 0:
    theirs = factory()
    print("child", theirs.reset(task_index=1), theirs.echo(text="ash"), flush=True)
    sys.stdin.buffer.readline()  # until the test has seen the ping
else:
    os.waitpid(pid, 0)
    print("parent", mine.echo(text="oak"), flush=True)
"""


def test_a_forked_child_has_a_loop_of_its_own(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """After a fork the child plays, keeps its session alive and closes it; the parent's session stays open."""
    process = _start_script(_FORK, factory)
    assert process.stdin is not None
    pinged = idle.wait_until(lambda counts: counts.requests.get("POST /ping", 0) >= 2, deadline_s=_DEADLINE_S)
    process.stdin.write(b"\n")
    said, errors = _finish_script(process)
    counts = idle.counts()

    assert {"echo": 2} == pinged.active
    assert ["parent Say oak.", "child Say ash. ash", "parent oak"] == said
    assert {"echo": 2} == counts.opened == counts.deleted
    assert "Traceback" not in errors


_LOOP = """
import asyncio, threading

async def play(index):
    environment = factories[0]()
    prompt = environment.reset(task_index=index)
    said = environment.echo(text="oak")
    environment._close()
    return prompt, said

print(*asyncio.run(play(0)))
thread = threading.Thread(target=lambda: print(*asyncio.run(play(1))))
thread.start()
thread.join()
"""


def test_synchronous_calls_work_inside_a_running_loop(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """In a notebook, where a loop already runs, in the main thread or another, an environment plays as anywhere."""
    said, errors = _finish_script(_start_script(_LOOP, factory))

    assert ["Say oak. oak", "Say ash. oak"] == said
    assert "" == errors


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
        pid, status = os.wait()
        print(os.waitstatus_to_exitcode(status), flush=True)
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
        left = [slow_server.wait_until(is_quiet), working_server.wait_until(is_quiet)]

    assert [str(-signal.SIGINT)] * 3 == statuses
    assert [{"slow": 2}, {"slow": 1}] == [counts.deleted for counts in left]


def test_a_factory_plays_in_a_fresh_interpreter(idle: ServerHandle, factory: EnvironmentFactory) -> None:
    """A pickled factory needs nothing of the process that made it, and loads neither TRL nor a model library."""
    script = """
import json
environment = factories[0]()
print(json.dumps([environment.reset(task_index=2), environment.echo(text="elm"), environment.reward]))
print(*sorted({"trl", "torch", "transformers", "datasets"} & set(sys.modules)))
"""
    said, _ = _finish_script(_start_script(script, factory))

    assert ["Say elm.", "elm", 1.0] == json.loads(said[0])
    assert "" == said[1]
    assert {} == idle.counts().active
