"""The command line in this process: what a command said, and with which code it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Run", "Said"]


class Said(NamedTuple):
    """What a command came to."""

    exit_code: int
    out: str
    err: str


Run = Callable[..., Said]
"""Runs a command with its arguments."""
