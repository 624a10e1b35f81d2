"""What a check found: one record per fact, and the report of them all.

Decides what is shown of a server's text: one line, without keys, secrets and session ids. Knows no server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from multiors.ors.text import show

__all__ = ["LEVELS", "SUBJECTS", "CheckFinding", "CheckReport", "Level", "Notebook"]

Level = Literal["ok", "note", "warning", "error"]

LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "error")
"""From the best to the worst."""

SUBJECTS = (
    *("server", "secrets", "split", "tasks", "tools", "schema", "scoring", "prompt", "probe"),
    *("training", "batches", "curriculum", "plan"),
)
"""What is looked at, in the order of the report: of a source, then of the mix."""

_MIX = "(mix)"
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One thing that was looked at."""

    source: str | None
    """Name of the source. None: it is about the mix."""

    subject: str
    """What was looked at: one of `SUBJECTS`."""

    level: Level
    """ok: as it should be. note: worth knowing. warning: probably not meant. error: training would stop, or learn
    nothing from it."""

    message: str
    """One line."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for machines, as JSON values. None: not known, or there is none."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All findings, by source in the order of the mix, then those about the mix. Prints as a table."""

    findings: tuple[CheckFinding, ...]
    sources: tuple[str, ...]
    """Names of the sources, in the order of the mix."""

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return self.count("error") == 0

    def count(self, level: Level) -> int:
        """How many findings are of a level."""
        return sum(finding.level == level for finding in self.findings)

    def of(self, source: str | None, subject: str | None = None) -> list[CheckFinding]:
        """The findings about a source, or with None about the mix; all, or those about one subject."""
        return [
            finding
            for finding in self.findings
            if finding.source == source and (subject is None or finding.subject == subject)
        ]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready values; None stays None."""
        return {
            "ok": self.ok,
            "counts": {level: self.count(level) for level in LEVELS},
            "sources": list(self.sources),
            "findings": [asdict(finding) for finding in self.findings],
        }

    def rows(self) -> list[tuple[str, Level, str, str]]:
        """The table: source, level, subject and message; a source's name stands in its first row only."""
        names = [_MIX if finding.source is None else finding.source for finding in self.findings]
        return [
            ("" if row and name == names[row - 1] else name, finding.level, finding.subject, finding.message)
            for row, (name, finding) in enumerate(zip(names, self.findings, strict=True))
        ]

    @property
    def summary(self) -> str:
        """How many sources were looked at, and what was found, in a sentence."""
        found = ", ".join(_count(self.count(level), level) for level in ("error", "warning", "note"))
        return f"{_count(len(self.sources), 'source')}: {found}."

    def __str__(self) -> str:
        rows = [("source", "found", "about", "what"), *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        rows.insert(1, ("-" * widths[0], "-" * widths[1], "-" * widths[2], "----"))
        lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows]
        return "\n".join([*lines, "", self.summary])


class Notebook:
    """Takes down the findings about one source, or about the mix.

    Args:
        source: Name of the source. None: the mix.
    """

    def __init__(self, source: str | None) -> None:
        self._source = source
        self._secrets: list[str] = []
        self._findings: list[CheckFinding] = []

    def hide(self, secrets: Iterable[str]) -> None:
        """Show these nowhere from now on."""
        self._secrets += secrets

    def write(self, subject: str, level: Level, message: str, **facts: Any) -> None:
        """Take down a finding, once; what a server or user wrote in it is cleaned here."""
        for name_twice in (f"source {self._source!r}: ", f"source {self._source!r} "):
            message = message.removeprefix(name_twice)

        cleaned = {name: _clean(value, self._show, 0) for name, value in facts.items()}
        finding = CheckFinding(self._source, subject, level, self._show(message), cleaned)

        if finding not in self._findings:
            self._findings.append(finding)

    def has(self, subject: str, level: Level) -> bool:
        """Whether such a finding was taken down."""
        return any((finding.subject, finding.level) == (subject, level) for finding in self._findings)

    @property
    def findings(self) -> list[CheckFinding]:
        """All, in the order of subjects, and of writing within one."""
        return sorted(self._findings, key=lambda finding: SUBJECTS.index(finding.subject))

    def _show(self, text: str) -> str:
        return show(text, self._secrets)


def _clean(value: Any, show: Callable[[str], str], depth: int) -> Any:
    if isinstance(value, str):
        return show(value)

    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        return {show(str(key)): _clean(each, show, depth + 1) for key, each in value.items()}

    if depth < _MAX_DEPTH and isinstance(value, list | tuple):
        return [_clean(each, show, depth + 1) for each in value]

    if isinstance(value, float) and not math.isfinite(value):
        return str(value)

    return value if value is None or isinstance(value, bool | int | float) else show(str(value))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
