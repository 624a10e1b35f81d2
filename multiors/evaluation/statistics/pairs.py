"""Two evaluations beside each other, task by task: is the candidate better, on which source, and how sure is that?

A pair is a task. Of its episodes those count that both arms have a score of, so that like is compared with like: the
same tasks, and within each the same seeds. An episode that failed in one arm is left out of the other too: if it
stayed, the arm that lost the hard seeds would look better. What that costs is a few episodes, which are counted; and
the difference is not exactly that of the arms' own scores, which are over all their scored episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from multiors.evaluation.results import Difference
from multiors.evaluation.statistics.estimates import MacroScale, Scale
from multiors.evaluation.statistics.flips import sign_flip_p
from multiors.evaluation.statistics.means import Mean, adjust_holm, as_difference, combine_means, find_mean, subtract
from multiors.evaluation.statistics.scores import SourceScores

__all__ = ["TaskPairs", "compare_tasks", "pair_tasks"]


class TaskPairs(NamedTuple):
    """A source in two evaluations."""

    differences: tuple[float, ...]
    """Candidate less reference, one per task that both have a scored episode of in common, by task index."""

    num_only_reference: int
    """Tasks that only the reference played."""

    num_only_candidate: int
    num_left_out: int
    """Episodes of common tasks that only one of them has a score of."""


def pair_tasks(reference: SourceScores, candidate: SourceScores) -> TaskPairs:
    """Match the tasks of a source, and the episodes of each."""
    tasks = [{task for task, episodes in arm.scores_TE.items() if episodes} for arm in (reference, candidate)]
    differences = []
    num_left_out = 0

    for task in sorted(tasks[0] & tasks[1]):
        before, after = (
            {episode: score for episode, score in arm.scores_TE[task].items() if score is not None}
            for arm in (reference, candidate)
        )
        common = sorted(before.keys() & after.keys())
        num_left_out += len(before.keys() ^ after.keys())

        if common:
            means = [math.fsum(arm[each] for each in common) / len(common) for arm in (after, before)]
            differences.append(subtract(*means))

    return TaskPairs(tuple(differences), len(tasks[0] - tasks[1]), len(tasks[1] - tasks[0]), num_left_out)


def compare_tasks(
    pairs: Mapping[str, TaskPairs], *, scales: Mapping[str, Scale], macro_scale: MacroScale, seed: int
) -> tuple[Difference, dict[str, Difference]]:
    """The macro difference, and that of each source.

    Intervals are Student's over tasks, p values those of sign flips over tasks, within each source; Holm's adjustment
    is over the sources, and the macro difference, the one that is declared beforehand, has none. It is None where a
    source that has a weight has no pair.

    Args:
        pairs: By source.
        scales: By source.
        macro_scale: How scores are added up.
        seed: Of the random signs.
    """
    means = {name: _average(each.differences, scales[name].width) for name, each in pairs.items()}
    p = {name: sign_flip_p(each.differences, seed=seed) for name, each in pairs.items()}
    adjusted = adjust_holm(p)
    sources = {
        name: as_difference(
            means[name],
            len(each.differences),
            p=p[name],
            p_adjusted=adjusted[name],
            limit=scales[name].width or math.inf,
        )
        for name, each in pairs.items()
    }

    factors, ends = macro_scale.factors, macro_scale.ends
    macro = combine_means((factors[name], mean) for name, mean in means.items())
    shares = [
        [factors[name] * difference for difference in each.differences]
        for name, each in sorted(pairs.items())
        if factors[name]
    ]
    macro_p = None if macro.value is None else sign_flip_p(*shares, seed=seed)
    limit = math.inf if ends is None else ends[1] - ends[0]
    return as_difference(macro, sum(map(len, shares)), p=macro_p, p_adjusted=macro_p, limit=limit), sources


def _average(differences: tuple[float, ...], width: float | None) -> Mean:
    """The mean difference.

    Tasks that all differ by the same, as where both arms solve everything, do not scatter; where the ends of the scores
    are known the error is then taken as if two more tasks had been there, half a task up by the whole width and half a
    task down (Agresti and Min 2005, for pairs of binary values).
    """
    mean = find_mean(differences)

    if mean.error is None and width is not None and len(differences) > 1:
        return mean._replace(error=width / (len(differences) + 2))

    return mean
