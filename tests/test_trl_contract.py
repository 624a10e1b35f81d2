"""What this library leans on in TRL and transformers that they do not promise.

Each test says what changed upstream when it breaks, and which module depends on it.
"""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.openreward import OpenRewardSpec
from trl.generation import vllm_generation
from trl.trainer.utils import RepeatSampler, get_callable_name, is_async_callable

from multiors.ors.source import ORSSource
from multiors.training.columns import AsyncRewardColumn, RewardColumn
from multiors.training.concurrent import find_changed_methods
from tests.harbor import make_harbor_spec


def test_openreward_spec_takes_the_arguments_that_a_source_takes() -> None:
    """ORSSource promises every argument of OpenRewardSpec with the same default."""
    theirs = inspect.signature(OpenRewardSpec).parameters
    ours = inspect.signature(ORSSource).parameters

    assert theirs.keys() <= ours.keys(), "TRL gave OpenRewardSpec arguments that ORSSource does not take"
    assert {name: p.default for name, p in theirs.items()} == {name: ours[name].default for name in theirs}


def test_openreward_spec_keeps_its_options_where_they_are_read() -> None:
    """ORSSource.from_openreward_spec reads these attributes."""
    spec = OpenRewardSpec("http://127.0.0.1:1", num_tasks=3, split="test", env_name="a", secrets={"HF_TOKEN": "x"})
    names = [
        *("_target", "_num_tasks", "_split", "_indices", "_api_key", "_secrets", "_env_name"),
        *("_include_metadata", "_discover_task_tools", "_task_tools_discovery_index"),
    ]

    assert [name for name in names if not hasattr(spec, name)] == [], "TRL renamed options of OpenRewardSpec"


def test_harbor_spec_has_the_slots_and_rows_of_a_source(tmp_path: Path) -> None:
    """training/others takes it by its slots, and tests/harbor.py replaces what needs a container."""
    from trl.experimental.harbor import HarborEnv

    spec = make_harbor_spec(tmp_path, {"one": "4"})
    (row,) = spec.train_dataset
    hooks = [name for name in ("_start", "_exec", "_verify", "_stop", "_run") if name not in vars(HarborEnv)]

    assert [] == hooks, "TRL's HarborEnv does its work elsewhere"
    assert ["prompt", "task_dir", "task_index"] == list(row)[:3]
    assert [{"role": "user", "content": ""}] == row["prompt"]
    assert callable(spec.environment_factory)
    assert callable(spec.reward_funcs)


@pytest.mark.parametrize(
    "name",
    [
        *("generation_batch_size", "steps_per_generation", "num_iterations", "num_generations", "shuffle_dataset"),
        *("remove_unused_columns", "reward_weights", "scale_rewards", "multi_objective_aggregation", "max_steps"),
        *("num_train_epochs", "ignore_data_skip", "gradient_accumulation_steps", "max_completion_length"),
    ],
)
def test_grpo_config_has_the_fields_that_are_checked(name: str) -> None:
    """training/settings.py reads these fields."""
    assert name in {field.name for field in dataclasses.fields(GRPOConfig)}, f"GRPOConfig lost {name}"


def test_grpo_defaults_are_those_the_checks_assume() -> None:
    """The remedies in training/settings.py start from these defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    expected = {
        "shuffle_dataset": True,
        "remove_unused_columns": False,
        "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
        "num_train_epochs": 3.0,
    }

    assert expected == {name: defaults[name] for name in expected}


def test_a_generation_batch_repeats_each_row_for_its_group() -> None:
    """training/order.py expects slots to rise by at most one, each repeated, batch after batch."""
    sampler = RepeatSampler(range(5), mini_repeat_count=2, batch_size=2, repeat_count=2, shuffle=False)

    assert [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3] == list(sampler)


def test_a_column_is_named_and_called_as_trl_calls_reward_functions() -> None:
    """TRL logs by `__name__` and tells async callables by `__call__`."""
    options: dict[str, Any] = {
        "names": ["a"], "reward": None, "reader": None, "run": None, "is_first": True, "on_rollouts": None
    }  # fmt: skip
    plain, asynchronous = RewardColumn("a", **options), AsyncRewardColumn("b", **options)

    assert ["a", "b"] == [get_callable_name(plain), get_callable_name(asynchronous)]
    assert [False, True] == [is_async_callable(plain), is_async_callable(asynchronous)]


@pytest.mark.parametrize(
    "fragment",
    [
        "inspect.getmembers(type(instance), predicate=inspect.isfunction)",
        "self._multi_environment = isinstance(environment_factory, dict)",
        'not member_name.startswith("_")',
    ],
)
def test_tools_are_collected_from_the_class(fragment: str) -> None:
    """ors/rollouts/environment.py puts tools on the class as functions and underscores everything else."""
    assert fragment in inspect.getsource(GRPOTrainer.__init__), "TRL collects environments' tools in another way"


@pytest.mark.parametrize(
    ("method", "fragment"),
    [
        ("_generate_and_score_completions", 'x.get("environment")'),
        ("_generate_and_score_completions", "environment.reset(**reset_kwargs)"),
        ("_generate_and_score_completions", "torch.isnan(rewards_per_func).all(dim=1)"),
        ("_generate_and_score_completions", "total / count"),
        ("_calculate_rewards", 'reward_kwargs["environments"] = self.environments'),
        ("_calculate_rewards", 'reward_kwargs["log_metric"]'),
        ("_calculate_rewards", 'reward_kwargs["log_extra"]'),
        ("_calculate_rewards", 'reward_kwargs["trainer_state"]'),
        ("_tool_call_loop", '{"error": str(e)}'),
        ("_tool_call_loop", "sync_tool_dict = self._sync_tool_dicts[idx_with_tool]"),
        ("_tool_call_loop", 'sync_tool_dict[name](**function["arguments"])'),
        ("_tool_call_loop", 'if tool_call["type"] == "function"'),
        ("_tool_call_loop", "completions[idx_with_tool].append(tool_message)"),
        ("_tool_call_loop", "completions[idx_with_tool].append(post_tool_completions[idx])"),
        ("_tool_call_loop", "del completions[idx_with_tool][completions_len_before[idx] :]"),
    ],
)
def test_a_step_does_what_the_columns_and_environments_rely_on(method: str, fragment: str) -> None:
    """Routing, None as NaN, averaged metrics, arguments of reward functions; when calls are made and messages kept.

    training/concurrent.py reads from the messages of a turn, which TRL changes in place, which calls it will make.
    """
    assert fragment in inspect.getsource(getattr(GRPOTrainer, method)), f"TRL changed {method}: look for {fragment!r}"


def test_the_concurrent_trainer_finds_the_methods_it_overrides() -> None:
    """`ConcurrentGRPOTrainer` is concurrent on the installed TRL, and not TRL's trainer under another name."""
    assert [] == find_changed_methods(GRPOTrainer), "TRL's private methods changed: see training/concurrent.py"


def test_a_server_of_vllm_samples_a_group_from_its_first_prompt() -> None:
    """Why prompts must be equal in a group: in server mode every `num_generations`-th prompt is sent."""
    source = inspect.getsource(vllm_generation)

    assert "[::num_generations]" in source, "TRL sends all prompts now: see samples_groups_together"


@pytest.mark.parametrize("hook", ["on_init_end", "on_train_begin", "on_train_end"])
def test_callbacks_have_the_hooks_that_are_used(hook: str) -> None:
    """training/callback.py checks settings and closes sessions in these."""
    assert ["self", "args", "state", "control", "kwargs"] == list(
        inspect.signature(getattr(TrainerCallback, hook)).parameters
    )


@pytest.mark.parametrize("fragment", ["pickle.dumps(self._loop_kwargs)", "r[0] is env_type", "environment.get_reward"])
def test_the_async_worker_scores_by_exact_class_and_needs_pickles(fragment: str) -> None:
    """training/scored.py gives it one class per source, `get_reward`, and factories that pickle."""
    from trl.experimental.async_grpo import async_rollout_worker as worker

    assert fragment in inspect.getsource(worker), f"the async rollout worker changed: look for {fragment!r}"


def test_an_incomplete_accumulation_counts_as_a_step() -> None:
    """training/settings.py counts the steps of a schedule as transformers does."""
    from transformers import Trainer

    source = inspect.getsource(Trainer.set_initial_training_values)

    assert "int(len_dataloader % args.gradient_accumulation_steps > 0)" in source, "transformers counts steps otherwise"


def test_metrics_of_an_evaluation_are_kept_until_they_are_logged() -> None:
    """training/evaluating.py renames them between TRL's `_generate_and_score_completions` and its `log`."""
    source = inspect.getsource(GRPOTrainer)

    assert 'self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}' in source, (
        "TRL keeps metrics elsewhere: the datasets of an evaluation are no longer told apart"
    )
