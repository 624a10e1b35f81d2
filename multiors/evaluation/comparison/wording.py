"""Numbers of a comparison in words: how many decimals, and what is written for None.

A typographic minus is used throughout; for machines there is JSON.
"""

from __future__ import annotations

from multiors.evaluation.results import Estimate

__all__ = [
    "NOTHING",
    "count",
    "say_between",
    "say_difference",
    "say_estimate",
    "say_fraction",
    "say_number",
    "say_p",
    "say_whole",
]

NOTHING = "–"
"""What is written for None."""

_LARGE = 1e6


def say_number(value: float | None, *, signed: bool = False) -> str:
    """A value with three decimals, or fewer where it is large."""
    if value is None:
        return NOTHING

    size = abs(value)
    form = ".3f" if size < 10 else ".2f" if size < 100 else ",.1f" if size < _LARGE else ".3g"
    text = format(value, f"{'+' if signed else ''}{form}")
    return _typeset("0.000" if float(text.replace(",", "")) == 0 else text)


def say_difference(value: float | None) -> str:
    """With its sign."""
    return say_number(value, signed=True)


def say_between(low: float | None, high: float | None, *, signed: bool = False) -> str:
    """The two ends of an interval."""
    if low is None or high is None:
        return NOTHING
    return f"{say_number(low, signed=signed)} to {say_number(high, signed=signed)}"


def say_estimate(estimate: Estimate) -> str:
    """A mean, with its interval if it has one."""
    interval = say_between(estimate.low, estimate.high)
    return say_number(estimate.value) + ("" if interval == NOTHING else f" ({interval})")


def say_p(p: float | None) -> str:
    """A p value with three decimals; below them, that it is below."""
    if p is None:
        return NOTHING
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def say_fraction(value: float | None) -> str:
    """In percent; all and nothing are said only of all and nothing."""
    if value is None:
        return NOTHING
    if 0 < value < 0.001 or 0.999 < value < 1:
        return "<0.1 %" if value < 0.5 else ">99.9 %"
    return f"{value:.1%}".replace(".0%", "%").replace("%", " %")


def say_whole(value: float | None) -> str:
    """A mean of counts, with a decimal where it is small."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def count(number: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _typeset(text: str) -> str:
    return text.replace("-", "−")
