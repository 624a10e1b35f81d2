"""Processes that start warm: `Warm` is `subprocess.Popen` for Python, without the seconds that imports take.

Each is forked from a process that has imported PyTorch, TRL and openreward, and has run nothing of them;
`warm_parent.py` is that process. What is started has its own environment, folder, streams and signals, ends as Python
ends, and is a child of the process that asked. A test of starting itself, or of what is imported, has
`subprocess.Popen`.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from tests.commands import Said

__all__ = ["Warm", "run_ranks", "run_warm"]

_ROOT = Path(__file__).parents[1]
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

if TYPE_CHECKING:
    _Popen = subprocess.Popen[str]
else:
    _Popen = subprocess.Popen


class _Forked(_Popen):
    """Takes `[sys.executable, "-m" or "-c" or the path of a script, ...]`."""

    def _execute_child(self, *given: Any) -> None:
        """Start the process: what CPython's `Popen` has one of for each platform."""
        asked = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        python, *arguments = map(str, asked["args"])
        assert sys.executable == python, f"{python} is not the Python of the tests"
        pipes = {name: asked[name] for name in ["p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"]}
        request = {
            "arguments": arguments,
            "folder": str(asked["cwd"] or Path.cwd()),
            "variables": dict(os.environ if asked["env"] is None else asked["env"]),
            "is_leader": asked["start_new_session"],
        }
        streams = [pipes[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = _fork(request, [own if stream == -1 else stream for own, stream in enumerate(streams)])
        self._child_created = True
        self._close_pipe_fds(**pipes)  # type: ignore[attr-defined]


Warm = _Forked if sys.platform == "linux" else _Popen
"""As `subprocess.Popen`; where there is no Linux, it is that."""


def run_warm(command: Sequence[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with `capture_output` and `text`."""
    with Warm(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()

    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_ranks(
    command: Sequence[str], size: int, *, timeout: float, env: Mapping[str, str] | None = None, **options: Any
) -> Said:
    """Run a command in several processes that form a group, as `torchrun` and other launchers start them.

    Returns:
        What they said, one after the other, with the exit code of the first that has another one than 0.
    """
    shared = {**(os.environ if env is None else env), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_find_port())}
    shared |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    ends = time.monotonic() + timeout

    with ExitStack() as stack:
        files = [[stack.enter_context(TemporaryFile("w+")) for _ in range(size)] for _ in range(2)]
        processes = []

        for rank, (out, err) in enumerate(zip(*files, strict=True)):
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = stack.enter_context(Warm(command, stdout=out, stderr=err, text=True, env=own, **options))
            stack.callback(process.kill)
            processes.append(process)

        codes = [process.wait(max(0.0, ends - time.monotonic())) for process in processes]
        out, err = ("".join(_read(file) for file in each) for each in files)

    return Said(next((code for code in codes if code), 0), out, err)


def _find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@cache
def _find_parent() -> socket.socket:
    """A channel to the process that is forked from."""
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    with theirs:
        command = [sys.executable, "-m", "tests.warm_parent", str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=_ROOT, pass_fds=[theirs.fileno()])

    atexit.register(process.wait)
    atexit.register(channel.close)  # before the other: it ends the process
    return channel


def _fork(request: Mapping[str, Any], streams: Sequence[int]) -> int:
    """The id of a new process."""
    channel = _find_parent()

    with _adopting():
        socket.send_fds(channel, [json.dumps(request).encode()], list(streams))
        return int(channel.recv(64))


@contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of a process whose own parent ends meanwhile."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)

    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)
