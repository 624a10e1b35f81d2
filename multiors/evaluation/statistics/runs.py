"""Several training runs of each arm: one number a run, matched by name, because tasks and episodes within one share its
seed and its luck.

The test is the paired t over runs, or Welch's where runs have no names in common. Interquartile mean and probability of
improvement (Agarwal et al. 2021, arXiv 2108.13264) describe beside it; their intervals resample whole runs, and are too
short with few of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from multiors.evaluation.results import Difference, Estimate, RunsComparison
from multiors.evaluation.statistics.means import (
    CONFIDENCE,
    adjust_holm,
    as_difference,
    as_estimate,
    combine_means,
    find_mean,
    subtract,
    with_adjusted_p,
)

__all__ = ["Values", "compare_sources", "compare_values", "describe_runs", "estimate_values"]

_NUM_RESAMPLES = 5_000

Values = Sequence[float | None]
"""One per run, in the order of the runs. None: the run has no score."""

Cells = npt.NDArray[np.float64]
"""Scores of runs and sources, `scores_RS`."""


def estimate_values(values: Values) -> Estimate:
    """The mean over runs that have a score, with its interval of Student's t."""
    known = [value for value in values if value is not None]
    return as_estimate(find_mean(known), len(known), "Student's t over runs")


def compare_values(reference: Values, candidate: Values, *, is_paired: bool) -> Difference:
    """The mean over runs of candidate less reference; p is that of the t test, and is not adjusted.

    Args:
        reference: One per run.
        candidate: One per run; in the same order, if they are paired.
        is_paired: Whether the runs of the two are matched. If not, it is Welch's comparison of two samples, and
            `num_pairs` the runs of the smaller one.

    Raises:
        ValueError: They are paired, and not of one length.
    """
    if is_paired:
        both = [
            subtract(after, before)
            for before, after in zip(reference, candidate, strict=True)
            if before is not None and after is not None
        ]
        mean, num_pairs = find_mean(both), len(both)
    else:
        before, after = ([value for value in values if value is not None] for values in (reference, candidate))
        mean = combine_means([(1.0, find_mean(after)), (-1.0, find_mean(before))])
        num_pairs = min(len(before), len(after))

    return as_difference(mean, num_pairs, p=mean.p, p_adjusted=mean.p)


def compare_sources(
    reference: Mapping[str, Values], candidate: Mapping[str, Values], *, is_paired: bool
) -> dict[str, Difference]:
    """The same for each source, with Holm's adjustment over the sources.

    Args:
        reference: By source.
        candidate: By source, the same ones.
        is_paired: Whether the runs of the two are matched.
    """
    found = {name: compare_values(reference[name], candidate[name], is_paired=is_paired) for name in reference}
    adjusted = adjust_holm({name: each.p for name, each in found.items()})
    return {name: with_adjusted_p(each, adjusted[name]) for name, each in found.items()}


def describe_runs(
    reference: Mapping[str, Values],
    candidate: Mapping[str, Values],
    *,
    ranges: Mapping[str, tuple[float, float] | None],
    is_paired: bool,
    seed: int,
) -> RunsComparison:
    """Interquartile means and the probability of improvement, from the runs that have a score of every source.

    Args:
        reference: By source, one score per run.
        candidate: By source, the same ones.
        ranges: Of each source's scores, to have all sources on one scale. Without one there is no interquartile mean.
        is_paired: Whether the runs of the two are matched, and are so resampled together.
        seed: Of the resampling.
    """
    are_known = [_find_complete(arm) for arm in (reference, candidate)]

    if is_paired:
        are_known = [are_known[0] & are_known[1]] * 2

    before, after = (
        np.array([arm[name] for name in ranges], dtype=float).T[known]
        for arm, known in zip((reference, candidate), are_known, strict=True)
    )
    rng = np.random.default_rng(seed)
    chosen_before = rng.integers(0, max(len(before), 1), size=(_NUM_RESAMPLES, len(before)))
    chosen_after = chosen_before
    if not is_paired:
        chosen_after = rng.integers(0, max(len(after), 1), size=(_NUM_RESAMPLES, len(after)))

    wins = (after[:, None] > before[None]).mean(axis=2) + (after[:, None] == before[None]).mean(axis=2) / 2
    resampled = wins[chosen_after[:, :, None], chosen_before[:, None, :]].mean(axis=(1, 2)) if wins.size else wins
    probability = float(wins.mean()) if wins.size else None
    return RunsComparison(
        reference_iqm=_estimate_iqm(before, chosen_before, ranges),
        candidate_iqm=_estimate_iqm(after, chosen_after, ranges),
        probability_of_improvement=_estimate_resampled(probability, resampled, min(wins.shape)),
    )


def _find_complete(scores: Mapping[str, Values]) -> npt.NDArray[np.bool_]:
    """For each run, whether it has a score of every source."""
    return np.array([None not in run for run in zip(*scores.values(), strict=True)], dtype=bool)


def _estimate_iqm(
    scores_RS: Cells, chosen: npt.NDArray[np.integer], ranges: Mapping[str, tuple[float, float] | None]
) -> Estimate:
    """Of scores brought to 0 to 1 by the ranges, which are in the order of the columns."""
    known = [each for each in ranges.values() if each is not None]

    if len(known) < len(ranges) or not len(scores_RS):
        return Estimate(None, None, None, None, len(scores_RS))

    lows, highs = np.array(known).T
    normalized = (scores_RS - lows) / (highs - lows)
    resampled = _find_iqm(normalized[chosen].reshape(len(chosen), -1))
    return _estimate_resampled(float(_find_iqm(normalized.reshape(1, -1))[0]), resampled, len(scores_RS))


def _find_iqm(cells: Cells) -> Cells:
    """The mean of each row without its lowest and highest quarter; of a number that four does not divide, the quarter
    is rounded down.
    """
    cut = cells.shape[1] // 4
    means: Cells = np.sort(cells, axis=1)[:, cut : cells.shape[1] - cut].mean(axis=1)
    return means


def _estimate_resampled(value: float | None, resampled: Cells, num_runs: int) -> Estimate:
    if value is None or num_runs < 2:
        return Estimate(value, None, None, None, num_runs)

    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    error = float(np.std(resampled, ddof=1))
    return Estimate(value, float(low), float(high), error, num_runs, "whole runs resampled")
