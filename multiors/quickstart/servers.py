"""Two ORS servers as child processes that cannot outlive the quickstart.

`run_servers` starts one process per group of environments and yields the address of each environment's server. A child
listens on a free loopback port it chose itself (no race for the port), tells it on its standard output, and is healthy
once `GET /health` answers. It ends when the `with` block is left; when the parent dies without leaving it, the child's
standard input closes and it exits on its own; on Linux the kernel also signals it. It runs in a session of its own, so
the terminal's Ctrl-C does not reach it and rollouts can still close before the servers go.

Run as `python -m multiors.quickstart.servers recycling teahouse`, this module is the child. It serves environments that
the quickstart has, or those of `ENVIRONMENTS` in the module that `--catalogue` names.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import http.client
import importlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from multiors import SourceError

__all__ = ["run_servers", "serve_environments"]

_CATALOGUE = "multiors.quickstart.environments"
_READY_TIMEOUT_S = 90.0  # importing the SDK takes 4 s on a quiet machine, 10 s on a loaded one
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextlib.contextmanager
def run_servers(
    groups: Sequence[Sequence[str]], log_dir: Path, *, catalogue: str = _CATALOGUE
) -> Iterator[dict[str, str]]:
    """Serve each group of environments from one process, and yield the server's URL by environment name.

    Args:
        groups: Environment names, one sequence per process.
        log_dir: Where each server's standard error goes, as `server-<i>.log`.
        catalogue: The module whose `ENVIRONMENTS` holds the environments by name.

    Raises:
        SourceError: A server did not become healthy in time; its log is named.
    """
    processes: list[subprocess.Popen[str]] = []
    try:
        logs = [log_dir / f"server-{i}.log" for i in range(len(groups))]
        for names, log in zip(groups, logs, strict=True):
            processes.append(_start(names, log, catalogue=catalogue))
        deadline = time.monotonic() + _READY_TIMEOUT_S
        url_by_environment: dict[str, str] = {}
        for names, log, process in zip(groups, logs, processes, strict=True):
            url = _await_healthy(process, names, log=log, deadline=deadline)
            url_by_environment.update(dict.fromkeys(names, url))
        yield url_by_environment
    finally:
        _stop(processes)


def serve_environments(names: Sequence[str], *, catalogue: str = _CATALOGUE) -> None:
    """Serve the named environments from this process until the parent goes away. Prints `{"port": ...}` once bound."""
    _follow_parent()
    # The SDK logs to standard output, which is a pipe that nobody reads after the first line: a full pipe would block
    # the server. So that line leaves through a duplicate, and everything else goes where the errors go.
    announce = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    import uvicorn
    from openreward.environments import Server

    environments = importlib.import_module(catalogue).ENVIRONMENTS
    app = Server([environments[name] for name in names]).app
    # asyncio turns Nagle's delay off only for sockets that say they are TCP; without that each answer waits 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        os.write(announce, json.dumps({"port": listener.getsockname()[1]}).encode() + b"\n")
        os.close(announce)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listener])


def _start(names: Sequence[str], log: Path, *, catalogue: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
        "OPENREWARD_LOG_LEVEL": os.environ.get("OPENREWARD_LOG_LEVEL", "WARNING"),  # else two lines a session
    }
    with log.open("w", encoding="utf-8") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "multiors.quickstart.servers", "--catalogue", catalogue, *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            text=True,
            start_new_session=True,
        )


def _await_healthy(process: subprocess.Popen[str], names: Sequence[str], *, log: Path, deadline: float) -> str:
    """Wait for the child's address and a healthy answer, or raise naming the server's log."""
    line = _read_line(process, timeout_s=deadline - time.monotonic())
    if line:
        port = int(json.loads(line)["port"])
        while time.monotonic() < deadline and process.poll() is None:
            if _is_healthy(port):
                return f"http://127.0.0.1:{port}"
            time.sleep(_POLL_S)
    elif time.monotonic() < deadline:  # the pipe closed, so the process is ending
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_STOP_TIMEOUT_S)
    if process.poll() is None:
        failure = f"is not healthy after {_READY_TIMEOUT_S:.0f} s"
    else:
        failure = f"exited with code {process.returncode} before it was healthy"
    raise SourceError(f"the server of {', '.join(names)} {failure}. Its log is {log}.")


def _read_line(process: subprocess.Popen[str], *, timeout_s: float) -> str:
    """The child's first line, or nothing when it ends or the time is up. A thread reads, because a pipe cannot wait."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stream = process.stdout
    if stream is None:
        return ""
    threading.Thread(target=lambda: lines.put(stream.readline()), daemon=True).start()
    try:
        return lines.get(timeout=max(timeout_s, 0.0))
    except queue.Empty:
        return ""


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)  # unlike urllib, asks no proxy
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Ask every server to stop, then insist."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    for process in processes:
        try:
            process.wait(timeout=max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _follow_parent() -> None:
    """Make this process end with its parent, however the parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    def exit_when_input_closes() -> None:
        while os.read(sys.stdin.fileno(), 64):
            pass
        os._exit(0)

    threading.Thread(target=exit_when_input_closes, daemon=True).start()


def main(argv: Sequence[str] | None = None) -> None:
    """Parse environment names and serve them."""
    parser = argparse.ArgumentParser(prog="python -m multiors.quickstart.servers", description=__doc__)
    parser.add_argument("names", nargs="+", help="environments to serve, the default one first")
    parser.add_argument("--catalogue", default=_CATALOGUE, help="the module that holds them (default: %(default)s)")
    options = parser.parse_args(argv)
    serve_environments(options.names, catalogue=options.catalogue)


if __name__ == "__main__":
    main()
