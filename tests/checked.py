"""Reading reports of the preflight in tests."""

from __future__ import annotations

from typing import Any

from multiors import CheckReport, MultiOpenRewardSpec, check
from multiors.checks.findings import LEVELS

__all__ = ["BATCHES", "facts", "find_level", "found", "levels", "look"]

BATCHES = {"num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 10}
"""Trainer settings of two prompts a batch."""


def look(spec: MultiOpenRewardSpec, **options: Any) -> CheckReport:
    """A check with a deadline that a slow machine keeps."""
    return check(spec, **{"timeout_s": 60.0, **options})


def found(report: CheckReport, source: str | None, subject: str) -> list[tuple[str, str]]:
    """Level and message of each finding about a subject."""
    return [(finding.level, finding.message) for finding in report.of(source, subject)]


def find_level(report: CheckReport, source: str | None, subject: str, words: str) -> str | None:
    """The level of the one finding whose message has these words. None: there is none."""
    levels = [level for level, message in found(report, source, subject) if words in message]
    assert len(levels) <= 1, levels
    return levels[0] if levels else None


def levels(report: CheckReport, source: str | None) -> dict[str, str]:
    """The worst level by subject."""
    mildest_first = sorted(report.of(source), key=lambda finding: LEVELS.index(finding.level))
    return {finding.subject: finding.level for finding in mildest_first}


def facts(report: CheckReport, source: str | None, subject: str) -> Any:
    """The facts of the first finding about a subject."""
    return report.of(source, subject)[0].facts
