"""docs/statistics.md shows the coverage that the simulation measured, and claims what holds of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "statistics.md"
RESULTS = ROOT / "benchmarks" / "results" / "interval_coverage.json"


def read_results() -> dict[str, Any]:
    """What the benchmark wrote."""
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    return results


def show_coverage(found: dict[str, Any]) -> str:
    """With the share of draws in which there was an interval, if there was not always one."""
    share = "" if found["given_fraction"] == 1 else f" of {found['given_fraction']:.0%}"
    return f"{found['coverage']:.3f}{share}"


def score_lines() -> Iterator[str]:
    """The rows of the table of scores, sources apart: their two intervals stand side by side."""
    scores = read_results()["mix"]["scores"]

    for name, found in scores.items():
        if "_tasks" not in name:
            yield f"| {name} | {found['coverage']:.3f} | {found['mean_width']:.3f} |"

    for name in [name.removesuffix(" (ours)") for name in scores if name.endswith("tasks (ours)")]:
        for way in (", episodes as independent", " (ours)"):
            found = scores[name + way]
            yield f"| {name.replace('_', ' ')}{way} | {found['coverage']:.3f} | {found['mean_width']:.3f} |"


def verdict_lines() -> Iterator[str]:
    """The rows of the table of tests."""
    for name, found in read_results()["mix"]["differences"].items():
        rates = [f"{rate:.3f}" for rate in (*found["macro_difference_found"].values(), found["any_source_found"])]
        interval = found["intervals"]["macro"]["coverage"]
        yield f"| {name.replace('_', ' of ')} | {interval:.3f} | {' | '.join(rates)} |"


def run_lines() -> Iterator[str]:
    """The rows of the table of training runs."""
    for name, found in read_results()["runs"].items():
        coverages = [f"{each['coverage']:.3f}" for each in (*found["scores"].values(), *found["differences"].values())]
        yield f"| {name.removesuffix('_runs')} | {' | '.join(coverages)} |"


def rate_lines() -> Iterator[str]:
    """The rows of the table of what is found between training runs."""
    for name, found in read_results()["runs"].items():
        yield f"| {name.removesuffix('_runs')} | {' | '.join(f'{rate:.3f}' for rate in found['found'].values())} |"


def single_lines() -> Iterator[str]:
    """The rows of the table of single sources."""
    for mean, by_tasks in read_results()["single"].items():
        for tasks, by_episodes in by_tasks.items():
            for episodes, found in by_episodes.items():
                where = [each.split("_")[at] for each, at in ((mean, 1), (tasks, 0), (episodes, 0))]
                coverages = [show_coverage(each) for each in (*found["score"].values(), found["difference"]["ours"])]
                by_chance = f"{found['difference']['found_by_chance']:.3f}"
                yield f"| {' | '.join([*where, *coverages, by_chance])} |"


def few_lines() -> Iterator[str]:
    """The rows of the table of macro scores over few tasks."""
    found = read_results()["few"]

    for name in dict.fromkeys(name.rpartition(", ")[0] for name in found):
        cells = [
            f"{show_coverage(each)} | {each['mean_width']:.3f}"
            for each in (found[f"{name}, ours"], found[f"{name}, Satterthwaite's t"])
        ]
        yield f"| {name} | {' | '.join(cells)} |"


LINES = (score_lines, few_lines, verdict_lines, run_lines, rate_lines, single_lines)


@pytest.mark.parametrize("lines", LINES)
def test_the_tables_are_what_was_measured(lines: Callable[[], Iterator[str]]) -> None:
    """Every row is there, whatever came out."""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    expected = list(lines())

    assert expected
    assert expected == [line for line in page if line in expected]
