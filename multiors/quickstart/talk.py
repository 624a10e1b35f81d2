"""What the quickstart says while it works: phases with progress bars and times, on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Talk"]


class Talk:
    """Says what happens on standard error, and remembers how long each phase took."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.seconds_by_phase: dict[str, float] = {}

    def say(self, text: str) -> None:
        """Print a line or a paragraph."""
        self.console.print(text, markup=False)

    @contextmanager
    def phase(self, name: str, text: str, *, total: int | None = None) -> Iterator[Callable[[], None]]:
        """Say what begins, show a bar while it lasts where that can be seen, and say how long it took.

        Args:
            name: Key of the phase in `seconds_by_phase`.
            text: What to say.
            total: Number of parts. None: not known, the bar only moves.

        Yields:
            A function to be called after each part.
        """
        started = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bar = Progress(
            *columns, console=self.console, transient=True, disable=not self.console.is_terminal, refresh_per_second=4
        )
        task = bar.add_task(text, total=total)
        # Before rich 14.3 one that is disabled ends with an empty line.
        with nullcontext() if bar.disable else bar:
            yield lambda: bar.advance(task)
        self.seconds_by_phase[name] = time.monotonic() - started
        self.say(f"{text}: {self.seconds_by_phase[name]:.0f} s")
