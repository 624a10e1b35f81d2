"""What `GRPOTrainer` evaluates in between: each task of each source, under names that tell the sources apart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from multiors import CircuitBreaker, GroupScore, MultiOpenRewardSpec, ORSSource, RolloutRecord, SourceReward, draw_run
from multiors.errors import ConfigError
from multiors.mixing.curricula import LearningProgress
from multiors.series import read_run
from tests.scripted import ConcurrentScriptedTrainer, ScriptedTrainer, make_arguments, make_trainer, train
from tests.servers.launch import ServerHandle, serve

SHAPE = {"per_device_train_batch_size": 6, "num_generations": 2, "max_steps": 2}
EVALUATION = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
OF_THE_RUN = {"step", "epoch", "eval_num_tokens"}


def mix(mixed: ServerHandle, echo: ServerHandle, **options: Any) -> MultiOpenRewardSpec:
    """Two environments of one server and one of another."""
    return MultiOpenRewardSpec(
        {
            "sort": ORSSource(mixed.url, env_name="sorting"),
            "heat": ORSSource(mixed.url, env_name="thermostat"),
            "echo": ORSSource(echo.url, indices=[0, 3, 3, 1]),
        },
        **options,
    )


def evaluated(trainer: Any) -> list[dict[str, Any]]:
    """What was logged of each dataset, in order."""
    return [entry for entry in trainer.state.log_history if any(key.startswith("eval_") for key in entry)]


def test_every_task_of_every_source_is_there_once(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """The rows are what a training row has but its slot, the same for every spec of these sources."""
    rows = mix(mixed_server, echo_server).eval_dataset
    again = mix(mixed_server, echo_server, seed=7, weights={"sort": 5, "heat": 1, "echo": 1}).eval_dataset

    assert ["sort", "heat", "echo"] == list(rows)
    assert [["environment", "prompt", "task_index", "task"]] * 3 == [each.column_names for each in rows.values()]
    assert [0, 3, 1] == list(rows["echo"]["task_index"])
    assert {"echo"} == set(rows["echo"]["environment"])
    assert all(json.loads(task)["target"] for task in rows["echo"]["task"])
    assert [each._fingerprint for each in rows.values()] == [each._fingerprint for each in again.values()]
    assert [each.to_list() for each in rows.values()] == [each.to_list() for each in again.values()]


@pytest.mark.parametrize("trainer_class", [ScriptedTrainer, ConcurrentScriptedTrainer])
def test_no_source_overwrites_what_is_logged_of_another(
    trainer_class: Any, mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Every name is logged once an evaluation, with the source in it; `evaluate()` returns all of them."""
    spec = mix(mixed_server, echo_server)
    args = make_arguments(spec, tmp_path, **SHAPE, **EVALUATION)
    trainer = train(spec, tiny_policy, args, trainer_class=trainer_class, eval_dataset=spec.eval_dataset)

    first, second = evaluated(trainer)[:3], evaluated(trainer)[3:]
    returned = [trainer.evaluate(), trainer.evaluate(spec.eval_dataset)]

    times_logged = Counter(name for entry in first for name in entry)
    assert OF_THE_RUN == {name for name, times in times_logged.items() if times > 1}
    assert [set(entry) for entry in first] == [set(entry) for entry in second]
    assert [set(times_logged) - {"step"}] * 2 == [set(each) for each in returned]
    assert [{"sort": 2.5, "heat": 0.25, "echo": 0.5}] * 2 == [
        {name: each[f"eval_env/{name}/reward"] for name in spec.sources} for each in returned
    ]
    assert all(each[f"eval_{name}_reward"] is not None for each in returned for name in spec.sources)
    assert all(name in key for entry, name in zip(first, spec.sources, strict=True) for key in set(entry) - OF_THE_RUN)


def test_sources_can_choose_the_best_model(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """The name of a source's reward is one that `metric_for_best_model` finds."""
    spec = mix(mixed_server, echo_server)
    best = {"metric_for_best_model": "eval_sort_reward", "greater_is_better": True}
    args = make_arguments(spec, tmp_path, **SHAPE, **EVALUATION, **best)

    trainer = train(spec, tiny_policy, args, eval_dataset=spec.eval_dataset)

    assert 2.5 == trainer.state.best_metric


def test_datasets_of_ones_own_are_told_apart_by_their_names(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Two datasets of one source have its metrics each; one alone keeps the names that TRL gives."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)})
    args = make_arguments(spec, tmp_path, **SHAPE, per_device_eval_batch_size=4)
    rows = spec.eval_dataset["echo"]
    parts = {"low": rows.select(range(2)), "high": rows.select(range(2, 4))}

    several = make_trainer(spec, tiny_policy, args, eval_dataset=parts).evaluate()
    alone = make_trainer(spec, tiny_policy, args, eval_dataset=rows).evaluate()

    assert {"eval_low_reward", "eval_high_reward", "eval_low_env/echo/reward"} <= set(several)
    assert {"eval_reward", "eval_env/echo/reward", "eval_rewards/echo/mean"} <= set(alone)
    assert not {"eval_reward", "eval_env/echo/reward", "eval_rewards/echo/mean"} & set(several)


def test_what_is_unscored_stays_without_a_number(zoo_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """A source that never scores has no reward in an evaluation, and the fraction 0 is scored."""
    spec = MultiOpenRewardSpec({"none": ORSSource(zoo_server.url, env_name="neverscores")})
    args = make_arguments(spec, tmp_path, **SHAPE, per_device_eval_batch_size=4)

    seen = make_trainer(spec, tiny_policy, args, eval_dataset=spec.eval_dataset).evaluate()

    assert (None, 0.0) == (seen["eval_none_reward"], seen["eval_env/none/scored"])
    assert "eval_env/none/reward" not in seen


def test_an_evaluation_is_no_part_of_the_run(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Shares, curriculum, breaker, order, table and report are what they are without one, even of training rows."""
    seen: list[Any] = []

    for number, evaluates in enumerate((False, True)):
        records: list[RolloutRecord] = []
        spec = mix(
            mixed_server,
            echo_server,
            on_rollouts=records.extend,
            rollout_log=tmp_path / f"log-{number}",
            curriculum=LearningProgress(),
            circuit_breaker=CircuitBreaker(),
        )
        args = make_arguments(spec, tmp_path, **SHAPE | {"max_steps": 3}, **(EVALUATION if evaluates else {}))
        rows = {**spec.eval_dataset, "again": mix(mixed_server, echo_server, num_slots=2).train_dataset}
        trainer = train(spec, tiny_policy, args, eval_dataset=rows if evaluates else None)
        trained = [record for record in records if record.slot is not None]
        assert evaluates == (len(trained) < len(records))
        seen.append(
            (
                [(r.slot, r.source, r.task_index, r.reward, r.step) for r in trained],
                [
                    {name: value for name, value in entry.items() if name.startswith("env/")}
                    for entry in trainer.state.log_history
                    if "env/sort/share" in entry
                ],
                spec.summary().to_json(),
                read_run(tmp_path / f"log-{number}").to_json(),
                read_run(trainer.state.log_history).to_json(),
            )
        )
        draw_run(tmp_path / f"log-{number}", tmp_path / f"{number}.png")

    assert seen[0] == seen[1]


def test_groups_are_compared_in_an_evaluation_too(tiny_policy: Path, tmp_path: Path) -> None:
    """Where an environment compares the rollouts of a group, those of one task are a group."""
    records: list[RolloutRecord] = []

    with serve("Judged") as server:
        source = ORSSource(server.url, env_name="judged", reward=SourceReward(parts=(GroupScore(),)))
        spec = MultiOpenRewardSpec({"judged": source}, on_rollouts=records.extend)
        args = make_arguments(spec, tmp_path, **SHAPE, per_device_eval_batch_size=4)
        trainer = make_trainer(spec, tiny_policy, args, eval_dataset=spec.eval_dataset)
        trainer.script = lambda conversation, row: "a" * (row + 1)
        trainer.evaluate()
        counts = server.counts()

    assert [1.0, 2.0, 3.0, 4.0] * 2 == [record.reward for record in records]
    assert 4 == counts.requests["POST /{env}/score_group"]
    assert {} == counts.active


def test_sessions_must_suffice_for_a_batch_that_is_evaluated(echo_server: ServerHandle, tmp_path: Path) -> None:
    """All rollouts of an evaluated batch may be of one source, and have their sessions open together."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, max_sessions=6)})
    args = make_arguments(spec, tmp_path, **SHAPE, **EVALUATION | {"per_device_eval_batch_size": 8})

    with pytest.raises(ConfigError, match=r"^source 'echo': max_sessions=6, .* up to 8 .* Raise it to 8"):
        spec.callbacks[0].on_init_end(args, None, None)
