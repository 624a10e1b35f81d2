"""`transformers serve` in a process of its own."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["serve_model"]

_START_DEADLINE_S = 100.0
_POLL_S = 0.05


@contextmanager
def serve_model(model: Path, log: Path) -> Iterator[str]:
    """Serve the model of a folder on the CPU, and give the address of the API.

    Args:
        model: The folder.
        log: A file for what the process says.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(log.parent)}  # it must be there

    with (
        log.open("wb") as said,
        subprocess.Popen(command, stdout=said, stderr=said, env=environment) as process,
    ):
        try:
            _wait(process, port, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    ends = time.monotonic() + _START_DEADLINE_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/health")
            connection.getresponse().read()
            return
        except (OSError, http.client.HTTPException):
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"transformers serve does not answer: {log.read_text(errors='replace')}") from None
            time.sleep(_POLL_S)
        finally:
            connection.close()
