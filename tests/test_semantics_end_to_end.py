"""The law of `test_semantics.py` where servers and the trainer are part of it: rules 2, 3, 5, 6, 12 to 14, 17 and 18.

Rules 9, 11, 15 and 16 are proven through the trainer in `test_training_run.py`, 15 and 17 over processes and
interruptions in `test_training_processes.py`, and what 17 says of sessions that cannot be closed in
`test_ors_runtime.py`.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RewardPart, RolloutRecord, SourceReward
from multiors.errors import ConfigError, MultiORSError, RoutingError, SourceError
from tests.playing import factories, play, score
from tests.scripted import ScriptedTrainer, call, make_arguments, train
from tests.servers.launch import Counts, ServerHandle
from tests.servers.raw import serve_raw

SHAPE = {"per_device_train_batch_size": 2, "num_generations": 2}


# -- one step of training with everything that can happen to a rollout


class Run(NamedTuple):
    records: list[RolloutRecord]
    trainer: ScriptedTrainer
    counts: list[Counts]


def play_script(conversation: str, row: int) -> str:
    """Step through the task of `ScriptedRewards` to its end, call `act` once elsewhere."""
    turn = conversation.count("<tool_response>")

    if "ScriptedRewards: " in conversation:
        told = conversation.rpartition("ScriptedRewards: ")[2].partition("<|im_end|>")[0]
        return call("step") if turn < len(json.loads(told)["script"]) else "done"

    return "done" if turn else call("act")


@pytest.fixture(scope="module")
def run(flaky_server: ServerHandle, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One generation batch in which every task of five sources is drawn by one group of two."""

    def half(environments: list[Any], **_: Any) -> list[float]:
        return [0.5] * len(environments)

    records: list[RolloutRecord] = []

    with (
        serve_raw(rewards=("NaN",)) as nan,
        serve_raw(rewards=('"1.0"',)) as text,
        serve_raw(lost_after=0) as lost,
    ):
        sources = {
            "scripts": ORSSource(flaky_server.url, env_name="scriptedrewards"),
            "flaky": ORSSource(flaky_server.url, env_name="flaky", reward=RewardPart(half, weight=0.1)),
            "nan": ORSSource(nan.url, num_tasks=1, reward=SourceReward(unscored=-9.0, unfinished=-9.0)),
            "text": ORSSource(text.url, num_tasks=1),
            "lost": ORSSource(lost.url, num_tasks=1, reward=SourceReward(unscored=-9.0)),
        }
        spec = MultiOpenRewardSpec(sources, weights="tasks", on_rollouts=records.extend)
        args = make_arguments(
            spec,
            tmp_path_factory.mktemp("run"),
            max_steps=1,
            per_device_train_batch_size=36,
            num_generations=2,
        )
        trainer = train(spec, tiny_policy, args, script=play_script)
        yield Run(records, trainer, [server.counts() for server in (flaky_server, nan, text, lost)])


def outcomes(run: Run, source: str) -> dict[int, tuple[float | None, str | None]]:
    """Reward and reason of each task's group, whose two rollouts agree."""
    told = defaultdict(set)
    for record in run.records:
        if record.source == source and record.task_index is not None:
            told[record.task_index].add((record.reward, record.reason and record.reason.value))

    return {index: told[index].pop() for index in sorted(told) if len(told[index]) == 1}


def test_rule_2_the_score_is_what_was_observed_last(run: Run) -> None:
    """2: zeros and negatives are scores, and neither silence nor a failure after a score takes it away."""
    assert {
        0: (1.0, None),  # then no score, then the tool raised
        1: (None, "no_score"),
        2: (0.0, None),
        3: (0.0, None),
        4: (-1.0, None),
        5: (None, "no_score"),  # NaN, for which the SDK's server sends null, as for infinity
        6: (None, "no_score"),
        7: (0.5, None),  # then NaN
    } == outcomes(run, "scripts")


def test_rule_5_a_bad_reward_is_the_servers_error(run: Run) -> None:
    """5: NaN and text as a reward are unscored, counted, and reported with the tool; no choice makes them a number."""
    bad = [record for record in run.records if record.source in ("nan", "text")]

    assert {"nan": {0: (None, "bad_reward")}, "text": {0: (None, "bad_reward")}} == {
        source: outcomes(run, source) for source in ("nan", "text")
    }
    assert {"tool 'act' sent the reward nan", "tool 'act' sent the reward '1.0'"} == {record.error for record in bad}


def test_rule_3_a_part_does_not_score_what_the_environment_did_not(run: Run) -> None:
    """3: the part is added where the environment scored, and a rollout that failed stays unscored beside it."""
    assert {
        0: (1.05, None),
        1: (None, "unreachable"),
        2: (None, "unreachable"),
        3: (None, "unreachable"),
        4: (1.05, None),  # teardown fails after the score
        5: (None, "tool_error"),
        6: (None, "tool_error"),
    } == outcomes(run, "flaky")
    assert {0.5} == {record.parts["half"] for record in run.records if record.source == "flaky"}


def test_rule_6_infrastructure_stays_none(run: Run) -> None:
    """6: `unscored` is for what the policy left undone; a lost session is not that."""
    assert {0: (None, "session_lost")} == outcomes(run, "lost")


def test_rule_1_the_trainer_gets_none_where_there_is_none(run: Run) -> None:
    """1: TRL's own columns are NaN exactly for rollouts without a score and for those of others, never 0.0."""
    columns = run.trainer._logs["rewards"]
    numbers = {name: sum(not math.isnan(value) for value in values) for name, values in columns.items()}

    assert {"scripts": 10, "flaky": 4, "nan": 0, "text": 0, "lost": 0} == numbers
    assert numbers == {
        name: sum(record.reward is not None for record in run.records if record.source == name) for name in columns
    }


def test_rule_1_unscored_rollouts_are_shown(run: Run) -> None:
    """1: each reason is logged per source as a share of its rollouts."""
    (entry,) = [entry for entry in run.trainer.state.log_history if "reward" in entry]

    assert {"scripts": 0.625, "flaky": 2 / 7, "nan": 0.0} == pytest.approx(
        {name: entry[f"env/{name}/scored"] for name in ("scripts", "flaky", "nan")}
    )
    assert 0.375 == entry["env/scripts/unscored/no_score"]
    assert 1.0 == entry["env/nan/unscored/bad_reward"]
    assert pytest.approx(3 / 7) == entry["env/flaky/unscored/unreachable"]
    assert 1.0 == entry["env/lost/unscored/session_lost"]
    assert "env/nan/reward" not in entry


def test_rule_13_a_group_has_one_task_and_one_prompt(run: Run) -> None:
    """13: both rollouts of a slot are of one source and one task, and answer the same prompt."""
    groups = defaultdict(set)
    for record in run.records:
        groups[record.slot].add((record.source, record.task_index))
    prompts = [str(prompt[0]) for prompt in run.trainer._logs["prompt"]]

    assert [1] * 18 == [len(tasks) for tasks in groups.values()]
    assert prompts[::2] == prompts[1::2]


def test_rule_17_whatever_happened_its_session_is_closed(run: Run) -> None:
    """17: scored, failed, lost or raising in its teardown, no rollout leaves a session."""
    assert [{}, {}, {}, {}] == [counts.active for counts in run.counts]


# -- rules that need no training


@pytest.mark.parametrize(
    ("reward", "rewards"),
    [
        (SourceReward(), [1.0, 0.0, None]),
        (SourceReward(unscored=-1.0), [1.0, 0.0, -1.0]),
        (SourceReward(unfinished=-2.0), [1.0, -2.0, -2.0]),
        (SourceReward(unscored=-1.0, unfinished=-2.0), [1.0, -2.0, -2.0]),
    ],
)
def test_rule_6_giving_up_is_scored_as_the_user_says(
    echo_server: ServerHandle, reward: SourceReward, rewards: list[float | None]
) -> None:
    """6: finished, stopped after a score, and never having called are what each choice makes of them."""
    with MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, reward=reward)}) as spec:
        factory = factories(spec)["echo"]
        played = [play(factory, ("echo", {"text": "oak"})), play(factory, ("echo", {"text": "no"})), play(factory)]
        given = score(spec.reward_funcs, [("echo", environment) for environment in played]).rewards

    assert {"echo": rewards} == given


def test_rule_2_a_score_after_the_end_is_not_taken(zoo_server: ServerHandle) -> None:
    """2, 18: after `finished`, calls are answered without the server, and the reward stays."""
    zoo_server.reset_counts()

    with MultiOpenRewardSpec({"count": ORSSource(zoo_server.url, env_name="counting")}) as spec:
        played = play(factories(spec)["count"], *[("bump", {})] * 5)
        rewards = score(spec.reward_funcs, [("count", played)]).rewards
        calls = zoo_server.counts().tool_calls

    assert {"counting": {"bump": 3}} == calls
    assert {"count": [3.0]} == rewards


def test_rule_18_the_trainer_cannot_call_on(zoo_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """18: TRL does not know `finished` and calls on, in one message and in later ones; the server is left in peace."""
    zoo_server.reset_counts()
    records: list[RolloutRecord] = []
    source = ORSSource(zoo_server.url, env_name="counting", indices=[0])
    spec = MultiOpenRewardSpec({"count": source}, on_rollouts=records.extend)
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)

    def script(conversation: str, row: int) -> str:
        calls = {0: 2, 2: 2, 4: 1}  # by the number of answers so far
        return "\n".join([call("bump")] * calls.get(conversation.count("<tool_response>"), 0))

    train(spec, tiny_policy, args, script=script)

    said = [[message["content"] for message in r.messages if message["role"] == "tool"] for r in records]
    finished = "The episode has already finished; this call was not made."
    assert [["n=1", "n=2", "n=3", finished, finished]] * 2 == said
    assert {"counting": {"bump": 6}} == zoo_server.counts().tool_calls
    assert [3.0, 3.0] == [record.reward for record in records]


def test_rule_14_a_tool_reaches_its_own_server(mixed_server: ServerHandle) -> None:
    """14: two sources have a tool `submit`; each call arrives where the row's source lives."""
    sources = {"sort": "sorting", "heat": "thermostat"}
    spec = MultiOpenRewardSpec({name: ORSSource(mixed_server.url, env_name=env) for name, env in sources.items()})
    made = factories(spec)
    mixed_server.reset_counts()

    with spec:
        sort = play(made["sort"], ("submit", {"order": [1, 2, 0]}))
        heat = play(made["heat"], ("submit", {"mode": "cool"}))

    assert ("sorting: [1, 2, 0]", "thermostat: cool") == (sort.last_output, heat.last_output)
    assert {"sorting": {"submit": 1}, "thermostat": {"submit": 1}} == mixed_server.counts().tool_calls


@pytest.mark.parametrize(
    ("env_name", "options", "message"),
    [
        ("emptysplit", {}, r"source 'bad': .*split 'train'"),
        ("echo", {"split": "tran"}, r"source 'bad': .*'tran'"),
        ("ecko", {}, r"source 'bad': environment 'ecko' is not on the server"),
        ("echo", {"indices": [99]}, r"source 'bad': .*99"),
    ],
)
def test_rule_12_a_source_that_cannot_be_used_is_found_before_training(
    zoo_server: ServerHandle, env_name: str, options: dict[str, Any], message: str
) -> None:
    """12: no tasks, no such split, environment or task: an error where the first slot is read."""
    source = ORSSource(zoo_server.url, env_name=env_name, **options)
    spec = MultiOpenRewardSpec({"good": ORSSource(zoo_server.url, env_name="echo"), "bad": source})

    with pytest.raises(SourceError, match=message):
        spec.train_dataset  # noqa: B018  # a slot


def test_rule_12_another_environment_that_answers_is_found_before_training(echo_server: ServerHandle) -> None:
    """12: a server that answers for another environment than the one asked for is an error, as is one that is gone."""
    with serve_raw(answers_as="Other") as server:
        spec = MultiOpenRewardSpec(
            {"raw": ORSSource(server.url, env_name="raw"), "gone": ORSSource("http://127.0.0.1:9")}
        )

        with pytest.raises(SourceError, match=r"(?s)2 sources cannot be used.*'Other' answered") as caught:
            spec.train_dataset  # noqa: B018  # a slot

    assert "source 'gone': the server at http://127.0.0.1:9 cannot be used" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda rows: rows.map(lambda row: {"environment": "ecko"}),
            RoutingError,
            r"environments \['ecko'\], which are",
        ),
        (
            lambda rows: rows.map(lambda row: {"environment": None}),
            RoutingError,
            r"environments \[None\], which are not",
        ),
        (
            lambda rows: rows.remove_columns("slot"),
            ConfigError,
            r"has no columns \['slot'\]\. Give it spec\.train_data",
        ),
        (lambda rows: rows.select([0]), ConfigError, r"has 1 rows that are not the schedule's 2 slots in order"),
        (lambda rows: rows.select([1, 0]), ConfigError, r"has 2 rows that are not the schedule's 2 slots in order"),
    ],
)
def test_rule_12_a_changed_dataset_is_found_before_the_first_step(
    echo_server: ServerHandle,
    tiny_policy: Path,
    tmp_path: Path,
    change: Any,
    error: type[MultiORSError],
    message: str,
) -> None:
    """12: a row that names no source, or rows that are not the schedule, stop the run before anything is generated."""
    echo_server.reset_counts()
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, discover_task_tools=False)})
    args = make_arguments(spec, tmp_path, max_steps=2, **SHAPE)

    with pytest.raises(error, match=message):
        train(spec, tiny_policy, args, train_dataset=change(spec.train_dataset))

    assert {} == echo_server.counts().opened


def test_rule_12_added_columns_do_no_harm(echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """12: a dataset that still is the schedule trains, and the added column reaches the user's functions."""
    seen: list[Any] = []

    def judge(level: list[str], **_: Any) -> list[float]:
        seen.extend(level)
        return [0.0] * len(level)

    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, reward=judge)})
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)
    rows = spec.train_dataset.map(lambda row: {"level": f"level {row['slot']}"})

    train(spec, tiny_policy, args, train_dataset=rows)

    assert ["level 0", "level 0"] == seen
