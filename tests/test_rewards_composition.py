"""How outcome and reward functions become one reward."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError, RewardError
from multiors.rewards import RewardPart, SourceReward, as_source_reward, check_values, compose

numbers = st.floats(-1e6, 1e6)
maybe = st.none() | numbers


def brevity(**_: Any) -> list[float]:
    """A reward function."""
    return []


async def politeness(**_: Any) -> list[float]:
    """An async reward function."""
    return []


class Grader:
    """A reward function with state."""

    def __call__(self, **_: Any) -> list[float]:
        return []


def reward_of(weights: Sequence[float], scores_alone: Sequence[bool], **rest: Any) -> SourceReward:
    """A rule with one part per weight."""
    parts = [
        RewardPart(brevity, weight=weight, name=f"part {index}", scores_alone=alone and weight != 0)
        for index, (weight, alone) in enumerate(zip(weights, scores_alone, strict=True))
    ]
    return SourceReward(parts=tuple(parts), **rest)


part_lists = st.lists(st.tuples(numbers, maybe, st.booleans()), max_size=6)


@given(maybe, numbers, part_lists)
def test_a_reward_is_the_weighted_sum_of_what_counts(
    outcome: float | None, outcome_weight: float, parts: list[tuple[float, float | None, bool]]
) -> None:
    """Weight times value is summed over what is not None; without an outcome only parts that score alone count."""
    reward = reward_of([part[0] for part in parts], [part[2] for part in parts], outcome_weight=outcome_weight)
    counted = [] if outcome is None else [Fraction(outcome_weight * outcome)]
    counted += [
        Fraction(weight * value)
        for weight, value, alone in parts
        if value is not None and (outcome is not None or (alone and weight != 0))
    ]

    composed = compose(outcome, [part[1] for part in parts], reward)

    assert (float(sum(counted)) if counted else None) == composed


@given(maybe, part_lists, st.randoms(use_true_random=False))
def test_the_order_of_parts_changes_nothing(
    outcome: float | None, parts: list[tuple[float, float | None, bool]], random: Any
) -> None:
    """Parts in another order give the same reward to the last bit."""
    shuffled = random.sample(parts, len(parts))

    rewards = [
        compose(outcome, [part[1] for part in order], reward_of([p[0] for p in order], [p[2] for p in order]))
        for order in (parts, shuffled)
    ]

    assert rewards[0] == rewards[1]


@given(maybe, part_lists)
def test_a_part_without_value_changes_nothing(
    outcome: float | None, parts: list[tuple[float, float | None, bool]]
) -> None:
    """A part that is None counts as if it were not there."""
    values, weights, alone = [p[1] for p in parts], [p[0] for p in parts], [p[2] for p in parts]

    without = compose(outcome, values, reward_of(weights, alone))
    with_none = compose(outcome, [*values, None], reward_of([*weights, 3.0], [*alone, True]))

    assert without == with_none


def test_observed_zeros_and_negatives_are_scores() -> None:
    """An outcome of 0.0 or below is a score like any other."""
    reward = reward_of([0.5], [False])

    assert 0.5 == compose(0.0, [1.0], reward)
    assert -1.0 == compose(-1.5, [1.0], reward)
    assert 0.0 == compose(0.0, [None], reward)


def test_a_sum_beyond_floats_is_an_error() -> None:
    """What adds up to no finite number is refused instead of being trained on."""
    reward = reward_of([1e200, 1.0], [False, False])

    with pytest.raises(RewardError, match=r"add up to no finite number\. Lower the weights"):
        compose(0.0, [1e200, 0.0], reward)
    with pytest.raises(RewardError, match="add up to no finite number"):
        compose(1.7e308, [0.0, 1.7e308], reward)


def test_every_part_has_a_value() -> None:
    """The number of values is the number of parts."""
    with pytest.raises(RewardError, match="1 values were passed for 0 reward parts"):
        compose(1.0, [1.0], SourceReward())


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (brevity, "brevity"),
        (politeness, "politeness"),
        (Grader(), "Grader"),
        (functools.partial(functools.partial(brevity, a=1), b=2), "brevity"),
        (lambda **_: [], "<lambda>"),
    ],
)
def test_a_part_is_named_after_its_function(function: Callable[..., Any], name: str) -> None:
    """Functions, callable objects and partial functions give their part a name."""
    assert name == RewardPart(function).name
    assert "own" == RewardPart(function, name="own").name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": "brevity"}, "reward part 'brevity' cannot be called"),
        ({"weight": math.nan}, "reward part 'brevity': weight nan is not a finite number"),
        ({"weight": "1"}, "weight '1' is not a finite number"),
        ({"weight": True}, "weight True is not a finite number"),
        ({"weight": 0, "scores_alone": True}, "would turn unscored rollouts into 0.0"),
    ],
)
def test_impossible_parts_are_refused(arguments: dict[str, Any], message: str) -> None:
    """A part has a function and a finite weight, and cannot score alone with weight 0."""
    with pytest.raises(ConfigError, match=message):
        RewardPart(**{"function": brevity, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": 0.0}, r"SourceReward: weight 0\.0 is not above 0: .* Remove the source"),
        ({"weight": -1}, r"weight -1\.0 is not above 0"),
        ({"weight": math.inf}, "SourceReward: weight inf is not a finite number"),
        ({"outcome_weight": None}, "SourceReward: outcome_weight None is not"),
        ({"unscored": math.nan}, "SourceReward: unscored nan is not"),
        ({"unfinished": "0"}, "SourceReward: unfinished '0' is not"),
        ({"parts": (brevity, brevity)}, "reward part 'brevity': the name is used twice"),
        ({"parts": ("brevity",)}, "reward part 'brevity' is neither a function nor a RewardPart"),
    ],
)
def test_impossible_rules_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Weights and scores are finite, a reward weight is above 0, and parts have different names."""
    with pytest.raises(ConfigError, match=message):
        SourceReward(**arguments)


def test_numbers_of_a_rule_are_floats() -> None:
    """Whole numbers are taken where floats are meant."""
    reward = SourceReward(weight=2, outcome_weight=0, unscored=0, unfinished=-1)

    assert (2.0, 0.0, 0.0, -1.0) == (reward.weight, reward.outcome_weight, reward.unscored, reward.unfinished)
    assert float is type(reward.unscored)


def test_a_rule_travels_between_processes() -> None:
    """Rules with functions of a module survive pickling."""
    reward = SourceReward(weight=2.0, parts=(RewardPart(brevity, weight=0.1),), unscored=0.0)

    assert reward == pickle.loads(pickle.dumps(reward))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, SourceReward()),
        (SourceReward(weight=2.0), SourceReward(weight=2.0)),
        (brevity, SourceReward(parts=(RewardPart(brevity),))),
        (RewardPart(brevity, weight=0.1), SourceReward(parts=(RewardPart(brevity, weight=0.1),))),
        ([], SourceReward()),
        (
            [politeness, RewardPart(brevity, weight=0.1)],
            SourceReward(parts=(RewardPart(politeness), RewardPart(brevity, weight=0.1))),
        ),
    ],
)
def test_a_rule_can_be_written_shortly(value: object, expected: SourceReward) -> None:
    """Nothing, a rule, a function, a part, and a list of functions and parts are all rules."""
    assert expected == as_source_reward(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.0, "reward=1.0 is no reward"),
        ("brevity", "reward='brevity' is no reward"),
        ([1.0], "reward part 1.0 is neither"),
    ],
)
def test_what_is_no_rule_is_refused(value: object, message: str) -> None:
    """Numbers, names and lists of them are errors that say what may be passed."""
    with pytest.raises(ConfigError, match=message):
        as_source_reward(value)


PART = RewardPart(brevity)


@pytest.mark.parametrize(
    "values",
    [
        [1, None, 0.5],
        (True, None, np.float32(0.5)),
        [np.int64(1), None, torch.tensor(0.5)],
        [np.bool_(True), None, np.array([0.5])],
        (value for value in [1.0, None, 0.5]),
        np.array([1.0, None, 0.5], dtype=object),
    ],
)
def test_numbers_of_any_library_are_values(values: object) -> None:
    """Numbers of Python, numpy and torch become floats, in any sequence; None stays None."""
    checked = check_values(values, source="sort", part=PART, num_rollouts=3)

    assert [1.0, None, 0.5] == checked
    assert [float, type(None), float] == [type(value) for value in checked]


@pytest.mark.parametrize("values", [np.array([1, 2]), torch.tensor([1.0, 2.0])])
def test_arrays_are_values(values: object) -> None:
    """An array of numpy or torch is a list of its entries."""
    assert [1.0, 2.0] == check_values(values, source="sort", part=PART, num_rollouts=2)


@pytest.mark.parametrize(
    "value", [math.nan, -math.inf, 10**400, "1.0", [1.0], np.array([1.0, 2.0]), torch.tensor([1.0, 2.0]), object()]
)
def test_what_is_no_number_is_an_error_of_the_function(value: object) -> None:
    """The error names source, function and rollout; no such value becomes a number or None."""
    with pytest.raises(RewardError, match=r"source 'sort': reward function 'brevity', rollout 1: .* not a finite"):
        check_values([1.0, value], source="sort", part=PART, num_rollouts=2)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([1.0], "1 values"),
        ([], "0 values"),
        (None, "None"),
        (1.0, r"1\.0"),
        ("ab", "'ab'"),
        ({0: 1.0, 1: 2.0}, r"\{0: 1\.0, 1: 2\.0\}"),
        (torch.tensor(1.0), r"tensor\(1\.\)"),
    ],
)
def test_a_function_returns_one_value_per_rollout(values: object, what: str) -> None:
    """Anything but a list of that length is an error that says what was returned."""
    with pytest.raises(RewardError, match=f"source 'sort': reward function 'brevity' returned {what} for 2 rollouts"):
        check_values(values, source="sort", part=PART, num_rollouts=2)
