"""The quota: exact divisions of batches, one at a time and a whole run at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing import SHARE_UNITS, apportion
from multiors.mixing.quota import MAX_BATCH_SLOTS, draw_sources, share_units

weights = st.lists(st.floats(1e-4, 1.0) | st.sampled_from([0.001, 0.1, 0.5, 1.0]), min_size=1, max_size=24)
batch_slots = st.sampled_from([1, 1, 2, 3, 5, 8, 16, 64])

# Largest remainders fail here: in the 52nd batch of 3 slots, five of the largest sources must have one each.
CROWDED = [0.0005, *[0.0018] * 3, *[0.0181] * 5, *[0.0452] * 20]


def normalize(values: Sequence[float]) -> list[float]:
    """Shares in proportion to the values."""
    return [value / sum(values) for value in values]


def divide_slot_by_slot(units: Sequence[int], size: int, owed: list[int]) -> list[int]:
    """The documented rule in whole numbers, one slot at a time; `owed` is carried over in place."""
    margin = SHARE_UNITS // (2 * len(units))
    counts = [0] * len(units)
    for index, unit in enumerate(units):
        owed[index] += size * unit
    for _ in range(size):
        candidates = []
        for index, unit in enumerate(units):
            if owed[index] < margin:
                continue  # a slot more would put it a full slot ahead
            need = SHARE_UNITS - margin - owed[index]
            waits = (-1, need // 2**28) if need < 0 else (need // (size * unit), need % (size * unit) // 2**28)
            candidates.append((waits, index))
        chosen = min(candidates)[1]
        counts[chosen] += 1
        owed[chosen] -= SHARE_UNITS
    return counts


def count_by_batch(sources: np.ndarray, num_sources: int, size: int) -> np.ndarray:
    """How often each source is drawn in each batch, (batches, sources)."""
    return np.stack([(sources.reshape(-1, size) == index).sum(axis=1) for index in range(num_sources)], axis=1)


@given(weights, batch_slots, st.integers(1, 200))
@example(CROWDED, 3, 200)
@example([1.0] * 24, 1, 100)
def test_no_source_is_a_slot_from_its_plan_at_a_batch_end(values: list[float], size: int, num_batches: int) -> None:
    """With constant shares |slots drawn - slots planned| < 1 for every source at every batch end."""
    shares = normalize(values)

    drawn = np.cumsum(count_by_batch(draw_sources(shares, num_batches, size), len(shares), size), axis=0)
    planned = np.outer(np.arange(1, num_batches + 1) * size, shares)

    assert np.abs(drawn - planned).max() < 1


@given(weights, batch_slots, st.integers(1, 30))
@example(CROWDED, 3, 30)
def test_a_run_is_what_dividing_its_batches_gives(values: list[float], size: int, num_batches: int) -> None:
    """A whole run draws in each batch what `apportion` and a loop over single slots give for that batch."""
    shares = normalize(values)
    residual, owed, stepped, looped = None, [0] * len(shares), [], []

    for _ in range(num_batches):
        counts, residual = apportion(shares, size, residual)
        stepped.append(counts.tolist())
        looped.append(divide_slot_by_slot(share_units(shares).tolist(), size, owed))
    drawn = count_by_batch(draw_sources(shares, num_batches, size), len(shares), size).tolist()

    assert looped == stepped
    assert looped == drawn


@settings(max_examples=10)
@given(weights, batch_slots)
def test_a_longer_run_begins_with_the_shorter_one(values: list[float], size: int) -> None:
    """What is drawn does not depend on how much is drawn after it, across the blocks it is computed in too."""
    shares, block = normalize(values), 2**16 // size

    longer = draw_sources(shares, block + 7, size)

    assert np.array_equal(draw_sources(shares, block - 1, size), longer[: (block - 1) * size])
    assert np.array_equal(draw_sources(shares, block + 3, size), longer[: (block + 3) * size])


def test_batches_larger_than_a_block_keep_the_quota() -> None:
    """A batch of more slots than are computed at once is divided like any other."""
    drawn = draw_sources([0.7, 0.2, 0.1], 3, 100_001)

    counts = count_by_batch(drawn, 3, 100_001).cumsum(axis=0)
    assert np.abs(counts - np.outer([100_001, 200_002, 300_003], [0.7, 0.2, 0.1])).max() < 1


def test_a_source_in_every_batch_is_given_its_largest_remainder() -> None:
    """Where every share is a slot a batch or more, the slots left over go to those furthest behind."""
    counts, residual = apportion([0.46, 0.29, 0.25], 10)

    assert [5, 3, 2] == counts.tolist()
    assert pytest.approx([-0.4, -0.1, 0.5]) == residual / SHARE_UNITS


@given(st.data(), st.integers(1, 12), batch_slots)
def test_changing_shares_are_carried_over(data: st.DataObject, num_sources: int, size: int) -> None:
    """Under any shares a batch has its size, counts are not negative, and the residual is what is owed exactly."""
    residual, promised, drawn = None, np.zeros(num_sources, dtype=np.int64), np.zeros(num_sources, dtype=np.int64)

    for _ in range(10):
        values = data.draw(st.lists(st.floats(1e-3, 1.0), min_size=num_sources, max_size=num_sources))
        counts, residual = apportion(normalize(values), size, residual)
        promised += size * share_units(normalize(values))
        drawn += counts

        assert size == counts.sum()
        assert counts.min() >= 0
        assert np.array_equal(promised - drawn * SHARE_UNITS, residual)


def test_a_debt_is_repaid_at_once() -> None:
    """A source that is several slots behind is served before all others, one that is ahead not at all."""
    residual = np.array([3, -2, -1]) * SHARE_UNITS

    counts, left = apportion([0.1, 0.45, 0.45], 2, residual)

    assert [2, 0, 0] == counts.tolist()
    assert pytest.approx([1.2, -1.1, -0.1]) == left / SHARE_UNITS


@given(weights)
def test_units_are_the_shares(values: list[float]) -> None:
    """Units sum to one slot, are never 0, and are off by less than one."""
    shares = normalize(values)

    units = share_units(shares)

    assert SHARE_UNITS == units.sum()
    assert units.min() >= 1
    assert np.abs(units - np.array(shares) * SHARE_UNITS).max() <= 1


def test_the_smallest_shares_have_a_unit_each() -> None:
    """Shares just above one unit are not rounded away; the largest pays."""
    tiny = 1.5 / SHARE_UNITS
    shares = [1 - 4 * tiny, tiny, tiny, tiny, tiny]

    units = share_units(shares)

    assert SHARE_UNITS == units.sum()
    assert units[1:].min() >= 1


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([], "at least one share"),
        ([0.5, 0.0, 0.5], r"share 0\.0 at position 1 .* Remove a source"),
        ([1.5, -0.5], r"share 1\.5 at position 0"),
        ([0.5, float("nan")], "share nan at position 1"),
        ([0.5, 0.4], r"sum to 0\.9; .* Divide"),
    ],
)
def test_shares_that_are_none_are_refused(shares: list[float], message: str) -> None:
    """Shares are positive and sum to 1."""
    with pytest.raises(ConfigError, match=message):
        apportion(shares, 8)


@pytest.mark.parametrize("size", [0, -1, MAX_BATCH_SLOTS + 1])
def test_a_batch_has_a_size(size: int) -> None:
    """A batch of no slots, or of more than the arithmetic holds, is refused."""
    with pytest.raises(ConfigError, match=f"batch of {size} slots"):
        apportion([1.0], size)
    with pytest.raises(ConfigError, match=f"batch of {size} slots"):
        draw_sources([1.0], 1, size)


@pytest.mark.parametrize("residual", [[1, 0], [0, 0, 0]])
def test_a_foreign_residual_is_refused(residual: list[int]) -> None:
    """A residual has one entry per source and sums to 0."""
    with pytest.raises(ConfigError, match="does not belong to 2 sources"):
        apportion([0.5, 0.5], 4, np.array(residual))
