"""Shuffling that can be entered anywhere: row r of a stream depends on (seed, stream, r) and the row's width alone.

The random words come from Philox, a counter-based generator, whose raw output numpy keeps stable between versions; how
many rows are asked for at once, and in which order, changes nothing. What is shuffled is decided elsewhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from multiors.errors import ConfigError

__all__ = ["check_seed", "shuffle_rows"]

_WORDS_PER_COUNT = 4


def check_seed(seed: object) -> None:
    """Raise unless the seed is a whole number that fits 64 bits.

    Raises:
        ConfigError: The seed is not one.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
        raise ConfigError(f"seed {seed!r} is not a whole number from 0 to 2**64 - 1. Pass such a number.")


def shuffle_rows(values: npt.NDArray[np.uint64], *, seed: int, stream: int, first_row: int) -> npt.NDArray[np.uint64]:
    """Each row in an order of its own.

    Args:
        values: (rows, width), each below 2**32. They take the low bits of the words they are sorted by.
        seed: The run's seed.
        stream: Tells independent uses of one seed apart.
        first_row: Number of the first row in its stream; the rows follow each other.

    Returns:
        An array of the same shape.
    """
    num_rows, width = values.shape
    if width <= 1:
        return values
    counts_per_row = -(-width // _WORDS_PER_COUNT)
    key = np.array([seed, stream], dtype=np.uint64)
    generator = np.random.Philox(key=key, counter=first_row * counts_per_row)
    words = generator.random_raw(num_rows * counts_per_row * _WORDS_PER_COUNT).reshape(num_rows, -1)[:, :width]
    low_bits = np.uint64((1 << int(values.max()).bit_length()) - 1)
    keyed = (words & ~low_bits) | values
    keyed.sort(axis=1)
    result: npt.NDArray[np.uint64] = keyed & low_bits
    return result
