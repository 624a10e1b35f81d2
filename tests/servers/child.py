"""The server process: binds its sockets, says where, serves until it is told to stop, and dies with its parent.

Knows no server in particular. `launch.py` is the other side of the pipe.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["main", "resolve", "until_terminated"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(build: str, options: dict[str, Any], ports: Sequence[int], channel: Connection, log_path: str) -> None:
    """Serve what `build` (``module:function``) makes of `options`, one socket per port (0: any free one)."""
    _die_with_parent()
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        sockets = [_listen(port) for port in ports]
        serve = resolve(build)(**options)
    except Exception:  # noqa: BLE001  # the parent raises it
        channel.send(traceback.format_exc())
        sys.exit(1)

    # What the fork server loaded is a large heap: to collect it takes up to a second, in the middle of whatever runs.
    gc.collect()
    gc.freeze()
    channel.send([bound.getsockname()[1] for bound in sockets])
    asyncio.run(serve(sockets))


def resolve(path: str) -> Any:
    """The object that ``module:name`` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


async def until_terminated() -> None:
    """Return when the process gets SIGTERM."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()


def _listen(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio keeps Nagle on
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # A restarted server takes its port again at once.
    bound.bind(("127.0.0.1", port))
    bound.listen(512)
    return bound


def _die_with_parent() -> None:
    """End this process when the one that asked for it ends, also by SIGKILL, also while this one is stopped.

    Every process of a fork server keeps it alive, so this one lets go of it: then the fork server ends with the tests,
    and the kernel ends its children. The thread does the same where there is no prctl.
    """
    kept = getattr(multiprocessing.forkserver._forkserver, "_forkserver_alive_fd", None)
    if kept is not None:
        os.close(kept)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
