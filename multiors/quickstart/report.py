"""What is left of a run: every rollout as a line of JSON, a table per environment, curves, and a summary.

Takes numbers and writes files; decides nothing about them, except that None means unscored: it is counted, shown as a
dash, and enters no mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from multiors import RolloutRecord

__all__ = ["EnvironmentResult", "Measurement", "RolloutJournal", "draw_curves", "format_table", "measure"]

_SMOOTHED_BATCHES = 5


@dataclass(frozen=True, slots=True)
class Measurement:
    """Rewards of a number of episodes or rollouts."""

    num_episodes: int
    num_scored: int

    reward: float | None
    """Mean over those that were scored. None: none was."""

    @property
    def scored_fraction(self) -> float | None:
        """Scored over all. None: there were none."""
        return self.num_scored / self.num_episodes if self.num_episodes else None

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values; None stays None."""
        return {**asdict(self), "scored_fraction": self.scored_fraction}


def measure(rewards: Sequence[float | None]) -> Measurement:
    """Mean reward over what was scored, and how much was."""
    scored = [reward for reward in rewards if reward is not None]
    return Measurement(len(rewards), len(scored), sum(scored) / len(scored) if scored else None)


@dataclass(frozen=True, slots=True)
class EnvironmentResult:
    """What a run did for one environment."""

    best: float
    """Highest reward there is."""

    num_tasks: int
    judges_last_message: bool
    """Whether the environment judges what the policy says last, rather than its calls."""

    before: Measurement
    after: Measurement
    first_third: Measurement
    """Training rollouts of the first third of the steps."""

    last_third: Measurement
    training: Measurement
    """All training rollouts."""

    planned_share: float
    realised_share: float | None
    """Rollouts of this environment over all rollouts. None: there were none."""

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values; None stays None."""
        measurements = {
            name: getattr(self, name).to_json() for name in ("before", "after", "first_third", "last_third", "training")
        }
        return {**asdict(self), **measurements}


class RolloutJournal:
    """Writes the records of training to a file, one JSON object a line, and keeps what the curves need.

    Measurements are scored by the same reward columns as training, so it writes only between `recording()`'s ends.
    """

    def __init__(self, path: Path) -> None:
        self.rewards: list[tuple[int, str, float | None]] = []
        """Step, environment and reward of every training rollout, in order."""

        self._path = path
        self._is_recording = False

    def add(self, records: Sequence[RolloutRecord]) -> None:
        """Take the records of one batch and source; to be given to `on_rollouts`."""
        if not self._is_recording:
            return
        self.rewards += [(record.step, record.source, record.reward) for record in records]
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record.to_json()) + "\n" for record in records)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the block runs."""
        self._is_recording = True
        try:
            yield
        finally:
            self._is_recording = False

    def measure(self, environment: str, *, first_step: float = 0.0, end_step: float = float("inf")) -> Measurement:
        """The training rollouts of an environment, with first_step <= step < end_step."""
        return measure(
            [reward for step, name, reward in self.rewards if name == environment and first_step <= step < end_step]
        )

    def share(self, environment: str) -> float | None:
        """The environment's part of all rollouts. None: there were none."""
        names = [name for _, name, _ in self.rewards]
        return names.count(environment) / len(names) if names else None


def format_table(results: Mapping[str, EnvironmentResult]) -> str:
    """The results as a table of plain text, one line per environment, and under it who judges the last message."""
    header = (
        "environment", "best", "before", "after", "first third", "last third", "scored", "planned", "realised",
    )  # fmt: skip
    rows = [
        (
            name,
            f"{result.best:g}",
            *(
                _show(measurement.reward, "{:.2f}")
                for measurement in (result.before, result.after, result.first_third, result.last_third)
            ),
            _show(result.training.scored_fraction, "{:.0%}"),
            f"{result.planned_share:.1%}",
            _show(result.realised_share, "{:.1%}"),
        )
        for name, result in results.items()
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (header, tuple("-" * width for width in widths), *rows)
    ]
    remarks = [
        f"{name} judges the policy's last message, with a tool that the policy never sees."
        for name, result in results.items()
        if result.judges_last_message
    ]
    return "\n".join([*(line.rstrip() for line in lines), *([""] if remarks else []), *remarks])


def _show(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def draw_curves(path: Path, journal: RolloutJournal, results: Mapping[str, EnvironmentResult]) -> None:
    """Draw reward over steps as a fraction of the best, and the shares, planned and realised, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 7.0), layout="constrained")
    FigureCanvasAgg(figure)
    rewards, shares = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for i, (name, result) in enumerate(results.items()):
        color = f"C{i}"
        points = _means_by_step(journal, name, best=result.best)
        steps = [step for step, _ in points]
        rewards.plot(steps, [mean for _, mean in points], color=color, alpha=0.25, linewidth=1)
        rewards.plot(steps, _smooth([mean for _, mean in points]), color=color, label=name)
        shares.plot(*_shares_by_step(journal, name), color=color, label=name)
        shares.axhline(result.planned_share, color=color, linestyle=":", linewidth=1)
    rewards.set(ylabel="reward, as a fraction of the best", ylim=(-0.03, 1.03))
    rewards.set_title(f"mean over scored rollouts, and over {_SMOOTHED_BATCHES} batches", fontsize="medium")
    rewards.legend(loc="lower right")
    shares.set(xlabel="step", ylabel="share so far (dotted: planned)", ylim=(0.0, None))
    figure.savefig(path, dpi=120)


def _means_by_step(journal: RolloutJournal, environment: str, *, best: float) -> list[tuple[int, float]]:
    """Step and mean reward of the batches in which something was scored."""
    rewards_by_step: dict[int, list[float | None]] = {}
    for step, name, reward in journal.rewards:
        if name == environment:
            rewards_by_step.setdefault(step, []).append(reward)
    means = [(step, measure(rewards).reward) for step, rewards in sorted(rewards_by_step.items())]
    return [(step, mean / best) for step, mean in means if mean is not None]


def _shares_by_step(journal: RolloutJournal, environment: str) -> tuple[list[int], list[float]]:
    """Steps, and the environment's part of all rollouts up to each."""
    steps: list[int] = []
    shares: list[float] = []
    num_mine = 0
    for i, (step, name, _) in enumerate(journal.rewards, start=1):
        num_mine += name == environment
        if i == len(journal.rewards) or journal.rewards[i][0] != step:
            steps.append(step)
            shares.append(num_mine / i)
    return steps, shares


def _smooth(values: Sequence[float]) -> list[float]:
    """The mean of each value and those just before it."""
    windows = (values[max(0, i - _SMOOTHED_BATCHES + 1) : i + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
