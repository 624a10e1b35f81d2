"""The box: shares that follow preferences, inside bounds around a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing.curricula import LearningProgress, ScoreBandit, WorstSource, fit_box
from tests.histories import even, names, references

preferences = st.just(0.0) | st.floats(0, 1) | st.floats(0, allow_infinity=False, allow_nan=False)
lows = st.floats(0.01, 1)
highs = st.floats(1, 100)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[dict[str, float], dict[str, float], float, dict[str, float]]:
    """Preferences, a reference, and the bounds."""
    found = names(draw(st.integers(1, 8)))
    return (
        {name: draw(preferences) for name in found},
        draw(references(found)),
        draw(lows),
        {name: draw(highs) for name in found},
    )


Box = tuple[dict[str, float], dict[str, float], float, dict[str, float]]


def fit(box: Box, highest: float | Mapping[str, float] | None = None) -> dict[str, float]:
    """The shares of a box."""
    wanted, reference, lowest, tops = box
    return fit_box(wanted, reference, lowest=lowest, highest=tops if highest is None else highest)


@given(boxes())
@example(({"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.5}, 0.25, {"a": 100.0, "b": 1.0}))
@example(({"a": 1.0, "b": 0.0}, {"a": 0.01, "b": 0.99}, 0.25, {"a": 3.0, "b": 3.0}))
@example(({"a": 5e-324, "b": 1e308}, {"a": 0.5, "b": 0.5}, 1.0, {"a": 1.0, "b": 1.0}))
def test_shares_sum_to_one_inside_the_box(box: Box) -> None:
    """Every share lies between its bounds, whatever is preferred; what is left out stays out."""
    _, reference, lowest, tops = box
    shares = fit(box)

    assert list(reference) == list(shares)
    assert math.isclose(1, math.fsum(shares.values()), rel_tol=1e-12)
    for name, share in shares.items():
        assert lowest * reference[name] * (1 - 1e-9) <= share <= tops[name] * reference[name] * (1 + 1e-9)


@given(boxes())
def test_what_is_not_clipped_is_in_proportion_to_preferences(box: Box) -> None:
    """Of two sources strictly inside the box, shares stand to each other as preferences."""
    wanted, reference, lowest, tops = box
    shares = fit(box)
    most = max(wanted.values()) or 1.0
    inside = [
        (wanted[name] / most, share)
        for name, share in shares.items()
        if lowest * reference[name] * (1 + 1e-6) < share < tops[name] * reference[name] * (1 - 1e-6)
        and wanted[name] / most > 1e-6
    ]
    factors = [share / preference for preference, share in inside]

    assert not factors or math.isclose(min(factors), max(factors), rel_tol=1e-6) or max(wanted.values()) == 0


@given(boxes(), st.integers(-30, 30))
def test_only_proportions_of_preferences_count(box: Box, exponent: int) -> None:
    """All preferences times a factor give the same shares."""
    wanted, reference, lowest, tops = box
    rounded = {name: round(min(value, 1.0), 6) for name, value in wanted.items()}
    scaled = {name: value * 2.0**exponent for name, value in rounded.items()}

    expected = fit((rounded, reference, lowest, tops))
    assert pytest.approx(expected, rel=1e-9) == fit((scaled, reference, lowest, tops))


@given(boxes(), st.randoms(use_true_random=False))
def test_the_order_of_the_sources_does_not_matter(box: Box, random: object) -> None:
    """Sources in another order get the same shares, to the last bit."""
    wanted, reference, lowest, tops = box
    order = list(reference)
    random.shuffle(order)  # type: ignore[attr-defined]  # a random.Random
    shuffled = fit(({name: wanted[name] for name in order}, {name: reference[name] for name in order}, lowest, tops))

    assert fit(box) == {name: shuffled[name] for name in reference}


# Numbers near the smallest there is have no proportions left: a share of them is rounded to 0, or to the next.
values_of_all = st.just(0.0) | st.floats(1e-290, 1)


@given(st.integers(1, 8).flatmap(lambda count: references(names(count))), values_of_all, lows, highs)
def test_no_preference_is_the_reference(reference: dict[str, float], value: float, lowest: float, high: float) -> None:
    """Preferences in proportion to the reference, and none at all, change no share."""
    wanted = {name: value * share for name, share in reference.items()}

    assert pytest.approx(reference) == fit((wanted, reference, lowest, dict.fromkeys(reference, high)))


def test_one_source_cannot_take_everything() -> None:
    """What the best source may not take goes to the others, in proportion to their reference shares."""
    shares = fit_box({"a": 1.0, "b": 0.0, "c": 0.0}, {"a": 0.2, "b": 0.2, "c": 0.6}, lowest=0.25, highest=2.0)

    assert pytest.approx({"a": 0.4, "b": 0.15, "c": 0.45}) == shares


@pytest.mark.parametrize("preference", [-1.0, math.nan, math.inf, 10**400, True, None, "1"])
def test_a_preference_is_a_finite_number(preference: object) -> None:
    """Anything else is an error that names the source."""
    wanted: dict[str, object] = {"source-0": 1.0, "source-1": preference}
    with pytest.raises(ConfigError, match=r"source 'source-1': the preference .* is no finite number from 0 upwards"):
        fit_box(wanted, even(names(2)), lowest=0.25, highest=3.0)  # type: ignore[arg-type]  # what is tested


def test_a_preference_cannot_be_missing() -> None:
    """A source that is drawn must have one."""
    with pytest.raises(ConfigError, match="source 'source-1': the preference nan"):
        fit_box({"source-0": 1.0}, even(names(2)), lowest=0.25, highest=3.0)


@pytest.mark.parametrize("curriculum", [LearningProgress, ScoreBandit, WorstSource])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lowest": 0}, "lowest=0 is no number above 0 to 1"),
        ({"lowest": 1.5}, "lowest=1.5 is no number above 0 to 1"),
        ({"highest": 0.5}, "highest=0.5 is no number from 1 upwards"),
        ({"highest": math.nan}, "highest=nan is no number from 1 upwards"),
    ],
)
def test_the_bounds_hold_the_reference(curriculum: type, settings: dict[str, float], message: str) -> None:
    """The box of every adaptive curriculum reaches from above 0 to 1, and from 1 upwards."""
    with pytest.raises(ConfigError, match=f"{curriculum.__name__}: {message}"):
        curriculum(**settings)
