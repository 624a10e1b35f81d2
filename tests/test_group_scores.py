"""Environments that compare the rollouts of a group: who is compared, when, once, and what a failure means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiors import GroupScore, MultiOpenRewardSpec, ORSSource, RolloutRecord, SourceReward
from multiors.errors import ConfigError, RewardError, SessionError
from multiors.ors.rollouts.comparison import as_candidate
from tests.playing import factories, play, score
from tests.scripted import ConcurrentScriptedTrainer, ScriptedTrainer, call, make_arguments, train
from tests.servers.launch import ServerHandle, serve

SHAPE = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 1}


@pytest.fixture(scope="module")
def judge() -> Iterator[ServerHandle]:
    """`Judged`, and an environment that compares nothing."""
    with serve("Judged", "Echo") as server:
        yield server


def make_spec(server: ServerHandle, *, split: str = "train", **options: Any) -> MultiOpenRewardSpec:
    """One source whose groups are compared."""
    reward = SourceReward(**{"parts": (GroupScore(weight=0.5),), **options})
    return MultiOpenRewardSpec({"judged": ORSSource(server.url, env_name="judged", split=split, reward=reward)})


def write(conversation: str, row: int) -> str:
    """Draft, then answer with as many letters as the row says; the second of each group marks itself as well."""
    if "<tool_response>" not in conversation:
        return call("mark") if row % 4 == 1 else call("draft", text="x")
    return "a" * (row % 4 + 1)


def completion(text: str) -> list[dict[str, Any]]:
    """A completion of one message."""
    return [{"role": "assistant", "content": text}]


def scored(spec: MultiOpenRewardSpec, texts: list[str], *, tool: str = "draft", slots: list[int] | None = None) -> Any:
    """The rewards of rollouts that call a tool and end in words."""
    arguments = {"text": "x"} if tool == "draft" else {}
    environments = [play(factories(spec)["judged"], (tool, arguments)) for _ in texts]
    rows = {"completions": [completion(text) for text in texts], "slot": slots or [0] * len(texts)}
    return score(spec.reward_funcs, [("judged", each) for each in environments], **rows).rewards["judged"]


@pytest.mark.parametrize("trainer_class", [ScriptedTrainer, ConcurrentScriptedTrainer])
@pytest.mark.parametrize("tools", ["separate", "union"])
def test_each_group_is_compared_once_and_scores_are_its_own(
    trainer_class: Any, tools: Any, judge: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Every rollout has the score of its own place in its group, beside what its tools scored; one call a group."""
    judge.reset_counts()
    records: list[RolloutRecord] = []
    spec = MultiOpenRewardSpec(
        {
            "judged": ORSSource(
                judge.url, env_name="judged", reward=SourceReward(parts=(GroupScore(weight=0.5),)), weight=1.0
            ),
            "echo": ORSSource(judge.url, env_name="echo", weight=1.0),
        },
        tools=tools,
        on_rollouts=records.extend,
    )
    arguments = make_arguments(spec, tmp_path, **SHAPE)
    train(spec, tiny_policy, arguments, script=write, trainer_class=trainer_class)
    counts = judge.wait_until(lambda counts: not counts.active)
    mine = [record for record in records if record.source == "judged"]

    assert {1.0: 1, 2.0: 1, 3.0: 1, 4.0: 1} == Counter(record.parts["group_score"] for record in mine)
    assert all(float(len(record.messages[-1]["content"])) == record.parts["group_score"] for record in mine)
    assert [0.5 * len(r.messages[-1]["content"]) + (r.outcome or 0.0) for r in mine] == [r.reward for r in mine]
    assert {0.25, None} == {record.outcome for record in mine}
    assert 1 == counts.requests["POST /{env}/score_group"]
    assert counts.opened == counts.deleted


def test_groups_are_told_apart_by_their_slot(judge: ServerHandle) -> None:
    """Two groups of a batch are two comparisons, however their rows lie."""
    judge.reset_counts()
    rewards = scored(make_spec(judge), ["a", "aa", "aaa", "aaaa"], slots=[5, 6, 5, 6])

    assert [0.5, 1.0, 1.5, 2.0] == rewards
    assert 2 == judge.counts().requests["POST /{env}/score_group"]


@pytest.mark.parametrize(("split", "said"), [("raises", "could not be compared"), ("too_few", "returned 1 scores for")])
def test_a_comparison_that_fails_scores_nobody(judge: ServerHandle, split: str, said: str) -> None:
    """Rollouts that could not be compared are unscored for the environment's fault, whatever their tools scored."""
    spec = make_spec(judge, split=split, unscored=-1.0)
    unmarked = [play(factories(spec)["judged"], ("draft", {"text": "x"})) for _ in range(2)]
    marked = [play(factories(spec)["judged"], ("mark", {})) for _ in range(2)]
    rows = {"completions": [completion("a")] * 4, "slot": [0, 0, 1, 1]}
    rewards = score(spec.reward_funcs, [("judged", each) for each in [*unmarked, *marked]], **rows).rewards["judged"]

    assert [None] * 4 == rewards
    assert said in str(unmarked[0]._episode().error)
    assert ["mark"] == [step.tool for step in marked[0]._episode().steps]


def test_a_rollout_whose_environment_failed_is_not_compared(judge: ServerHandle) -> None:
    """What the environment broke off is compared with nobody and stays unscored; the others are compared."""
    spec = make_spec(judge)
    broken = play(factories(spec)["judged"], ("crash", {}))
    whole = [play(factories(spec)["judged"], ("draft", {"text": "x"})) for _ in range(2)]
    rows = {"completions": [completion("aaaa"), completion("a"), completion("aa")], "slot": [0, 0, 0]}
    found = score(spec.reward_funcs, [("judged", each) for each in [broken, *whole]], **rows)

    assert [None, 0.5, 1.0] == found.rewards["judged"]


def test_one_bad_score_is_its_own_rollouts(judge: ServerHandle) -> None:
    """Of a comparison that scores all but one rollout, that one is unscored, and not the worst of its group."""
    assert [0.5, 1.0, None] == scored(make_spec(judge, split="one_nan"), ["a", "aa", "aaa"])


def test_a_rollout_that_failed_after_a_score_is_not_compared(judge: ServerHandle) -> None:
    """An earlier score of its tools does not make a rollout whole that the environment broke off."""
    spec = make_spec(judge)
    broken = play(factories(spec)["judged"], ("mark", {}), ("crash", {}))
    whole = play(factories(spec)["judged"], ("mark", {}))
    rows = {"completions": [completion("aaaa"), completion("a")], "slot": [0, 0]}
    found = score(spec.reward_funcs, [("judged", each) for each in [broken, whole]], **rows)

    assert [None, 0.75] == found.rewards["judged"]


def test_a_comparison_that_is_only_recorded_is_needed_by_nothing(judge: ServerHandle) -> None:
    """With weight 0 a failed comparison leaves what tools scored."""
    spec = make_spec(judge, split="raises", parts=(GroupScore(weight=0),))

    assert [0.25, 0.25] == scored(spec, ["a", "aa"], tool="mark")


def test_a_judge_that_is_away_counts_as_a_failure(judge: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """What ends a training whose environment fails sees a judge that fails, too."""
    reward = SourceReward(parts=(GroupScore(),))
    source = ORSSource(judge.url, env_name="judged", split="raises", reward=reward, on_failure="stop")
    spec = MultiOpenRewardSpec({"judged": source})
    arguments = make_arguments(spec, tmp_path, **SHAPE)

    with pytest.raises(SessionError, match=r"source 'judged': .*tool_error.*could not be compared"):
        train(spec, tiny_policy, arguments, script=lambda text, row: "done" if "marked" in text else call("mark"))


def test_a_score_may_need_a_scored_rollout(judge: ServerHandle) -> None:
    """With scores_alone=False the comparison adds to what tools scored, and scores nothing by itself."""
    spec = make_spec(judge, parts=(GroupScore(scores_alone=False),))

    assert [None, None] == scored(spec, ["a", "aa"])
    assert [1.25, 2.25] == scored(spec, ["a", "aa"], tool="mark")


def test_groups_need_slots_and_completions(judge: ServerHandle) -> None:
    """Without the columns that tell groups apart nothing is guessed."""
    spec = make_spec(judge)
    environment = play(factories(spec)["judged"])

    with pytest.raises(RewardError, match=r"source 'judged': .* cannot be compared without the arguments 'slot'"):
        score(spec.reward_funcs, [("judged", environment)], completions=[completion("a")])


def test_an_environment_that_compares_nothing_cannot_be_asked_to(judge: ServerHandle) -> None:
    """GroupScore() for an environment without score_group is an error before training."""
    source = ORSSource(judge.url, env_name="echo", reward=SourceReward(parts=(GroupScore(),)))

    with pytest.raises(ConfigError, match=r"source 'echo': its reward has GroupScore\(\), and its environment"):
        MultiOpenRewardSpec({"echo": source}).environment_factory  # noqa: B018  # reading it asks the server


def test_a_comparison_that_nobody_asks_for_is_said(judge: ServerHandle) -> None:
    """An environment whose judgement is left out is warned about, in a mix and alone."""
    alone = ORSSource(judge.url, env_name="judged")

    with pytest.warns(UserWarning, match=r"source 'judged': this environment can also score a group's rollouts"):
        MultiOpenRewardSpec({"judged": alone}).environment_factory  # noqa: B018  # reading it asks the server
    with pytest.warns(UserWarning, match=r"source 'judged': this environment can also score a group's rollouts"):
        alone.environment_factory  # noqa: B018  # reading it asks the server


def test_an_asynchronous_trainer_compares_no_groups(judge: ServerHandle) -> None:
    """AsyncGRPOTrainer gives reward columns no environments, so a mix with GroupScore() is refused there."""
    with pytest.raises(ConfigError, match=r"AsyncGRPOTrainer cannot train this mix: it has reward parts"):
        make_spec(judge).for_async()


def test_two_comparisons_are_refused() -> None:
    """An environment compares a group once, so a reward has one such part."""
    with pytest.raises(ConfigError, match=r"GroupScore stands there twice"):
        SourceReward(parts=(GroupScore(), GroupScore(name="again")))


def test_a_group_score_of_no_weight_scores_nothing_alone() -> None:
    """Weight 0 records the comparison without turning unscored rollouts into zeros."""
    assert not GroupScore(weight=0).scores_alone


def test_a_candidate_is_the_completion_in_ors_words() -> None:
    """Tool calls and their results are blocks that belong together, where the environment takes them."""
    said = [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}],
        },
        {"role": "tool", "name": "look", "content": "blue"},
        {"role": "assistant", "content": [{"type": "text", "text": "It is blue."}]},
    ]
    rich = as_candidate(said, ["text", "tool_call", "tool_result"])["messages"]
    plain = as_candidate(said, [])["messages"]

    assert ["assistant", "user", "assistant"] == [message["role"] for message in rich]
    assert rich[0]["blocks"][1]["id"] == rich[1]["blocks"][0]["tool_call_id"]
    assert {"at": "sky"} == rich[0]["blocks"][1]["input"]
    assert ["Let me see.", "It is blue."] == [message["blocks"][0]["text"] for message in plain]
    assert [{"role": "assistant", "blocks": [{"type": "text", "text": "yes"}]}] == as_candidate("yes", [])["messages"]
