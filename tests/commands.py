"""The command line in this process, and code in one of its own: what was said, and with which code it ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Run", "Said", "run_python"]


class Said(NamedTuple):
    """What a command came to."""

    exit_code: int
    out: str
    err: str


Run = Callable[..., Said]
"""Runs a command with its arguments."""


def run_python(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **variables}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
