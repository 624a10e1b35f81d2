"""Sources that are specs of others: only their tasks can be counted."""

from __future__ import annotations

import anyio
import anyio.to_thread

from multiors.checks.findings import Notebook
from multiors.training import SlotSource

__all__ = ["count_tasks"]


async def count_tasks(source: SlotSource, notes: Notebook, *, timeout_s: float) -> int | None:
    """The number of a spec's tasks. None: there is none, and it was written down why."""
    message = "is a spec of another kind: its tasks are counted, and nothing else of it is looked at."
    notes.write("server", "note", message)

    try:
        with anyio.fail_after(timeout_s):
            indices = await anyio.to_thread.run_sync(lambda: source.task_indices, abandon_on_cancel=True)
    except TimeoutError:
        notes.write("tasks", "error", f"they could not be counted within {timeout_s:g} s.")
        return None
    except Exception as error:  # noqa: BLE001  code of others, which may raise anything, and must hide no other source
        notes.write("tasks", "error", f"they cannot be counted: {type(error).__name__}: {error}")
        return None

    notes.write("tasks", "ok", f"{len(indices)}.", used=len(indices), in_split=None)
    return len(indices)
