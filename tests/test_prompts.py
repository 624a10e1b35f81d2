"""Prompts with roles: what of an environment's messages reaches the policy, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord
from multiors.errors import RoutingError
from multiors.ors.content import Message, Prompt, ToolCallBlock, ToolResultBlock, put_before, read_messages
from tests.playing import factories, play, score
from tests.scripted import ConcurrentScriptedTrainer, ScriptedTrainer, call, make_arguments, train
from tests.servers.launch import ServerHandle, serve

SHAPE = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 1}
BEFORE = [
    {"role": "system", "content": "You repeat words."},
    {"role": "user", "content": "Hello.\nWho are you?"},
    {"role": "assistant", "content": "An echo."},
]


@pytest.fixture(scope="module")
def talking() -> Iterator[ServerHandle]:
    """`Dialogue` and, beside it, an environment whose prompt is one message."""
    with serve("Dialogue", "Echo") as server:
        yield server


def make_spec(server: ServerHandle, split: str = "train", **options: Any) -> MultiOpenRewardSpec:
    """A mix of both environments."""
    return MultiOpenRewardSpec(
        {
            "talk": ORSSource(server.url, env_name="dialogue", split=split),
            "echo": ORSSource(server.url, env_name="echo"),
        },
        **options,
    )


def repeat(conversation: str, row: int) -> str:
    """Say the word that was asked for last."""
    if "<tool_response>\n" in conversation.rpartition("Say ")[2]:
        return "done"
    tool = "repeat" if "You repeat words." in conversation else "echo"
    return call(tool, text=conversation.rpartition("Say ")[2].partition(".")[0])


@pytest.mark.parametrize("trainer_class", [ScriptedTrainer, ConcurrentScriptedTrainer])
@pytest.mark.parametrize("tools", ["separate", "union"])
def test_roles_reach_the_policy(
    trainer_class: Any, tools: Any, talking: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """In both trainers and modes the policy is given the environment's messages, each in its role and in order."""
    records: list[RolloutRecord] = []
    turns: list[str] = []

    def watched(conversation: str, row: int) -> str:
        turns.append(conversation)
        return repeat(conversation, row)

    spec = make_spec(talking, tools=tools, on_rollouts=records.extend)
    arguments = make_arguments(spec, tmp_path, **SHAPE)
    train(spec, tiny_policy, arguments, script=watched, trainer_class=trainer_class)
    spoken = [record for record in records if record.source == "talk"]
    plain = [record for record in records if record.source == "echo"]
    shown = next(turn for turn in turns if "An echo." in turn)

    assert [4, 4] == [len(spoken), len(plain)]
    assert all([*BEFORE] == list(record.prompt[:-1]) for record in spoken)
    assert all(record.prompt[-1]["content"].startswith("Say ") for record in spoken)
    assert all(1 == len(record.prompt) for record in plain)
    assert {1.0} == {record.reward for record in records}
    assert "You repeat words." in shown.partition("<|im_start|>user")[0]
    assert "<|im_start|>assistant\nAn echo.<|im_end|>" in shown


def test_a_row_is_given_the_messages_once(talking: ServerHandle) -> None:
    """A row that is played again, as for the other rollouts of a group, has them once."""
    with make_spec(talking) as spec:
        row = [{"role": "user", "content": ""}]
        environments = [play(factories(spec)["talk"], prompt=row) for _ in range(3)]

    assert [*BEFORE, {"role": "user", "content": ""}] == row
    assert all(environment._num_messages == 4 for environment in environments)


def test_a_prompt_without_a_row_is_one_text(talking: ServerHandle) -> None:
    """Whoever has no place for messages is given all of them as one text, each under its role."""
    with make_spec(talking) as spec:
        prompt = factories(spec)["talk"]().reset(task_index=0)

    assert (
        "[system]\nYou repeat words.\n\n[user]\nHello.\nWho are you?\n\n[assistant]\nAn echo.\n\n[user]\nSay oak.\n"
        == prompt
    )


def test_the_users_own_system_message_joins_the_environments(talking: ServerHandle) -> None:
    """A chat template takes one system message: the row's, then the environment's."""
    row = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}]
    with make_spec(talking, split="system") as spec:
        environments = [play(factories(spec)["talk"], prompt=row) for _ in range(2)]

    assert {"role": "system", "content": "Be brief.\n\nYou repeat words."} == row[0]
    assert 2 == len(row) == environments[0]._num_messages


def test_calls_in_a_prompt_are_calls_to_the_policy(talking: ServerHandle) -> None:
    """An exchange that an environment shows is what a chat template takes for one."""
    row = [{"role": "user", "content": ""}]
    with make_spec(talking, split="calls") as spec:
        play(factories(spec)["talk"], prompt=row)

    assert [
        {"role": "system", "content": "You repeat words."},
        {"role": "user", "content": "Say yew."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "repeat", "arguments": {"text": "yew"}}}],
        },
        {"role": "tool", "content": "yew"},
    ] == row[:-1]


def test_a_trainer_that_leaves_the_messages_out_is_an_error(talking: ServerHandle) -> None:
    """A trainer that copied the row before the reset shows another prompt, and its rollouts are not scored."""
    spec = make_spec(talking)
    environment = play(factories(spec)["talk"], prompt=[{"role": "user", "content": ""}])
    rows = {"prompts": [[{"role": "user", "content": "Say oak."}]], "completions": [[]], "slot": [0]}

    with pytest.raises(RoutingError, match=r"source 'talk': the environment's prompt makes 4 messages, and .* given 1"):
        score(spec.reward_funcs, [("talk", environment)], **rows)


@pytest.mark.parametrize(
    "messages",
    [
        None,
        {},
        [7],
        [{"role": "god", "blocks": []}],
        [{"role": "user"}],
        [{"role": "user", "blocks": [7]}],
        [{"role": "user", "blocks": [{"type": "text"}]}],
        [{"role": "user", "blocks": [{"type": "text", "text": 7}]}],
        [{"role": "assistant", "blocks": [{"type": "tool_call", "name": "echo", "input": 7}]}],
    ],
)
def test_messages_of_another_form_are_an_error(messages: Any) -> None:
    """What is no list of ORS messages raises one of the errors that make a rollout unreachable."""
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        read_messages(messages or [None])


def test_reasoning_and_unknown_blocks_are_left_out() -> None:
    """A policy is not shown the thoughts of another, nor blocks of kinds that nobody knows yet."""
    blocks = [{"type": "reasoning", "text": "hm"}, {"type": "video", "data": ""}, {"type": "text", "text": "yes"}]

    assert Prompt((Message("assistant", ("yes",)),)) == read_messages([{"role": "assistant", "blocks": blocks}])


def test_equal_prompts_are_equal_values() -> None:
    """Prompts can be compared and counted, which is how random ones are found."""
    first, second = (
        Prompt((Message("user", ("a", ToolResultBlock(("b",)), ToolCallBlock("c", "{}"))),)) for _ in range(2)
    )

    assert {first} == {second}
    assert ("a", "b") == first.all_blocks


def test_nothing_is_put_before_a_row_without_leading_messages() -> None:
    """A prompt of one message leaves the row as it is."""
    row = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}]
    put_before(row, ())

    assert [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}] == row
