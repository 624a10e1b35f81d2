"""Evaluations in the middle of a training: what is played, kept and logged, and that the training stays what it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from multiors import MultiOpenRewardSpec, ORSSource, RewardPart, RolloutRecord, SourceReward
from multiors.errors import ConfigError, SourceError
from multiors.evaluation import (
    EvaluationCallback,
    Policy,
    PolicyError,
    ScriptedPolicy,
    Start,
    compare,
    read_evaluation,
)
from multiors.evaluation.policies import Message
from multiors.rollout_log import find_files
from tests.scripted import make_arguments, make_trainer
from tests.servers.launch import ServerHandle, serve
from tests.small_run import Options, play_by_task, run_processes

SHAPE = {"per_device_train_batch_size": 4, "num_generations": 2}


class Scripted(EvaluationCallback):
    """Evaluates a script, and counts what it is asked."""

    num_replies = 0

    def make_policy(self, step: int) -> Policy:
        return ScriptedPolicy(self.answer)

    def answer(self, start: Start, messages: Sequence[Message]) -> Any:
        """As `play_by_task`."""
        self.num_replies += 1
        return play_by_task(start, messages)


class Failing(Scripted):
    """A policy that has no reply, or fails as no one foresaw."""

    error: Exception = PolicyError("nobody is there.")

    def answer(self, start: Start, messages: Sequence[Message]) -> Any:
        """Raise the error."""
        raise self.error


def mix(server: ServerHandle, **options: Any) -> MultiOpenRewardSpec:
    """`Sorting` with four tasks and `Thermostat` with three; a rollout that nobody scored is worth 0."""
    reward = SourceReward(unscored=0.0)
    return MultiOpenRewardSpec(
        {
            "sort": ORSSource(server.url, env_name="sorting", reward=reward),
            "heat": ORSSource(server.url, env_name="thermostat", reward=reward),
        },
        **options,
    )


def prepare(
    server: ServerHandle,
    policy: Path,
    folder: Path,
    callback: type[EvaluationCallback] | None = Scripted,
    *,
    steps: int = 3,
    every_steps: int = 2,
    **fields: Any,
) -> tuple[Any, Any]:
    """A trainer, and its callback."""
    spec = mix(server)
    trainer = make_trainer(spec, policy, make_arguments(spec, folder, max_steps=steps, **SHAPE, **fields))
    evaluation = None if callback is None else callback(trainer, spec, every_steps=every_steps)

    if evaluation is not None:
        trainer.add_callback(evaluation)

    return trainer, evaluation


def count_letters(completions: list[Any], **_: Any) -> list[float]:
    """How many different letters a completion has."""
    return [float(len(set(completion[0]["content"]))) for completion in completions]


def find_evaluated(trainer: Any) -> list[dict[str, Any]]:
    """What was logged of evaluations."""
    return [entry for entry in trainer.state.log_history if any(name.startswith("eval_") for name in entry)]


def test_a_script_is_evaluated_every_so_many_steps_and_after_the_last(
    mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Each evaluation is logged by source and overall, and is a folder of its own with every episode."""
    trainer, _ = prepare(mixed_server, tiny_policy, tmp_path)

    trainer.train()

    folders = sorted((tmp_path / "evaluations").iterdir())
    runs = [read_evaluation(folder) for folder in folders]
    logged = find_evaluated(trainer)
    values = {name: logged[0][name] for name in logged[0] if name.startswith("eval_")}
    assert ["step-000002", "step-000003"] == [folder.name for folder in folders]
    assert [7, 7] == [len(list(run.episodes())) for run in runs]
    assert [2, 3] == [run.manifest.policy["step"] for run in runs]
    assert [2, 3] == [entry["step"] for entry in logged]
    assert {
        "eval_macro": pytest.approx((5 + 1 / 3) / 2),
        "eval_sort/score": 5.0,
        "eval_sort/scored": 1.0,
        "eval_heat/score": pytest.approx(1 / 3),
        "eval_heat/scored": 1.0,
    } == values
    assert values.items() <= logged[1].items()
    assert {} == mixed_server.counts().active


def test_the_model_is_evaluated_as_it_is(mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """Without a script the trainer's own model plays, sampled as in training, and two of its steps can be compared."""
    trainer, evaluation = prepare(mixed_server, tiny_policy, tmp_path, EvaluationCallback, every_steps=1, steps=2)

    trainer.train()

    runs = [read_evaluation(evaluation.output / f"step-{step:06d}") for step in (1, 2)]
    answer = compare(*runs)
    assert ["step 1", "step 2"] == [run.manifest.policy["name"] for run in runs]
    assert {256} == {run.manifest.policy["sampling"]["max_tokens"] for run in runs}
    assert {(3, 256)} == {tuple(map(run.manifest.limits.get, ("max_turns", "max_completion_tokens"))) for run in runs}
    assert ["sort", "heat"] == list(answer.sources)
    assert all(record.num_sampled_tokens for run in runs for record in run.episodes())
    assert [0.0, 0.0] == [entry["eval_macro"] for entry in find_evaluated(trainer)]


def test_the_training_is_as_without(mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """A sampling policy writes the same tokens, learns the same weights and logs the same, evaluated or not."""
    part = RewardPart(count_letters, scores_alone=True)
    seen: list[Any] = []

    for evaluates in (False, True):
        records: list[RolloutRecord] = []
        source = ORSSource(mixed_server.url, env_name="sorting", reward=SourceReward(parts=(part,)))
        spec = MultiOpenRewardSpec({"sort": source}, on_rollouts=records.extend)
        fields = {"max_steps": 2, "max_completion_length": 16}
        trainer = GRPOTrainer(
            model=str(tiny_policy),
            args=make_arguments(spec, tmp_path / str(evaluates), **SHAPE, **fields),
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
            callbacks=spec.callbacks,
        )

        if evaluates:
            trainer.add_callback(EvaluationCallback(trainer, spec, every_steps=1))

        trainer.train()
        times = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second")
        seen.append(
            (
                [(record.slot, record.num_tokens, record.messages) for record in records],
                [
                    {name: value for name, value in entry.items() if name not in times}
                    for entry in trainer.state.log_history
                    if "eval_macro" not in entry
                ],
                {name: value.tolist() for name, value in trainer.model.state_dict().items()},
                trainer.model.training,
                torch.get_rng_state().tolist(),
            )
        )

    assert seen[0] == seen[1]
    assert all(entry["grad_norm"] for entry in seen[0][1][:2])


def test_a_resumed_training_plays_what_is_missing(
    mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """An evaluation that is there whole is read, one that was cut off is completed, and both are logged again."""
    options: dict[str, Any] = {"steps": 4, "every_steps": 1, "save_strategy": "steps", "save_steps": 2}
    trainer, _ = prepare(mixed_server, tiny_policy, tmp_path, **options)
    trainer.train()
    (last,) = find_files(tmp_path / "evaluations" / "step-000004")
    last.write_bytes(b"".join(last.read_bytes().splitlines(keepends=True)[:-2]))

    resumed, evaluation = prepare(mixed_server, tiny_policy, tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert 2 == evaluation.num_replies
    assert find_evaluated(trainer) == find_evaluated(resumed)
    assert 7 == len(list(read_evaluation(tmp_path / "evaluations" / "step-000004").episodes()))


def test_another_training_does_not_go_on_with_them(
    mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A training from its beginning has other models at the same steps: the folder is refused before the first."""
    prepare(mixed_server, tiny_policy, tmp_path, steps=1)[0].train()
    trainer, _ = prepare(mixed_server, tiny_policy, tmp_path, steps=1)

    with pytest.raises(ConfigError, match=r"holds evaluations of another training. Choose another output=\.\.\."):
        trainer.train()

    assert 0 == trainer.state.global_step


@pytest.mark.parametrize("error", [PolicyError("nobody is there."), KeyError("foo"), RuntimeError("out of memory")])
def test_a_failing_evaluation_does_not_end_the_training(
    error: Exception, mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, nothing is logged, and the training goes on to its end."""
    trainer, evaluation = prepare(mixed_server, tiny_policy, tmp_path, Failing, every_steps=1)
    evaluation.error = error

    with caplog.at_level(logging.WARNING, logger="multiors.evaluation"):
        trainer.train()

    told = [entry.getMessage() for entry in caplog.records if entry.name == "multiors.evaluation"]
    assert 3 == trainer.state.global_step
    assert [] == find_evaluated(trainer)
    assert 1 == len(told)
    assert told[0].startswith("the evaluation at step 1 failed, and nothing is logged of it: ")
    assert str(error) in told[0]
    assert trainer.model.training


@pytest.fixture
def passing_server() -> Iterator[ServerHandle]:
    """`Sorting`, for tests that end it."""
    with serve("Sorting") as server:
        yield server


def test_a_server_that_is_away_leaves_episodes_unscored(
    passing_server: ServerHandle, mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """What could not be played is counted as unscored, never as a score, and the training goes on."""
    spec = mix(mixed_server)
    trainer = make_trainer(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=1, **SHAPE))
    away = {"sort": ORSSource(passing_server.url, env_name="sorting", open_timeout_s=5.0, retries=0)}
    evaluation = Scripted(trainer, away, every_steps=1)
    evaluation.on_train_begin(trainer.args, trainer.state, trainer.control)
    passing_server.stop()
    trainer.add_callback(evaluation)

    trainer.train()

    (entry,) = find_evaluated(trainer)
    assert ({"eval_sort/scored"}, 0.0) == (
        {name for name in entry if name.startswith("eval_")},
        entry["eval_sort/scored"],
    )


def test_a_source_that_cannot_be_evaluated_is_found_before_the_first_step(
    mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Sources are asked when the training begins, not at the first evaluation."""
    spec = mix(mixed_server)
    trainer = make_trainer(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=1, **SHAPE))
    trainer.add_callback(Scripted(trainer, spec, every_steps=1, split="nowhere"))

    with pytest.raises(SourceError, match="nowhere"):
        trainer.train()

    assert 0 == trainer.state.global_step


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"every_steps": 0}, r"every_steps=0 is no whole number from 1 upwards"),
        ({"every_steps": 1, "num_tasks": 0}, r"num_tasks=0 is no whole number"),
        ({"every_steps": 1, "episodes_per_task": True}, r"episodes_per_task=True is no whole number"),
        ({"every_steps": 1, "seed": -1}, r"seed=-1 is no whole number from 0 upwards"),
    ],
)
def test_a_wrong_argument_is_an_error(
    options: dict[str, Any], match: str, mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Arguments are checked when the callback is made."""
    trainer, _ = prepare(mixed_server, tiny_policy, tmp_path, None)

    with pytest.raises(ConfigError, match=match):
        EvaluationCallback(trainer, {}, **options)


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({"fsdp_plugin": object(), "deepspeed_plugin": None}, "FSDP"),
        ({"fsdp_plugin": None, "deepspeed_plugin": SimpleNamespace(zero_stage=3)}, "DeepSpeed ZeRO-3"),
    ],
)
def test_a_model_that_is_spread_over_processes_is_refused(state: dict[str, Any], name: str) -> None:
    """Where no process has the whole model, checkpoints are to be evaluated instead."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(state=SimpleNamespace(**state)))

    with pytest.raises(ConfigError, match=rf"with {name} no process has the whole model.*`multiors evaluate`"):
        EvaluationCallback(trainer, {}, every_steps=1)


# -- two processes


@pytest.mark.timeout(300)
def test_two_processes_evaluate_what_one_does(mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """Each plays a part of the episodes, the first writes them all, and both know the same scores."""
    sources: dict[str, list[Any]] = {
        "sort": [mixed_server.url, "sorting", 1.0],
        "heat": [mixed_server.url, "thermostat", 1.0],
    }
    processes, ranks = {}, {}

    for evaluates, num_processes, size in (("script", 2, 4), ("model", 2, 4), ("script", 1, 8)):
        folder = tmp_path / f"{evaluates}-{size}"
        folder.mkdir()
        options = Options(
            policy=str(tiny_policy),
            folder=str(folder),
            runs=[sources],
            fields={"max_steps": 1, "num_generations": 2, "per_device_train_batch_size": size},
            evaluates=evaluates,
        )
        ranks[folder.name] = run_processes(options, num_processes)
        processes[folder.name] = read_evaluation(folder / "evaluations" / "step-000001")

    def told(folder: str, rank: int) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in entry.items() if name.startswith("eval_")}
            for entry in ranks[folder][rank]["log"]
            if "eval_macro" in entry or "eval_sort/scored" in entry
        ]

    def played(folder: str) -> list[Any]:
        return sorted(
            (r.source, r.task_index, r.episode, r.seed, r.reward, str(r.messages), str(r.prompt))
            for r in processes[folder].episodes()
        )

    assert played("script-8") == played("script-4")
    assert told("script-8", 0) == told("script-4", 0) == told("script-4", 1)
    assert 1 == len(told("script-8", 0))
    assert told("model-4", 0) == told("model-4", 1)
    assert [row[:4] for row in played("script-8")] == [
        (r.source, r.task_index, r.episode, r.seed)
        for r in sorted(processes["model-4"].episodes(), key=lambda r: (r.source, r.task_index, r.episode))
    ]
    assert 14 == len(played("script-4"))
    assert {} == mixed_server.counts().active
