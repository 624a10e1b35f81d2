"""The columns that users' functions add to TRL's table of completions.

Decides which names are free, and that what is logged is complete: TRL appends what it is given, so a column that two
sources log would keep the values of one, and a column that is not logged in a batch would show those of the last one.
So the sources' values are put together, and a column once seen is logged ever after.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

__all__ = ["TABLE_COLUMNS", "TableColumns"]

TABLE_COLUMNS = frozenset({"advantage", "completion", "environment", "prompt", "reward", "step"})
"""Names that the table already has, ours and TRL's (TRL 1.16, GRPOTrainer.log)."""


class TableColumns:
    """The added columns of one run, batch after batch."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._values: dict[str, dict[int, Any]] = {}
        self._added: set[str] = set()

    def add(self, source: str, values_by_column: Mapping[str, Mapping[int, Any]]) -> None:
        """Take the values of one source's rollouts, by column and row; a source's next values begin a new batch."""
        if source in self._added:
            self._clear()

        self._added.add(source)
        self._known |= values_by_column.keys()

        for column, values in values_by_column.items():
            self._values.setdefault(column, {}).update(values)

    def take(self, sources: Collection[str], *, num_rollouts: int) -> Iterator[tuple[str, list[Any]]]:
        """The columns of the batch, complete, once all of `sources` were added; nothing before."""
        if not self._added >= set(sources):
            return

        values, known = self._values, sorted(self._known)
        self._clear()

        for column in known:
            yield column, [values.get(column, {}).get(row) for row in range(num_rollouts)]

    def _clear(self) -> None:
        self._values = {}
        self._added = set()
