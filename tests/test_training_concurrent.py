"""The trainer whose environments open and answer at once gives what TRL's own gives, and gives it together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer
from trl.experimental.openreward import OpenRewardSpec

from multiors import (
    ConcurrentGRPOTrainer,
    ConcurrentRollouts,
    MultiOpenRewardSpec,
    ORSSource,
    RolloutRecord,
    UnscoredReason,
)
from multiors.errors import RoutingError
from multiors.training.concurrent import _Turns, find_changed_methods
from tests.scripted import (
    ConcurrentScriptedTrainer,
    ScriptedTrainer,
    call,
    make_arguments,
    make_trainer,
    small_fields,
    train,
)
from tests.servers.launch import ServerHandle, configured, serve

SHAPE = {"per_device_train_batch_size": 8, "num_generations": 4}
KEPT = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages")


class Recording:
    """Keeps what each generation batch came to, before any other trainer class sees it."""

    batches: list[dict[str, Any]]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]  # stands before a trainer
        self.batches.append({name: output[name] for name in KEPT if output.get(name) is not None})
        return output


class Stock(Recording, ScriptedTrainer):
    """TRL's trainer."""


class Concurrent(Recording, ConcurrentScriptedTrainer):
    """Ours."""


@pytest.fixture(scope="module")
def counting_server() -> Iterator[ServerHandle]:
    """`Counting`, `Flaky` and `ScriptedRewards` on one server."""
    with serve("Counting", "Flaky", "ScriptedRewards") as server:
        yield server


def play_variously(conversation: str, row: int) -> str:
    """Everything a policy may do, by the row: many calls at once, wrong ones, none, long ones, and turn after turn."""
    num_turns = conversation.count("<tool_response>")
    bump, rest = call("bump"), call("act") + call("rest")

    if "Counting" in conversation:
        wrong, unknown, long = call("bump", x=1) + bump, bump + call("nothing") + bump, bump + "x" * 400
        plays = [bump * 4, unknown, "No.", bump, long, wrong, bump, ""]
        return plays[row % 8] if num_turns < 6 else "done"
    if "Flaky" in conversation:
        return rest if num_turns < 2 else "done"
    return call("step") * 2 if num_turns < 4 else "done"


def make_mix(server: ServerHandle, records: list[RolloutRecord], **options: Any) -> MultiOpenRewardSpec:
    """Three sources whose calls succeed, fail, finish and are refused."""
    return MultiOpenRewardSpec(
        {
            "count": ORSSource(server.url, env_name="counting", weight=2.0),
            "flaky": ORSSource(server.url, env_name="flaky", discover_task_tools=False, weight=1.0),
            "score": ORSSource(server.url, env_name="scriptedrewards", weight=1.0),
        },
        on_rollouts=records.extend,
        **options,
    )


def run(trainer_class: Any, server: ServerHandle, policy: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """What a run of two steps came to."""
    server.reset_counts()
    records: list[RolloutRecord] = []
    spec = make_mix(server, records, **options)
    args = make_arguments(spec, folder, max_steps=2, **SHAPE | {"per_device_train_batch_size": 16})
    trainer_class.batches = []
    set_seed(7)
    trainer = train(spec, policy, args, script=play_variously, trainer_class=trainer_class)
    counts = server.wait_until(lambda counts: not counts.active and counts.opened == counts.deleted)

    return {
        "batches": trainer_class.batches,
        "weights": {name: value.clone() for name, value in trainer.model.state_dict().items()},
        "records": [_without_times(record) for record in records],
        "tool_calls": counts.tool_calls,
        "opened": counts.opened,
        "log": [
            {name: value for name, value in entry.items() if "time" not in name and "per_second" not in name}
            for entry in trainer.state.log_history
        ],
    }


def _without_times(record: RolloutRecord) -> dict[str, Any]:
    values = replace(record, session=None, opening_s=None).to_json()
    for step in values["steps"]:
        del step["duration_s"]
    return values


@pytest.fixture(scope="module", params=["separate", "union"])
def runs(
    request: pytest.FixtureRequest, counting_server: ServerHandle, tiny_policy: Path, tmp_path_factory: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same run by TRL's trainer and by ours, with each source's tools alone and with those of all."""
    folder = tmp_path_factory.mktemp("runs")
    stock, concurrent = (
        run(trainer_class, counting_server, tiny_policy, folder, tools=request.param)
        for trainer_class in (Stock, Concurrent)
    )
    return stock, concurrent


Runs = tuple[dict[str, Any], dict[str, Any]]


def test_completions_and_advantages_are_those_of_trl_bit_for_bit(runs: Runs) -> None:
    """Every token, mask and advantage of every batch is the same."""
    stock, concurrent = runs
    pairs = [
        (ours[name], theirs[name])
        for ours, theirs in zip(concurrent["batches"], stock["batches"], strict=True)
        for name in KEPT
    ]

    assert 2 * len(KEPT) == len(pairs)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_trained_weights_are_those_of_trl_bit_for_bit(runs: Runs) -> None:
    """After two steps the two policies are one."""
    stock, concurrent = runs

    assert stock["weights"].keys() == concurrent["weights"].keys()
    assert all(torch.equal(stock["weights"][name], value) for name, value in concurrent["weights"].items())


def test_rewards_and_records_are_those_of_trl(runs: Runs) -> None:
    """Each rollout made the same calls with the same answers, and has the same reward or the same reason."""
    stock, concurrent = runs
    reasons = Counter(record["reason"] for record in concurrent["records"])

    assert stock["records"] == concurrent["records"]
    assert {"tool_error", "no_score", "no_tool_call", "unreachable"} <= reasons.keys()


def test_the_servers_saw_the_same_calls(runs: Runs) -> None:
    """No tool ran more often than with TRL's trainer, and no more sessions were opened."""
    stock, concurrent = runs

    assert stock["tool_calls"] == concurrent["tool_calls"]
    assert stock["opened"] == concurrent["opened"]


def test_metrics_are_those_of_trl_and_the_unmatched_calls(runs: Runs) -> None:
    """What is logged is the same, tool failures included; one metric more says that no call was made in vain."""
    stock, concurrent = runs
    unmatched = [entry.pop("env/unmatched_calls") for entry in concurrent["log"] if "loss" in entry]

    assert [0.0, 0.0] == unmatched
    assert stock["log"] == concurrent["log"]


def test_a_sampling_policy_says_the_same(counting_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """With tokens sampled at random, the same seed gives the same completions: no random number is drawn here."""
    kept = []
    for trainer_class in (GRPOTrainer, ConcurrentGRPOTrainer):
        spec = make_mix(counting_server, [])
        fields = small_fields(tmp_path) | SHAPE | {"max_steps": 1, "max_completion_length": 12}
        recording: Any = type("Sampling", (Recording, trainer_class), {"batches": []})
        set_seed(3)
        trainer = recording(
            model=str(tiny_policy),
            args=GRPOConfig(**spec.training_arguments(**fields)),
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
            callbacks=spec.callbacks,
        )
        trainer.train()
        kept.append(recording.batches)

    assert len(set(kept[0][0]["completion_ids"].flatten().tolist())) > 12
    assert torch.equal(kept[0][0]["completion_ids"], kept[1][0]["completion_ids"])


# -- together


def test_sessions_open_and_calls_run_together(tiny_policy: Path, tmp_path: Path) -> None:
    """A whole batch opens at once and calls at once: each waits for all others here, so alone none would go on."""
    with serve(configured("tests.servers.waiting:Together", SIZE=8)) as server:
        records: list[RolloutRecord] = []
        source = ORSSource(server.url, discover_task_tools=False)
        spec = MultiOpenRewardSpec({"all": source}, on_rollouts=records.extend)
        args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)
        train(spec, tiny_policy, args, script=work_twice, trainer_class=ConcurrentScriptedTrainer)
        counts = server.counts()

    assert 8 == counts.max_in_flight["POST /{env}/call"]
    assert {"together": {"work": 16}} == counts.tool_calls
    assert [2] * 8 == [len(record.steps) for record in records]


def work_twice(conversation: str, row: int) -> str:
    """Two turns of one call."""
    return call("work") if conversation.count("<tool_response>") < 2 else "done"


def test_a_source_alone_is_concurrent_too(tiny_policy: Path, tmp_path: Path) -> None:
    """One `ORSSource` in the place of TRL's spec, without a mix, opens and answers at once."""
    with serve(configured("tests.servers.waiting:Together", SIZE=4)) as server:
        source = ORSSource(server.url, discover_task_tools=False)
        fields = {"shuffle_dataset": False, "max_steps": 1, "per_device_train_batch_size": 4, "num_generations": 4}
        trainer = train(
            source,
            tiny_policy,
            GRPOConfig(**small_fields(tmp_path), **fields),
            script=work_twice,
            trainer_class=ConcurrentScriptedTrainer,
            callbacks=[],
        )
        active = server.wait_until(lambda counts: not counts.active).active

    assert 1 == trainer.state.global_step
    assert {} == active


def test_calls_of_one_message_run_in_order(counting_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """Three calls of a message are made one after another, and none after the one that ends the episode."""
    counting_server.reset_counts()
    records: list[RolloutRecord] = []
    source = ORSSource(counting_server.url, env_name="counting", indices=[0], discover_task_tools=False)
    spec = MultiOpenRewardSpec({"count": source}, on_rollouts=records.extend)
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)

    train(spec, tiny_policy, args, script=lambda *_: call("bump") * 5, trainer_class=ConcurrentScriptedTrainer)

    assert [["n=1", "n=2", "n=3"]] * 8 == [[step.output for step in record.steps] for record in records]
    assert {"counting": {"bump": 24}} == counting_server.counts().tool_calls


def test_what_is_no_call_starts_nothing(echo_server: ServerHandle) -> None:
    """Whatever a parser may leave in a message, only calls of the environment's tools are started, in their order."""
    environment: Any = ORSSource(echo_server.url, discover_task_tools=False).environment_factory()

    def note() -> str:
        return "noted"

    def calling(name: Any, arguments: Any = None, **fields: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "arguments": arguments or {}}, **fields}

    odd = [
        {},
        {"type": "code"},
        {"type": "function"},
        {"type": "function", "function": "echo"},
        calling(None),
        calling(["x"]),
    ]
    wrong = [calling("nothing"), calling("echo", "oak"), {"type": "function", "function": {"name": "echo"}}]
    right = [calling("echo", {"text": word}) for word in ("oak", "elm")]
    calls = [*odd, *wrong, right[0], calling("note"), right[1]]
    turns = _Turns([environment], [{"echo": environment.echo, "note": note}], [[{"role": "assistant"}]])

    found = turns._find_calls(0, {"role": "assistant", "tool_calls": calls})

    assert [("echo", {"text": "oak"})] == [(tool.name, arguments) for tool, arguments in found]
    assert [] == turns._find_calls(0, {"role": "assistant"})


def test_tools_of_the_users_own_keep_their_place(
    counting_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A tool given to the trainer runs between the environment's calls of its message, as TRL runs it."""
    counting_server.reset_counts()
    seen: list[int] = []

    def note() -> str:
        """Write down how many calls the server has seen."""
        seen.append(counting_server.counts().tool_calls["counting"]["bump"])
        return "noted"

    source = ORSSource(counting_server.url, env_name="counting", indices=[1], discover_task_tools=False)
    spec = MultiOpenRewardSpec({"count": source})
    args = make_arguments(spec, tmp_path, max_steps=1, per_device_train_batch_size=2, num_generations=2)
    train(
        spec,
        tiny_policy,
        args,
        script=lambda text, row: "done" if "response" in text else call("bump") + call("note") + call("bump"),
        trainer_class=ConcurrentScriptedTrainer,
        tools=[note],
    )

    # Both rollouts' first calls are made together; the second ones come after each rollout's note.
    assert [2, 3] == seen
    assert {"bump": 4} == counting_server.counts().tool_calls["counting"]


def test_evaluation_is_concurrent_and_leaves_no_session(tiny_policy: Path, tmp_path: Path) -> None:
    """`evaluate()` opens and calls its batches at once as well."""
    with serve(configured("tests.servers.waiting:Together", SIZE=4)) as server:
        spec = MultiOpenRewardSpec({"all": ORSSource(server.url, discover_task_tools=False)})
        args = make_arguments(
            spec, tmp_path, max_steps=1, **SHAPE | {"per_device_train_batch_size": 4}, per_device_eval_batch_size=4
        )
        trainer = make_trainer(
            spec,
            tiny_policy,
            args,
            script=work_twice,
            trainer_class=ConcurrentScriptedTrainer,
            eval_dataset=spec.train_dataset,
        )
        metrics = trainer.evaluate()
        counts = server.wait_until(lambda counts: not counts.active)

    assert 0.0 == metrics["eval_env/unmatched_calls"]
    assert 4 == counts.max_in_flight["POST /{env}/call"]


def test_environments_of_others_are_played_as_trl_plays_them(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a source, an environment class that is not this library's is reset and called one after another."""

    class Local:
        """Counts its resets."""

        num_resets = 0

        def reset(self, **_: Any) -> str:
            """Begin."""
            Local.num_resets += 1
            return "Local."

        def knock(self) -> str:
            """Knock."""
            return "who is there"

    class Slots:
        """A spec by its slots."""

        train_dataset = OpenRewardSpec(echo_server.url, num_tasks=1, include_metadata=False)
        environment_factory = Local

        @staticmethod
        def reward_funcs(environments: Any, **_: Any) -> list[float]:
            return [1.0] * len(environments)

    from datasets import Dataset

    Slots.train_dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": ""}]], "task_index": [0]})
    records: list[RolloutRecord] = []
    spec = MultiOpenRewardSpec({"local": Slots(), "echo": ORSSource(echo_server.url)}, on_rollouts=records.extend)
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)

    train(
        spec,
        tiny_policy,
        args,
        script=lambda text, _: "done" if "response" in text else call("knock" if "Local" in text else "hint"),
        trainer_class=ConcurrentScriptedTrainer,
    )

    assert 4 == Local.num_resets
    assert {"local": 4, "echo": 4} == Counter(record.source for record in records)
    assert [1] * 4 == [len(record.steps) for record in records if record.source == "echo"]


# -- the end of an episode


class Sampled(Concurrent):
    """Keeps every token that the policy sampled, in order."""

    sampled: list[list[int]]

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        ids, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self.sampled.extend(ids)
        return ids, logprobs


@pytest.mark.parametrize("end_when_finished", [False, True])
def test_a_finished_rollout_may_end_without_another_turn(
    counting_server: ServerHandle, tiny_policy: Path, tmp_path: Path, end_when_finished: bool
) -> None:
    """The turn after the finishing call is left out on request; rewards are the same, and only sampled tokens train."""
    records: list[RolloutRecord] = []
    source = ORSSource(counting_server.url, env_name="counting", indices=[0], discover_task_tools=False)
    spec = MultiOpenRewardSpec({"count": source}, on_rollouts=records.extend)
    Sampled.batches, Sampled.sampled = [], []
    trainer = train(
        spec,
        tiny_policy,
        make_arguments(spec, tmp_path, max_steps=1, **SHAPE),
        script=lambda text, row: "done" if "n=3" in text else call("bump") * (1 + row % 2),
        trainer_class=Sampled,
        end_when_finished=end_when_finished,
    )

    (batch,) = Sampled.batches
    mask = batch["tool_mask"] * batch["completion_mask"]
    trained = Counter(batch["completion_ids"][mask == 1].tolist())
    assert [3.0] * 8 == [record.reward for record in records]
    assert end_when_finished == all(record.messages[-1].get("tool_calls") for record in records)
    assert trained == Counter(token for ids in Sampled.sampled for token in ids)
    assert (20 if end_when_finished else 28) == len(Sampled.sampled)
    assert 0.0 == trainer.state.log_history[0]["completions/clipped_ratio"]


# -- GMPO


class StockGMPO(ScriptedTrainer, GMPOTrainer):
    """TRL's experimental trainer."""


class ConcurrentGMPO(ConcurrentRollouts, ScriptedTrainer, GMPOTrainer):
    """The same with concurrent environments."""


def test_gmpo_trains_on_a_mix_and_may_be_concurrent(
    counting_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """`GMPOTrainer` takes a mix as it is; with the mixin before it, the trained weights are the same bit for bit."""
    trainers = []
    for trainer_class in (StockGMPO, ConcurrentGMPO):
        spec = make_mix(counting_server, [])
        set_seed(1)
        args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)
        trainers.append(train(spec, tiny_policy, args, script=play_variously, trainer_class=trainer_class))

    stock, concurrent = (trainer.model.state_dict() for trainer in trainers)
    assert all(isinstance(trainer, GMPOTrainer) for trainer in trainers)
    assert all(torch.equal(stock[name], value) for name, value in concurrent.items())


# -- one prompt for a group


def test_a_rollout_that_did_not_open_has_the_prompt_of_its_group(tiny_policy: Path, tmp_path: Path) -> None:
    """Where some sessions of a group do not open, all its prompts are equal, and only those rollouts are unscored."""
    with serve("tests.servers.waiting:Unlucky") as server:
        records: list[RolloutRecord] = []
        source = ORSSource(server.url, discover_task_tools=False, retries=0)
        spec = MultiOpenRewardSpec({"luck": source}, on_rollouts=records.extend)
        args = make_arguments(spec, tmp_path, max_steps=2, **SHAPE)
        Concurrent.batches = []
        train(spec, tiny_policy, args, script=lambda *_: call("act"), trainer_class=Concurrent)

    groups = [prompts for batch in Concurrent.batches for prompts in batch["prompt_ids"].split(4)]
    reasons = Counter(record.reason for record in records)
    assert [1] * 4 == [len(prompts.unique(dim=0)) for prompts in groups]
    assert {None, UnscoredReason.UNREACHABLE} == reasons.keys()
    assert 16 == reasons.total()


def make_random_trainer(server: ServerHandle, policy: Path, folder: Path) -> Any:
    """A trainer on an environment that gives every session a prompt of its own."""
    spec = MultiOpenRewardSpec({"dice": ORSSource(server.url, env_name="randomprompt")})
    args = make_arguments(spec, folder, max_steps=1, **SHAPE)
    return make_trainer(spec, policy, args, trainer_class=ConcurrentScriptedTrainer)


def test_prompts_that_differ_within_a_group_are_said_once(
    zoo_server: ServerHandle, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A random prompt is allowed where each rollout is sampled from its own, and a warning names the source."""
    trainer = make_random_trainer(zoo_server, tiny_policy, tmp_path)
    with caplog.at_level(logging.WARNING, logger="multiors.training"):
        trainer.train()

    warnings = [record.getMessage() for record in caplog.records if record.name == "multiors.training"]
    assert 1 == len(warnings)
    assert warnings[0].startswith("source 'dice': the rollouts of one group were given different prompts")


def test_prompts_that_differ_stop_a_run_whose_groups_are_sampled_together(
    zoo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """In vLLM's server mode nothing is generated from another rollout's prompt, and every session is closed."""
    trainer = make_random_trainer(zoo_server, tiny_policy, tmp_path)
    trainer.use_vllm, trainer.vllm_mode = True, "server"
    rows = [trainer.train_dataset[0]] * 4

    with pytest.raises(RoutingError, match=r"source 'dice': .* samples a whole group from the first of them"):
        trainer._generate_and_score_completions(rows)

    assert {} == zoo_server.wait_until(lambda counts: not counts.active).active


# -- when TRL changes


class Renamed(ScriptedTrainer):
    """A trainer whose tool loop takes other arguments."""

    def _tool_call_loop(self, conversations: Any, *rest: Any) -> Any:
        return super()._tool_call_loop(conversations, *rest)


class ConcurrentRenamed(ConcurrentRollouts, Renamed):  # type: ignore[misc]  # that they differ is the point
    """Leans on what is not there."""


def test_a_changed_trainer_is_said_once_and_trains_as_trl_does(
    counting_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """If a private method took other arguments, one warning says so and the run is TRL's own."""
    records: list[RolloutRecord] = []
    spec = make_mix(counting_server, records)
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)

    with pytest.warns(UserWarning, match=r"\['_tool_call_loop'\] of TRL's trainer are not what they were") as warned:
        trainer = train(spec, tiny_policy, args, script=play_variously, trainer_class=ConcurrentRenamed)

    assert 1 == sum("of TRL's trainer" in str(warning.message) for warning in warned)
    assert 8 == len(records)
    assert not any("env/unmatched_calls" in entry for entry in trainer.state.log_history)


def test_the_trainers_of_trl_are_as_expected() -> None:
    """The installed TRL has the private methods that are built on, and one that lost them is told."""
    assert [] == find_changed_methods(GRPOTrainer) == find_changed_methods(GMPOTrainer)
    assert 4 == len(find_changed_methods(object))


class Forgetful(ScriptedTrainer):
    """A trainer that does not make the calls of its last rollout."""

    def _tool_call_loop(
        self,
        prompts: Any,
        prompt_ids: Any,
        completion_ids: Any,
        completions: Any,
        logprobs: Any,
        images: Any,
        multimodal_fields: Any,
    ) -> Any:
        silent = [*completions[:-1], [{"role": "assistant", "content": "Never mind."}]]
        return super()._tool_call_loop(prompts, prompt_ids, completion_ids, silent, logprobs, images, multimodal_fields)


class ConcurrentForgetful(ConcurrentRollouts, Forgetful):
    """Starts a call that is never made."""


def test_a_call_made_in_vain_counts_for_nothing_and_ends_the_concurrency(
    counting_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """A started call that TRL did not make is counted, its reward is not, and from then on TRL calls alone."""
    records: list[RolloutRecord] = []
    source = ORSSource(counting_server.url, env_name="counting", discover_task_tools=False)
    spec = MultiOpenRewardSpec({"count": source}, on_rollouts=records.extend)
    args = make_arguments(spec, tmp_path, max_steps=2, **SHAPE)

    with pytest.warns(UserWarning, match=r"1 tool calls were started that TRL did not make"):
        trainer = train(spec, tiny_policy, args, script=lambda *_: call("bump"), trainer_class=ConcurrentForgetful)

    logged = [entry.get("env/unmatched_calls") for entry in trainer.state.log_history if "loss" in entry]
    assert [1.0, None] == logged
    assert [None, None] == [record.reward for record in records[7::8]]
    assert [UnscoredReason.NO_TOOL_CALL] * 2 == [record.reason for record in records[7::8]]
