"""Trainer settings that make a mix what it says it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.training.settings import (
    BatchShape,
    check_max_sessions,
    check_settings,
    complete_fields,
    find_contradictions,
    measure_batches,
    samples_groups_together,
)

EVEN = {"a": 1.0, "b": 1.0}
UNEVEN = {"a": 3.0, "b": 1.0}


def make_config(folder: Path, **fields: Any) -> Any:
    """A small `GRPOConfig`: two prompts in a generation batch."""
    from trl import GRPOConfig

    small = {"output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": "none", "num_generations": 2}
    return GRPOConfig(**{**small, "per_device_train_batch_size": 4, **fields})


def check(config: Any, *, weights: dict[str, float] = EVEN, num_slots: int = 64, planned: int | None = None) -> Any:
    """Check a config against a mix of the sources `a` and `b`."""
    return check_settings(config, reward_weights=weights, num_slots=num_slots, prompts_per_batch=planned)


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 6), st.integers(1, 40))
def test_slots_for_steps_are_enough_and_not_a_batch_more(
    prompts: int, accumulation: int, micro: int, steps: int
) -> None:
    """The slots counted for a run give at least its steps, and one generation batch less would not."""
    shape = BatchShape(prompts, 4, prompts * 4, accumulation, micro)
    slots = shape.count_slots(steps)

    assert 0 == slots % prompts
    assert steps <= shape.count_steps(slots)
    assert (slots - prompts) // prompts * micro < steps * accumulation


def test_batches_are_measured_as_trl_samples_them(tmp_path: Path) -> None:
    """A generation batch of 4 rows x 2 accumulation steps in groups of 2 holds 4 prompts."""
    config = make_config(tmp_path, gradient_accumulation_steps=2, num_iterations=3)

    assert BatchShape(4, 2, 8, 2, 6) == measure_batches(config)


def test_completed_fields_pass_the_check(tmp_path: Path) -> None:
    """What `complete_fields` returns is what `check_settings` accepts, weights included."""
    config = make_config(tmp_path, **complete_fields({"max_steps": 4}, UNEVEN))

    assert BatchShape(2, 2, 4, 1, 1) == check(config, weights=UNEVEN, num_slots=8, planned=2)


def test_a_users_fields_are_kept(tmp_path: Path) -> None:
    """Fields that do not touch the mix come back as they were given."""
    completed = complete_fields({"learning_rate": 0.5, "max_steps": 7}, EVEN)

    assert (0.5, 7) == (completed["learning_rate"], completed["max_steps"])


def test_uneven_weights_get_the_aggregation_under_which_they_act() -> None:
    """Normalizing each column before the sum is what lets a reward weight act."""
    completed = complete_fields({}, UNEVEN)

    assert ("normalize_then_sum", [3.0, 1.0]) == (completed["multi_objective_aggregation"], completed["reward_weights"])


def test_even_weights_leave_the_aggregation_to_trl() -> None:
    """Without uneven weights a mix trains with the trainer's own default."""
    assert "multi_objective_aggregation" not in complete_fields({}, EVEN)


def test_unscaled_rewards_let_weights_act_without_another_aggregation() -> None:
    """With scale_rewards='none' the weights already act."""
    assert "multi_objective_aggregation" not in complete_fields({"scale_rewards": "none"}, UNEVEN)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shuffle_dataset": True}, "shuffle_dataset=True contradicts the mix"),
        ({"remove_unused_columns": True}, "remove_unused_columns=True contradicts"),
        ({"num_train_epochs": 3}, "num_train_epochs=3 contradicts.*max_steps"),
        ({"ignore_data_skip": True}, "ignore_data_skip=True contradicts"),
        ({"reward_weights": [1.0, 1.0]}, "does not begin with the sources' own"),
        ({"multi_objective_aggregation": "sum_then_normalize"}, "would have no effect"),
    ],
)
def test_fields_that_contradict_the_mix_are_refused(fields: dict[str, Any], message: str) -> None:
    """A field that would break the mix is an error that names it, never overwritten."""
    with pytest.raises(ConfigError, match=message):
        complete_fields(fields, UNEVEN)


def test_every_field_that_contradicts_the_mix_is_named() -> None:
    """All in one error, and each by its name for whoever looks before."""
    fields = {"shuffle_dataset": True, "num_train_epochs": 2, "multi_objective_aggregation": "sum_then_normalize"}

    with pytest.raises(ConfigError, match=r"(?s)shuffle_dataset=True.*num_train_epochs=2.*would have no effect"):
        complete_fields(fields, UNEVEN)

    assert set(fields) == set(find_contradictions(fields, UNEVEN))


def test_weights_for_functions_beside_the_columns_may_follow() -> None:
    """A user who appends reward functions appends their weights to the sources'."""
    assert [3.0, 1.0, 0.5] == complete_fields({"reward_weights": [3.0, 1.0, 0.5]}, UNEVEN)["reward_weights"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shuffle_dataset": True, "max_steps": 1}, "shuffle_dataset=True: the order.*Set shuffle_dataset=False"),
        ({"remove_unused_columns": True, "max_steps": 1}, "remove_unused_columns=True: the columns"),
        ({"ignore_data_skip": True, "max_steps": 1}, "ignore_data_skip=True"),
        ({"num_train_epochs": 3}, "num_train_epochs=3: the schedule would be replayed"),
        ({"max_steps": 1000}, "max_steps=1000, but the schedule's 64 slots give 32 steps.*num_slots=2000"),
    ],
)
def test_settings_that_break_the_mix_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    """Each setting that would silently break the mix is named with its remedy before the first step."""
    config = make_config(tmp_path, **{"shuffle_dataset": False, **fields})

    with pytest.raises(ConfigError, match=message):
        check(config)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """A user learns of every setting in one go."""
    config = make_config(tmp_path, shuffle_dataset=True, remove_unused_columns=True, num_train_epochs=2)

    with pytest.raises(ConfigError, match=r"(?s)shuffle_dataset.*remove_unused_columns.*num_train_epochs"):
        check(config)


def test_a_schedule_shorter_than_a_batch_is_refused(tmp_path: Path) -> None:
    """TRL would train nothing and say so only in a log line."""
    config = make_config(tmp_path, shuffle_dataset=False, max_steps=1)

    with pytest.raises(ConfigError, match="1 slots, less than one generation batch of 2"):
        check(config, num_slots=1)


def test_a_schedule_for_other_batches_is_refused(tmp_path: Path) -> None:
    """Shares are exact per batch only for the batches they were laid out for."""
    config = make_config(tmp_path, shuffle_dataset=False, max_steps=1)

    with pytest.raises(ConfigError, match=r"laid out for 8 prompts.*has 2"):
        check(config, planned=8)


def test_forgotten_reward_weights_are_refused(tmp_path: Path) -> None:
    """Sources with reward weights need them in the trainer's arguments."""
    config = make_config(tmp_path, shuffle_dataset=False, max_steps=1)

    with pytest.raises(ConfigError, match=r"reward_weights=None does not begin.*spec\.reward_weights"):
        check(config, weights=UNEVEN)


def test_cancelled_reward_weights_are_refused(tmp_path: Path) -> None:
    """Under TRL's default scaling a weight that differs between sources has no effect."""
    config = make_config(tmp_path, shuffle_dataset=False, max_steps=1, reward_weights=[3.0, 1.0])

    with pytest.raises(ConfigError, match=r"would have no effect.*normalize_then_sum"):
        check(config, weights=UNEVEN)


def test_a_limit_of_sessions_below_a_batch_is_refused() -> None:
    """The sessions of a batch are open together: a limit that would make one wait for another is named."""
    limits = {"the mix": 64, "source 'sort'": 8, "source 'heat'": None, "source 'echo'": 16}
    needed = {"the mix": 64, "source 'sort'": 16, "source 'heat'": 99, "source 'echo'": 16}

    with pytest.raises(ConfigError, match=r"^source 'sort': max_sessions=8, .* up to 16 .* Raise it to 16") as raised:
        check_max_sessions(limits, needed)

    assert 1 == len(str(raised.value).splitlines())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"use_vllm": True, "vllm_mode": "colocate"}, False),
        ({"use_vllm": True, "vllm_mode": "server"}, True),
        ({"use_vllm": False, "vllm_mode": "server"}, False),
    ],
)
def test_only_a_server_of_vllm_samples_groups_together(tmp_path: Path, fields: dict[str, Any], expected: bool) -> None:
    """In every other mode each rollout is sampled from its own prompt."""
    assert expected == samples_groups_together(make_config(tmp_path, **fields))
