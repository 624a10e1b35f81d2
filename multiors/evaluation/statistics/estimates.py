"""What one evaluation says of a source, and of all of them: means of scored episodes, clustered by task.

The unit is the task. Its episodes are averaged first, over those that have a score; then the tasks are, each with the
same weight however many of its episodes are scored. An interval says what other tasks of the same kind may bring.
Unscored episodes are in no mean; `find_bounds` says how much they could change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scipy import special

from multiors.errors import ComparisonError
from multiors.evaluation.results import Estimate
from multiors.evaluation.statistics.means import (
    CONFIDENCE,
    Mean,
    as_estimate,
    combine_means,
    find_mean,
    find_t_quantile,
)
from multiors.evaluation.statistics.scores import RunScores, SourceScores

__all__ = [
    "MacroScale",
    "Scale",
    "average_tasks",
    "estimate_macro",
    "estimate_source",
    "estimate_tasks",
    "find_bounds",
    "find_macro_scale",
    "find_scale",
    "list_scored",
    "normalize_weights",
]

_BINARY = (0.0, 1.0)


class Scale(NamedTuple):
    """Between which ends the scores of a source lie."""

    declared: tuple[float, float] | None
    """By the user. None: not, or not the same in all evaluations."""

    ends: tuple[float, float] | None
    """What holds of the scores: the declared range if none is outside, or 0 and 1 if every score is one of them.
    None: not known."""

    @property
    def width(self) -> float | None:
        """Largest difference of two scores. None: not known."""
        return None if self.ends is None else self.ends[1] - self.ends[0]


class MacroScale(NamedTuple):
    """How the scores of sources are added up: factor times score, plus an offset."""

    factors: Mapping[str, float]
    """By source: its weight, divided by the width of its range where scores are brought to one scale. 0: left out."""

    offset: float
    ends: tuple[float, float] | None
    """Lowest and highest macro score there can be. None: not known."""

    is_normalized: bool
    """Whether scores are taken as fractions of their ranges."""


def find_macro_scale(weights: Mapping[str, float], scales: Mapping[str, Scale]) -> MacroScale:
    """Scores as they are where they have one range or an unknown one; else, if all ranges are known, from 0 to 1.

    Args:
        weights: By source, with the sum 1.
        scales: By source.
    """
    ends = {name: scales[name].ends for name, weight in weights.items() if weight}
    known = {name: each for name, each in ends.items() if each is not None}

    if len(known) < len(ends) or len(set(known.values())) == 1:
        common = next(iter(known.values())) if len(known) == len(ends) else None
        return MacroScale(dict(weights), 0.0, common, is_normalized=False)

    factors = {name: weights[name] / (known[name][1] - known[name][0]) if name in known else 0.0 for name in weights}
    offset = -math.fsum(factors[name] * low for name, (low, _) in known.items())
    return MacroScale(factors, offset, (0.0, 1.0), is_normalized=True)


def list_scored(source: SourceScores) -> dict[int, list[float]]:
    """The scores of each task, by task index, in the order of the indices. Unscored episodes are not in it, and neither
    are tasks that have nothing else.
    """
    scored = {
        task: [score for _, score in sorted(source.scores_TE[task].items()) if score is not None]
        for task in sorted(source.scores_TE)
    }
    return {task: scores for task, scores in scored.items() if scores}


def find_scale(sources: Iterable[SourceScores]) -> Scale:
    """Of one source, from all evaluations that are looked at together."""
    known = list(sources)
    ranges = {source.range for source in known}
    declared = ranges.pop() if len(ranges) == 1 else None

    if declared is not None and not -math.inf < declared[0] < declared[1] < math.inf:
        declared = None

    scores = {score for source in known for scores in list_scored(source).values() for score in scores}

    if declared is not None:
        return Scale(declared, declared if all(declared[0] <= score <= declared[1] for score in scores) else None)

    return Scale(None, _BINARY if scores and scores <= set(_BINARY) else None)


def average_tasks(source: SourceScores) -> dict[int, float]:
    """The mean over the scored episodes of each task that has one, by task index, in the order of the indices."""
    return {task: math.fsum(scores) / len(scores) for task, scores in list_scored(source).items()}


def estimate_source(source: SourceScores, scale: Scale) -> Estimate:
    """Mean over tasks of each task's mean over its scored episodes, with an interval over tasks."""
    scored = list_scored(source)
    are_single = all(len(scores) == 1 and scores[0] in (scale.ends or ()) for scores in scored.values())
    return estimate_tasks(list(average_tasks(source).values()), scale.ends, are_single=are_single)


def estimate_tasks(values: Sequence[float], ends: tuple[float, float] | None, *, are_single: bool = False) -> Estimate:
    """The mean of tasks with its interval.

    Where the ends of the values are known the interval is Wilson's: it stays between them, and also holds near them,
    where Student's is far too short. Its number of observations is the number of coin flips that would scatter as the
    tasks do, m (1 - m) / error², with the quantile of Student's t for the number of tasks. Tasks that are all alike
    do not scatter; there it is the number of tasks, as if each were one coin flip, which errs to the long side, and
    the error is that of this interval. Of unknown ends the interval is Student's, and tasks that are all alike have
    none.

    Args:
        values: One per task.
        ends: Lowest and highest value there can be. None: not known.
        are_single: Whether each value is one observation of one of the two ends; then it is Wilson's interval as it is
            known, for so many coin flips.
    """
    mean = find_mean(values)

    if ends is None or mean.value is None or len(values) < 2:
        return as_estimate(mean, len(values), "Student's t over tasks")

    low, width = ends[0], ends[1] - ends[0]
    share = min(max((mean.value - low) / width, 0.0), 1.0)
    quantile = float(special.ndtri((1 + CONFIDENCE) / 2)) if are_single else find_t_quantile(0.975, mean.df)
    num_flips = float(len(values))

    if mean.error is not None and not are_single:
        num_flips = share * (1 - share) / (mean.error / width) ** 2

    interval = _find_wilson(share, num_flips, quantile)
    error = (interval[1] - interval[0]) / 2 / quantile * width if mean.error is None else mean.error
    method = "Wilson's, one episode per task" if are_single else "Wilson's, clustered by task"
    return Estimate(
        mean.value, low + width * interval[0], low + width * interval[1], error, num_units=len(values), method=method
    )


def _find_wilson(share: float, num_flips: float, quantile: float) -> tuple[float, float]:
    """Wilson's score interval of a share of successes."""
    weight = quantile**2 / num_flips
    center = (share + weight / 2) / (1 + weight)
    half = math.sqrt(share * (1 - share) * weight + weight**2 / 4) / (1 + weight)
    return max(center - half, 0.0), min(center + half, 1.0)


def find_bounds(source: SourceScores, scale: Scale) -> tuple[float, float] | None:
    """The source's mean if every unscored episode had scored the lowest there is, and the highest.

    Tasks whose episodes are all unscored count too. None: no range is declared, or nothing was played.
    """
    played = [[score for _, score in sorted(each.items())] for _, each in sorted(source.scores_TE.items()) if each]

    if scale.declared is None or not played:
        return None

    low, high = (
        math.fsum(math.fsum(end if score is None else score for score in scores) / len(scores) for scores in played)
        / len(played)
        for end in scale.declared
    )
    return low, high


def normalize_weights(run: RunScores, names: Iterable[str]) -> dict[str, float]:
    """The weights of sources, with the sum 1.

    Raises:
        ComparisonError: A weight is negative or no finite number, or all are 0.
    """
    weights = {name: run.weights.get(name, 1.0) for name in names}
    wrong = {name: weight for name, weight in weights.items() if not 0 <= weight < math.inf}

    if wrong:
        name, weight = next(iter(wrong.items()))
        raise ComparisonError(
            f"evaluation {run.name!r}: source {name!r} weighs {weight!r} in the macro average. A weight is a finite "
            f"number of 0 or more."
        )

    total = math.fsum(weights.values())

    if weights and not total:
        raise ComparisonError(
            f"evaluation {run.name!r}: every source weighs 0 in the macro average: {sorted(weights)}. Give at least "
            f"one of them a weight above 0."
        )

    return {name: weight / total for name, weight in weights.items()}


def estimate_macro(scale: MacroScale, scores: Mapping[str, Estimate]) -> Estimate:
    """The weighted mean of the sources' scores. None where a source that has a weight has no score.

    Its interval is made of those of the sources: the distance from the value to its end is the root of the sum of the
    squares of theirs (MOVER: Zou, Huang and Zhang, Computational Statistics and Data Analysis 53, 2009). So it holds
    also where sources have few tasks, and no normal distribution describes their means.

    Args:
        scale: How scores are added up.
        scores: By source.
    """
    kept = [(factor, scores[name]) for name, factor in scale.factors.items() if factor]
    mean = combine_means((factor, Mean(each.value, each.error, each.num_units - 1)) for factor, each in kept)
    num_units = sum(each.num_units for _, each in kept)

    if mean.value is None:
        return Estimate(None, None, None, None, num_units)

    value = mean.value + scale.offset
    distances = [
        (factor * (each.value - each.low), factor * (each.high - each.value))
        for factor, each in kept
        if each.value is not None and each.low is not None and each.high is not None
    ]

    if len(distances) < len(kept):
        return Estimate(value, None, None, None, num_units)

    below, above = (math.hypot(*each) for each in zip(*distances, strict=True))
    lowest, highest = scale.ends or (-math.inf, math.inf)
    low, high = max(value - below, lowest), min(value + above, highest)
    return Estimate(value, low, high, mean.error, num_units, "MOVER, from the sources' intervals")
