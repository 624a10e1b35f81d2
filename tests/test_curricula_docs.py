"""docs/curricula.md lists every setting with its default, and shows the numbers that the simulation wrote."""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

from multiors.mixing.curricula import Gates, Ladder, LearningProgress, Pools, ScoreBandit, WorstSource

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "curricula.md"
RESULTS = ROOT / "benchmarks" / "results" / "curriculum_simulation.json"
TRAINED = ROOT / "benchmarks" / "results" / "curriculum_training.json"


def read_table(heading: str) -> list[list[str]]:
    """The rows of the tables under a heading, without their headers."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in section.splitlines() if line.startswith("|")]
    return [row for row in rows if row[0].startswith("`")]


def show_default(setting: Field[Any]) -> str:
    """A setting's default as the page shows it."""
    value = setting.default if setting.default_factory is MISSING else setting.default_factory()
    return f"`{value!r}`" if isinstance(value, str) else repr(value)


@pytest.mark.parametrize("curriculum", [LearningProgress, ScoreBandit, WorstSource, Gates, Ladder, Pools])
def test_the_settings_of_a_curriculum_are_listed(curriculum: Any) -> None:
    """Each field of each curriculum, in order, with its default."""
    expected = [[f"`{setting.name}`", show_default(setting)] for setting in fields(curriculum)]

    assert expected == [row[:2] for row in read_table(curriculum.__name__)]


def simulation_lines() -> list[str]:
    """The rows of the table of the simulation."""
    strategies = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]["strategies"]
    return [
        "| "
        + " | ".join([f"`{name}`", *(f"{found['mean']:.3f} / {found['worst']:.2f}" for found in worlds.values())])
        + " |"
        for name, worlds in strategies.items()
    ]


def test_the_table_of_the_simulation_is_what_was_measured() -> None:
    """Every strategy has its row, and no strategy is left out."""
    rows = ["| " + " | ".join(row) + " |" for row in read_table("What to expect")]

    assert simulation_lines() == rows


def training_line(name: str, results: Any) -> str:
    """The row of an arm in the table of the policy that learns."""
    arm, cells = results["arms"][name], ["–", "–"]
    if name != "uniform":
        found = results["differences_to_uniform"][name]["macro"]
        interval = f"{found['mean']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"
        cells = [interval, f"{found['p_holm']:.2f}"]
    scores = " / ".join(f"{each['mean']:.2f}" for each in arm["end"]["sources"].values())
    row = [
        f"`{name}`",
        f"{arm['end']['macro']['mean']:.3f}",
        *cells,
        scores,
        f"{arm['training']['casino']['share']:.0%}",
    ]
    return "| " + " | ".join(row) + " |"


def test_the_table_of_the_policy_that_learns_is_what_was_measured() -> None:
    """Every arm has its row, whatever came out."""
    results = json.loads(TRAINED.read_text(encoding="utf-8"))["results"]
    rows = ["| " + " | ".join(row) + " |" for row in read_table("On a policy that learns")]

    assert [training_line(name, results) for name in results["arms"]] == rows
