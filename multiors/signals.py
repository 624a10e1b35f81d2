"""What ends a process politely unwinds its stack, so that sessions and servers end with it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["find_exit_code", "signals_as_interrupts"]


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Let Ctrl-C and a polite kill both raise KeyboardInterrupt, with the signal's number."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def find_exit_code(interrupt: KeyboardInterrupt) -> int:
    """The exit code of a process that a signal has ended: 130 of Ctrl-C, 143 of a polite kill."""
    return 128 + int(interrupt.args[0] if interrupt.args else signal.SIGINT)
