"""Tables of plain text, for the log and for `print`."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["align"]


def align(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: header, rule and rows; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return lines
