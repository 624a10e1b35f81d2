"""What the quickstart shows at its end: a table, a picture of the curves, and a summary for machines.

Computed from the rollouts' records and the two measurements; decides nothing. A mean of nothing is None and shown as
"n/a".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiors import RolloutRecord
from multiors.quickstart.measure import Measurement

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "EnvironmentResult",
    "Summary",
    "as_json",
    "draw_curves",
    "make_table",
    "summarize_environment",
    "write_summary",
]

_COLORS = ("#0072b2", "#d55e00", "#009e73")  # told apart by colour-blind readers (Okabe and Ito)


@dataclass(frozen=True, slots=True)
class EnvironmentResult:
    """What became of one environment."""

    name: str
    max_reward: float
    """The best reward there is, for the scale of the picture."""

    before: float | None
    """Mean reward of the warm-started policy, over scored episodes."""

    after: float | None
    """The same after GRPO."""

    first_third: float | None
    """Mean reward of the rollouts in the first third of training."""

    last_third: float | None
    scored_fraction: float | None
    """Of the rollouts in training."""

    planned_share: float
    realised_share: float
    num_rollouts: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The whole run."""

    seed: int
    steps: int
    environments: tuple[EnvironmentResult, ...]
    warm_start_right: Mapping[str, float | None]
    """Mean reward of the scripted transcripts, by environment: how much of the answer the warm start gives away."""

    seconds_by_phase: Mapping[str, float]
    versions: Mapping[str, str]
    output_dir: str


def summarize_environment(
    name: str,
    records: Sequence[RolloutRecord],
    *,
    steps: int,
    max_reward: float,
    planned_share: float,
    before: Measurement,
    after: Measurement,
) -> EnvironmentResult:
    """One environment's line, from the records of all environments."""
    mine = [record for record in records if record.source == name]
    scored = [(record.step, record.reward) for record in mine if record.reward is not None]

    return EnvironmentResult(
        name=name,
        max_reward=max_reward,
        before=before.reward,
        after=after.reward,
        first_third=_mean([reward for step, reward in scored if step < steps / 3]),
        last_third=_mean([reward for step, reward in scored if step >= 2 * steps / 3]),
        scored_fraction=_mean([float(record.reward is not None) for record in mine]),
        planned_share=planned_share,
        realised_share=len(mine) / len(records) if records else 0.0,
        num_rollouts=len(mine),
    )


def make_table(summary: Summary) -> Table:
    """The table for people."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"Mean reward per environment (seed {summary.seed}, {summary.steps} steps)"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("environment", no_wrap=True)

    for column in ("best", "before", "after", "first 1/3", "last 1/3", "scored", "planned", "realised"):
        table.add_column(column, justify="right", no_wrap=True)

    for each in summary.environments:
        table.add_row(
            each.name,
            f"{each.max_reward:g}",
            *(_show(value) for value in (each.before, each.after, each.first_third, each.last_third)),
            "n/a" if each.scored_fraction is None else f"{each.scored_fraction:.0%}",
            f"{each.planned_share:.1%}",
            f"{each.realised_share:.1%}",
        )

    return table


def write_summary(summary: Summary, path: Path) -> None:
    """Write the summary as JSON; None stays null."""
    path.write_text(json.dumps(as_json(summary), indent=2) + "\n", encoding="utf-8")


def draw_curves(summary: Summary, records: Sequence[RolloutRecord], path: Path) -> None:
    """Draw reward over steps, as a fraction of the best reward, and the realised shares beside the planned ones."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    rewards, shares = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))

    for each, color in zip(summary.environments, _COLORS, strict=True):
        points = _mean_by_step([record for record in records if record.source == each.name])
        steps, values = [step for step, _ in points], [value / each.max_reward for _, value in points]
        rewards.plot(steps, values, color=color, alpha=0.25, linewidth=1)
        rewards.plot(steps, _smooth(values), color=color, linewidth=2, label=f"{each.name} (best {each.max_reward:g})")
        shares.plot(*_share_by_step(each.name, records), color=color, linewidth=1)
        shares.axhline(each.planned_share, color=color, linestyle=":", linewidth=1)

    rewards.set_ylabel("mean reward / best")
    rewards.set_ylim(-0.02, 1.05)
    rewards.legend(loc="lower right")
    rewards.set_title("One policy, three environments: scored rollouts of each batch, and their running mean")
    shares.set_ylabel("share so far")
    shares.set_xlabel("optimizer step (dotted: planned share)")
    figure.savefig(path, dpi=120)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _show(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _mean_by_step(records: Sequence[RolloutRecord]) -> list[tuple[int, float]]:
    rewards_by_step: dict[int, list[float]] = {}

    for record in records:
        if record.reward is not None:
            rewards_by_step.setdefault(record.step, []).append(record.reward)

    return [(step, sum(rewards) / len(rewards)) for step, rewards in sorted(rewards_by_step.items())]


def _smooth(values: Sequence[float], *, window: int = 9) -> list[float]:
    half = window // 2
    return [sum(part) / len(part) for part in (values[max(0, i - half) : i + half + 1] for i in range(len(values)))]


def _share_by_step(name: str, records: Sequence[RolloutRecord]) -> tuple[list[int], list[float]]:
    counts: dict[int, list[int]] = {}

    for record in records:
        count = counts.setdefault(record.step, [0, 0])
        count[0] += record.source == name
        count[1] += 1

    steps, shares, mine, total = [], [], 0, 0

    for step, (num_mine, num_all) in sorted(counts.items()):
        mine, total = mine + num_mine, total + num_all
        steps.append(step)
        shares.append(mine / total)

    return steps, shares


def as_json(summary: Summary) -> dict[str, Any]:
    """The summary as JSON-ready values."""
    return asdict(summary)
