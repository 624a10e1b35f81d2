"""Sources that are no ORS environments: their rows, their tools and their rewards, of which nothing is played."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from multiors.checks.findings import Notebook
from multiors.errors import MultiORSError
from multiors.training import TRLSource
from multiors.training.others.rows import TaskRows

__all__ = ["look_at_other"]

T = TypeVar("T")


async def look_at_other(source: TRLSource, notes: Notebook, *, timeout_s: float) -> TaskRows | None:
    """The rows of a source. None: there are none that can be used, and it was written down why.

    One environment is made, to see its tools; it is not begun.
    """
    notes.write(
        "server", "note", "is no ORS environment: rows, tools and rewards are looked at, and nothing is played."
    )
    twin = source.named(source.label)
    rows = await _ask("tasks", lambda: twin.rows, notes, timeout_s=timeout_s)

    if rows is None:
        return None

    notes.write("tasks", "ok", f"{len(rows.indices)}.", used=len(rows.indices), in_split=None)
    tools = await _ask("tools", lambda: twin.environment_class._tool_names, notes, timeout_s=timeout_s)

    if tools is not None:
        _note_tools(tools, notes)
        scored_by = await _ask("scoring", lambda: twin.make_reader().names, notes, timeout_s=timeout_s)

        if scored_by is not None:
            notes.write("scoring", "ok", f"rollouts are scored by {', '.join(scored_by)}.", functions=list(scored_by))

    return rows


def _note_tools(tools: tuple[str, ...], notes: Notebook) -> None:
    if tools:
        notes.write("tools", "ok", f"{', '.join(tools)}.", tools=list(tools))
    else:
        notes.write("tools", "note", "there are none: the policy answers, and nothing can be called.", tools=[])


async def _ask(subject: str, ask: Callable[[], T], notes: Notebook, *, timeout_s: float) -> T | None:
    """What code of others answers. None: it did not, or it failed, and it was written down."""
    try:
        with anyio.fail_after(timeout_s):
            return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
    except TimeoutError:
        notes.write(subject, "error", f"there was no answer within {timeout_s:g} s.")
    except MultiORSError as error:
        notes.write(subject, "error", str(error))
    except Exception as error:  # noqa: BLE001  code of others, which may raise anything, and must hide no other source
        notes.write(subject, "error", f"cannot be had: {type(error).__name__}: {error}")

    return None
