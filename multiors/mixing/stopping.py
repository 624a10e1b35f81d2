"""How many slots a schedule has, by arithmetic on what is planned: the answer costs the same for ten slots and 10**9.

A source counts as exhausted at the slot by which its plan, share times slots, reaches its number of tasks. The quota
has then drawn each of its tasks at least once, and at most one of them again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from multiors.errors import ConfigError

__all__ = ["StoppingStrategy", "count_slots"]

StoppingStrategy = Literal["first_exhausted", "all_exhausted", "max_slots"]

_ROUNDING = 1e-12  # 7 tasks at a share of 0.7 are 10 slots, though 7 / 0.7 is 10.000000000000002.


def count_slots(
    shares: Sequence[float],
    num_tasks: Sequence[int],
    *,
    stopping_strategy: StoppingStrategy,
    num_slots: int | None = None,
    prompts_per_batch: int | None = None,
) -> int:
    """Decide the length of a schedule.

    Args:
        shares: One per source, above 0, summing to 1.
        num_tasks: Tasks of each source, at least 1.
        stopping_strategy: "first_exhausted" ends when the first source has been through its tasks, "all_exhausted"
            when every source has, "max_slots" after `num_slots`.
        num_slots: Slots asked for; with "max_slots" only.
        prompts_per_batch: Slots in one generation batch. The length is then a whole number of batches: rounded down
            for "first_exhausted", though never to none, and up otherwise. None: nothing is rounded.

    Raises:
        ConfigError: The strategy is unknown, `num_slots` is missing, below 1, or given to another strategy.
    """
    _check_strategy(stopping_strategy, num_slots)
    if prompts_per_batch is not None and prompts_per_batch < 1:
        raise ConfigError(f"prompts_per_batch={prompts_per_batch!r} is not above 0. Pass None or a number of slots.")
    needed = [math.ceil(count / share * (1 - _ROUNDING)) for count, share in zip(num_tasks, shares, strict=True)]
    batch_slots = prompts_per_batch or 1
    if stopping_strategy == "first_exhausted":
        return max(1, min(needed) // batch_slots) * batch_slots
    wanted = max(needed) if num_slots is None else num_slots
    return -(-wanted // batch_slots) * batch_slots


def _check_strategy(stopping_strategy: str, num_slots: int | None) -> None:
    if stopping_strategy not in get_args(StoppingStrategy):
        raise ConfigError(
            f"stopping_strategy={stopping_strategy!r} is not known. Pass one of {list(get_args(StoppingStrategy))}."
        )
    if stopping_strategy != "max_slots" and num_slots is not None:
        raise ConfigError(
            f"num_slots={num_slots!r} contradicts stopping_strategy={stopping_strategy!r}, which follows the tasks. "
            f"Pass stopping_strategy='max_slots', or no num_slots."
        )
    if stopping_strategy == "max_slots" and num_slots is None:
        raise ConfigError("stopping_strategy='max_slots' needs a number of slots. Pass num_slots=...")
    if num_slots is not None and num_slots < 1:
        raise ConfigError(f"num_slots={num_slots!r} is not above 0. Pass at least one slot.")
