"""The sign-flip test: whether differences are larger than signs drawn by chance would make them.

If candidate and reference are alike, the sign of each difference is a coin flip. The test needs no normal distribution
and is exact. With few differences its smallest p is large: 2 / 2^n for n differences that are not 0.

What is looked at is the mean over its own standard error, found anew for each flip. Of one source the order of the
flips is then that of their sums: the squares of the differences stay as they are, so the larger the mean, the smaller
the scatter around it. Of several sources it is not. Flips of a source that moved far scatter by the whole movement,
and beside them the sum of all sources looks small even where every task agrees with its source. Its own error does not
grow with the movement, and so the test finds what the interval shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from multiors.evaluation.statistics.means import SIGNIFICANCE

__all__ = ["find_least_pairs", "sign_flip_p"]

Values = npt.NDArray[np.float64]

_MAX_ENUMERATED = 16
"""Differences: up to here all 2^n signs are tried."""

_NUM_FLIPS = 10_000
_MAX_CHUNK = 2**18
"""Signs drawn at once, so that they stay in the processor's cache."""

_LEAST_ERROR = 1e-3
"""An error counts as no smaller than so many times that of the same differences around 0: where no source scatters,
the larger sum is then the stronger evidence, and no error is 0."""

_ROUNDING = 1e-9
"""Studentised sums that differ by less are equal."""


def sign_flip_p(*sources: Sequence[float], seed: int) -> float | None:
    """Two-sided p of the sum of the sources' mean differences, under random signs.

    The sum is divided by its standard error: the root of the sum of s² / n, where s² is the variance of a source's n
    differences under the same signs. A source of one difference does not scatter; its error is the difference.

    All signs are tried up to 16 differences that are not 0, and 10,000 random ones beyond; there the observed signs
    count as one more, so that p is never 0 and the test never finds more than 5 % by chance.

    Args:
        sources: The differences of each, times its weight in the sum. One without any is left out.
        seed: Of the random signs.

    Returns:
        None: there are fewer than two differences.
    """
    if sum(map(len, sources)) < 2:
        return None

    largest = max(abs(value) for values in sources for value in values)

    if not largest:
        return 1.0

    scaled = [np.array(values) / largest for values in sources if len(values)]
    moved = [values[values != 0] for values in scaled]
    is_enumerated = sum(map(len, moved)) <= _MAX_ENUMERATED
    sums = _enumerate_sums(moved) if is_enumerated else _draw_sums(moved, seed=seed)
    ratios = _studentize(scaled, sums)
    return float(np.mean(ratios >= ratios[0] - _ROUNDING * (1 + ratios[0])))


def find_least_pairs(num_tests: int = 1) -> int:
    """The fewest differences with which a test at 5 %, divided by the number of tests, can find anything at all."""
    return math.floor(1 + math.log2(num_tests / SIGNIFICANCE)) + 1


def _studentize(sources: Sequence[Values], sums: Iterable[Values]) -> Values:
    """The size of the sum of the sources' means over its standard error, for each flip.

    Args:
        sources: The differences of each.
        sums: Of each source, its sum under each flip.
    """
    squares = [float(values @ values) for values in sources]
    least = _LEAST_ERROR**2 * math.fsum(
        square / len(values) ** 2 for square, values in zip(squares, sources, strict=True)
    )
    total, variance = np.zeros(1), np.zeros(1)

    for values, square, flipped in zip(sources, squares, sums, strict=True):
        num = len(values)
        mean = flipped / num
        total = total + mean
        variance = variance + ((square / num - mean**2) / (num - 1) if num > 1 else square)

    ratios: Values = abs(total) / np.sqrt(np.maximum(variance, least))
    return ratios


def _enumerate_sums(sources: Sequence[Values]) -> Iterator[Values]:
    """The sum of each source under all signs of all sources, those that were observed first."""
    flips = np.arange(2 ** sum(map(len, sources)))
    begin = 0

    for values in sources:
        end = begin + len(values)
        yield _flip((flips[:, None] >> np.arange(begin, end)) & 1, values)
        begin = end


def _draw_sums(sources: Sequence[Values], *, seed: int) -> Iterator[Values]:
    """The sum of each source under the signs that were observed, and then under random ones."""
    rng = np.random.default_rng(seed)

    for values in sources:
        num_rows = max(1, _MAX_CHUNK // max(1, len(values)))
        sums = [values.sum(keepdims=True)]

        for begin in range(0, _NUM_FLIPS, num_rows):
            shape = (min(num_rows, _NUM_FLIPS - begin), len(values))
            num_bits = shape[0] * shape[1]
            drawn = np.frombuffer(rng.bytes(-(-num_bits // 8)), dtype=np.uint8)
            sums.append(_flip(np.unpackbits(drawn, count=num_bits).reshape(shape), values))

        yield np.concatenate(sums)


def _flip(bits: npt.NDArray[np.integer], values: Values) -> Values:
    """The sum of the values for each row of signs, 0 for plus and 1 for minus."""
    sums: Values = values.sum() - 2 * (bits.astype(float) @ values)
    return sums
