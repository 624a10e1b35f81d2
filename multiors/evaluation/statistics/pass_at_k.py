"""pass@k: the chance that at least one of k episodes of a task succeeds.

Estimated without bias from the n scored episodes of each task, c of them successes, as 1 - C(n-c, k) / C(n, k) (Chen et
al. 2021, arXiv 2107.03374, section 2.1). The plain 1 - (1 - c/n)^k is too small.
"""

from __future__ import annotations

import math

from multiors.evaluation.results import Estimate
from multiors.evaluation.statistics.estimates import Scale, estimate_tasks, list_scored
from multiors.evaluation.statistics.scores import SourceScores

__all__ = ["choose_success_at", "estimate_pass_at", "find_pass_at_k"]


def choose_success_at(scale: Scale) -> float | None:
    """From which score on an episode succeeds, unless the user says it: the highest there is, as declared or, where all
    scores are 0 or 1, as seen. None: it cannot be told.
    """
    ends = scale.declared or scale.ends
    return None if ends is None else ends[1]


def find_pass_at_k(num_episodes: int, num_successes: int, k: int) -> float | None:
    """pass@k of one task. None: it has fewer than k episodes."""
    if num_episodes < k:
        return None

    return 1 - math.comb(num_episodes - num_successes, k) / math.comb(num_episodes, k)


def estimate_pass_at(source: SourceScores, success_at: float | None) -> dict[int, Estimate]:
    """pass@k for k = 1, 2, 4, ... up to the most episodes that were played of a task: the mean over the tasks that have
    k scored episodes or more. Its value is None where there is no such task.

    Args:
        source: The scores.
        success_at: From which score on an episode succeeds. None: nothing is estimated.
    """
    if success_at is None:
        return {}

    counts = [(len(each), sum(score >= success_at for score in each)) for each in list_scored(source).values()]
    most = max((len(episodes) for episodes in source.scores_TE.values()), default=0)
    found = {}

    for k in (2**power for power in range(most.bit_length())):
        values = [value for each in counts if (value := find_pass_at_k(*each, k)) is not None]
        are_single = k == 1 and all(num_episodes == 1 for num_episodes, _ in counts)
        found[k] = estimate_tasks(values, (0.0, 1.0), are_single=are_single)

    return found
