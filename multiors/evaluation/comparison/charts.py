"""Where the marks of a chart lie, in percent of its width: plain numbers, drawn by the page and by nothing else.

A forest plot has one axis for all environments, with zero in it. A histogram has the same bins for both arms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from multiors.evaluation.comparison.visible import fold
from multiors.evaluation.comparison.wording import say_number
from multiors.evaluation.results import Comparison, Difference, Verdict

__all__ = [
    "CURVE_HEIGHT",
    "CURVE_WIDTH",
    "Bar",
    "Curve",
    "Forest",
    "ForestRow",
    "Histogram",
    "Tick",
    "find_ticks",
    "lay_out_curve",
    "lay_out_forest",
    "lay_out_histogram",
]

CURVE_WIDTH = 1000
CURVE_HEIGHT = 100
_NUM_BINS = 20
_NUM_TICKS = 5
_TICK_ROOM = 5.0
_MARGIN = 0.06


class Tick(NamedTuple):
    """A mark on an axis."""

    at: float
    label: str


class ForestRow(NamedTuple):
    """The difference on one environment, or overall."""

    name: str
    verdict: Verdict
    at: float | None
    """None: there is no difference to show."""

    low: float | None
    high: float | None
    unseen: tuple[float, float] | None
    """From where to where a true difference would have stayed unseen. None: not known."""


class Forest(NamedTuple):
    """A forest plot: a row for each environment, and one for the macro average."""

    zero: float
    ticks: tuple[Tick, ...]
    rows: tuple[ForestRow, ...]
    overall: ForestRow


class Bar(NamedTuple):
    """One bin."""

    at: float
    width: float
    reference: float
    """Height, 0 to 1 of the highest bar of the chart."""

    candidate: float


class Curve(NamedTuple):
    """Lines over a run, in a box of `CURVE_WIDTH` by `CURVE_HEIGHT`."""

    paths: tuple[tuple[str, str], ...]
    """Style of each line, and where it goes, as SVG has it."""

    low: str
    """What the lower edge of the box means."""

    high: str


class Histogram(NamedTuple):
    """How the means of tasks are distributed, in both arms."""

    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    reference_mean: float | None
    """Where it lies. None: nothing is scored."""

    candidate_mean: float | None


def lay_out_forest(comparison: Comparison) -> Forest:
    """The forest plot of a comparison."""
    differences = comparison.on_one_scale
    ends = [0.0]

    for each in (*differences.values(), comparison.macro):
        ends += [end for end in (each.value, each.low, each.high) if end is not None]

    low, high = _widen(min(ends), max(ends))

    def place(value: float) -> float:
        return _percent(value, low, high)

    rows = [_lay_out_row(name, each, place) for name, each in differences.items()]
    return Forest(
        zero=place(0.0),
        ticks=_lay_out_ticks(low, high, signed=True),
        rows=tuple(rows),
        overall=_lay_out_row("overall", comparison.macro, place),
    )


def _lay_out_row(name: str, each: Difference, place: Callable[[float], float]) -> ForestRow:
    unseen = each.minimum_detectable
    return ForestRow(
        name=fold(name),
        verdict=each.verdict,
        at=None if each.value is None else place(each.value),
        low=None if each.low is None else place(each.low),
        high=None if each.high is None else place(each.high),
        unseen=None if unseen is None else (max(0.0, place(-unseen)), min(100.0, place(unseen))),
    )


def lay_out_histogram(reference: Sequence[float], candidate: Sequence[float]) -> Histogram | None:
    """The distribution of task means in two arms. None: neither has any.

    Args:
        reference: Means of the tasks in the reference.
        candidate: In the candidate. Empty: there is one arm alone.
    """
    values = [*reference, *candidate]

    if not values:
        return None

    low, high = min(values), max(values)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    edges = [low + (high - low) * edge / _NUM_BINS for edge in range(_NUM_BINS + 1)]
    counts = [_count(arm, low, high) for arm in (reference, candidate)]
    # As parts of the tasks of each arm, which may have different numbers of them.
    parts = [
        [number / max(1, len(arm)) for number in numbers]
        for arm, numbers in zip((reference, candidate), counts, strict=True)
    ]
    highest = max(max(numbers) for numbers in parts)
    axis = _widen(low, high)
    places = [_percent(edge, *axis) for edge in edges]
    bars = [
        Bar(at, end - at, up / highest, down / highest)
        for (at, end), up, down in zip(pairwise(places), parts[0], parts[1], strict=True)
        if up or down
    ]
    means = [None if not arm else _percent(math.fsum(arm) / len(arm), *axis) for arm in (reference, candidate)]
    return Histogram(tuple(bars), _lay_out_ticks(*axis), means[0], means[1])


def lay_out_curve(
    lines: Sequence[tuple[str, Sequence[float | None]]], positions: Sequence[float], *, floor: float | None = None
) -> Curve | None:
    """Lines over a run; where there is no value, a line has a gap. None: there is no value at all.

    Args:
        lines: Style and values of each.
        positions: Where the values lie.
        floor: What the lower edge means. None: the lowest value.
    """
    values = [value for _, line in lines for value in line if value is not None]

    if not values:
        return None

    low, high = min(values) if floor is None else floor, max(values)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    width, height = (positions[-1] - positions[0]) or 1.0, high - low
    paths = []

    for style, line in lines:
        pieces, is_down = [], False

        for position, value in zip(positions, line, strict=True):
            if value is not None:
                x = CURVE_WIDTH * (position - positions[0]) / width
                y = CURVE_HEIGHT * (1 - (value - low) / height)
                # A line to where it begins makes a dot of a value that stands alone.
                pieces.append(f"L{x:.1f} {y:.1f}" if is_down else f"M{x:.1f} {y:.1f}L{x:.1f} {y:.1f}")
            is_down = value is not None

        paths.append((style, "".join(pieces)))

    return Curve(tuple(paths), say_number(low), say_number(high))


def _lay_out_ticks(low: float, high: float, *, signed: bool = False) -> tuple[Tick, ...]:
    """Those whose labels have room."""
    ticks = (Tick(_percent(value, low, high), say_number(value, signed=signed)) for value in find_ticks(low, high))
    return tuple(tick for tick in ticks if _TICK_ROOM <= tick.at <= 100 - _TICK_ROOM)


def find_ticks(low: float, high: float) -> tuple[float, ...]:
    """Round values between two ends, about five of them; the ends themselves if there is no room between them."""
    step = (high - low) / _NUM_TICKS

    if not step > 0 or not math.isfinite(step):
        return ()

    size = 10.0 ** math.floor(math.log10(step))
    step = size * next((times for times in (1, 2, 5) if size * times >= step), 10)
    first, last = math.ceil(low / step), math.floor(high / step)
    return tuple(step * number for number in range(first, last + 1))


def _count(values: Iterable[float], low: float, high: float) -> list[int]:
    numbers = [0] * _NUM_BINS

    for value in values:
        numbers[min(_NUM_BINS - 1, int((value - low) / (high - low) * _NUM_BINS))] += 1

    return numbers


def _widen(low: float, high: float) -> tuple[float, float]:
    margin = (high - low) * _MARGIN or 1.0
    return low - margin, high + margin


def _percent(value: float, low: float, high: float) -> float:
    return round(100.0 * (value - low) / (high - low), 3)
