"""The page of a training: how each environment went over the run, and what fell is said first.

Decides what counts as a fall: the mean of the last third of the run lies below that of the first by more than twice its
standard error, steps taken as the units; or scores became fewer by as much, for whatever reason. That is a hint and no
test: the tasks of the two thirds differ, and so do the policies.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from multiors.evaluation.comparison.charts import lay_out_curve
from multiors.evaluation.comparison.html import render_page
from multiors.evaluation.comparison.sheets import Group, Sheet, Table
from multiors.evaluation.comparison.transcripts import Brief, Episodes, Key, choose, gather
from multiors.evaluation.comparison.visible import fold
from multiors.evaluation.comparison.wording import count, say_difference, say_fraction, say_number
from multiors.evaluation.results import Verdict
from multiors.pictures import prepare_panels
from multiors.records import RolloutRecord, UnscoredReason
from multiors.rollout_log import read_rollouts
from multiors.series import RunSeries, Values, cut_in_thirds

__all__ = ["Change", "find_change", "to_training_html"]

_PARTS = ("first third", "middle third", "last third")
_LEAST_STEPS = 3
"""Values in a third, for anything to be said of how they scatter."""

_NUM_BINS = 30


class Change(NamedTuple):
    """From the first third of a run to the last."""

    first: float | None
    """Mean of the first third. None: nothing is known of it."""

    last: float | None
    error: float | None
    """Standard error of the difference. None: too few steps."""

    @property
    def is_clear(self) -> bool:
        """Whether it is more than twice its standard error."""
        if self.first is None or self.last is None or self.error is None:
            return False
        return abs(self.last - self.first) > 2.0 * self.error

    @property
    def value(self) -> float:
        """0 where there is nothing to compare."""
        return 0.0 if self.first is None or self.last is None else self.last - self.first


class Failures(NamedTuple):
    """What a rollout log says of one source."""

    num_rollouts: int
    unscored: Values
    """Fraction of the rollouts of each step that have no score. None: none was drawn."""

    reasons_by_part: tuple[Counter[UnscoredReason], Counter[UnscoredReason], Counter[UnscoredReason]]
    bins: tuple[float | None, ...]
    """Fraction without a score in each thirtieth of the run."""


def to_training_html(series: RunSeries, rollouts: str | os.PathLike[str] | None) -> str:
    """The page of a training.

    Args:
        series: Its curves.
        rollouts: Its rollout log. None: there is none, so that failures and transcripts are missing.
    """
    failures = {} if rollouts is None else _read_failures(Path(rollouts))
    verdicts = {name: _judge(name, series, failures) for name in series.names}
    return render_page(
        "training.html",
        sheet=_describe(series, failures, verdicts),
        arms=("rollout",),
        episodes=Episodes([], 0, {}) if rollouts is None else _find_rollouts(Path(rollouts)),
        has_rollouts=rollouts is not None,
        axis=series.axis,
        ends=[f"{position:g}" for position in (series.positions[0], series.positions[-1])],
        charts=[_draw(name, verdicts[name], series, failures.get(name)) for name in series.names],
        runs=[] if rollouts is None else [(fold(str(rollouts), 600), "rollout log")],
    )


def find_change(values: Sequence[float | None]) -> Change:
    """How the values of a run's last third differ from those of its first; what is None is passed over."""
    first, _, last = _find_parts(values)
    thirds = cut_in_thirds(len(values))
    parts = [[value for at in thirds[place] if (value := values[at]) is not None] for place in (0, -1)]

    if first is None or last is None or min(map(len, parts)) < _LEAST_STEPS:
        return Change(first, last, None)

    variances = [_find_variance(part) / len(part) for part in parts]
    return Change(first, last, math.sqrt(math.fsum(variances)))


def _find_variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


# -- what is said


def _judge(name: str, series: RunSeries, failures: Mapping[str, Failures]) -> Verdict:
    reward = find_change(series.rewards[name])
    unscored = find_change(failures[name].unscored) if name in failures else Change(None, None, None)

    if (reward.is_clear and reward.value < 0) or (unscored.is_clear and unscored.value > 0):
        return "worse"
    return "better" if reward.is_clear and reward.value > 0 else "undecided"


def _describe(series: RunSeries, failures: Mapping[str, Failures], verdicts: Mapping[str, Verdict]) -> Sheet:
    return Sheet(
        title="training",
        headline=_answer(verdicts),
        groups=tuple(_group(series, failures, verdicts)),
        tables=(_tabulate_rewards(series), *_tabulate_reasons(failures)),
        details=(),
        remarks=((fold(series.about, 600),) if series.about else ()),
    )


def _group(series: RunSeries, failures: Mapping[str, Failures], verdicts: Mapping[str, Verdict]) -> Iterator[Group]:
    changes = {name: find_change(series.rewards[name]) for name in verdicts}
    titles: dict[Verdict, str] = {
        "worse": "Rewards fell, or became fewer, on",
        "better": "Rewards rose on",
        "undecided": "No clear change on",
    }

    for verdict, title in titles.items():
        names = [name for name, each in verdicts.items() if each == verdict]
        names.sort(key=lambda name: -abs(changes[name].value))
        lines = tuple((fold(name), _say_change(changes[name], failures.get(name))) for name in names)

        if lines:
            yield Group(verdict, f"{title} {len(lines)} of {count(len(verdicts), 'environment')}", lines)
        elif verdict == "worse":
            yield Group(verdict, f"{title} no environment, as far as can be told", ())


def _answer(verdicts: Mapping[str, Verdict]) -> str:
    numbers = Counter(verdicts.values())
    parts = [f"fell, or became fewer, on {numbers['worse']}"] if numbers["worse"] else []
    parts += [f"rose on {numbers['better']}"] if numbers["better"] else []
    parts += [f"did not change clearly on {numbers['undecided']}"] if numbers["undecided"] else []
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
    return f"From the first to the last third of the run rewards {listed} of {count(len(verdicts), 'environment')}."


def _say_change(change: Change, failures: Failures | None) -> str:
    parts = []

    around = "" if change.error is None else f", twice its standard error is {say_number(2 * change.error)}"
    means = f"mean reward {say_number(change.first)}, then {say_number(change.last)}"
    difference = None if change.first is None or change.last is None else change.value
    parts.append(means if difference is None else f"{means} ({say_difference(difference)}{around})")

    if failures is None:
        return "; ".join(parts)

    unscored = _find_parts(failures.unscored)

    if any(unscored):
        why = _say_most(failures.reasons_by_part[-1])
        parts.append(f"unscored {', then '.join(map(say_fraction, unscored))}{why}")

    return "; ".join(parts)


def _say_most(reasons: Counter[UnscoredReason]) -> str:
    return "".join(f" (mostly {reason.value})" for reason, _ in reasons.most_common(1))


def _tabulate_rewards(series: RunSeries) -> Table:
    rows = [
        (
            fold(name),
            *(say_number(mean) for mean in _find_parts(series.rewards[name])),
            say_fraction(_mean(series.planned[name])) if name in series.planned else "–",
            say_fraction(_mean(series.drawn[name])),
        )
        for name in series.names
    ]
    return Table("Mean reward, and shares of the rollouts", ("environment", *_PARTS, "planned", "drawn"), tuple(rows))


def _tabulate_reasons(failures: Mapping[str, Failures]) -> list[Table]:
    rows = [
        (fold(name), reason.value, *(f"{part[reason]:,}" for part in each.reasons_by_part))
        for name, each in failures.items()
        for reason in UnscoredReason
        if any(part[reason] for part in each.reasons_by_part)
    ]
    return [Table("Unscored rollouts", ("environment", "why", *_PARTS), tuple(rows))] if rows else []


def _find_parts(values: Sequence[float | None]) -> list[float | None]:
    return [_mean([values[at] for at in part]) for part in cut_in_thirds(len(values))]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


# -- what is drawn


def _draw(name: str, verdict: Verdict, series: RunSeries, failures: Failures | None) -> dict[str, object]:
    rewards = prepare_panels(series)[1].lines
    styles = {"thin": "thin", "line": "thick"}
    reward = [(styles[line.style], line.values) for line in rewards if line.source == name]
    shares: list[tuple[str, Values]] = [("thin" if name in series.planned else "thick", series.drawn[name])]
    shares += [("planned", series.planned[name])] if name in series.planned else []
    return {
        "name": fold(name),
        "verdict": verdict,
        "reward": lay_out_curve(reward, series.positions),
        "share": lay_out_curve(shares, series.positions, floor=0.0),
        "unscored": None if failures is None else _lay_out_bins(failures.bins),
    }


def _lay_out_bins(bins: Sequence[float | None]) -> list[tuple[float, float, float]]:
    """Left edge and width in percent, and height from 0 to 1, of what is above nothing."""
    width = 100.0 / len(bins)
    return [(round(place * width, 3), round(width * 0.84, 3), height) for place, height in enumerate(bins) if height]


# -- the rollout log


def _read(path: Path) -> Iterator[RolloutRecord]:
    """The rollouts of training; those of evaluations have no slot."""
    return (record for record in read_rollouts(path) if record.slot is not None)


def _read_failures(path: Path) -> dict[str, Failures]:
    counts: dict[str, dict[int, list[int]]] = {}
    reasons: dict[tuple[str, int], Counter[UnscoredReason]] = {}

    for record in _read(path):
        number = counts.setdefault(record.source, {}).setdefault(record.step, [0, 0])
        number[0] += 1

        if record.reason is not None:
            number[1] += 1
            reasons.setdefault((record.source, record.step), Counter())[record.reason] += 1

    steps = sorted({step for by_step in counts.values() for step in by_step})
    return {name: _summarize(name, by_step, reasons, steps) for name, by_step in sorted(counts.items())}


def _summarize(
    name: str,
    by_step: Mapping[int, Sequence[int]],
    reasons: Mapping[tuple[str, int], Counter[UnscoredReason]],
    steps: Sequence[int],
) -> Failures:
    parts = (Counter[UnscoredReason](), Counter[UnscoredReason](), Counter[UnscoredReason]())
    num_bins = min(_NUM_BINS, len(steps))
    bins = [[0, 0] for _ in range(num_bins)]

    for part, places in zip(parts, cut_in_thirds(len(steps)), strict=True):
        for place in places:
            part.update(reasons.get((name, steps[place]), {}))

    for place, step in enumerate(steps):
        number, unscored = by_step.get(step, (0, 0))
        bins[place * num_bins // len(steps)][0] += number
        bins[place * num_bins // len(steps)][1] += unscored

    return Failures(
        num_rollouts=sum(number for number, _ in by_step.values()),
        unscored=tuple(by_step[step][1] / by_step[step][0] if step in by_step else None for step in steps),
        reasons_by_part=parts,
        bins=tuple(unscored / number if number else None for number, unscored in bins),
    )


def _find_rollouts(path: Path) -> Episodes:
    def read() -> Iterator[tuple[Key, int, RolloutRecord]]:
        for place, record in enumerate(_read(path)):
            yield (record.source, record.step, record.task_index, record.slot, place), 0, record

    briefs = {key: (Brief(record.reward, record.error is not None),) for key, _, record in read()}
    chosen = choose(briefs)
    titles = {key: f"step {key[1]}, task {key[2]}, slot {key[3]}" for key in chosen}
    return gather(briefs, read(), titles, chosen)
