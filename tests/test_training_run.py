"""End to end: TRL's trainer on several real servers through the spec's slots.

The policy is scripted (`tests/scripted.py`); everything else is real.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RewardPart, RolloutRecord, SourceReward, UnscoredReason
from multiors.errors import ConfigError, RewardError, RoutingError
from tests.scripted import call, make_arguments, make_trainer, play_well, small_fields, train
from tests.servers.launch import ServerHandle, serve

SHAPE = {"per_device_train_batch_size": 8, "num_generations": 2}


def mix_of_three(mixed: ServerHandle, echo: ServerHandle, **options: Any) -> MultiOpenRewardSpec:
    """Two environments of one server and one of another, weighted 2 : 1 : 1."""
    return MultiOpenRewardSpec(
        {
            "sort": ORSSource(mixed.url, env_name="sorting", weight=2.0),
            "heat": ORSSource(mixed.url, env_name="thermostat", weight=1.0),
            "echo": ORSSource(echo.url, weight=1.0),
        },
        **options,
    )


def logged(trainer: Any, key: str) -> list[Any]:
    """Every value the trainer logged under a key."""
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def test_three_environments_on_two_servers_train_with_exact_shares(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Each rollout plays on its own server, in exact shares, with rewards per source, and no session stays open."""
    for server in (mixed_server, echo_server):
        server.reset_counts()
    records: list[RolloutRecord] = []
    spec = mix_of_three(mixed_server, echo_server, on_rollouts=records.extend)
    args = make_arguments(spec, tmp_path, max_steps=3, **SHAPE)

    trainer = train(spec, tiny_policy, args)

    mixed, echo = mixed_server.counts(), echo_server.counts()
    per_batch = [Counter(r.source for r in records if r.step == step) for step in (1, 2, 3)]
    assert [{"sort": 4, "heat": 2, "echo": 2}] * 3 == per_batch
    assert {"sorting": {"submit": 12}, "thermostat": {"submit": 6}} == mixed.tool_calls
    assert {"echo": {"echo": 6}} == echo.tool_calls
    assert ({}, {}) == (mixed.active, echo.active)
    assert [0.5, 0.5, 0.5] == logged(trainer, "env/sort/share")
    assert all(len(logged(trainer, f"rewards/{name}/mean")) == 3 for name in spec.sources)
    assert {"sort": {0.0, 10.0}, "echo": {0.0, 1.0}} == {
        name: {r.reward for r in records if r.source == name} for name in ("sort", "echo")
    }


def test_same_named_tools_never_reach_each_others_environment(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Two environments of one server both have `submit`; each answers only for itself."""
    records: list[RolloutRecord] = []
    spec = mix_of_three(mixed_server, echo_server, on_rollouts=records.extend)

    train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=1, **SHAPE))

    answers = {(r.source, step.output.partition(":")[0]) for r in records if r.source != "echo" for step in r.steps}
    assert {("sort", "sorting"), ("heat", "thermostat")} == answers


def test_union_mode_shows_all_tools_and_routes_by_row(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """With one class for all, clashing tools get their source's name, and a stray call touches no server."""
    mixed_server.reset_counts()
    records: list[RolloutRecord] = []
    spec = mix_of_three(mixed_server, echo_server, tools="union", on_rollouts=records.extend)

    def script(conversation: str, row: int) -> str:
        if "<tool_response>" in conversation:
            return "done"
        if "hidden numbers" in conversation:
            return call("sort__submit", order=[row % 2, 1 - row % 2])
        return call("heat__submit", mode="heat")

    train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=1, **SHAPE), script=script)

    assert {"sorting": {"submit": 4}, "thermostat": {"submit": 2}} == mixed_server.counts().tool_calls
    assert [UnscoredReason.BAD_CALL] * 2 == [r.reason for r in records if r.source == "echo"]
    assert "shown" not in {r.source for r in records}


def test_unscored_rollouts_stay_none_and_are_counted(
    zoo_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A source that never scores gives None, not 0.0, with its reason in the metrics."""
    spec = MultiOpenRewardSpec(
        {"none": ORSSource(zoo_server.url, env_name="neverscores"), "echo": ORSSource(echo_server.url)}
    )

    def script(conversation: str, row: int) -> str:
        return (
            play_well(conversation, row)
            if "Say " in conversation
            else ("done" if "nothing here" in conversation else call("look"))
        )

    trainer = train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=2, **SHAPE), script=script)

    assert [None, None] == [entry.get("rewards/none/mean") for entry in trainer.state.log_history if "reward" in entry]
    assert [0.0, 0.0] == logged(trainer, "env/none/scored")
    assert [1.0, 1.0] == logged(trainer, "env/none/unscored/no_score")
    assert [1.0, 1.0] == logged(trainer, "env/echo/scored")
    assert [] == logged(trainer, "env/none/reward")


def test_a_dead_server_leaves_rollouts_unscored_and_training_goes_on(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A server that dies after the start makes its rollouts unreachable; the others train on."""
    records: list[RolloutRecord] = []

    with serve("Counting") as dying:
        spec = MultiOpenRewardSpec(
            {"dead": ORSSource(dying.url), "echo": ORSSource(echo_server.url)}, on_rollouts=records.extend
        )
        args = make_arguments(spec, tmp_path, max_steps=1, per_device_train_batch_size=4, num_generations=2)
        _ = spec.environment_factory
        dying.kill()
        train(spec, tiny_policy, args)

    assert [UnscoredReason.UNREACHABLE] * 2 == [r.reason for r in records if r.source == "dead"]
    assert all(r.reward is None and r.error for r in records if r.source == "dead")
    assert all(r.reward is not None for r in records if r.source == "echo")


def test_three_slots_alone_are_safe_with_trls_own_arguments(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Without callbacks and `training_arguments`, TRL's default shuffling is noticed at the first batch."""
    from trl import GRPOConfig

    spec = mix_of_three(mixed_server, echo_server, num_slots=64)
    args = GRPOConfig(**small_fields(tmp_path), **SHAPE, max_steps=2)

    with pytest.raises(RoutingError, match="shuffle_dataset=False"):
        train(spec, tiny_policy, args, callbacks=[])

    assert {} == echo_server.wait_until(lambda counts: not counts.active).active


def test_the_callback_refuses_settings_when_the_trainer_is_built(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A shuffled dataset is refused at construction, before anything was generated."""
    from trl import GRPOConfig

    spec = mix_of_three(mixed_server, echo_server, num_slots=64)
    args = GRPOConfig(**small_fields(tmp_path), **SHAPE, max_steps=2)

    with pytest.raises(ConfigError, match="shuffle_dataset=True"):
        make_trainer(spec, tiny_policy, args)


def test_a_resumed_run_draws_the_slots_the_whole_run_would(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Stopping after two of four steps and resuming gives the same (source, task) at every slot."""
    whole: list[RolloutRecord] = []
    parts: list[RolloutRecord] = []
    fields = {**SHAPE, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}

    spec = mix_of_three(mixed_server, echo_server, on_rollouts=whole.extend)
    args = make_arguments(spec, tmp_path / "whole", **SHAPE, max_steps=4)
    train(spec, tiny_policy, args)

    for resume in (None, str(tmp_path / "parts" / "checkpoint-2")):
        spec = mix_of_three(mixed_server, echo_server, on_rollouts=parts.extend)
        completed = spec.training_arguments(**{**small_fields(tmp_path / "parts"), **fields})
        from transformers import TrainerCallback
        from trl import GRPOConfig

        class StopAtTwo(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                control.should_training_stop = state.global_step == 2

        train(
            spec,
            tiny_policy,
            GRPOConfig(**completed),
            callbacks=[*spec.callbacks, StopAtTwo()],
            resume_from_checkpoint=resume,
        )

    def drawn(records: list[RolloutRecord]) -> list[tuple[int | None, str, int | None]]:
        return sorted({(r.slot, r.source, r.task_index) for r in records}, key=str)

    assert 16 == len(drawn(whole))
    assert drawn(whole) == drawn(parts)


def test_reward_weights_act_on_advantages(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A source with nine times the reward weight has nine times the other's normalized reward."""
    spec = MultiOpenRewardSpec(
        {
            "sort": ORSSource(mixed_server.url, env_name="sorting", reward=SourceReward(weight=9.0)),
            "echo": ORSSource(echo_server.url),
        }
    )

    def script(conversation: str, row: int) -> str:
        if "<tool_response>" in conversation:
            return "done"
        if "hidden numbers" in conversation:
            numbers = {"2": [[1, 0], [0, 1]], "3": [[1, 2, 0], [0, 2, 1]]}
            return call("submit", order=(numbers["2"] if "2 hidden" in conversation else numbers["3"])[row % 2])
        return play_well(conversation, 1 if row % 2 else 0)

    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)
    trainer = train(spec, tiny_policy, args, script=script)

    advantages = list(trainer._logs["advantages"])
    names = list(trainer._logs["extra"]["environment"])
    size = {name: max(abs(a) for a, n in zip(advantages, names, strict=True) if n == name) for name in spec.sources}
    assert "normalize_then_sum" == args.multi_objective_aggregation
    assert 9.0 == pytest.approx(size["sort"] / size["echo"], rel=0.02)


def test_a_users_functions_see_only_their_sources_rollouts(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Sync and async functions get TRL's arguments cut down to their source, and the decoded tasks."""
    seen: dict[str, Any] = {}

    def brevity(completions: list[Any], tasks: list[Any], environment: list[str], **arguments: Any) -> list[float]:
        seen.update(tasks=tasks, environment=environment, num=len(completions), names=sorted(arguments))
        arguments["log_extra"]("target", [task["target"] for task in tasks])
        return [0.5] * len(completions)

    async def nothing(environments: list[Any], **_: Any) -> list[None]:
        seen["async"] = len(environments)
        return [None] * len(environments)

    records: list[RolloutRecord] = []
    reward = SourceReward(parts=(RewardPart(brevity, weight=0.1), RewardPart(nothing)))
    spec = MultiOpenRewardSpec(
        {
            "heat": ORSSource(mixed_server.url, env_name="thermostat"),
            "echo": ORSSource(echo_server.url, reward=reward),
        },
        on_rollouts=records.extend,
    )

    trainer = train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=1, **SHAPE))

    echoes = [r for r in records if r.source == "echo"]
    assert (["echo"] * 4, 4, 4) == (seen["environment"], seen["num"], seen["async"])
    assert {"completion_ids", "environments", "prompts", "slot", "task_index", "trainer_state"} <= set(seen["names"])
    assert all(task["id"].startswith("train-") for task in seen["tasks"])
    assert all(r.reward == pytest.approx((r.outcome or 0.0) + 0.05) for r in echoes)
    assert [{"brevity": 0.5, "nothing": None}] * 4 == [dict(r.parts) for r in echoes]
    assert 8 == len(trainer._logs["extra"]["target"])


def test_a_failing_reward_function_stops_training_and_closes_sessions(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A user's error reaches the user; no session is left behind."""

    def broken(completions: list[Any], **_: Any) -> list[float]:
        return [float("nan")] * len(completions)

    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, reward=broken)})

    with pytest.raises(RewardError, match=r"source 'echo'.*broken"):
        train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=1, **SHAPE))

    assert {} == echo_server.wait_until(lambda counts: not counts.active).active


def test_evaluation_rows_may_come_in_any_order(echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """TRL calls the columns in evaluation too, with rows that are not of the schedule, or again of its beginning."""
    from trl import GRPOConfig

    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)})
    fields = small_fields(tmp_path) | SHAPE | {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    args = GRPOConfig(**spec.training_arguments(**fields, per_device_eval_batch_size=4))
    rows = spec.train_dataset.select(range(2))

    trainer = train(spec, tiny_policy, args, eval_dataset={"slots": rows, "none": rows.remove_columns("slot")})

    assert [2, 2] == [len(logged(trainer, f"eval_{name}_rewards/echo/mean")) for name in ("slots", "none")]


def test_a_run_without_max_steps_is_as_long_as_the_schedule(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """`first_exhausted` ends when the smallest share of tasks has been seen once, in whole batches."""
    spec = mix_of_three(mixed_server, echo_server)
    args = make_arguments(spec, tmp_path, **SHAPE)

    trainer = train(spec, tiny_policy, args)

    assert len(spec.train_dataset) // 4 == args.max_steps == trainer.state.global_step


def test_records_survive_json(echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """A rollout's record is JSON with None intact, and names what was called and answered."""
    records: list[RolloutRecord] = []
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)}, on_rollouts=records.extend)

    train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=1, **SHAPE))

    lines = [json.loads(json.dumps(record.to_json())) for record in records]
    assert {"echo"} == {step["tool"] for line in lines for step in line["steps"]}
    assert {None} == {line["reason"] for line in lines}
    assert all(line["messages"][0]["role"] == "assistant" for line in lines)


def test_a_weight_that_a_batch_of_one_prompt_would_cancel_is_refused(echo_server: ServerHandle, tmp_path: Path) -> None:
    """A batch with one source is divided by its own spread, so a reward weight would do nothing."""
    spec = MultiOpenRewardSpec(
        {"a": ORSSource(echo_server.url, reward=SourceReward(weight=9.0)), "b": ORSSource(echo_server.url)}
    )

    with pytest.raises(ConfigError, match=r"'a': 9\.0.*would have no effect: a generation batch has one prompt"):
        make_arguments(spec, tmp_path, max_steps=1, per_device_train_batch_size=2, num_generations=2)


def test_another_specs_dataset_is_refused_before_the_first_step(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Rows of a spec with another seed look alike, and would be trained on as if they were these."""
    spec, other = mix_of_three(mixed_server, echo_server), mix_of_three(mixed_server, echo_server, seed=1)
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)
    other.training_arguments(**small_fields(tmp_path), max_steps=1, **SHAPE)

    with pytest.raises(ConfigError, match=r"the columns \['environment', 'task_index'\] differ"):
        train(spec, tiny_policy, args, train_dataset=other.train_dataset)


def test_another_specs_columns_are_refused_at_the_first_batch(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Reward columns read the environments of their own spec only, whatever the names."""
    spec, other = mix_of_three(mixed_server, echo_server), mix_of_three(mixed_server, echo_server)
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)

    with pytest.raises(RoutingError, match=r"played in environments of another spec"):
        train(spec, tiny_policy, args, reward_funcs=other.reward_funcs)

    assert {} == echo_server.wait_until(lambda counts: not counts.active).active


def test_rows_of_another_split_are_refused_in_evaluation(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """They would be played on the training task of the same index, and judged as the other."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)})
    test = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, split="test")})
    args = make_arguments(spec, tmp_path, max_steps=1, per_device_eval_batch_size=4, **SHAPE)
    trainer = make_trainer(spec, tiny_policy, args, eval_dataset=test.train_dataset)

    with pytest.raises(RoutingError, match=r"the row's task at task_index=\d is not the one that the source has"):
        trainer.evaluate()


def test_an_error_in_a_users_function_says_which_one(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """The error keeps its type and gets a note with function and source."""

    def broken(**_: Any) -> list[float]:
        raise KeyError("foo")

    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, reward=broken)})

    with pytest.raises(KeyError, match="foo") as caught:
        train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=1, **SHAPE))

    assert ["in the reward function 'broken' of source 'echo'"] == caught.value.__notes__
