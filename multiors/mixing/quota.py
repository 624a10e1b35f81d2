"""How many slots of a batch each source gets: exact quotas, one batch at a time or a whole run at once.

Shares become whole numbers of 2**-40 slots, so that nothing drifts and every machine computes the same. What a source
has been promised minus what it has drawn is its *residual*. The rule for one batch:

- A slot may go to a source only if that leaves it less than one slot ahead, and must go to it if it would otherwise end
  the batch a full slot behind. Both with a margin of 1/(2S) slots for S sources.
- Of the slots nobody must have, the first go to the source that can wait the fewest further batches (at these shares);
  among equals, to the one that will be furthest behind by then.

With constant shares the rule keeps every source less than one slot from its plan at every batch end. The j-th slot of a
source is then a unit job with a window of batches. Let a source have been promised x(a) and x(b) slots by the ends of
batches a and b. Its jobs that fit inside the batches after a up to b number fewer than x(b) - x(a) + 1/S, so those of
any set of sources fewer than (slots in these batches) + 1: never more jobs than slots, and by Hall's theorem a
schedule exists (with the tightest margin this is R. Tijdeman's chairman assignment, 1980). Serving the earliest
deadline first finds it, as it does for any unit jobs. Largest remainders alone do not: with one large and many small
shares two sources can need the same slot. Where every share is at least one slot a batch, the two rules agree.

When shares change from batch to batch no online rule keeps the bound; `apportion` then repays the most overdue first.

`draw_sources` computes the same as repeated `apportion`, for a whole run at once: slots whose window is a single batch
are placed by arithmetic, and only the others wait in a queue, to be served one by one. This module knows no tasks and
no seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, heappushpop

import numpy as np
import numpy.typing as npt

from multiors.errors import ConfigError

__all__ = [
    "MAX_BATCH_SLOTS",
    "SHARE_UNITS",
    "apportion",
    "apportion_some",
    "draw_changing",
    "draw_sources",
    "share_units",
]

Units = npt.NDArray[np.int64]

SHARE_UNITS = 2**40
"""Units in one slot. A share is off by less than one unit, so a run of 10**9 slots by less than 0.001 slots."""

MAX_BATCH_SLOTS = 2**22 - 1
"""Most slots in one batch: their units still fit 63 bits."""

_CHUNK_SLOTS = 2**16  # What is laid out at once; batch numbers within a chunk fit 16 bits, which sort by radix.
_SLACK_SHIFT = 28  # Slack is compared in steps of 2**-12 slots, so that an urgency fits one 63-bit number.
_SLACK_BITS = 13
_POP = -1  # Never the complement of a key: a job that waits has an urgency above 0.


def share_units(shares: Sequence[float]) -> Units:
    """The shares as whole numbers of units that sum to one slot exactly, by largest remainder.

    Raises:
        ConfigError: A share is not a finite number above 2**-40, or the shares do not sum to 1.
    """
    values = np.asarray(shares, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise ConfigError(f"shares {shares!r} are not a list of one number per source. Pass at least one share.")
    for index, value in enumerate(values.tolist()):
        if not 1 / SHARE_UNITS <= value <= 1:
            raise ConfigError(
                f"share {value!r} at position {index} is not a number from 2**-40 to 1. "
                f"Remove a source that must not be drawn."
            )
    if abs(float(values.sum()) - 1) > 1e-9:
        raise ConfigError(
            f"the shares sum to {float(values.sum())!r}; shares sum to 1. Divide the weights by their sum."
        )
    exact = values / values.sum() * SHARE_UNITS
    units: Units = np.maximum(np.floor(exact).astype(np.int64), 1)
    missing = SHARE_UNITS - int(units.sum())
    units[np.argsort(units - exact, kind="stable")[: max(missing, 0)]] += 1
    units[np.argmax(units)] += min(missing, 0)
    return units


def apportion(shares: Sequence[float], size: int, residual: Units | None = None) -> tuple[Units, Units]:
    """Divide one batch among the sources.

    Args:
        shares: One per source, from 2**-40 to 1, summing to 1. They may differ from those of the batch before.
        size: Slots in the batch.
        residual: What earlier batches left over, as they returned it: units promised minus units drawn, per source.
            It sums to 0. None: this is the first batch.

    Returns:
        The number of slots of each source, which sum to `size`, and the residual to carry to the next batch.
        `residual / SHARE_UNITS` is in slots.

    Raises:
        ConfigError: The shares, the size or the residual are not of that form.
    """
    units = share_units(shares)
    _check_batch_size(size)
    owed = np.zeros_like(units) if residual is None else np.asarray(residual, dtype=np.int64)
    if owed.shape != units.shape or int(owed.sum()) != 0:
        raise ConfigError(
            f"the residual {owed.tolist()!r} does not belong to {len(units)} sources; it has one number per source "
            f"and sums to 0. Pass what the previous call returned."
        )
    per_batch = size * units
    promised = owed + per_batch
    margin = _margin(len(units))
    num_allowed = np.maximum((promised + SHARE_UNITS - margin) // SHARE_UNITS, 0)
    source, job = _enumerate(num_allowed)
    need = job * SHARE_UNITS - margin - promised[source]
    urgency = np.where(need < 0, need >> _SLACK_SHIFT, _urgency(need, per_batch[source]))
    counts = np.bincount(source[np.argsort(urgency, kind="stable")[:size]], minlength=len(units)).astype(np.int64)
    return counts, promised - counts * SHARE_UNITS


def apportion_some(shares: Sequence[float], size: int, residual: Units) -> tuple[Units, Units]:
    """Divide one batch among the sources whose share is above 0; the others get nothing, and are owed nothing more.

    What the others were owed, or had too much of, goes to those that are drawn, in proportion to their shares, and so
    does whatever else keeps the residual from summing to 0.

    Args:
        shares: As for `apportion`, and 0 for sources that are not drawn.
        size: Slots in the batch. 0: nothing changes.
        residual: Units promised minus units drawn, per source.

    Returns:
        As for `apportion`, with 0 for sources that are not drawn.
    """
    counts, left = np.zeros(len(shares), dtype=np.int64), np.zeros(len(shares), dtype=np.int64)
    if size == 0:
        return counts, residual
    drawn = np.flatnonzero(np.asarray(shares))
    own = [shares[index] for index in drawn.tolist()]
    owed = residual[drawn]
    missing = -int(owed.sum())
    if missing:
        # In whole numbers: every process must divide alike.
        parts = [missing * units // SHARE_UNITS for units in share_units(own).tolist()]
        owed = owed + np.array(parts, dtype=np.int64)
        owed[int(np.argmax(own))] += missing - sum(parts)
    counts[drawn], left[drawn] = apportion(own, size, owed)
    return counts, left


def draw_changing(shares_by_batch: Sequence[Sequence[float]], batch_slots: int) -> npt.NDArray[np.int32]:
    """The source of every slot of a run whose shares change from batch to batch, ascending inside each batch.

    Args:
        shares_by_batch: For each batch the shares of all sources, summing to 1. 0: not drawn.
        batch_slots: Slots in each batch.

    Returns:
        Source indices, (num_batches * batch_slots,).
    """
    num_sources = len(shares_by_batch[0])
    residual = np.zeros(num_sources, dtype=np.int64)
    drawn = np.empty((len(shares_by_batch), batch_slots), dtype=np.int32)
    for batch, shares in enumerate(shares_by_batch):
        counts, residual = apportion_some(shares, batch_slots, residual)
        drawn[batch] = np.repeat(np.arange(num_sources, dtype=np.int32), counts)
    return drawn.reshape(-1)


def draw_sources(shares: Sequence[float], num_batches: int, batch_slots: int) -> npt.NDArray[np.int32]:
    """The source of every slot of a run with constant shares, as repeated `apportion` would count them.

    Inside a batch the order is arbitrary. More batches only append to what fewer give.

    Args:
        shares: One per source, from 2**-40 to 1, summing to 1.
        num_batches: Batches in the run.
        batch_slots: Slots in each of them.

    Returns:
        Source indices, (num_batches * batch_slots,).
    """
    units = share_units(shares)
    _check_batch_size(batch_slots)
    drawn = np.empty(num_batches * batch_slots, dtype=np.int32)
    filled = 0
    for chunk in _draw_chunks(units, num_batches, batch_slots):
        drawn[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    return drawn


def _check_batch_size(size: int) -> None:
    if not 1 <= size <= MAX_BATCH_SLOTS:
        raise ConfigError(
            f"a batch of {size!r} slots cannot be divided; it has from 1 to {MAX_BATCH_SLOTS} slots. "
            f"Change the batch size."
        )


def _margin(num_sources: int) -> int:
    return SHARE_UNITS // (2 * num_sources)


def _enumerate(counts: Units) -> tuple[Units, Units]:
    """For counts [2, 0, 1]: owners [0, 0, 2] and numbers within each owner, from 1, [1, 2, 1]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    return owner, number


def _urgency(need: Units, per_batch: Units) -> Units:
    """Order in which waiting jobs are served, smallest first: batches it can wait, then slack left by then.

    Args:
        need: Units until its source is a full slot behind (less the margin), from 0 to one slot.
        per_batch: Units its source is promised in each batch.
    """
    batches, slack = np.divmod(need, per_batch)
    return (batches << _SLACK_BITS) | (slack >> _SLACK_SHIFT)


def _draw_chunks(units: Units, num_batches: int, batch_slots: int) -> Iterator[npt.NDArray[np.int64]]:
    """Blocks of whole batches. What crosses from one to the next: fractions of slots promised, and the queue."""
    draw = _draw_by_batch if len(units) <= batch_slots else _draw_by_slot
    per_batch = batch_slots * units
    promised = np.zeros_like(units)
    queue: list[int] = []
    chunk_batches = max(1, _CHUNK_SLOTS // batch_slots)
    for start in range(0, num_batches, chunk_batches):
        size = min(chunk_batches, num_batches - start)
        yield draw(promised, per_batch, queue, start=start, size=size)
        promised = (promised + size * per_batch) % SHARE_UNITS


def _draw_by_batch(
    promised: Units, per_batch: Units, queue: list[int], *, start: int, size: int
) -> npt.NDArray[np.int64]:
    """The sources of `size` batches, from how many slots of each source are allowed and due by the end of each batch.

    Args:
        promised: Fraction of a slot promised before the chunk, in units, per source.
        per_batch: Units promised in each batch, per source.
        queue: Heap of the jobs that were allowed but not served, as `_queue_keys` writes them; changed in place.
        start: Number of the chunk's first batch in the run.
        size: Batches in the chunk.
    """
    num_sources, batch_slots = len(promised), int(per_batch.sum()) // SHARE_UNITS
    ahead = SHARE_UNITS - _margin(num_sources)
    promised_at_end = promised + np.arange(size + 1)[:, np.newaxis] * per_batch
    allowed = (promised_at_end + ahead) // SHARE_UNITS
    due = -((ahead - promised_at_end[1:]) // SHARE_UNITS)
    before, allowed = allowed[:-1], allowed[1:]

    waits = allowed > np.maximum(due, before)  # the last allowed slot of a source; those before it are due
    counts = allowed - before - waits
    batch, source = np.nonzero(waits)
    need = allowed[batch, source] * SHARE_UNITS - _margin(num_sources) - promised[source]
    num_taken = batch_slots - counts.sum(axis=1)
    served = _serve(
        queue,
        _queue_keys(need, per_batch, source, start=start),
        num_queued=np.bincount(batch, minlength=size),
        num_taken=num_taken,
    )
    np.add.at(counts, (np.repeat(np.arange(size), num_taken), served & _index_mask(num_sources)), 1)
    return np.repeat(np.tile(np.arange(num_sources), size), counts.reshape(-1))


def _draw_by_slot(
    promised: Units, per_batch: Units, queue: list[int], *, start: int, size: int
) -> npt.NDArray[np.int64]:
    """As `_draw_by_batch`, from the window of each slot: less work where most sources are in few batches."""
    num_sources, batch_slots = len(promised), int(per_batch.sum()) // SHARE_UNITS
    ahead = SHARE_UNITS - _margin(num_sources)
    num_before = (promised + ahead) // SHARE_UNITS
    source, number = _enumerate((promised + size * per_batch + ahead) // SHARE_UNITS - num_before)
    need = (number + num_before[source]) * SHARE_UNITS - _margin(num_sources) - promised[source]
    allowed_in = -((ahead - _margin(num_sources) - need) // per_batch[source]) - 1
    due_in = need // per_batch[source]

    is_placed = due_in <= allowed_in
    placed_in, waits_from = allowed_in[is_placed], allowed_in[~is_placed]
    order = np.argsort(waits_from.astype(np.uint16), kind="stable")
    num_taken = batch_slots - np.bincount(placed_in, minlength=size)
    served = _serve(
        queue,
        _queue_keys(need[~is_placed], per_batch, source[~is_placed], start=start)[order],
        num_queued=np.bincount(waits_from, minlength=size),
        num_taken=num_taken,
    )
    batch = np.concatenate([placed_in, np.repeat(np.arange(size), num_taken)])
    owner = np.concatenate([source[is_placed], served & _index_mask(num_sources)])
    return owner[np.argsort(batch.astype(np.uint16), kind="stable")]


def _index_mask(num_sources: int) -> int:
    return (1 << num_sources.bit_length()) - 1


def _queue_keys(need: Units, per_batch: Units, source: Units, *, start: int) -> Units:
    """Urgency counted from the run's first batch, with the source in the low bits: jobs order as plain integers."""
    bits = len(per_batch).bit_length()
    urgency = _urgency(need, per_batch[source]) + (start << _SLACK_BITS)
    return (np.minimum(urgency, (1 << (62 - bits)) - 1) << bits) | source


def _queue_operations(keys: Units, num_queued: Units, num_taken: Units) -> list[int]:
    """The chunk as one list: a key to push and then pop, the complement of a key only to push, or `_POP`.

    Each batch first pushes what becomes allowed in it, then pops what it has room for; the last push and the first pop
    are one operation, because most batches have no other.
    """
    num_operations = num_queued + num_taken - np.minimum(np.minimum(num_queued, num_taken), 1)
    first = np.cumsum(num_operations) - num_operations
    operations = np.full(int(num_operations.sum()), _POP, dtype=np.int64)
    batch, number = _enumerate(num_queued)
    is_last = (number == num_queued[batch]) & (num_taken[batch] > 0)
    operations[first[batch] + number - 1] = np.where(is_last, keys, ~keys)
    result: list[int] = operations.tolist()
    return result


def _serve(queue: list[int], keys: Units, *, num_queued: Units, num_taken: Units) -> Units:
    """Keys of the jobs served, in order. The only loop over single slots.

    Args:
        queue: The heap; changed in place.
        keys: Jobs that become allowed, in the order of their batches.
        num_queued: How many of them do, per batch.
        num_taken: How many slots each batch has for them.
    """
    served: list[int] = []
    take = served.append
    for operation in _queue_operations(keys, num_queued, num_taken):
        if operation >= 0:
            take(heappushpop(queue, operation))
        elif operation == _POP:
            take(heappop(queue))
        else:
            heappush(queue, ~operation)
    return np.array(served, dtype=np.int64)
