"""The sign-flip test: whether differences are larger than signs drawn by chance would make them.

If candidate and reference are alike, the sign of each difference is a coin flip. The test needs no normal distribution
and is exact. With few differences its smallest p is large: 2 / 2^n for n differences that are not 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from multiors.evaluation.statistics.means import SIGNIFICANCE

__all__ = ["find_least_pairs", "sign_flip_p"]

_MAX_ENUMERATED = 16
"""Differences: up to here all 2^n signs are tried."""

_NUM_FLIPS = 10_000
_MAX_CHUNK = 2**18
"""Signs drawn at once, so that they stay in the processor's cache."""


def sign_flip_p(values: Sequence[float], *, seed: int) -> float | None:
    """Two-sided p of the sum of independent differences, under random signs.

    All signs are tried up to 16 differences that are not 0, and 10,000 random ones beyond; there the observed signs
    count as one more, so that p is never 0 and the test never finds more than 5 % by chance.

    Args:
        values: The differences, each times its weight in what is tested: the sum is.
        seed: Of the random signs.

    Returns:
        None: there are fewer than two differences.
    """
    if len(values) < 2:
        return None

    flipped = np.array([value for value in values if value])
    observed = abs(math.fsum(flipped))
    least = observed - 1e-9 * math.fsum(abs(flipped))  # sums that differ by rounding are equal

    if len(flipped) <= _MAX_ENUMERATED:
        bits = (np.arange(2 ** len(flipped))[:, None] >> np.arange(len(flipped))) & 1
        return float(np.mean(abs(_flip(bits, flipped)) >= least))

    return (1 + _count_random(flipped, least, seed=seed)) / (1 + _NUM_FLIPS)


def find_least_pairs(num_tests: int = 1) -> int:
    """The fewest differences with which a test at 5 %, divided by the number of tests, can find anything at all."""
    return math.floor(1 + math.log2(num_tests / SIGNIFICANCE)) + 1


def _count_random(flipped: npt.NDArray[np.float64], least: float, *, seed: int) -> int:
    """How many random signs make the sum at least so large."""
    rng = np.random.default_rng(seed)
    num_rows = max(1, _MAX_CHUNK // len(flipped))
    num_found = 0

    for begin in range(0, _NUM_FLIPS, num_rows):
        shape = (min(num_rows, _NUM_FLIPS - begin), len(flipped))
        num_bits = shape[0] * shape[1]
        drawn = np.frombuffer(rng.bytes(-(-num_bits // 8)), dtype=np.uint8)
        sums = _flip(np.unpackbits(drawn, count=num_bits).reshape(shape), flipped)
        num_found += int(np.count_nonzero(abs(sums) >= least))

    return num_found


def _flip(bits: npt.NDArray[np.integer], values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sum of the values for each row of signs, 0 for plus and 1 for minus."""
    sums: npt.NDArray[np.float64] = values.sum() - 2 * (bits.astype(float) @ values)
    return sums
