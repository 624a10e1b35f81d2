"""The reward columns: what they return, log, record and refuse.

Played by hand where the rule is the column's own (`tests/playing.py`), in TRL's trainer where it is about the two.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RewardPart, RolloutRecord, SourceReward, UnscoredReason
from multiors.errors import RewardError, RoutingError
from tests.playing import Scored, factories, play, score
from tests.scripted import ScriptedTrainer, call, make_arguments, play_well, train
from tests.servers.launch import ServerHandle

RIGHT = ("echo", {"text": "oak"})
WRONG = ("echo", {"text": "no"})
HEAT = ("submit", {"mode": "heat"})
SHAPE = {"per_device_train_batch_size": 8, "num_generations": 2}


def mix(echo: ServerHandle, mixed: ServerHandle, *, reward: Any = None, **options: Any) -> MultiOpenRewardSpec:
    """`Echo`, whose reward is the given one, and `Thermostat`."""
    return MultiOpenRewardSpec(
        {"echo": ORSSource(echo.url, reward=reward), "heat": ORSSource(mixed.url, env_name="thermostat")}, **options
    )


class Batch(NamedTuple):
    scored: Scored

    given: list[list[RolloutRecord]]
    """What `on_rollouts` was called with, call after call."""


@pytest.fixture(scope="module")
def batch(echo_server: ServerHandle, mixed_server: ServerHandle) -> Iterator[Batch]:
    """Four rollouts of two sources: scored, refused, without a call, and one of `heat`."""
    given: list[list[RolloutRecord]] = []

    with mix(echo_server, mixed_server, on_rollouts=given.append) as spec:
        echo, heat = factories(spec).values()
        rollouts = [
            ("echo", play(echo, WRONG, RIGHT)),
            ("heat", play(heat, ("read", {}), HEAT)),
            ("echo", play(echo, ("echo", {"no_such": 1}))),
            ("echo", play(echo, task_index=3)),
        ]
        yield Batch(score(spec.reward_funcs, rollouts, slot=[0, 1, 2, 3]), given)


# -- values


def test_a_column_is_none_for_the_rollouts_of_others(batch: Batch) -> None:
    """Each source's column has a number only where a rollout is its own and was scored."""
    assert {"echo": [1.0, None, None, None], "heat": [None, 1.0, None, None]} == batch.scored.rewards


def test_records_say_what_each_rollout_did(batch: Batch) -> None:
    """One record per rollout, one call per source: task, slot, reward or reason, steps."""
    records = [record for call in batch.given for record in call]
    told = [(r.source, r.task_index, r.slot, r.reward, r.reason, r.finished, len(r.steps)) for r in records]

    assert [["echo"] * 3, ["heat"]] == [[record.source for record in call] for call in batch.given]
    assert [
        ("echo", 0, 0, 1.0, None, True, 2),
        ("echo", 0, 2, None, UnscoredReason.BAD_CALL, False, 1),
        ("echo", 3, 3, None, UnscoredReason.NO_TOOL_CALL, False, 0),
        ("heat", 0, 1, 1.0, None, True, 2),
    ] == told


def test_metrics_have_one_value_per_rollout(batch: Batch) -> None:
    """TRL averages what it is given, so each rollout gives one value; unscored ones give no reward."""
    metrics = batch.scored.metrics

    assert [1.0] == metrics["env/echo/reward"]
    assert [1.0, 0.0, 0.0] == metrics["env/echo/scored"]
    assert [1.0, 0.0, 0.0] == metrics["env/echo/finished"]
    assert [2.0, 1.0, 0.0] == metrics["env/echo/tool_calls"]
    assert [0.0, 1.0, 0.0] == metrics["env/echo/tool_errors"]
    assert [0.0, 0.0, 1.0] == metrics["env/echo/unscored/no_tool_call"]
    assert [1.0, 0.0, 1.0, 1.0] == metrics["env/echo/share"]
    assert [0.0, 1.0, 0.0, 0.0] == metrics["env/heat/share"]
    assert [2.0] == metrics["env/heat/tool_calls"]


def test_metrics_are_named_by_source_and_by_all_eight_reasons(batch: Batch) -> None:
    """Names are `env/<source>/...` and the same for each source that has rollouts."""
    what = ["reward", "scored", "finished", "tool_calls", "tool_errors", "share"]
    what += [f"unscored/{reason}" for reason in UnscoredReason]
    names = {f"env/{source}/{name}" for source in ("echo", "heat") for name in what}

    assert names == set(batch.scored.metrics)


def test_the_table_says_whose_rollout_a_row_is(batch: Batch) -> None:
    """The completions table gets one complete column with the source of each rollout, logged once."""
    assert {"environment": ["echo", "heat", "echo", "echo"]} == batch.scored.extra


def test_a_source_absent_from_a_batch_logs_its_share_only(
    echo_server: ServerHandle, mixed_server: ServerHandle
) -> None:
    """A mean of nothing is no number, so only the share is logged: it really was 0."""
    with mix(echo_server, mixed_server) as spec:
        echo = factories(spec)["echo"]
        metrics = score(spec.reward_funcs, [("echo", play(echo, RIGHT))]).metrics

    assert {"env/heat/share": [0.0]} == {name: values for name, values in metrics.items() if "heat" in name}


# -- sessions


def test_a_session_ends_when_its_rollout_was_scored(echo_server: ServerHandle, mixed_server: ServerHandle) -> None:
    """Scoring closes the sessions of that source; what was observed stays readable."""
    with mix(echo_server, mixed_server) as spec:
        echo, heat = factories(spec).values()
        rollouts = [("echo", play(echo, RIGHT)), ("heat", play(heat, HEAT))]
        score(spec.reward_funcs[:1], rollouts)
        closed = echo_server.wait_until(lambda counts: not counts.active)
        open_still = mixed_server.counts().active

    assert ({}, {"thermostat": 1}) == (closed.active, open_still)
    assert ([1.0], True) == (rollouts[0][1].rewards, rollouts[0][1].finished)


def test_an_error_in_a_column_ends_the_sessions_of_the_batch(
    echo_server: ServerHandle, mixed_server: ServerHandle
) -> None:
    """Nobody comes back for the sessions of a batch whose scoring failed, not even those of other sources."""

    def broken(**_: Any) -> list[float]:
        raise OSError("the judge is down")

    with mix(echo_server, mixed_server, reward=broken) as spec:
        echo, heat = factories(spec).values()
        rollouts = [("echo", play(echo, RIGHT)), ("heat", play(heat, HEAT))]

        with pytest.raises(OSError, match="the judge is down"):
            score(spec.reward_funcs, rollouts)

        active = [server.wait_until(lambda counts: not counts.active).active for server in (echo_server, mixed_server)]

    assert [{}, {}] == active


# -- the user's functions


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], r"source 'echo': reward function 'judge' returned 1 values for 2 rollouts\. Return a list"),
        ([1.0, math.nan], r"source 'echo': reward function 'judge', rollout 1: nan is not a finite number"),
        ([np.float64("inf"), 0], r"source 'echo': reward function 'judge', rollout 0: .*inf.* is not a finite number"),
        (
            ["1", "0"],
            r"source 'echo': reward function 'judge', rollout 0: '1' is not a finite number\. Return a number",
        ),
        ("10", r"source 'echo': reward function 'judge' returned '10' for 2 rollouts"),
        (None, r"source 'echo': reward function 'judge' returned None for 2 rollouts"),
        (0.5, r"source 'echo': reward function 'judge' returned 0\.5 for 2 rollouts"),
    ],
)
def test_a_function_that_breaks_its_contract_is_named(
    echo_server: ServerHandle, mixed_server: ServerHandle, values: Any, message: str
) -> None:
    """The error says which source's which function returned what, for which rollout."""

    def judge(**_: Any) -> Any:
        return values

    with mix(echo_server, mixed_server, reward=judge) as spec:
        echo, heat = factories(spec).values()
        rollouts = [("echo", play(echo, RIGHT)), ("heat", play(heat)), ("echo", play(echo, RIGHT))]

        with pytest.raises(RewardError, match=message):
            score(spec.reward_funcs, rollouts)


def test_an_async_function_is_held_to_the_same_contract(echo_server: ServerHandle, mixed_server: ServerHandle) -> None:
    """What an async function returns is checked like any other's."""

    async def judge(environments: list[Any], **_: Any) -> list[float]:
        return [0.0] * (len(environments) + 1)

    with mix(echo_server, mixed_server, reward=judge) as spec:
        column: Any = spec.reward_funcs[0]
        environment = play(factories(spec)["echo"], RIGHT)

        with pytest.raises(
            RewardError, match=r"source 'echo': reward function 'judge' returned 2 values for 1 rollouts"
        ):
            asyncio.run(column(environments=[environment], environment=["echo"]))

        active = echo_server.wait_until(lambda counts: not counts.active).active

    assert {} == active


def test_a_functions_arguments_are_cut_down_to_its_source(
    echo_server: ServerHandle, mixed_server: ServerHandle
) -> None:
    """Lists with one entry per rollout are cut down, anything else is passed as it is, and tasks are decoded."""
    seen: dict[str, Any] = {}

    def judge(**arguments: Any) -> list[None]:
        seen.update(arguments)
        return [None] * len(arguments["environments"])

    with mix(echo_server, mixed_server, reward=judge) as spec:
        echo, heat = factories(spec).values()
        rollouts = [("heat", play(heat)), ("echo", play(echo, RIGHT)), ("echo", play(echo))]
        score(
            spec.reward_funcs, rollouts, slot=[7, 8, 9], task=["{}", '{"n": 1}', None], other=["a"], trainer_state=None
        )

    assert [environment for _, environment in rollouts[1:]] == seen["environments"]
    assert ([8, 9], ['{"n": 1}', None], [{"n": 1}, None]) == (seen["slot"], seen["task"], seen["tasks"])
    assert (["echo", "echo"], ["a"], None) == (seen["environment"], seen["other"], seen["trainer_state"])


def test_a_function_is_not_called_without_rollouts(echo_server: ServerHandle, mixed_server: ServerHandle) -> None:
    """A batch without rollouts of a source does not reach that source's functions."""
    calls: list[int] = []

    def judge(environments: list[Any], **_: Any) -> list[float]:
        calls.append(len(environments))
        return [0.0] * len(environments)

    with mix(echo_server, mixed_server, reward=judge) as spec:
        rollouts = [("heat", play(factories(spec)["heat"], HEAT))]
        rewards = score(spec.reward_funcs, rollouts).rewards

    assert [] == calls
    assert {"echo": [None], "heat": [1.0]} == rewards


def test_log_extra_wants_one_value_per_rollout_of_the_source(
    echo_server: ServerHandle, mixed_server: ServerHandle
) -> None:
    """A function knows its own source's rollouts only, and a wrong number of values is an error."""

    def judge(log_extra: Any, **_: Any) -> list[float]:
        log_extra("note", ["a", "b"])
        return [0.0]

    with mix(echo_server, mixed_server, reward=judge) as spec:
        rollouts = [("echo", play(factories(spec)["echo"], RIGHT))]

        with pytest.raises(
            RewardError, match=r"source 'echo': log_extra\('note', \.\.\.\) got 2 values for 1 rollouts"
        ):
            score(spec.reward_funcs, rollouts)


@pytest.mark.parametrize("column", ["prompt", "completion", "step", "advantage", "environment", "heat"])
def test_log_extra_refuses_the_tables_own_columns(
    echo_server: ServerHandle, mixed_server: ServerHandle, column: str
) -> None:
    """A column named like one of TRL's, ours, or a source would overwrite it in the table."""

    def judge(log_extra: Any, **_: Any) -> list[float]:
        log_extra(column, ["a"])
        return [0.0]

    with mix(echo_server, mixed_server, reward=judge) as spec:
        rollouts = [("echo", play(factories(spec)["echo"], RIGHT))]

        with pytest.raises(RewardError, match=rf"log_extra\('{column}', \.\.\.\): the table has a column of that name"):
            score(spec.reward_funcs, rollouts)


def test_sources_may_log_the_same_extra_column(echo_server: ServerHandle, mixed_server: ServerHandle) -> None:
    """One function for several sources fills one column, each row from its own source, rows of others empty."""

    def judge(environments: list[Any], log_extra: Any, **_: Any) -> list[float]:
        log_extra("last", [environment.last_output for environment in environments])
        return [0.0] * len(environments)

    sources = {
        "echo": ORSSource(echo_server.url, reward=judge),
        "heat": ORSSource(mixed_server.url, env_name="thermostat", reward=judge),
        "sort": ORSSource(mixed_server.url, env_name="sorting"),
    }

    with MultiOpenRewardSpec(sources) as spec:
        made = factories(spec)
        columns = spec.reward_funcs
        first = score(columns, [("heat", play(made["heat"], HEAT)), ("echo", play(made["echo"], WRONG))])
        second = score(columns, [("sort", play(made["sort"])), ("echo", play(made["echo"], RIGHT))])
        third = score(columns, [("sort", play(made["sort"]))] * 3)

    assert ["thermostat: heat", "no"] == first.extra["last"]
    assert [None, "oak"] == second.extra["last"]
    assert [None] * 3 == third.extra["last"]


def test_extra_columns_of_an_unfinished_batch_are_forgotten(
    echo_server: ServerHandle, mixed_server: ServerHandle
) -> None:
    """Where not all columns were called, the next batch does not show what the last one left."""

    def judge(environments: list[Any], log_extra: Any, **_: Any) -> list[float]:
        log_extra("last", [environment.last_output for environment in environments])
        return [0.0] * len(environments)

    with mix(echo_server, mixed_server, reward=judge) as spec:
        echo = factories(spec)["echo"]
        columns = spec.reward_funcs
        unfinished = score(columns[:1], [("echo", play(echo, WRONG)), ("echo", play(echo, WRONG))])
        finished = score(columns, [("echo", play(echo, RIGHT))])

    assert ([], ["oak"]) == (unfinished.extra["last"], finished.extra["last"])


# -- called by the user


def test_the_list_itself_gives_one_reward_per_rollout(echo_server: ServerHandle, mixed_server: ServerHandle) -> None:
    """`spec.reward_funcs(environments=...)` is each rollout's reward from its own source, as TRL's spec gives it."""
    with mix(echo_server, mixed_server) as spec:
        echo, heat = factories(spec).values()
        environments = [play(heat, HEAT), play(echo, WRONG), play(echo), play(heat, ("submit", {"mode": "off"}))]
        rewards = spec.reward_funcs(environments=environments)

    assert [1.0, 0.0, None, 0.0] == rewards


def test_the_list_refuses_environments_of_others(echo_server: ServerHandle, mixed_server: ServerHandle) -> None:
    """A rollout that was played in another spec's environment is of no source of this one."""
    with mix(echo_server, mixed_server) as spec, mix(echo_server, mixed_server) as other:
        stranger = play(factories(other)["echo"])

        with pytest.raises(RoutingError, match=r"rollout 0 was played in <echo environment.*of no source of this mix"):
            spec.reward_funcs(environments=[stranger])


def test_the_list_names_what_a_function_needs(echo_server: ServerHandle, mixed_server: ServerHandle) -> None:
    """A function that needs completions cannot be called without them, and the error says so."""

    def judge(completions: list[Any], **_: Any) -> list[float]:
        return [0.0] * len(completions)

    with mix(echo_server, mixed_server, reward=judge) as spec:
        environment = play(factories(spec)["echo"])

        with pytest.raises(RewardError, match=r"source 'echo': a reward function could not be called .*'completions'"):
            spec.reward_funcs(environments=[environment])


def test_the_list_cannot_await(echo_server: ServerHandle, mixed_server: ServerHandle) -> None:
    """Async functions need a trainer's loop, so calling the list is an error that says so."""

    async def judge(environments: list[Any], **_: Any) -> list[float]:
        return [0.0] * len(environments)

    with mix(echo_server, mixed_server, reward=judge) as spec:
        environment = play(factories(spec)["echo"])

        with pytest.raises(RewardError, match=r"source 'echo' has async reward functions, which only a trainer can"):
            spec.reward_funcs(environments=[environment])


def test_a_row_of_no_source_is_refused(echo_server: ServerHandle, mixed_server: ServerHandle) -> None:
    """A name that is not in the mix is an error, not a rollout without a column."""
    with mix(echo_server, mixed_server) as spec:
        environment = play(factories(spec)["echo"])

        with pytest.raises(RoutingError, match=r"rows name the environments \[\"'ecko'\"\], which are not in the mix"):
            score(spec.reward_funcs, [("ecko", environment)])


# -- in the trainer


def test_extra_columns_stay_complete_when_a_source_is_absent(
    echo_server: ServerHandle, mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """With one prompt a batch, sources take turns, and TRL's table never shows values of an earlier batch."""
    tables: list[dict[str, list[Any]]] = []

    def judge(tasks: list[Any], log_extra: Any, **_: Any) -> list[float]:
        log_extra("target", [task["target"] for task in tasks])
        return [0.0] * len(tasks)

    class Watching(ScriptedTrainer):
        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            tables.append({name: list(values) for name, values in self._logs["extra"].items()})
            return super()._calculate_rewards(*args, **kwargs)

    spec = mix(echo_server, mixed_server, reward=judge)
    args = make_arguments(spec, tmp_path, max_steps=3, per_device_train_batch_size=2, num_generations=2)
    trainer = Watching(
        model=str(tiny_policy),
        args=args,
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=spec.reward_funcs,
        callbacks=spec.callbacks,
    )
    trainer.train()
    tables.append({name: list(values) for name, values in trainer._logs["extra"].items()})
    drawn = spec.train_dataset["environment"][:3]

    assert {"echo", "heat"} == set(drawn)
    assert [[name] * 2 for name in drawn] == [table["environment"] for table in tables[1:]]
    assert [name == "echo" for name in drawn] == [any(table.get("target", [])) for table in tables[1:]]


def test_what_left_a_rollout_unscored_is_told_apart(
    zoo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Too many tokens, too many turns, a tool that does not exist, no call and no score are different reasons."""
    records: list[RolloutRecord] = []
    spec = MultiOpenRewardSpec({"none": ORSSource(zoo_server.url, env_name="neverscores")}, on_rollouts=records.extend)
    plans = [
        [call("look"), "and so on " * 100],
        [call("look")] * 4,
        [call("lock"), "done"],
        ["done"],
        [call("look"), "done"],
        [call("look"), call("lock"), "done"],
    ]

    def script(conversation: str, row: int) -> str:
        number = int(conversation.rpartition("Plan ")[2][0]) if "Plan " in conversation else row
        turn = conversation.count("<tool_response>")
        return f"Plan {number}. {plans[number][turn]}"

    args = make_arguments(spec, tmp_path, max_steps=1, per_device_train_batch_size=6, num_generations=2)
    train(spec, tiny_policy, args, script=script)

    assert ["truncated", "truncated", "bad_call", "no_tool_call", "no_score", "no_score"] == [r.reason for r in records]
    assert [1, 3, 0, 0, 1, 1] == [len(r.steps) for r in records]


def test_a_score_survives_a_budget_that_ran_out(echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """A rollout that was scored before its turns ran out keeps its score."""
    records: list[RolloutRecord] = []
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)}, on_rollouts=records.extend)
    args = make_arguments(spec, tmp_path, max_steps=1, per_device_train_batch_size=2, num_generations=2)

    train(spec, tiny_policy, args, script=lambda conversation, row: call("echo", text="never right"))

    assert [(0.0, None, 3)] * 2 == [(r.reward, r.reason, len(r.steps)) for r in records]


def test_users_functions_may_stand_beside_the_columns(
    echo_server: ServerHandle, mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A function appended to the list is TRL's as ever: the whole batch, with a weight appended to the sources'."""
    seen: list[int] = []

    def brevity(completions: list[Any], **_: Any) -> list[float]:
        seen.append(len(completions))
        return [0.5] * len(completions)

    spec = mix(echo_server, mixed_server)
    args = make_arguments(spec, tmp_path, max_steps=1, reward_weights=[*spec.reward_weights, 0.25], **SHAPE)
    trainer = train(spec, tiny_policy, args, reward_funcs=[*spec.reward_funcs, brevity])

    rows = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert ([8], [1.0, 1.0, 0.25]) == (seen, args.reward_weights)
    assert 0.5 == rows[0]["rewards/brevity/mean"]
    assert rows[0]["reward"] == pytest.approx(
        (rows[0]["rewards/echo/mean"] + rows[0]["rewards/heat/mean"]) / 2 + 0.125, abs=1e-4
    )


def test_an_outcome_outside_its_range_says_so(echo_server: ServerHandle, caplog: pytest.LogCaptureFixture) -> None:
    """What is wrong with the declared range stands in each record, and in the log once."""
    records: list[RolloutRecord] = []
    source = ORSSource(echo_server.url, reward=SourceReward(range=(2.0, 3.0)))
    spec = MultiOpenRewardSpec({"echo": source}, on_rollouts=records.extend)
    rollouts = [("echo", play(factories(spec)["echo"], ("echo", {"text": "oak"}))) for _ in range(2)]

    with caplog.at_level("WARNING", logger="multiors.training"):
        scored = score(spec.reward_funcs, rollouts)

    said = [record.getMessage() for record in caplog.records]
    assert {"echo": [None, None]} == scored.rewards
    assert ["the outcome 1.0 is outside the declared range=(2.0, 3.0)"] * 2 == [record.error for record in records]
    assert 1 == len(said)
    assert said[0].startswith("source 'echo': the outcome 1.0 is outside the declared range=(2.0, 3.0), so")


def test_parts_without_weight_are_recorded_only(
    echo_server: ServerHandle, mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A part of weight 0 is in the records and changes no reward; one that scores alone scores unscored rollouts."""
    records: list[RolloutRecord] = []

    def length(completions: list[Any], **_: Any) -> list[float]:
        return [float(len(completion)) for completion in completions]

    parts = (RewardPart(length, weight=0.0), RewardPart(length, weight=0.5, name="alone", scores_alone=True))
    spec = mix(echo_server, mixed_server, reward=SourceReward(parts=parts), on_rollouts=records.extend)
    script = lambda conversation, row: "nothing" if row % 2 else play_well(conversation, row)  # noqa: E731  # a script
    train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=1, **SHAPE), script=script)

    echoes = [(r.outcome is None, r.reward, dict(r.parts)) for r in records if r.source == "echo"]
    assert [(True, 0.5, {"length": 1.0, "alone": 1.0})] * 2 == [told for told in echoes if told[0]]
    assert {None} == {r.reward for r in records if r.source == "heat" and r.outcome is None}
