"""A run as curves: planned and drawn shares, mean rewards and levels of each source, from wherever a run left them.

Decides what counts as a run that can be shown: a simulation, a trainer's log, a checkpoint, a rollout log. None stays a
gap: what was not drawn or not scored has no value, and is never 0. Nothing is drawn here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias

from multiors.errors import ConfigError
from multiors.mixing import Simulation
from multiors.mixing.curricula.observing import mean_of
from multiors.rollout_log import read_rollouts
from multiors.tables import align

__all__ = ["Run", "RunSeries", "Values", "cut_in_thirds", "is_rollout_log", "read_run"]

Run: TypeAlias = "Simulation | RunSeries | Sequence[Mapping[str, Any]] | str | os.PathLike[str]"
"""What can be shown: a simulation, a trainer's `state.log_history`, or the path of a checkpoint or rollout log."""

Values = tuple[float | None, ...]
"""One per position of a run. None: there is none."""

_METRIC = re.compile(r"env/([A-Za-z0-9_-]+)/(planned_share|share|reward|curriculum/level)")
_STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class RunSeries:
    """The curves of one run, by source: in the order of the mix for a simulation, else by name."""

    axis: Literal["batch", "step"]
    """What positions count."""

    positions: tuple[float, ...]

    planned: Mapping[str, Values]
    """Share of the rollouts that a source was meant to get. A source that is missing: not known."""

    drawn: Mapping[str, Values]
    """Share that it got; every source is in it."""

    rewards: Mapping[str, Values]
    """Mean reward over its scored rollouts."""

    levels: Mapping[str, Values]
    """Current level, from 0, of the sources that have a ladder."""

    about: str = ""
    """One sentence on what is shown. Empty: nothing need be said."""

    @property
    def names(self) -> tuple[str, ...]:
        """The sources."""
        return tuple(self.drawn)

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values; None stays None."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values

    def __str__(self) -> str:
        parts, header = _split(len(self.positions))
        shares = [
            [name, *(_show(_mean(values, part), "{:.1%}") for part in parts)] for name, values in self.drawn.items()
        ]
        rewards = [
            [name, *(_show(_mean(values, part), "{:.2f}") for part in parts)] for name, values in self.rewards.items()
        ]
        lines = [*align(["share", *header], shares), "", *align(["mean reward", *header], rewards)]
        return "\n".join([*([self.about, ""] if self.about else []), *lines])


def read_run(run: Run) -> RunSeries:
    """The curves of a run.

    Args:
        run: A simulation, a trainer's `state.log_history`, or a path: a checkpoint, a folder of checkpoints (the last
            of them counts), a `trainer_state.json`, or the folder or a file of a rollout log, which knows no planned
            shares.

    Raises:
        ConfigError: There is no such thing, or no source in it.
    """
    if isinstance(run, RunSeries):
        return run
    if isinstance(run, Simulation):
        return _of_simulation(run)
    if isinstance(run, (str, os.PathLike)):
        return _of_path(Path(run))
    return _of_log_history(run, "the trainer's log")


def is_rollout_log(path: str | os.PathLike[str]) -> bool:
    """Whether `read_run` takes a path for a rollout log."""
    return _find_state(Path(path)) is None


def _of_simulation(run: Simulation) -> RunSeries:
    levels = {
        name: tuple(measured[name].get("level") for measured in run.measures_B)
        for name in run.names
        if any("level" in measured[name] for measured in run.measures_B)
    }
    return RunSeries(
        "batch",
        tuple(range(run.num_batches)),
        planned=_by_source(run.names, run.shares_BS),
        drawn=_by_source(run.names, [[slots / run.prompts_per_batch for slots in batch] for batch in run.drawn_BS]),
        rewards=_by_source(run.names, run.rewards_BS),
        levels=levels,
        about="simulated: rewards follow assumed learning curves",
    )


def _by_source(names: Sequence[str], rows: Sequence[Sequence[float | None]]) -> dict[str, Values]:
    return {name: tuple(row[index] for row in rows) for index, name in enumerate(names)}


def _of_log_history(rows: Sequence[Mapping[str, Any]], origin: str) -> RunSeries:
    """What a trainer logged of each source; rows of evaluations and of the run's end have none of it."""
    found: list[tuple[float, dict[tuple[str, str], float]]] = []
    for row in rows:
        values = {
            (match[1], match[2]): float(value)
            for key, value in row.items()
            if (match := _METRIC.fullmatch(key)) and isinstance(value, (int, float)) and isfinite(value)
        }
        if values:
            found.append((row.get("step", len(found)), values))
    keys = dict.fromkeys(key for _, values in found for key in values)
    names = sorted({name for name, metric in keys if metric == "share"})
    if not names:
        raise ConfigError(
            f"{origin} holds no 'env/<source>/share', so there is nothing to show. Train a MultiOpenRewardSpec with "
            f"spec.callbacks, for more steps than logging_steps."
        )

    def collect(metric: str) -> dict[str, Values]:
        return {
            name: tuple(values.get((name, metric)) for _, values in found) for name in names if (name, metric) in keys
        }

    return RunSeries(
        "step",
        tuple(step for step, _ in found),
        planned=collect("planned_share"),
        drawn=collect("share"),
        rewards={name: (None,) * len(found) for name in names} | collect("reward"),
        levels=collect("curriculum/level"),
    )


def _of_path(path: Path) -> RunSeries:
    state = _find_state(path)
    if state is None:
        return _of_rollouts(path)
    try:
        content = json.loads(state.read_text(encoding="utf-8"))
        rows = [dict(row) for row in content["log_history"]]
    except OSError as error:
        raise ConfigError(f"{str(state)!r} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{str(state)!r} is no trainer_state.json: it has no log_history. Pass a checkpoint or a rollout log."
        ) from error
    return _of_log_history(rows, repr(str(state)))


def _find_state(path: Path) -> Path | None:
    """The trainer's state at a path. None: there may be a rollout log."""
    if not path.is_dir():
        return path if path.suffix == ".json" else None
    if (path / _STATE).is_file():
        return path / _STATE
    checkpoints = {
        int(match[1]): found / _STATE
        for found in path.iterdir()
        if (match := _CHECKPOINT.fullmatch(found.name)) and (found / _STATE).is_file()
    }
    return checkpoints[max(checkpoints)] if checkpoints else None


def _of_rollouts(path: Path) -> RunSeries:
    """The rollouts of training by the step that scored them; those of evaluations have no slot."""
    rewards: dict[int, dict[str, list[float | None]]] = {}
    found: set[str] = set()
    for record in read_rollouts(path):
        if record.slot is not None:
            found.add(record.source)
            rewards.setdefault(record.step, {}).setdefault(record.source, []).append(record.reward)
    if not found:
        raise ConfigError(f"the rollout log {str(path)!r} holds no rollout of a training.")
    steps, names = sorted(rewards), sorted(found)
    totals = {step: sum(map(len, rewards[step].values())) for step in steps}
    return RunSeries(
        "step",
        tuple(steps),
        planned={},
        drawn={name: tuple(len(rewards[step].get(name, ())) / totals[step] for step in steps) for name in names},
        rewards={
            name: tuple(
                mean_of(reward for reward in rewards[step].get(name, ()) if reward is not None) for step in steps
            )
            for name in names
        },
        levels={},
        about="from a rollout log: planned shares are not known",
    )


def cut_in_thirds(num_positions: int) -> list[range]:
    """The thirds of a run of three positions or more; what three does not divide is in the middle."""
    third = num_positions // 3
    return [range(start, end) for start, end in pairwise((0, third, num_positions - third, num_positions))]


def _mean(values: Values, part: range) -> float | None:
    """The mean of what there is at some positions. None: nothing is."""
    return mean_of(value for at in part if (value := values[at]) is not None)


def _split(num_positions: int) -> tuple[list[range], list[str]]:
    """A run in three parts, or as many as there are positions, and what each is called."""
    if num_positions >= 3:
        return cut_in_thirds(num_positions), ["first third", "middle third", "last third"]

    names = ["first half", "last half"] if num_positions == 2 else ["whole run"]
    return [range(at, min(at + 1, num_positions)) for at in range(len(names))], names


def _show(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
