"""Which tasks are played, and with which luck: decided by seed, source and task alone.

Neither the number of tasks, nor the order in which episodes are played, nor the policy changes what another task gets.
So a larger evaluation holds the smaller one, and two policies can be compared episode by episode.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

__all__ = ["choose_tasks", "make_seed"]


def choose_tasks(indices: Sequence[int], num_tasks: int | None, *, seed: int, source: str) -> tuple[int, ...]:
    """Some of a source's tasks, each at most once.

    Args:
        indices: The source's tasks.
        num_tasks: How many are chosen. None, or more than there are: all.
        seed: Of the evaluation.
        source: The source's name.
    """
    unique = list(dict.fromkeys(indices))

    if num_tasks is None or num_tasks >= len(unique):
        return tuple(unique)

    return tuple(sorted(unique, key=lambda index: (_hash(seed, source, index), index))[:num_tasks])


def make_seed(seed: int, source: str, task_index: int, episode: int) -> int:
    """The seed of one episode, 0 <= seed < 2**63."""
    return _hash(seed, source, task_index, episode) >> 1


def _hash(*parts: int | str) -> int:
    return int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest(), "big")
