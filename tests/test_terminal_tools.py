"""Environments that grade the policy's last message: what is submitted, when, how often, and what comes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord, SourceReward, UnscoredReason
from multiors.errors import ConfigError
from multiors.ors.rollouts.submission import find_last_message
from tests.playing import factories, play, score
from tests.scripted import ConcurrentScriptedTrainer, ScriptedTrainer, call, make_arguments, train
from tests.servers.launch import ServerHandle, configured, serve

SHAPE = {"per_device_train_batch_size": 8, "num_generations": 4}


def say(text: str, **fields: Any) -> list[dict[str, Any]]:
    """A completion of one message."""
    return [{"role": "assistant", "content": text, **fields}]


@pytest.mark.parametrize(
    ("completion", "message"),
    [
        (say("the sea"), "the sea"),
        (say(""), ""),
        (say(None), ""),  # type: ignore[arg-type]  # what a parser may leave of an empty message
        ("the sea", "the sea"),
        ([*say("", tool_calls=[{}]), {"role": "tool", "content": "sea"}, *say("the sea")], "the sea"),
        (say("so", tool_calls=[{"type": "function"}]), None),
        ([*say("so", tool_calls=[{}]), {"role": "tool", "content": "sea"}], None),
        ([], None),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "a\nb"),
    ],
)
def test_the_last_message_is_what_ends_a_rollout_in_words(completion: Any, message: str | None) -> None:
    """A rollout that ends in a message without calls has one, also an empty one; others have none."""
    assert message == find_last_message(completion)


def answer(conversation: str, row: int) -> str:
    """Look the word up; then use it, do not use it, call on, or finish at once, by the row."""
    if "<tool_response>" not in conversation:
        return call("topic") if row % 4 else "Something about the sea and the sun."
    if row % 4 == 1:
        return "Of the sea, under the sun."
    return "I do not know." if row % 4 == 2 else call("topic")


@pytest.mark.parametrize("trainer_class", [ScriptedTrainer, ConcurrentScriptedTrainer])
@pytest.mark.parametrize("tools", ["separate", "union"])
def test_the_last_message_is_graded_once(
    trainer_class: Any, tools: Any, zoo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Each rollout that ends in words is graded once, by its own session; one that ends in calls is not."""
    zoo_server.reset_counts()
    records: list[RolloutRecord] = []
    sources = {
        "essay": ORSSource(zoo_server.url, env_name="essay", discover_task_tools=False),
        "echo": ORSSource(zoo_server.url, env_name="echo", discover_task_tools=False),
    }
    spec = MultiOpenRewardSpec(sources, on_rollouts=records.extend, tools=tools)
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)

    train(spec, tiny_policy, args, script=answer, trainer_class=trainer_class)

    essays = sorted((r for r in records if r.source == "essay"), key=lambda record: len(record.steps))
    counts = zoo_server.wait_until(lambda counts: not counts.active)
    assert [1.0, 0.0, 1.0] == [essays[0].reward, *sorted(r.reward for r in essays[1:3] if r.reward is not None)]
    assert [("submit", True)] * 3 == [(r.steps[-1].tool, r.finished) for r in essays[:3]]
    assert (None, UnscoredReason.TRUNCATED) == (essays[3].reward, essays[3].reason)
    assert 3 == counts.tool_calls["essay"]["submit"]


def test_a_tool_without_argument_gets_none(zoo_server: ServerHandle) -> None:
    """A terminal tool may grade the state alone, and an environment may have no other tool."""
    spec = MultiOpenRewardSpec({"only": ORSSource(zoo_server.url, env_name="onlyterminal")})
    scored = score(spec.reward_funcs, [("only", play(factories(spec)["only"]))], completions=[say("anything")])

    assert {"only": [0.5]} == scored.rewards


def test_a_source_alone_submits_too(zoo_server: ServerHandle) -> None:
    """In the place of TRL's spec, the reward function submits what TRL gives it."""
    source = ORSSource(zoo_server.url, env_name="essay")
    environments = [play(source.environment_factory) for _ in range(2)]

    rewards = source.reward_funcs(environments=environments, completions=[say("the sea"), say("the sun")])

    assert [1.0, 0.0] == rewards


def test_without_completions_nothing_is_submitted(zoo_server: ServerHandle) -> None:
    """Who scores by hand and does not say what the policy said has an unscored rollout."""
    spec = MultiOpenRewardSpec({"essay": ORSSource(zoo_server.url, env_name="essay")})
    environment = play(factories(spec)["essay"])

    assert [None] == spec.reward_funcs(environments=[environment])


def test_a_finished_episode_is_not_graded_again(zoo_server: ServerHandle) -> None:
    """After the end of the episode, and on a second scoring, nothing is submitted."""
    spec = MultiOpenRewardSpec({"essay": ORSSource(zoo_server.url, env_name="essay")})
    environment = play(factories(spec)["essay"])
    zoo_server.reset_counts()

    rewards = [spec.reward_funcs(environments=[environment], completions=[say(text)]) for text in ("sea", "none")]

    assert [[1.0], [1.0]] == rewards
    assert {"essay": {"submit": 1}} == zoo_server.counts().tool_calls


def test_submissions_of_a_batch_run_together() -> None:
    """The last messages of a batch are graded at once: each waits for all others here."""
    with serve(configured("tests.servers.waiting:GradedTogether", SIZE=4)) as server:
        spec = MultiOpenRewardSpec({"all": ORSSource(server.url, discover_task_tools=False)})
        rollouts = [("all", play(factories(spec)["all"])) for _ in range(4)]
        scored = score(spec.reward_funcs, rollouts, completions=[say(str(n)) for n in range(4)])

    assert {"all": [0.0, 1.0, 2.0, 3.0]} == scored.rewards


def test_async_functions_go_on_while_a_last_message_is_graded(zoo_server: ServerHandle) -> None:
    """A column with async functions waits for the grade beside TRL's loop, and then calls them."""

    async def praise(environments: list[Any], **_: Any) -> list[float]:
        return [10.0] * len(environments)

    source = ORSSource(zoo_server.url, env_name="essay", reward=praise)
    with MultiOpenRewardSpec({"essay": source}) as spec:
        column: Any = spec.reward_funcs[0]
        environment = play(factories(spec)["essay"], ("topic", {}))
        rewards = asyncio.run(column(environments=[environment], completions=[say("Of the sea, under the sun.")]))

    assert [11.0] == rewards


def test_a_server_that_dies_before_it_grades_leaves_the_rollout_unscored() -> None:
    """A message that was not graded is a lost session, whatever the policy said and whatever giving up costs."""
    records: list[RolloutRecord] = []
    with serve("Essay") as server:
        source = ORSSource(server.url, call_timeout_s=1.0, reward=SourceReward(unscored=0.0))
        spec = MultiOpenRewardSpec({"essay": source}, on_rollouts=records.extend)
        environment = play(factories(spec)["essay"])
        server.kill()
        scored = score(spec.reward_funcs, [("essay", environment)], completions=[say("the sea")])

    assert {"essay": [None]} == scored.rewards
    assert [UnscoredReason.SESSION_LOST] == [record.reason for record in records]


def test_the_async_trainer_refuses_them(zoo_server: ServerHandle) -> None:
    """`AsyncGRPOTrainer` shows no environment what the policy said last, so the sources are named and refused."""
    spec = MultiOpenRewardSpec({"essay": ORSSource(zoo_server.url, env_name="essay")}, num_slots=2)

    with pytest.raises(ConfigError, match=r"the sources \['essay'\] grade the policy's last message"):
        spec.for_async()
