"""How many tasks a claim needs, before any of them is played.

The same arithmetic as `minimum_detectable` of a difference that was measured, the other way round (Miller 2024, arXiv
2411.00640, section 5, with Student's t instead of the normal distribution).
"""

from __future__ import annotations

import math

from multiors.evaluation.statistics.flips import find_least_pairs
from multiors.evaluation.statistics.means import Mean

__all__ = ["tasks_needed"]


def tasks_needed(
    difference: float, *, between: float, within: float, episodes_per_task: int, num_sources: int = 1
) -> int:
    """Tasks of a source with which a paired test at 5 % finds a true difference in four of five repetitions.

    Args:
        difference: The true difference of the two policies' scores.
        between: Standard deviation over tasks of the true difference on each: how unequally the tasks gain.
        within: Standard deviation of a policy's episodes of one task around its own mean there; for successes and
            failures at most 0.5, as where half of the episodes of every task succeed.
        episodes_per_task: Of each policy. They divide the share of `within`, and do nothing about `between`.
        num_sources: That a claim is made of: the test is then at 5 % divided by their number, as Holm's adjustment
            demands of the first one.

    Returns:
        At least as many as a sign-flip test needs to be able to reject anything.

    Raises:
        ValueError: The difference is 0, or the deviations are both 0, or there are no episodes.
    """
    if not difference or episodes_per_task < 1 or num_sources < 1 or not (between or within):
        raise ValueError(
            f"a difference of {difference} with a scatter of {between} between and {within} within tasks, "
            f"{episodes_per_task} episodes per task and {num_sources} sources: a number of tasks needs a difference "
            f"and a scatter that are not 0, and at least one episode and one source."
        )

    deviation = math.sqrt(between**2 + 2 * within**2 / episodes_per_task)

    def is_enough(num_tasks: int) -> bool:
        detectable = Mean(difference, deviation / math.sqrt(num_tasks), num_tasks - 1).find_detectable(num_sources)
        return detectable is not None and detectable <= abs(difference)

    low, high = 1, max(2, find_least_pairs(num_sources))

    if is_enough(high):
        return high

    while not is_enough(high):
        low, high = high, 2 * high

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)

    return high
