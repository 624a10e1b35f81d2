"""Environments that are not ORS, trained on beside ORS sources by TRL's trainers."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from trl import GRPOConfig

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord, TRLSource, read_rollouts
from multiors.errors import SessionError
from tests.harbor import make_harbor_spec
from tests.others import Fails, Guess, Judge, Oven, guess_rows, reward_of
from tests.scripted import (
    ConcurrentScriptedTrainer,
    ScriptedTrainer,
    call,
    make_arguments,
    play_well,
    small_fields,
    train,
)
from tests.servers.launch import ServerHandle

SHAPE = {"per_device_train_batch_size": 8, "num_generations": 2}


def play(conversation: str, row: int) -> str:
    """Say the right word in the odd rows, wherever it is asked for."""
    if "the word" not in conversation and "Which word" not in conversation:
        return play_well(conversation, row)
    if "<tool_response>" in conversation:
        return "done"

    word = conversation.rpartition("Say ")[2].partition(".")[0]
    return call("guess", word="wrong" if row % 2 == 0 else word)


def logged(trainer: Any, key: str) -> list[Any]:
    """Every value the trainer logged under a key."""
    return [entry[key] for entry in trainer.state.log_history if key in entry]


@pytest.mark.parametrize("trainer_class", [ScriptedTrainer, ConcurrentScriptedTrainer])
def test_other_environments_train_beside_ors(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path, trainer_class: Any
) -> None:
    """An object with three slots, and a class that scores itself: exact shares, rewards, metrics and records."""
    records: list[RolloutRecord] = []
    rows = guess_rows("elm", "oak")
    object_ = SimpleNamespace(train_dataset=rows, environment_factory=lambda: Guess("Find"), reward_funcs=reward_of)
    itself = TRLSource(train_dataset=guess_rows("fir"), environment_factory=Judge)
    spec = MultiOpenRewardSpec(
        {"object": object_, "itself": itself, "echo": ORSSource(echo_server.url)},
        weights={"object": 2.0, "itself": 1.0, "echo": 1.0},
        on_rollouts=records.extend,
        rollout_log=tmp_path / "log",
    )
    args = make_arguments(spec, tmp_path, max_steps=2, **SHAPE)
    trainer = train(spec, tiny_policy, args, script=play, trainer_class=trainer_class)

    assert {"object": 8, "itself": 4, "echo": 4} == Counter(record.source for record in records)
    assert [[0.5, 0.5]] * 3 == [logged(trainer, f"rewards/{name}/mean") for name in spec.sources]
    assert [0.5, 0.5] == logged(trainer, "env/object/share")
    assert [1.0, 1.0] == logged(trainer, "env/itself/finished")
    assert {"Find the word. Say elm.", "Find the word. Say oak."} == {
        record.prompt[-1]["content"] for record in records if record.source == "object"
    }
    assert [record.to_json() for record in records] == [record.to_json() for record in read_rollouts(tmp_path / "log")]
    assert [8, 4, 4] == [found.num_rollouts for found in spec.summary().sources.values()]


def test_a_class_is_given_what_trl_alone_gives_it(tiny_policy: Path, tmp_path: Path) -> None:
    """In a mix of one, every reset and every reward function sees what it sees without this library."""
    seen: list[list[Any]] = []
    prompts = [[{"role": "user", "content": text}] for text in ("One. ", "Two. ")]
    rows = guess_rows(
        "elm", "oak", prompt=prompts, nested=[{"a": [1]}, {"a": []}], when=[datetime(2026, 1, 1, tzinfo=UTC)] * 2
    )

    class Watched(Guess):
        def reset(self, word: str = "oak", **row: Any) -> str | None:
            seen[-1].append({"word": word, **row})
            return super().reset(word, **row)

    def watch(environments: Any, completions: Any, trainer_state: Any, **given: Any) -> list[float | None]:
        own = {name: value for name, value in given.items() if not callable(value)}
        seen[-1] += [own, [type(each) for each in environments], completions, sorted(given), trainer_state.global_step]
        return reward_of(environments)

    slots = SimpleNamespace(train_dataset=rows, environment_factory=Watched, reward_funcs=watch, callbacks=[])
    fields = {**small_fields(tmp_path), **SHAPE, "per_device_train_batch_size": 4, "max_steps": 1}
    rewards = []

    for spec in (slots, MultiOpenRewardSpec({"only": slots}, seed=1)):
        seen.append([])
        given = {**fields, "shuffle_dataset": False}
        args = GRPOConfig(**(given if spec is slots else spec.training_arguments(**fields)))
        rewards.append(logged(train(spec, tiny_policy, args, script=play), "reward"))

    assert ["elm", "elm", "oak", "oak"] == [each["word"] for each in seen[1][:4]]
    assert seen[0] == seen[1]
    assert rewards[0] == rewards[1]


def test_failures_leave_rollouts_unscored_and_training_goes_on(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A reset or a tool that fails gives None with its reason, whatever the reward functions say; others train on."""
    records: list[RolloutRecord] = []
    rows = Dataset.from_dict({"fails": ["reset", "tool", "refuse"]})
    source = TRLSource(train_dataset=rows, environment_factory=Fails, reward_funcs=lambda **_: [1.0] * 2)
    spec = MultiOpenRewardSpec(
        {"fails": source, "echo": ORSSource(echo_server.url)}, on_rollouts=records.extend, num_slots=6
    )

    def script(conversation: str, row: int) -> str:
        if "<tool_response>" in conversation or "nothing to do" in conversation:
            return "done"
        return call("press") if "Count." in conversation else play_well(conversation, row)

    args = make_arguments(spec, tmp_path, per_device_train_batch_size=4, num_generations=2)
    trainer = train(spec, tiny_policy, args, script=script)
    by_task = {record.task_index: record for record in records if record.source == "fails"}

    assert {0: "unreachable", 1: "tool_error", 2: None} == {index: each.reason for index, each in by_task.items()}
    assert {0: None, 1: None, 2: 1.0} == {index: each.reward for index, each in by_task.items()}
    assert 3 == len(logged(trainer, "env/echo/reward"))


def test_a_failure_can_end_the_training(tiny_policy: Path, tmp_path: Path) -> None:
    """`on_failure="stop"` holds for these environments too."""
    rows = Dataset.from_dict({"fails": ["reset"]})
    source = TRLSource(train_dataset=rows, environment_factory=Fails, on_failure="stop")
    spec = MultiOpenRewardSpec({"fails": source}, num_slots=2)
    args = make_arguments(spec, tmp_path, per_device_train_batch_size=4, num_generations=2)

    with pytest.raises(SessionError, match="source 'fails': a rollout failed, and on_failure='stop' ends the training"):
        train(spec, tiny_policy, args, script=lambda *_: "done")


def test_async_tools_and_rewards_train_and_are_evaluated(tiny_policy: Path, tmp_path: Path) -> None:
    """TRL awaits the tools of a class, and the column awaits its reward; so it is in TRL's own evaluation."""
    records: list[RolloutRecord] = []
    source = TRLSource(train_dataset=guess_rows("oak"), environment_factory=Oven)
    spec = MultiOpenRewardSpec({"oven": source}, on_rollouts=records.extend, num_slots=2)
    evaluating = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 2}
    args = make_arguments(spec, tmp_path, per_device_train_batch_size=4, num_generations=2, **evaluating)

    def script(conversation: str, row: int) -> str:
        return "done" if "<tool_response>" in conversation else call("bake", word="oak" if row % 2 else "elm")

    trainer = train(spec, tiny_policy, args, script=script, eval_dataset=spec.eval_dataset)

    assert [0.0, 1.0] * 3 == [record.reward for record in records]
    assert [0, 0, 1, 1, None, None] == [record.slot for record in records]
    assert [0.5] == logged(trainer, "eval_env/oven/reward")
    assert {("bake", "guessed oak"), ("bake", "guessed elm")} == {
        (step.tool, step.output) for record in records for step in record.steps
    }


def test_harbor_tasks_train_beside_ors(echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """TRL's own HarborSpec on a folder of tasks, with its rows, its loop and its reward; the sandbox is a folder here.

    One verifier fails, and its rollouts are unscored.
    """
    records: list[RolloutRecord] = []
    harbor = make_harbor_spec(tmp_path / "suite", {"broken": "", "one": "4", "two": "6"})
    spec = MultiOpenRewardSpec(
        {"harbor": harbor, "echo": ORSSource(echo_server.url)}, on_rollouts=records.extend, num_slots=6
    )

    def script(conversation: str, row: int) -> str:
        if "Answer " not in conversation:
            return play_well(conversation, row)
        if "<tool_response>" in conversation:
            return "done"
        right = "4" if "Answer one" in conversation else "6"
        return call("bash", command=f"printf {right if row % 2 else 0} > answer.txt; cat answer.txt")

    train(spec, tiny_policy, make_arguments(spec, tmp_path / "out", **SHAPE | {"max_steps": -1}), script=script)
    played = [record for record in records if record.source == "harbor"]

    assert {("broken", None), ("one", 0.0), ("one", 1.0), ("two", 0.0), ("two", 1.0)} == {
        (("broken", "one", "two")[record.task_index or 0], record.reward) for record in played
    }
    assert {"tool_error"} == {record.reason for record in played if record.task_index == 0}
    assert {"0", "4", "6"} == {step.output for record in played for step in record.steps if record.task_index}
    assert all(record.reward is not None for record in records if record.source == "echo")
