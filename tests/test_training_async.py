"""The slots for `AsyncGRPOTrainer`, in the hands of the code that trainer rolls out with.

What runs: TRL's own worker process (`_child_main` and `_AsyncRolloutLoop`), spawned, given the slots by pickle, with
its dispatch, tool loop, scoring and queues as they are; real ORS servers; and, in the place of vLLM, an HTTP server
that answers what a script says. What does not run: the trainer that would consume the samples and needs an accelerator.
"""

from __future__ import annotations

import math
import multiprocessing
import pickle
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, RewardPart, SourceReward
from multiors.errors import ConfigError, RewardError
from multiors.ors.sessions.runtime import get_runtime
from tests.completions import serve_completions
from tests.playing import factories, play
from tests.scripted import call
from tests.servers.launch import Counts, ServerHandle, configured, serve

NOWHERE = "http://127.0.0.1:9"
NUM_GROUPS = 6
RIGHT = ("echo", {"text": "oak"})


def make_spec(server: ServerHandle, *, silent: str = "neverscores") -> MultiOpenRewardSpec:
    """One source that scores, one that never does."""
    return MultiOpenRewardSpec(
        {"echo": ORSSource(server.url, env_name="echo"), "none": ORSSource(server.url, env_name=silent)},
        num_slots=8,
    )


# -- what is refused


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        ({"a": ORSSource(NOWHERE, reward=SourceReward(weight=2.0))}, {}, "reward weights, which it always normalizes"),
        ({"a": ORSSource(NOWHERE, reward=RewardPart(len))}, {}, "reward parts beside the rewards of tools"),
        ({"a": ORSSource(NOWHERE)}, {"tools": "union"}, "tools='union'"),
        (
            {"a": SimpleNamespace(train_dataset=1, environment_factory=1, reward_funcs=1)},
            {},
            "specs other than ORSSource and OpenRewardSpec",
        ),
    ],
)
def test_what_that_trainer_cannot_do_is_refused(sources: dict[str, Any], options: dict[str, Any], message: str) -> None:
    """It has no reward weights, gives functions no environments, and scores by class; nothing is dropped silently."""
    spec = MultiOpenRewardSpec({**sources, "b": ORSSource(NOWHERE)}, **options)

    with pytest.raises(
        ConfigError, match=rf"AsyncGRPOTrainer cannot train this mix: it has {message}.*Use GRPOTrainer"
    ):
        spec.for_async()


def test_all_that_is_refused_is_said_at_once() -> None:
    """One error names every part of the mix that stands in the way, before a server is asked."""
    reward = SourceReward(weight=2.0, parts=(RewardPart(len),))
    spec = MultiOpenRewardSpec({"a": ORSSource(NOWHERE, reward=reward), "b": ORSSource(NOWHERE)}, tools="union")

    with pytest.raises(ConfigError, match=r"reward weights, .*; reward parts .*; tools='union'\. Use GRPOTrainer"):
        spec.for_async()


# -- the slots


def test_the_slots_pickle(zoo_server: ServerHandle) -> None:
    """The worker is spawned, so everything it gets travels as a pickle, and a source's class is the same there."""
    slots = make_spec(zoo_server).for_async()
    copy = pickle.loads(pickle.dumps({"factory": slots.environment_factory, "dataset": slots.train_dataset}))

    assert list(slots.train_dataset) == list(copy["dataset"])
    assert [] == slots.reward_funcs
    assert all(type(slots.environment_factory[name]()) is type(copy["factory"][name]()) for name in ("echo", "none"))


def test_classes_score_themselves_and_are_named_after_their_source(zoo_server: ServerHandle) -> None:
    """TRL names a column after the class and looks for `get_reward` on it."""
    made = {name: type(factory()) for name, factory in make_spec(zoo_server).for_async().environment_factory.items()}

    assert {"echo": "echo", "none": "none"} == {name: made_class.__name__ for name, made_class in made.items()}
    assert all(hasattr(made_class, "get_reward") for made_class in made.values())


def test_the_other_trainers_classes_do_not_score_themselves(zoo_server: ServerHandle) -> None:
    """With `GRPOTrainer`, `get_reward` beside the columns would count every reward twice."""
    spec = make_spec(zoo_server)
    plain, scored = factories(spec)["echo"](), spec.for_async().environment_factory["echo"]()

    assert not hasattr(type(plain), "get_reward")
    assert type(plain) is not type(scored)


def test_self_scoring_environments_are_refused_beside_columns(zoo_server: ServerHandle) -> None:
    """Given to GRPOTrainer with the reward columns, every reward would count twice; the first batch says so."""
    with make_spec(zoo_server) as spec:
        environment = spec.for_async().environment_factory["echo"]()
        environment.reset(task_index=0)

        with pytest.raises(RewardError, match=r"source 'echo': its environments score themselves.*for_async"):
            spec.reward_funcs(environments=[environment])

    assert {} == zoo_server.wait_until(lambda counts: not counts.active).active


@pytest.mark.parametrize(
    ("reward", "rewards"),
    [
        (None, [1.0, 0.0, None]),
        (SourceReward(outcome_weight=2.0, unscored=-1.0), [2.0, 0.0, -2.0]),
        (SourceReward(unfinished=-3.0), [1.0, -3.0, -3.0]),
    ],
)
def test_a_reward_is_the_sources_own_rule(
    echo_server: ServerHandle, reward: SourceReward | None, rewards: list[float | None]
) -> None:
    """`get_reward` follows the source's `reward`, and ends the rollout's session."""
    with MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, reward=reward)}) as spec:
        factory = spec.for_async().environment_factory["echo"]
        played = [play(factory, RIGHT), play(factory, ("echo", {"text": "no"})), play(factory)]
        given = [environment.get_reward() for environment in played]
        active = echo_server.wait_until(lambda counts: not counts.active).active

    assert rewards == given
    assert {} == active


# -- opened ahead


def reset_in_order(slots: Any, num_slots: int, num_generations: int) -> list[Any]:
    """The environments of the first slots, reset one after another as the worker does it."""
    environments = []
    for row in slots.train_dataset.select(range(num_slots)):
        columns = {name: value for name, value in row.items() if name != "environment"}
        for _ in range(num_generations):
            environment = slots.environment_factory[row["environment"]]()
            environment.reset(**columns)
            environments.append(environment)

    return environments


def test_a_group_opens_together_though_it_is_reset_one_by_one() -> None:
    """The first reset of a slot opens the sessions of its whole group: each of them waits for all others here."""
    with serve(configured("tests.servers.waiting:Together", SIZE=4)) as server:
        sources = {name: ORSSource(server.url, discover_task_tools=False) for name in ("left", "right")}
        with MultiOpenRewardSpec(sources, num_slots=8) as spec:
            environments = reset_in_order(spec.for_async(), num_slots=3, num_generations=4)
            opened = [environment._episode().opened for environment in environments]

    assert [True] * 12 == opened


def test_what_was_opened_ahead_and_not_played_is_closed(echo_server: ServerHandle) -> None:
    """The size of groups is learnt from the first; nothing opened ahead stays open after its slot was played."""
    get_runtime().close_now(list(get_runtime()._open))
    echo_server.reset_counts()
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, discover_task_tools=False)}, num_slots=8)
    environments = reset_in_order(spec.for_async(), num_slots=4, num_generations=2)
    played = [environment.get_reward() for environment in environments]
    waiting = echo_server.wait_until(lambda counts: counts.active == {"echo": 2})
    spec.close()

    # Those of the slot that would come next are left, and as many as a group has.
    assert [None] * 8 == played
    assert {"echo": 2} == waiting.active
    assert {} == echo_server.counts().active


def test_a_schedule_begins_again_after_its_last_slot(echo_server: ServerHandle) -> None:
    """The worker plays the dataset again and again, so what follows the last slot is the first."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url, discover_task_tools=False)}, num_slots=2)
    slots = spec.for_async()
    played = [*reset_in_order(slots, num_slots=2, num_generations=2), *reset_in_order(slots, 2, 2)]
    opened = [environment._episode().opened for environment in played]
    spec.close()

    assert [True] * 8 == opened
    assert {} == echo_server.wait_until(lambda counts: not counts.active).active


# -- TRL's worker


class Worked(NamedTuple):
    groups: list[list[Any]]
    """The samples that the worker put into its queue, by group."""

    slots: list[str]
    """The source of each group's slot in the dataset."""

    counts: Counts
    exit_code: int | None
    failure: Any


def play_in_turn(conversation: str, times_asked: int) -> str:
    """In `Echo` the first of a group is right and the second wrong; in `Silent` both look around."""
    if "<tool_response>" in conversation:
        return "done"
    if "Say " in conversation:
        word = conversation.rpartition("Say ")[2].partition(".")[0]
        return call("echo", text="wrong" if times_asked % 2 else word)

    return call("look")


def run_worker(slots: Any, tokenizer: Any, url: str) -> tuple[list[Any], int | None, Any]:
    """Run TRL's worker process until it has filled some groups; its samples, exit code and failure."""
    from trl.experimental.async_grpo import async_rollout_worker as worker

    spawn = multiprocessing.get_context("spawn")
    samples, failures, metrics = spawn.Queue(), spawn.Queue(maxsize=1), spawn.Queue()
    stop, failed = spawn.Event(), spawn.Event()
    options = {
        "model_name": "scripted",
        "dataset": slots.train_dataset,
        "reward_funcs": slots.reward_funcs,
        "processing_class": tokenizer,
        "eos_token_ids": [tokenizer.eos_token_id],
        "environment_factory": slots.environment_factory,
        "num_generations": 2,
        "max_inflight_tasks": 4,
        "vllm_server_url": url,
        "max_tool_calling_iterations": 3,
    }
    shared = (samples, spawn.Value("i", 0), stop, spawn.Event(), spawn.Value("d", 0.0), failed, failures, metrics)
    process = spawn.Process(target=worker._child_main, args=(worker._AsyncRolloutLoop, options, *shared), daemon=True)
    process.start()
    try:
        received = [samples.get(timeout=100) for _ in range(2 * NUM_GROUPS)]
        stop.set()
        process.join(timeout=30)
    finally:
        process.kill()

    return received, process.exitcode, failures.get() if failed.is_set() else None


@pytest.fixture(scope="module")
def worked(tiny_policy: Path) -> Iterator[Worked]:
    """One run of the worker over two sources."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)

    with serve("Echo", "Silent") as server, serve_completions(tokenizer, play_in_turn) as url:
        slots = make_spec(server, silent="silent").for_async()
        server.reset_counts()
        samples, exit_code, failure = run_worker(slots, tokenizer, url)
        groups = defaultdict(list)
        for sample in samples:
            groups[sample.group_id].append(sample)
        planned = slots.train_dataset["environment"]
        yield Worked(
            [groups[group_id] for group_id in sorted(groups)],
            [planned[group_id] for group_id in sorted(groups)],
            server.counts(),
            exit_code,
            failure,
        )


def source_of(group: list[Any]) -> str:
    """Whose prompt a group answers."""
    return "echo" if "Say " in group[0].prompt[-1]["content"] else "none"


def test_the_worker_plays_the_schedule(worked: Worked) -> None:
    """Each group is of its slot's source, whichever are the first to be done, and the worker ends in good order."""
    assert (0, None) == (worked.exit_code, worked.failure)
    assert worked.slots == [source_of(group) for group in worked.groups]
    assert [2] * NUM_GROUPS == [len(group) for group in worked.groups]


def test_the_worker_gives_the_policy_the_roles_of_a_prompt(worked: Worked) -> None:
    """The worker's rows take the environment's leading messages, once for each rollout of a group."""
    prompts = [sample.prompt for group in worked.groups if source_of(group) == "none" for sample in group]

    assert prompts
    assert all(["system", "user"] == [message["role"] for message in prompt] for prompt in prompts)
    assert {"You look and say nothing."} == {prompt[0]["content"] for prompt in prompts}


def test_the_worker_counts_every_reward_once(worked: Worked) -> None:
    """A rollout's reward is what its environment gave, in the column of its source, and not twice that."""
    echoes = [sample.metrics for group in worked.groups if source_of(group) == "echo" for sample in group]

    assert {0.0, 1.0} == {metrics["reward"] for metrics in echoes}
    assert all(metrics["reward"] == metrics["rewards/echo"] for metrics in echoes)
    assert {"rewards/echo", "rewards/none"} == {name for name in echoes[0] if name.startswith("rewards/")}


def test_the_worker_leaves_unscored_rollouts_alone(worked: Worked) -> None:
    """None arrives as TRL's NaN: no reward, and an advantage of zero."""
    unscored = [sample for group in worked.groups if source_of(group) == "none" for sample in group]

    assert unscored
    assert all(math.isnan(sample.metrics["reward"]) for sample in unscored)
    assert {0.0} == {sample.advantage for sample in unscored}


def test_the_worker_tells_better_from_worse(worked: Worked) -> None:
    """Within a group of a source that scores, the right answer has the higher advantage."""
    groups = [group for group in worked.groups if source_of(group) == "echo"]
    signs = [sorted((sample.metrics["reward"], sample.advantage > 0) for sample in group) for group in groups]

    assert [[(0.0, False), (1.0, True)]] * len(groups) == signs


def test_the_worker_opens_sessions_while_it_waits(worked: Worked) -> None:
    """The worker resets one environment at a time; their sessions open together all the same."""
    assert worked.counts.max_in_flight["POST /create"] > 1


def test_the_worker_leaves_no_session(worked: Worked) -> None:
    """Every session that the worker's process opened was closed, those of unfinished groups too."""
    assert {} == worked.counts.active
    assert worked.counts.opened == worked.counts.deleted
    assert sum(worked.counts.opened.values()) >= 2 * NUM_GROUPS
