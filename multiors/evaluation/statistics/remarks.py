"""What a reader must know before believing the numbers of a comparison, one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from multiors.evaluation.results import Difference, SourceResult
from multiors.evaluation.statistics.estimates import Scale
from multiors.evaluation.statistics.flips import find_least_pairs
from multiors.evaluation.statistics.pairs import TaskPairs
from multiors.evaluation.statistics.scores import RunScores

__all__ = [
    "describe_pairs",
    "describe_run_matching",
    "describe_scales",
    "describe_scored",
    "describe_sources",
    "describe_weights",
    "differ_in_scored",
]

_NOTABLE_FRACTION = 0.05
"""Scored fractions that differ by so much are said."""


def differ_in_scored(before: SourceResult, after: SourceResult) -> bool:
    """Whether clearly more episodes of one arm are scored."""
    fractions = before.scored_fraction, after.scored_fraction
    return None not in fractions and abs((fractions[0] or 0.0) - (fractions[1] or 0.0)) >= _NOTABLE_FRACTION


def describe_sources(
    compared: Sequence[str], reference: Sequence[RunScores], candidate: Sequence[RunScores]
) -> Iterator[str]:
    """Sources that not every evaluation has, and ranges that they do not agree on."""
    runs = [*reference, *candidate]
    where = {
        name: [any(name in run.sources for run in arm) for arm in (reference, candidate)]
        for name in dict.fromkeys(name for run in runs for name in run.sources)
        if name not in compared
    }

    for had, who in (
        ([True, False], "Only the reference was"),
        ([False, True], "Only the candidate was"),
        ([True, True], "Not every training run was"),
    ):
        names = [name for name, each in where.items() if each == had]

        if names:
            yield f"{who} evaluated on {_list_names(names)}: not compared, and not in the macro difference."

    for name in compared:
        if len({run.sources[name].range for run in runs}) > 1:
            yield f"Source {name!r}: the evaluations declare different ranges of its scores, so none is used."


def describe_weights(weights: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Weights that are not the same everywhere.

    Args:
        weights: Of each evaluation, for the sources that are compared.
    """
    if any(each != weights[0] for each in weights):
        yield "The evaluations weigh the sources differently: the weights of the reference are used."


def describe_scales(scales: Mapping[str, Scale], *, is_normalized: bool, is_comparison: bool) -> Iterator[str]:
    """Scores of different ranges in one average.

    Args:
        scales: Of the sources that have a weight.
        is_normalized: Whether the average is of fractions of the ranges.
        is_comparison: Whether there would be a verdict.
    """
    shown = {
        name: "not known" if scale.ends is None else f"{scale.ends[0]:g} to {scale.ends[1]:g}"
        for name, scale in scales.items()
    }

    listed = ", ".join(f"{name!r} {each}" for name, each in shown.items())

    if is_normalized:
        yield f"The macro average is of scores as fractions of their ranges ({listed})."
    elif len(shown) > 1 and len(set(shown.values())) + ("not known" in shown.values()) > 1:
        verdict = ", so there is no overall verdict" if is_comparison else ""
        yield (
            f"The macro average adds scores of ranges that are not known to be the same ({listed}): a source with a "
            f"wide range counts for more{verdict}. Declare each source's range (in a run file as reward: "
            f"{{range: [0, 10]}}) and evaluate anew to have them brought to one scale."
        )


def describe_scored(reference: Mapping[str, SourceResult], candidate: Mapping[str, SourceResult]) -> Iterator[str]:
    """Sources of which one arm has clearly more scores; the means are silent about the rest."""
    for name in reference:
        before, after = reference[name].scored_fraction, candidate[name].scored_fraction

        if before is not None and after is not None and differ_in_scored(reference[name], candidate[name]):
            yield (
                f"Source {name!r}: {before:.0%} of the reference's episodes are scored and {after:.0%} of the "
                f"candidate's; the scores say nothing about the rest, so there is a verdict only where none of the "
                f"rest could turn it."
            )


def describe_pairs(
    pairs: Mapping[str, TaskPairs], differences: Mapping[str, Difference], weights: Mapping[str, float]
) -> Iterator[str]:
    """Tasks and episodes that are not compared, and sources on which nothing can be found."""
    num_tests = max(1, sum(each.p is not None for each in differences.values()))
    least = find_least_pairs(num_tests)

    for name, each in pairs.items():
        num_pairs = len(each.differences)

        if each.num_only_reference or each.num_only_candidate:
            yield (
                f"Source {name!r}: {_count(each.num_only_reference, 'task')} only the reference played and "
                f"{each.num_only_candidate} only the candidate are not compared."
            )

        if each.num_left_out:
            yield (
                f"Source {name!r}: {_count(each.num_left_out, 'episode')} that only one arm has a score of "
                f"{'is' if each.num_left_out == 1 else 'are'} left out of the difference."
            )

        if not num_pairs:
            without = ", so there is no macro difference" if weights[name] else ""
            yield f"Source {name!r}: no episode has a score in both arms{without}."
        elif num_pairs < least:
            yield (
                f"Source {name!r}: {_count(num_pairs, 'task')} can be compared, which is too few for a verdict, "
                f"whatever the difference: among {_count(num_tests, 'source')} it takes {least}."
            )
        elif differences[name].error is None:
            yield (
                f"Source {name!r}: all tasks differ by the same and no range of its scores is declared, so nothing "
                f"says how far they could scatter; declare its range to have an interval."
            )


def describe_run_matching(
    names: Sequence[Sequence[str]], *, is_paired: bool, scores: Iterable[Sequence[float | None]], has_iqm: bool
) -> Iterator[str]:
    """How training runs were matched, and which were left out.

    Args:
        names: Of the runs of the reference, and of the candidate.
        is_paired: Whether they were matched.
        scores: The macro scores of the runs of each arm.
        has_iqm: Whether there are interquartile means.
    """
    if not is_paired:
        yield (
            f"The training runs cannot be matched by their names (reference: {_list_names(names[0])}; candidate: "
            f"{_list_names(names[1])}), so they are compared as independent samples, which finds less."
        )

    if min(map(len, names)) < 2:
        yield "One training run says nothing of how runs scatter, so there is no interval and no test."

    for arm, each in zip(("reference", "candidate"), scores, strict=True):
        num_unscored = sum(score is None for score in each)

        if num_unscored:
            yield (
                f"{_count(num_unscored, 'training run')} of the {arm} without a score on some source "
                f"{'is' if num_unscored == 1 else 'are'} not in the macro comparison."
            )

    if not has_iqm:
        yield "There are no interquartile means, because not every source has a declared range to be brought to."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
