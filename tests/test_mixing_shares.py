"""From weights to shares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing import resolve_shares

TASKS = {"maths": 30, "code": 10}


def test_without_weights_shares_are_equal() -> None:
    """Sources that were given no weight share the slots equally."""
    assert {"maths": 0.5, "code": 0.5} == resolve_shares({"maths": None, "code": None}, TASKS)


def test_weights_of_the_sources_are_divided_by_their_sum() -> None:
    """A share is a weight over the sum of the weights."""
    assert {"maths": 0.8, "code": 0.2} == resolve_shares({"maths": 2.0, "code": 0.5}, TASKS)


def test_weights_of_the_mix_are_divided_by_their_sum() -> None:
    """Weights may be given for the whole mix by name; the order is that of the sources."""
    weights: dict[str, Any] = {"code": 3, "maths": np.float32(1)}

    shares = resolve_shares({"maths": None, "code": None}, TASKS, weights=weights)

    assert [("maths", 0.25), ("code", 0.75)] == list(shares.items())


def test_tasks_as_weights_give_proportional_shares() -> None:
    """With weights="tasks" a source's share is its part of all tasks."""
    assert {"maths": 0.75, "code": 0.25} == resolve_shares({"maths": None, "code": None}, TASKS, weights="tasks")


@given(
    st.dictionaries(st.text(), st.floats(0.001, 1000), min_size=1, max_size=8),
    st.floats(1e-300, 1e300) | st.sampled_from([1e-300, 1e305]),
)
def test_shares_sum_to_one_and_ignore_scale(weights: dict[str, float], factor: float) -> None:
    """Multiplying all weights changes no share, and shares sum to 1, also where the weights' sum is no float."""
    tasks = dict.fromkeys(weights, 1)

    shares = resolve_shares(weights, tasks)
    scaled = resolve_shares({name: weight * factor for name, weight in weights.items()}, tasks)

    assert pytest.approx(1.0) == math.fsum(shares.values())
    assert shares == pytest.approx(scaled)


@pytest.mark.parametrize("weight", [0, 0.0, -1.0, math.nan, math.inf, True, "2", 10**400])
def test_a_weight_is_a_finite_number_above_0(weight: Any) -> None:
    """Zero, negative, infinite and non-numeric weights are refused, naming the source and the way to leave it out."""
    with pytest.raises(ConfigError, match=r"source 'code': weight .* To leave the source out, remove it"):
        resolve_shares({"maths": 1.0, "code": weight}, TASKS)
    with pytest.raises(ConfigError, match=r"source 'code': weight .* To leave the source out, remove it"):
        resolve_shares({"maths": None, "code": None}, TASKS, weights={"maths": 1.0, "code": weight})


def test_a_weight_too_small_to_be_drawn_is_refused() -> None:
    """A share below one slot in 2**40 is an error, not a source that never comes."""
    with pytest.raises(ConfigError, match=r"source 'code': weight 1e-15 is less than one slot in 2\*\*40"):
        resolve_shares({"maths": 1.0, "code": 1e-15}, TASKS)


def test_weights_are_for_all_sources_or_none() -> None:
    """A source without a weight beside one with a weight is an error naming it."""
    with pytest.raises(ConfigError, match=r"source 'code': it has no weight, but \['maths'\] have"):
        resolve_shares({"maths": 1.0, "code": None}, TASKS)
    with pytest.raises(ConfigError, match=r"source 'code': it has no weight, but \['maths'\] have"):
        resolve_shares({"maths": None, "code": None}, TASKS, weights={"maths": 1.0})


def test_weights_are_given_in_one_place() -> None:
    """Weights on the sources and weights for the mix contradict each other."""
    with pytest.raises(ConfigError, match=r"source 'maths': weight=1\.0 is given together with weights='tasks'"):
        resolve_shares({"maths": 1.0, "code": 1.0}, TASKS, weights="tasks")


def test_a_weight_for_no_source_is_refused() -> None:
    """A weight under a name that is not in the mix is an error, not a weight that is ignored."""
    with pytest.raises(ConfigError, match=r"source 'kode': it has a weight but is not in the mix; sources: \['maths'"):
        resolve_shares({"maths": None, "code": None}, TASKS, weights={"maths": 1.0, "code": 1.0, "kode": 1.0})


def test_an_unknown_word_for_weights_is_refused() -> None:
    """The only word for weights is 'tasks'."""
    with pytest.raises(ConfigError, match="weights='equal' is not known"):
        resolve_shares({"maths": None, "code": None}, TASKS, weights="equal")  # type: ignore[arg-type]  # the error


@pytest.mark.parametrize(
    ("sources", "tasks", "message"),
    [
        ({}, {}, "no source"),
        ({"maths": None}, TASKS, "Pass one count per source"),
        ({"maths": None, "code": None}, {"maths": 3, "code": 0}, "source 'code': it has 0 tasks"),
    ],
)
def test_every_source_has_tasks(sources: dict[str, None], tasks: dict[str, int], message: str) -> None:
    """A mix without sources, counts of other sources, and a source without tasks are refused."""
    with pytest.raises(ConfigError, match=message):
        resolve_shares(sources, tasks)
