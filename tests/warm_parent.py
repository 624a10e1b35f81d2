"""The process that `warm.py` forks: it imports what takes long, and runs nothing.

Run as `python -m tests.warm_parent <descriptor of the channel>`. A forked process leaves `main` and becomes what was
asked for, at the top of the interpreter, so that it ends as any other does.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

__all__: list[str] = []


def wait_to_be_forked(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. None: the last was made, and this is the first process."""
    while True:
        message, streams, _, _ = socket.recv_fds(channel, 1 << 20, 3)

        if not message:
            return None

        reader, writer = os.pipe()
        pid = os.fork()

        if pid == 0:
            # The process between ends at once, so that the one that asked becomes the parent.
            pid = os.fork()

            if pid != 0:
                os.write(writer, str(pid).encode())
                os._exit(0)

            for own, stream in enumerate(streams):
                os.dup2(stream, own)

            for descriptor in (*streams, reader, writer):
                os.close(descriptor)

            channel.close()
            return dict(json.loads(message))

        os.waitpid(pid, 0)
        channel.send(os.read(reader, 64))

        for descriptor in (*streams, reader, writer):
            os.close(descriptor)


def become(request: dict[str, Any]) -> None:
    """Do what Python does with a command."""
    if request["is_leader"]:
        os.setsid()

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1 if is_unbuffered or os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.path[:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    kind, *arguments = request["arguments"]

    if kind == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), sys.modules["__main__"].__dict__)  # noqa: S102  of a test
    else:
        sys.argv = [kind, *arguments]
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


def load() -> None:
    """Import what takes long."""
    for name in ("datasets", "openreward", "trl.trainer.grpo_trainer", "multiors.cli", "multiors.launch"):
        import_module(name)

    # To collect what was loaded would copy it into each process that is forked.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the tests: this process ends when they have ended
    load()
    asked = wait_to_be_forked(socket.socket(fileno=int(sys.argv[1])))

    if asked is not None:
        become(asked)
