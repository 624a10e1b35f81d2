"""An episode of an evaluation is recorded as a rollout of a training is: the same policy, the same record.

Each case is played twice, by TRL's own trainer and by the runner, with a policy that follows one script. It reads what
the chat template makes of the conversation, so both see the same text or the script goes astray.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RewardPart, RolloutRecord, SourceReward, UnscoredReason
from multiors.evaluation import Limits, evaluate
from multiors.evaluation.policies import Message, Reply, Start
from tests.evaluated import ScriptedPolicy
from tests.scripted import call, make_arguments, train
from tests.servers.launch import ServerHandle, serve
from tests.servers.raw import serve_raw

pytestmark = pytest.mark.timeout(300)
MAX_TURNS = 3


def read_turn(conversation: str) -> int:
    """How often the policy was answered by tools."""
    return conversation.count("<tool_response>")


def follow(*replies: str) -> Callable[[str, int], str]:
    """The script that says these one after another, whatever is answered, and the last one on and on."""
    return lambda conversation, _: replies[min(read_turn(conversation), len(replies) - 1)]


def say_the_word(conversation: str, _row: int) -> str:
    """Ask `Echo` for a hint, answer wrongly, then rightly."""
    word = conversation.rpartition("Say ")[2].partition(".")[0]
    return [call("hint"), call("echo", text="wrong"), call("echo", text=word), "done"][read_turn(conversation)]


def score_as_written(conversation: str, _row: int) -> str:
    """Take the steps that the task scripts, and one more."""
    found = re.search(r'"script": \[(.*?)\]', conversation)
    num_steps = len(found[1].split(",")) if found else 0
    return call("step") if read_turn(conversation) < num_steps else "done"


def is_brief(completions: Sequence[Any], **_: Any) -> list[float]:
    """The number of messages up to the first that a tool answered."""
    return [float(next(n for n, each in enumerate(messages) if each["role"] != "user")) for messages in completions]


def first_call(completions: Sequence[Any], environments: Sequence[Any], tasks: Sequence[Any], **_: Any) -> list[Any]:
    """Something of everything that a reward function is given; None for the first task."""
    return [
        None if "1.0" in str(task) else len(str(messages[0])) + len(environment.rewards) / 8
        for messages, environment, task in zip(completions, environments, tasks, strict=True)
    ]


async def ask_a_judge(prompts: Sequence[Any], task_index: Sequence[int], **_: Any) -> list[float]:
    """An async function."""
    return [len(prompt[-1]["content"]) + index / 8 for prompt, index in zip(prompts, task_index, strict=True)]


@dataclass(frozen=True)
class Case:
    """What is played, and what must come of it, so that no comparison is of nothing."""

    environment: str
    script: Callable[[str, int], str]
    rewards: Sequence[float | None]
    """By task."""

    reasons: Sequence[UnscoredReason | None]
    reward: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the source."""


R = UnscoredReason
PARTS = SourceReward(
    parts=(RewardPart(first_call, weight=0.5), RewardPart(ask_a_judge), RewardPart(is_brief, weight=0))
)
ALONE = SourceReward(parts=(RewardPart(ask_a_judge, scores_alone=True),))
SCRIPTED: tuple[Sequence[float | None], Sequence[UnscoredReason | None]] = (
    (1.0, None, 0.0, 0.0, -1.0, None, None, 0.5),
    (None, R.NO_SCORE, None, None, None, R.NO_SCORE, R.NO_SCORE, None),
)

CASES = {
    "scores": Case("echo", say_the_word, (1.0,) * 8, (None,) * 8),
    "never_scores": Case("neverscores", follow(call("look"), "nothing"), (None,), (R.NO_SCORE,)),
    "giving_up_is_a_score": Case(
        "neverscores", follow("no"), (-1.0,), (None,), SourceReward(unscored=-1.0, unfinished=-1.0)
    ),
    "does_not_call": Case("echo", follow("I would rather not."), (None,) * 8, (R.NO_TOOL_CALL,) * 8),
    "calls_what_is_not_there": Case("neverscores", follow(call("fly"), "so"), (None,), (R.BAD_CALL,)),
    "refuses_arguments": Case(
        "sorting", follow(call("submit", order="upwards"), call("submit"), "so"), (None,) * 4, (R.BAD_CALL,) * 4
    ),
    "unexpected_argument": Case(
        "neverscores", follow(call("look", at="me"), call("look"), "so"), (None,), (R.NO_SCORE,)
    ),
    "two_calls_at_once": Case(
        "counting",
        follow(call("bump") * 2, "never", call("bump") * 2, "never", "so"),
        (3.0, 4.0),
        (None,) * 2,
    ),
    "too_many_turns": Case("counting", follow(call("bump")), (3.0, 3.0), (None,) * 2),
    "too_many_turns_unscored": Case("neverscores", follow(call("look")), (None,), (R.TRUNCATED,)),
    "steps": Case("scriptedrewards", score_as_written, *SCRIPTED),
    "sum_of_steps": Case(
        "scriptedrewards",
        score_as_written,
        (None, None, 0.0, 1.0, -1.0, None, None, 0.5),
        (R.TOOL_ERROR, R.NO_SCORE, None, None, None, R.NO_SCORE, R.NO_SCORE, None),
        SourceReward(reduction="sum"),
    ),
    "user_functions": Case("scriptedrewards", score_as_written, (), SCRIPTED[1], PARTS),
    "user_function_alone": Case("scriptedrewards", score_as_written, (), (), ALONE),
    "fails": Case(
        "flaky",
        follow(call("rest"), call("act"), call("rest"), "so"),
        (0.5, None, None, None, 0.5, 0.5, 0.5),
        (None, R.UNREACHABLE, R.UNREACHABLE, R.UNREACHABLE, None, None, None),
    ),
    "fails_unscored": Case(
        "flaky",
        follow(call("act"), "so"),
        (1.0, None, None, None, 1.0, None, None),
        (None, R.UNREACHABLE, R.UNREACHABLE, R.UNREACHABLE, None, R.TOOL_ERROR, R.TOOL_ERROR),
    ),
    "graded": Case("essay", follow(call("topic"), "the sea"), (1.0, 0.0), (None,) * 2),
    "graded_without_a_call": Case("essay", follow("the sun"), (0.0, 1.0), (None,) * 2),
    "ends_in_calls_and_is_not_graded": Case("essay", follow(call("topic")), (None,) * 2, (R.TRUNCATED,) * 2),
    "graded_without_tools": Case("onlyterminal", follow("anything"), (0.5,), (None,)),
    "several_messages": Case("conversation", follow(call("reply", text="yes"), "so"), (1.0,), (None,)),
    "images_dropped": Case("mixedprompt", follow(call("look"), "so"), (1.0,), (None,), options={"images": "drop"}),
    "only_an_image": Case(
        "imageprompt", follow(call("look"), "so"), (None,), (R.UNREACHABLE,), options={"images": "drop"}
    ),
}


@pytest.fixture(scope="module")
def server() -> Any:
    """All environments of the cases."""
    names = "Echo NeverScores Sorting Counting ScriptedRewards Flaky Essay OnlyTerminal Conversation MixedPrompt"
    with serve(*names.split(), "ImagePrompt") as handle:
        yield handle


def read_reply(tokenizer: Any, text: str, prefix: Sequence[int], tools: Any) -> Message:
    """The message that TRL makes of a completion."""
    from trl.chat_template_utils import parse_response

    message: Message = parse_response(
        tokenizer, tokenizer(f"{text}<|im_end|>")["input_ids"], prefix=prefix, tools=tools
    )
    return message


def make_policy(script: Callable[[str, int], str], folder: Path) -> ScriptedPolicy:
    """The policy that follows a trainer's script, reading and writing through the same tokenizer."""
    from transformers import AutoTokenizer
    from trl.chat_template_utils import add_response_schema

    tokenizer = add_response_schema(AutoTokenizer.from_pretrained(folder))

    def reply(start: Start, messages: list[Message]) -> Reply:
        ids = tokenizer.apply_chat_template(
            messages, tools=list(start.tools) or None, add_generation_prompt=True, return_dict=False
        )
        text = script(tokenizer.decode(ids), 0)
        return Reply(read_reply(tokenizer, text, ids, list(start.tools) or None))

    return ScriptedPolicy(reply)


def make_source(case: Case, url: str) -> ORSSource:
    """The source of a case; each time another one, as a user writes it twice."""
    return ORSSource(url, env_name=case.environment or None, reward=case.reward, retries=0, **case.options)


def record_training(case: Case, url: str, policy: Path, folder: Path) -> list[RolloutRecord]:
    """One rollout of each task, by task; every task has two, of which one is kept."""
    records: list[RolloutRecord] = []
    source = make_source(case, url)
    size = len(source.task_list.indices)
    spec = MultiOpenRewardSpec({"only": source}, on_rollouts=records.extend)
    args = make_arguments(
        spec,
        folder,
        max_steps=1,
        num_generations=2,
        per_device_train_batch_size=2 * size,
        max_tool_calling_iterations=MAX_TURNS,
        max_completion_length=2048,
    )
    train(spec, policy, args, script=case.script)
    return list({record.task_index: record for record in records}.values())


def record_evaluation(case: Case, url: str, policy: Path, folder: Path) -> list[RolloutRecord]:
    """One episode of each task."""
    run = evaluate(
        {"only": make_source(case, url)},
        make_policy(case.script, policy),
        folder,
        episodes_per_task=1,
        limits=Limits(max_turns=MAX_TURNS),
        retries=0,
    )
    return list(run.episodes())


def cut_where_it_ended(trained: RolloutRecord, played: RolloutRecord) -> RolloutRecord:
    """What a trainer recorded, without what it went on with when nothing could count any more."""
    ended = played.finished or played.reason is R.UNREACHABLE
    ended = ended or any(step.failure in (R.TOOL_ERROR, R.SESSION_LOST) for step in played.steps)

    if not ended:
        return trained

    return replace(trained, steps=trained.steps[: len(played.steps)], messages=trained.messages[: len(played.messages)])


def show(record: RolloutRecord) -> dict[str, Any]:
    """What both must have in common."""
    values = record.to_json()
    shared = ("source", "task_index", "reward", "outcome", "parts", "reason", "error", "finished", "messages", "prompt")
    return {name: values[name] for name in shared} | {"steps": [{**step, "duration_s": 0} for step in values["steps"]]}


def compare(case: Case, url: str, policy: Path, folder: Path) -> list[RolloutRecord]:
    """Play a case both ways; the records of the evaluation, which are those of the training."""
    trained, played = (
        sorted(play_once(case, url, policy, folder / play_once.__name__), key=lambda record: record.task_index or 0)
        for play_once in (record_training, record_evaluation)
    )

    assert len(trained) == len(played)
    assert [show(cut_where_it_ended(*pair)) for pair in zip(trained, played, strict=True)] == [*map(show, played)]
    return played


@pytest.mark.parametrize("name", CASES)
def test_an_episode_is_recorded_as_a_rollout_is(
    name: str, server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Reward, outcome, parts, reason, error, steps, messages and prompt are the same."""
    case = CASES[name]
    played = compare(case, server.url, tiny_policy, tmp_path)

    assert list(case.rewards or [r.reward for r in played]) == [r.reward for r in played]
    assert list(case.reasons or [r.reason for r in played]) == [r.reason for r in played]
    assert not case.reward or not case.reward.parts or all(r.parts for r in played)
    assert {} == server.wait_until(lambda counts: not counts.active).active


ACT = follow(call("act", text="a"), call("act", text="b"), "so")

RAW_CASES: dict[str, tuple[dict[str, Any], Case]] = {
    "bad_rewards": (
        {"rewards": ("NaN",)},
        Case("", ACT, (None,) * 4, (R.BAD_REWARD,) * 4),
    ),
    "a_bad_reward_after_a_score": (
        {"rewards": ("1.0", "1e400")},
        Case("", ACT, (1.0,) * 4, (None,) * 4),
    ),
    "lost_sessions": (
        {"lost_after": 0},
        Case("", ACT, (None,) * 4, (R.SESSION_LOST,) * 4, SourceReward(unscored=0.0)),
    ),
    "sessions_lost_after_a_score": (
        {"lost_after": 1, "rewards": ("0.25",)},
        Case("", ACT, (0.25,) * 4, (None,) * 4),
    ),
    "a_lost_session_makes_a_sum_undefined": (
        {"lost_after": 1, "rewards": ("0.25",)},
        Case("", ACT, (None,) * 4, (R.SESSION_LOST,) * 4, SourceReward(reduction="sum")),
    ),
    "out_of_range": (
        {"rewards": ("7.5",)},
        Case("", ACT, (None,) * 4, (R.BAD_REWARD,) * 4, SourceReward(range=(0.0, 1.0))),
    ),
}


@pytest.mark.parametrize("name", RAW_CASES)
def test_an_episode_on_a_bad_server_is_recorded_as_a_rollout_is(name: str, tiny_policy: Path, tmp_path: Path) -> None:
    """So it is with what the openreward SDK's server never sends: rewards that are no numbers, and lost sessions."""
    scenario, case = RAW_CASES[name]

    with serve_raw(**scenario) as server:
        played = compare(case, server.url, tiny_policy, tmp_path)

    assert list(case.rewards) == [r.reward for r in played]
    assert list(case.reasons) == [r.reason for r in played]
