"""A comparison, or one evaluation, as text: for a terminal, for a file, and as Markdown.

What is said, and in which order, is decided in `sheets`. No text in it is taken for markup.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from multiors.evaluation.comparison.sheets import Sheet, Table, describe
from multiors.evaluation.results import ArmResult, Comparison, Verdict
from multiors.tables import align

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_result", "to_markdown", "to_text"]

_STYLES: dict[Verdict | None, str] = {"worse": "bold red", "better": "green", "undecided": "dim", None: ""}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$&@!])")


def to_text(result: Comparison | ArmResult | Sheet) -> str:
    """What regressed, what improved, what cannot be told; then the table, the answer, and remarks."""
    sheet = result if isinstance(result, Sheet) else describe(result)
    lines = [sheet.title]

    for group in sheet.groups:
        width = max((len(name) for name, _ in group.lines), default=0)
        lines += ["", group.title, *(f"  {name.ljust(width)}  {said}" for name, said in group.lines)]

    for table in sheet.tables:
        lines += ["", *_align(table)]

    return "\n".join([*lines, "", sheet.headline, *sheet.remarks])


def print_result(result: Comparison | ArmResult | Sheet, console: Console) -> None:
    """Print on a terminal, in colour."""
    from rich.table import Table as RichTable
    from rich.text import Text

    sheet = result if isinstance(result, Sheet) else describe(result)
    console.print(Text(sheet.title, style="dim"))

    for group in sheet.groups:
        console.print()
        console.print(Text(group.title, style=_STYLES[group.verdict] if group.lines else ""))
        grid = RichTable.grid(padding=(0, 2, 0, 0))

        for name, said in group.lines:
            grid.add_row(Text(f"  {name}"), Text(said, overflow="fold"))

        if group.lines:
            console.print(grid)

    for table in sheet.tables:
        shown = RichTable(box=None, padding=(0, 2, 0, 0))

        for column, title in enumerate(table.header):
            shown.add_column(Text(title), justify="left" if column == 0 or title == "why" else "right")

        for row, verdict in zip(table.rows, table.verdicts or [None] * len(table.rows), strict=True):
            shown.add_row(*(Text(cell, style=_STYLES[verdict], overflow="fold") for cell in row))

        console.print()
        console.print(shown)

    console.print()
    console.print(Text(sheet.headline, style="bold"))

    for remark in sheet.remarks:
        console.print(Text(remark))


def to_markdown(result: Comparison | ArmResult | Sheet) -> str:
    """The same as Markdown with tables, and with what the episodes cost."""
    sheet = result if isinstance(result, Sheet) else describe(result)
    lines = [f"**{_escape(sheet.headline)}**", ""]

    for group in sheet.groups:
        lines += [f"### {_escape(group.title)}", ""]
        lines += [f"- **{_escape(name)}**: {_escape(said)}" for name, said in group.lines]
        lines += [""] if group.lines else []

    for table in (*sheet.tables, *sheet.details):
        lines += [f"### {_escape(table.title)}", "", *_to_markdown_table(table), ""]

    lines += [f"- {_escape(remark)}" for remark in sheet.remarks]
    lines += [""] if sheet.remarks else []
    return "\n".join([*lines, _escape(sheet.title)]) + "\n"


def _align(table: Table) -> list[str]:
    return align(table.header, table.rows)


def _to_markdown_table(table: Table) -> list[str]:
    aligns = [":--", *("--:" for _ in table.header[1:])]
    rows = [table.header, *table.rows]
    cells = [f"| {' | '.join(map(_escape, row))} |" for row in rows]
    return [cells[0], f"| {' | '.join(aligns)} |", *cells[1:]]


def _escape(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text)
