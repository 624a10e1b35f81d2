"""`MultiOpenRewardSpec` before a trainer has it: what it refuses, what it asks of servers, and what its slots hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerState
from trl import GRPOConfig

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord, SourceReward
from multiors.errors import ConfigError, RoutingError, SourceError
from multiors.ors.sessions.limits import count_sockets
from tests.playing import factories, play, score
from tests.scripted import make_arguments, make_trainer, small_fields, train
from tests.servers.launch import ServerHandle, serve
from tests.servers.raw import serve_raw

NOWHERE = "http://127.0.0.1:9"
SHAPE = {"per_device_train_batch_size": 4, "num_generations": 2}
CASES = json.loads((Path(__file__).parent / "data" / "task_specs.json").read_text(encoding="utf-8"))


def mix(mixed: ServerHandle, echo: ServerHandle, **options: Any) -> MultiOpenRewardSpec:
    """`Sorting` (4 tasks), `Thermostat` (3 tasks) and `Echo` (8 tasks)."""
    return MultiOpenRewardSpec(
        {
            "sort": ORSSource(mixed.url, env_name="sorting"),
            "heat": ORSSource(mixed.url, env_name="thermostat"),
            "echo": ORSSource(echo.url),
        },
        **options,
    )


def pair(**options: Any) -> MultiOpenRewardSpec:
    """Two sources that nobody asks."""
    return MultiOpenRewardSpec({"a": ORSSource(NOWHERE), "b": ORSSource(NOWHERE)}, **options)


def rows(spec: MultiOpenRewardSpec) -> list[tuple[str, int]]:
    """What each slot draws."""
    dataset = spec.train_dataset
    return list(zip(dataset["environment"], dataset["task_index"], strict=True))


# -- names


@pytest.mark.parametrize("name", ["prompt", "completion", "step", "advantage", "reward", "environment"])
def test_names_of_the_trainers_table_are_refused(name: str) -> None:
    """A column named like one of TRL's or ours would overwrite it."""
    with pytest.raises(ConfigError, match=rf"source name '{name}' cannot be used: .*'{name}'.*Choose another\."):
        MultiOpenRewardSpec({name: ORSSource(NOWHERE)})


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a.b", "zürich", "a\n", "env:a", 3, None, ("a",)])
def test_names_that_tables_and_trackers_cannot_show_are_refused(name: Any) -> None:
    """Names are letters, digits, '-' and '_'."""
    with pytest.raises(ConfigError, match=r"source name .* cannot be used: names have letters, digits, '-' and '_'"):
        MultiOpenRewardSpec({name: ORSSource(NOWHERE)})


@pytest.mark.parametrize("name", ["a", "A-b_9", "0", "_", "-x", "completions", "Reward"])
def test_other_names_are_taken_as_they_are(name: str) -> None:
    """A name is the user's; it is the name of the column too."""
    spec = MultiOpenRewardSpec({name: ORSSource(NOWHERE)})

    assert [name] == list(spec.sources) == [column.__name__ for column in spec.reward_funcs]


def test_an_empty_mix_is_refused() -> None:
    """A mix has at least one source."""
    with pytest.raises(ConfigError, match=r"a mix needs at least one source\. Pass \{'name': ORSSource"):
        MultiOpenRewardSpec({})


def test_an_unknown_tools_mode_is_refused() -> None:
    """There are two modes."""
    with pytest.raises(ConfigError, match=r"tools='all' is not a mode\. Pass 'separate' or 'union'"):
        pair(tools="all")


# -- weights


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1.0}, r"source 'b': it has no weight, but \['a'\] have"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, r"source 'c': it has a weight but is not in the mix; sources: \['a', 'b'\]"),
        ({"a": 1.0, "b": 0.0}, r"source 'b': weight 0\.0 is not a finite number above 0"),
        ({"a": 1.0, "b": "2"}, r"source 'b': weight '2' is not a finite number above 0"),
        ("equal", r"weights='equal' is not known\. Pass 'tasks'"),
    ],
)
def test_weights_of_the_mix_that_do_not_fit_are_refused(weights: Any, message: str) -> None:
    """A mapping names every source and no other, with numbers above 0."""
    with pytest.raises(ConfigError, match=message):
        pair(weights=weights)


def test_weights_are_given_for_every_source_or_for_none() -> None:
    """A source without a weight among weighted ones is a mistake, not a weight of 1."""
    with pytest.raises(ConfigError, match=r"source 'b': it has no weight, but \['a'\] have"):
        MultiOpenRewardSpec({"a": ORSSource(NOWHERE, weight=2.0), "b": ORSSource(NOWHERE)})


def test_weights_in_two_places_are_refused() -> None:
    """Either the sources have weights, or the mix has."""
    with pytest.raises(ConfigError, match=r"source 'a': weight=2\.0 is given together with weights='tasks'"):
        MultiOpenRewardSpec({"a": ORSSource(NOWHERE, weight=2.0)}, weights="tasks")


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        (None, [1 / 3, 1 / 3, 1 / 3]),
        ("tasks", [4 / 15, 3 / 15, 8 / 15]),
        ({"echo": 3, "sort": 1, "heat": 1}, [0.2, 0.2, 0.6]),
    ],
)
def test_weights_become_shares(
    mixed_server: ServerHandle, echo_server: ServerHandle, weights: Any, shares: list[float]
) -> None:
    """Equal without weights, in proportion to tasks, or as the mapping says, whatever its order."""
    plan = mix(mixed_server, echo_server, weights=weights, num_slots=30).plan()

    assert shares == pytest.approx([source.share for source in plan.sources])
    assert [round(30 * share) for share in shares] == [source.slots for source in plan.sources]


# -- length


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stopping_strategy": "max_slots"}, r"stopping_strategy='max_slots' needs a number of slots"),
        ({"stopping_strategy": "all_exhausted", "num_slots": 4}, r"num_slots=4 contradicts stopping_strategy='all_"),
        ({"stopping_strategy": "first_exhausted", "num_slots": 4}, r"num_slots=4 contradicts stopping_strategy='first"),
        ({"stopping_strategy": "last"}, r"stopping_strategy='last' is not known"),
        ({"num_slots": 0}, r"num_slots=0 is no whole number from 1 upwards"),
    ],
)
def test_a_length_that_contradicts_itself_is_refused(options: dict[str, Any], message: str) -> None:
    """Either a strategy says where the schedule ends, or a number of slots."""
    with pytest.raises(ConfigError, match=message):
        pair(**options)


@pytest.mark.parametrize(
    ("options", "num_slots"),
    [
        ({}, 9),
        ({"stopping_strategy": "first_exhausted"}, 9),
        ({"stopping_strategy": "all_exhausted"}, 24),
        ({"num_slots": 5}, 5),
        ({"stopping_strategy": "max_slots", "num_slots": 50}, 50),
    ],
)
def test_the_schedule_ends_where_it_was_asked_to(
    mixed_server: ServerHandle, echo_server: ServerHandle, options: dict[str, Any], num_slots: int
) -> None:
    """After the smallest source, after the largest, or after so many slots."""
    spec = mix(mixed_server, echo_server, **options)

    assert num_slots == len(spec.train_dataset) == spec.plan().num_slots


# -- what is asked of servers


def test_construction_sends_no_request(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """Nothing is asked before a slot is read that needs an answer."""
    for server in (mixed_server, echo_server):
        server.reset_counts()
    spec = mix(mixed_server, echo_server)
    seen = (repr(spec), spec.reward_weights, spec.reward_funcs, spec.callbacks)
    requests = [server.counts().requests for server in (mixed_server, echo_server)]

    assert [{}, {}] == requests
    assert [1.0, 1.0, 1.0] == seen[1]


def test_sources_are_asked_once(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """What a slot needs is asked at first use and kept, for all slots."""
    spec = mix(mixed_server, echo_server)
    before = spec.train_dataset
    mixed_server.reset_counts()
    again = (spec.plan(), spec.environment_factory, spec.describe_tools(), spec.train_dataset)

    assert {} == mixed_server.counts().requests
    assert before is again[-1]


def test_sources_are_asked_at_once() -> None:
    """The time it takes does not grow with the number of sources."""
    with serve("Echo", latency_s=0.4) as server:
        MultiOpenRewardSpec({f"s{n}": ORSSource(server.url) for n in range(4)}).plan()
        in_flight = server.counts().max_in_flight

    assert 4 == in_flight["GET /list_environments"]
    assert 4 == in_flight["POST /{env}/task_range"]


def test_every_source_that_fails_is_named(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """One error lists them all, whatever kind of mistake each is."""
    spec = MultiOpenRewardSpec(
        {
            "gone": ORSSource(NOWHERE),
            "fine": ORSSource(echo_server.url),
            "typo": ORSSource(mixed_server.url, env_name="thermostate"),
            "split": ORSSource(echo_server.url, split="dev"),
            "path": ORSSource(f"{echo_server.url}/echo"),
        }
    )

    with pytest.raises(SourceError, match=r"^4 sources cannot be used:\n") as caught:
        spec.plan()

    lines = str(caught.value).splitlines()[1:]
    assert {"gone", "typo", "split", "path"} == {line.split("'")[1] for line in lines}


def test_a_single_failure_keeps_its_kind(echo_server: ServerHandle) -> None:
    """Where one source fails, its own error is raised, not one about it."""
    spec = MultiOpenRewardSpec({"path": ORSSource(f"{echo_server.url}/echo"), "fine": ORSSource(echo_server.url)})

    with pytest.raises(ConfigError, match=r"^source 'path': the URL .* has a path"):
        spec.plan()


# -- sources


def test_one_environment_under_two_names_is_two_sources(echo_server: ServerHandle) -> None:
    """Two sources with equal settings, even one object, have a class, a column and sessions of their own."""
    source = ORSSource(echo_server.url)

    with MultiOpenRewardSpec({"one": source, "two": source}) as spec:
        one, two = (play(factory, ("echo", {"text": "oak"})) for factory in factories(spec).values())
        rewards = score(spec.reward_funcs, [("one", one), ("two", two)]).rewards

    assert ["one", "two"] == [type(one).__name__, type(two).__name__]
    assert type(one) is not type(two)
    assert {"one": [1.0, None], "two": [None, 1.0]} == rewards


def test_a_sources_class_is_the_same_at_every_access(echo_server: ServerHandle) -> None:
    """TRL compares classes exactly, so factories always give the one class of their source."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)})

    first, second, third = factories(spec)["echo"](), factories(spec)["echo"](), factories(spec)["echo"]()

    assert type(first) is type(second) is type(third)


def test_openreward_specs_are_taken_as_they_are(mixed_server: ServerHandle) -> None:
    """TRL's own spec keeps its options in a mix, and its `env_name` reaches the environment it names."""
    from trl.experimental.openreward import OpenRewardSpec

    theirs = OpenRewardSpec(mixed_server.url, env_name="thermostat", indices=[2, 0], secrets={"HF_TOKEN": "hunter2"})
    other = OpenRewardSpec(mixed_server.url, env_name="thermostat", split="validation", include_metadata=False)
    mixed_server.reset_counts()

    with MultiOpenRewardSpec({"heat": theirs, "cold": other}, stopping_strategy="all_exhausted") as spec:
        drawn = {(row["environment"], row["task_index"], row["task"]) for row in spec.train_dataset}
        environment = play(factories(spec)["heat"], ("read", {}), task_index=2)
        counts = mixed_server.counts()

    assert {("heat", 2, '{"celsius": 21.0}'), ("heat", 0, '{"celsius": 12.0}'), ("cold", 0, None)} == drawn
    assert "thermostat: 21.0" == environment.last_output
    assert {"thermostat"} == set(counts.opened)
    assert ["hunter2"] == [secrets["HF_TOKEN"]["value"] for secrets in counts.secrets if secrets]


def test_a_changed_openreward_spec_is_used_by_its_slots(
    tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If TRL keeps its options elsewhere one day, the three slots still train, and one warning says what is lost."""
    from trl.experimental.openreward import OpenRewardSpec as Today

    class OpenRewardSpec:
        """TRL's spec with its options under other names."""

        def __init__(self, target: str) -> None:
            self.options = Today(target)

        train_dataset = property(lambda self: self.options.train_dataset)
        environment_factory = property(lambda self: self.options.environment_factory)
        reward_funcs = property(lambda self: self.options.reward_funcs)

    records: list[RolloutRecord] = []

    with serve("Echo") as server:
        monkeypatch.setenv("OPENREWARD_SESSION_URL", server.url)  # without it, TRL's spec asks sessions.127.0.0.1

        with pytest.warns(UserWarning, match=r"source 'echo': this version of TRL keeps the options") as warned:
            spec = MultiOpenRewardSpec(
                {"echo": OpenRewardSpec(server.url), "ours": ORSSource(server.url)}, on_rollouts=records.extend
            )

        trainer = train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=1, **SHAPE))
        for environment in trainer._environment_pool["echo"]:
            environment._own._close()  # as nobody else does

    tasks = [json.loads(row["task"]) for row in spec.train_dataset if row["environment"] == "echo"]
    assert 1 == len(warned)
    assert "Lost: routing by env_name, safe tool names" in str(warned[0].message)
    assert Counter(echo=2, ours=2) == Counter(record.source for record in records)
    assert all(record.reward is not None for record in records)
    assert all(set(task) == {"id", "target"} for task in tasks)


def test_any_object_with_the_three_slots_is_a_source(echo_server: ServerHandle) -> None:
    """Slots may be attributes of the object or of its class; what its rows hold besides becomes the task."""
    from datasets import Dataset

    inner = ORSSource(echo_server.url)
    theirs = SimpleNamespace(
        train_dataset=Dataset.from_dict({"prompt": [""], "task_index": [3], "level": ["easy"]}),
        environment_factory=inner.environment_factory,
        reward_funcs=[inner.reward_funcs, lambda environments, **_: [None for _ in environments]],
    )
    spec = MultiOpenRewardSpec({"theirs": theirs, "ours": inner}, weights={"theirs": 1, "ours": 3}, num_slots=4)
    played = [("theirs", play(factories(spec)["theirs"], ("echo", {"text": "fir"}), task_index=3))]

    rewards = score(spec.reward_funcs, [*played, ("theirs", play(factories(spec)["theirs"], task_index=3))]).rewards
    inner.environment_factory()._close()

    assert {(3, '{"level": "easy"}')} == {
        (row["task_index"], row["task"]) for row in spec.train_dataset if row["environment"] == "theirs"
    }
    assert {"theirs": [1.0, None], "ours": [None, None]} == rewards


def test_what_is_known_of_a_sources_tasks_says_whether_they_are_others(echo_server: ServerHandle) -> None:
    """Which they are and what they say; of what is not ORS, and without specifications, which they are."""
    from datasets import Dataset

    def known(source: Any) -> Any:
        return MultiOpenRewardSpec({"a": source})._lay_out().mix["sources"][0]["task_digest"]

    def theirs(indices: list[int]) -> SimpleNamespace:
        dataset = Dataset.from_dict(
            {"prompt": [""] * 2, "task_index": indices, "note": [object.__repr__(object())] * 2}
        )
        return SimpleNamespace(train_dataset=dataset, environment_factory=object, reward_funcs=[])

    two, again, others = (known(ORSSource(echo_server.url, indices=each)) for each in ([0, 1], [0, 1], [0, 2]))
    bare = known(ORSSource(echo_server.url, num_tasks=2, include_metadata=False))

    assert two == again
    assert [True, True] == [first != second for first, second in zip(two, others, strict=True)]
    assert [two[0], None] == bare == known(theirs([0, 1]))
    assert [others[0], None] == known(theirs([0, 2]))


@pytest.mark.parametrize("spec", ["http://127.0.0.1:1", 3, SimpleNamespace(train_dataset=1, reward_funcs=2), None])
def test_objects_without_the_slots_are_refused(spec: Any) -> None:
    """What is neither a source nor a spec is an error that names what is missing."""
    with pytest.raises(SourceError, match=r"source 'a': a \w+ is no source: it has no \[.*'environment_factory'"):
        MultiOpenRewardSpec({"a": spec})


def test_a_spec_without_tasks_is_refused() -> None:
    """Another's spec needs a row at least."""
    from datasets import Dataset

    rows = Dataset.from_dict({"task_index": []})
    theirs = SimpleNamespace(train_dataset=rows, environment_factory=object, reward_funcs=[])

    with pytest.raises(SourceError, match="source 'a': its train_dataset has no rows; a mix counts the rows"):
        MultiOpenRewardSpec({"a": theirs}).plan()


def test_specs_by_slots_cannot_join_the_union() -> None:
    """The union mode needs the tools of each source, which slots do not tell."""
    theirs = SimpleNamespace(train_dataset=1, environment_factory=1, reward_funcs=1)

    with pytest.raises(ConfigError, match=r"tools='union' needs ORSSource or OpenRewardSpec sources"):
        MultiOpenRewardSpec({"a": theirs}, tools="union")


# -- batches


@pytest.mark.parametrize(
    ("fields", "num_slots"),
    [
        ({"max_steps": 3}, 6),
        ({"max_steps": 3, "gradient_accumulation_steps": 2}, 12),
        ({"max_steps": 3, "steps_per_generation": 4}, 8),
        ({"max_steps": 5, "steps_per_generation": 4}, 16),
        ({"max_steps": 3, "num_iterations": 2}, 4),
        ({"max_steps": 5, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2}, 16),
    ],
)
def test_a_run_gets_exactly_the_slots_it_consumes(
    mixed_server: ServerHandle, echo_server: ServerHandle, tmp_path: Path, fields: dict[str, int], num_slots: int
) -> None:
    """Slots are generation batches times their prompts, whatever shares a generation batch between steps."""
    spec = mix(mixed_server, echo_server)
    args = make_arguments(spec, tmp_path, **SHAPE, **fields)
    plan = spec.plan()

    assert num_slots == len(spec.train_dataset)
    assert (args.generation_batch_size // 2, fields["max_steps"]) == (plan.prompts_per_batch, args.max_steps)


def test_the_trainer_consumes_every_slot_once(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """With accumulation and iterations, TRL draws each slot for one group and ends after the last one."""
    records: list[RolloutRecord] = []
    spec = mix(mixed_server, echo_server, on_rollouts=records.extend)
    fields = {"max_steps": 3, "gradient_accumulation_steps": 2, "num_iterations": 2}

    trainer = train(spec, tiny_policy, make_arguments(spec, tmp_path, **SHAPE, **fields))

    assert 3 == trainer.state.global_step
    assert dict.fromkeys(range(len(spec.train_dataset)), 2) == Counter(record.slot for record in records)


def test_without_max_steps_the_run_is_as_long_as_the_schedule(
    mixed_server: ServerHandle, echo_server: ServerHandle, tmp_path: Path
) -> None:
    """`first_exhausted` gives 9 slots, which are 4 whole batches of 2 and as many steps."""
    spec = mix(mixed_server, echo_server)
    args = make_arguments(spec, tmp_path, **SHAPE)

    assert (4, 8) == (args.max_steps, len(spec.train_dataset))


def test_num_slots_and_max_steps_have_to_agree(
    mixed_server: ServerHandle, echo_server: ServerHandle, tmp_path: Path
) -> None:
    """A schedule shorter than the run is an error with both numbers."""
    spec = mix(mixed_server, echo_server, num_slots=5)

    with pytest.raises(ConfigError, match=r"max_steps=3 needs 6 slots, but num_slots=5\. Leave one out"):
        make_arguments(spec, tmp_path, max_steps=3, **SHAPE)


def test_a_strategy_that_max_steps_overrules_is_said(
    mixed_server: ServerHandle, echo_server: ServerHandle, tmp_path: Path
) -> None:
    """Where `max_steps` decides the length, a strategy that was asked for has no effect, and that is not silent."""
    spec = mix(mixed_server, echo_server, stopping_strategy="all_exhausted")

    with pytest.warns(UserWarning, match=r"max_steps=3 decides the length.*'all_exhausted' has no effect"):
        make_arguments(spec, tmp_path, max_steps=3, **SHAPE)

    assert 6 == len(spec.train_dataset)


def test_arguments_come_before_the_dataset(
    mixed_server: ServerHandle, echo_server: ServerHandle, tmp_path: Path
) -> None:
    """A dataset that was read cannot be laid out for other batches any more."""
    spec = mix(mixed_server, echo_server)
    assert 9 == len(spec.train_dataset)

    with pytest.raises(ConfigError, match=r"called after the dataset or plan was read, with other batches.*first"):
        make_arguments(spec, tmp_path, max_steps=3, **SHAPE)


def test_arguments_may_be_asked_for_again(
    mixed_server: ServerHandle, echo_server: ServerHandle, tmp_path: Path
) -> None:
    """The same batches are no contradiction, and other fields may differ."""
    spec = mix(mixed_server, echo_server)
    make_arguments(spec, tmp_path, max_steps=3, **SHAPE)
    num_slots = len(spec.train_dataset)

    fields = {**small_fields(tmp_path), "learning_rate": 0.5}
    again = spec.training_arguments(**fields, max_steps=3, **SHAPE)

    assert (6, 0.5, False) == (num_slots, again["learning_rate"], again["shuffle_dataset"])


# -- slots


def test_reward_funcs_are_fresh_at_each_access() -> None:
    """TRL keeps and changes the list it is given, so no two get the same one."""
    spec = pair()
    first, second = spec.reward_funcs, spec.reward_funcs
    first.clear()

    assert ["a", "b"] == [column.__name__ for column in second]


def test_reward_weights_follow_the_columns() -> None:
    """One weight per column, in column order."""
    sources = {"a": ORSSource(NOWHERE, reward=SourceReward(weight=2.0)), "b": ORSSource(NOWHERE)}

    assert [2.0, 1.0] == MultiOpenRewardSpec(sources).reward_weights


def test_what_is_no_reward_is_refused() -> None:
    """A source's `reward` is a rule or functions."""
    with pytest.raises(ConfigError, match=r"reward=0\.5 is no reward\. Pass a SourceReward, a reward function"):
        MultiOpenRewardSpec({"a": ORSSource(NOWHERE, reward=0.5)})


def test_a_spec_closes_its_sessions_and_no_others(echo_server: ServerHandle) -> None:
    """Leaving the block closes what the spec's environments opened; sessions of other specs live on."""
    with MultiOpenRewardSpec({"a": ORSSource(echo_server.url)}) as kept:
        survivor = play(factories(kept)["a"])
        with MultiOpenRewardSpec({"a": ORSSource(echo_server.url), "b": ORSSource(echo_server.url)}) as spec:
            open_inside = [play(factory) for factory in factories(spec).values()]
            inside = echo_server.counts().active
        after = echo_server.counts().active
        said = survivor.echo(text="oak")

    assert ({"echo": 3}, {"echo": 1}) == (inside, after)
    assert (2, "oak") == (len(open_inside), said)
    assert {} == echo_server.counts().active


def test_a_plan_prints_and_is_json(mixed_server: ServerHandle, echo_server: ServerHandle, tmp_path: Path) -> None:
    """Per source its tasks, share, slots and passes, for people and for machines."""
    spec = mix(mixed_server, echo_server, weights={"sort": 2, "heat": 1, "echo": 1}, seed=3)
    make_arguments(spec, tmp_path, max_steps=6, per_device_train_batch_size=8, num_generations=2)
    plan = spec.plan()
    told = json.loads(json.dumps(plan.to_json()))

    assert "24 slots in 6 batches of 4 (seed 3, max_slots)" == str(plan).splitlines()[0]
    assert ["sort", "4", "50.00%", "12", "3.00", "2.00"] == str(plan).splitlines()[4].split()
    assert (24, 4, 6, 3) == tuple(told[key] for key in ("num_slots", "prompts_per_batch", "num_batches", "seed"))
    assert {"name": "heat", "num_tasks": 3, "share": 0.25, "slots": 6, "passes": 2.0, "slots_per_batch": 1.0} == told[
        "sources"
    ][1]


def test_tools_are_described_by_source(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """A table per source of the tools as the policy sees them."""
    tables = mix(mixed_server, echo_server).describe_tools()

    assert ["sort", "heat", "echo"] == list(tables)
    assert "compare" in tables["sort"]
    assert "hint" in tables["echo"]


# -- the dataset


def test_the_dataset_has_five_columns(mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """Nothing that a server sends becomes the name of a column."""
    spec = mix(mixed_server, echo_server, num_slots=6)
    dataset = spec.train_dataset

    assert ["environment", "prompt", "task_index", "slot", "task"] == dataset.column_names
    assert [{"role": "user", "content": ""}] == dataset[0]["prompt"]
    assert list(range(6)) == list(dataset["slot"])
    assert {"sort": {"numbers"}, "heat": {"celsius"}, "echo": {"id", "target"}} == {
        row["environment"]: set(json.loads(row["task"])) for row in dataset
    }


def test_without_metadata_there_are_no_tasks_to_read(zoo_server: ServerHandle) -> None:
    """`include_metadata=False` asks for the number of tasks only, and the column is null."""
    zoo_server.reset_counts()
    source = ORSSource(zoo_server.url, env_name="many", include_metadata=False)
    dataset = MultiOpenRewardSpec({"many": source}, num_slots=6).train_dataset
    paths = zoo_server.counts().paths

    assert {None} == set(dataset["task"])
    assert 6 == len(set(dataset["task_index"]))
    assert "POST /many/task_range" not in paths


def test_every_task_spec_survives(zoo_server: ServerHandle) -> None:
    """Mixed types, reserved names, huge numbers, odd texts and lone surrogates come back as they were sent."""
    splits = {**CASES["splits"], "lone_surrogates": CASES["lone_surrogates"]}

    with serve_raw(tasks=CASES["lone_surrogates"]) as raw:
        sources = {name: ORSSource(zoo_server.url, env_name="anytasks", split=name) for name in CASES["splits"]}
        spec = MultiOpenRewardSpec(
            {**sources, "lone_surrogates": ORSSource(raw.url)}, stopping_strategy="all_exhausted"
        )
        dataset = spec.train_dataset

    survived = {
        (row["environment"], row["task_index"]): json.dumps(json.loads(row["task"]), sort_keys=True) for row in dataset
    }
    assert {
        (split, index): json.dumps(task, sort_keys=True)
        for split, tasks in splits.items()
        for index, task in enumerate(tasks)
    } == survived


_DRAW = """
import json, sys
from multiors import MultiOpenRewardSpec, ORSSource
url, seed = sys.argv[1], int(sys.argv[2])
sources = {name: ORSSource(url, env_name=name) for name in ("sorting", "thermostat")}
dataset = MultiOpenRewardSpec(sources, seed=seed, num_slots=40).train_dataset
print(json.dumps([dataset._fingerprint, list(zip(dataset["environment"], dataset["task_index"]))]))
"""


def test_the_seed_decides_the_dataset_in_every_process(mixed_server: ServerHandle) -> None:
    """Another process with another hash seed draws the same rows; another seed draws others."""

    def draw(seed: int) -> list[Any]:
        sources = {name: ORSSource(mixed_server.url, env_name=name) for name in ("sorting", "thermostat")}
        dataset = MultiOpenRewardSpec(sources, seed=seed, num_slots=40).train_dataset
        drawn = zip(dataset["environment"], dataset["task_index"], strict=True)
        return [dataset._fingerprint, [list(row) for row in drawn]]

    command = [sys.executable, "-c", _DRAW, mixed_server.url, "5"]
    elsewhere = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert draw(5) == elsewhere
    assert draw(5)[1] != draw(6)[1]


# -- sessions


def begin(spec: MultiOpenRewardSpec, config: GRPOConfig) -> None:
    """What happens when a trainer with these arguments begins to train."""
    spec.callbacks[0].on_train_begin(config, TrainerState(), None)


def test_a_limit_of_sessions_is_held_against_the_schedule(echo_server: ServerHandle, tmp_path: Path) -> None:
    """A source may be limited to what the schedule ever asks of it at once, and to no less."""
    fields = small_fields(tmp_path) | {"max_steps": 2, "per_device_train_batch_size": 16, "num_generations": 4}

    def make(limit: int) -> MultiOpenRewardSpec:
        return MultiOpenRewardSpec(
            {
                "much": ORSSource(echo_server.url, weight=3.0),
                "little": ORSSource(echo_server.url, weight=1.0, max_sessions=limit),
            }
        )

    enough, short = make(4), make(3)
    begin(enough, GRPOConfig(**enough.training_arguments(**fields)))

    with pytest.raises(ConfigError, match=r"source 'little': max_sessions=3, and a batch has up to 4"):
        begin(short, GRPOConfig(**short.training_arguments(**fields)))


def test_what_an_interrupted_run_left_open_does_not_block_the_next(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """If a run broke off and its trainer is still there, training again has all sessions of the limit."""
    records: list[RolloutRecord] = []
    source = ORSSource(echo_server.url, discover_task_tools=False, open_timeout_s=2.0)
    spec = MultiOpenRewardSpec({"echo": source}, max_sessions=4, on_rollouts=records.extend)
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)

    def break_off(conversation: str, row: int) -> str:
        raise RuntimeError("the policy broke")

    broken = make_trainer(spec, tiny_policy, args, script=break_off)
    with pytest.raises(RuntimeError, match="the policy broke"):
        broken.train()
    train(spec, tiny_policy, args)

    assert [1.0, 1.0] == [record.reward for record in records if record.reward]
    assert {None} == {record.reason for record in records}
    assert broken.environments


def test_random_prompts_are_found_before_a_run_that_samples_groups_together(
    zoo_server: ServerHandle, tmp_path: Path
) -> None:
    """In vLLM's server mode every source is asked twice for a task's prompt, and those that differ are named."""
    dice, word = (ORSSource(zoo_server.url, env_name=name) for name in ("randomprompt", "echo"))
    spec = MultiOpenRewardSpec({"dice": dice, "word": word})
    fields = small_fields(tmp_path) | {"max_steps": 1, "per_device_train_batch_size": 4, "num_generations": 2}
    config = GRPOConfig(**spec.training_arguments(**fields, use_vllm=True, vllm_mode="server"))

    with pytest.raises(ConfigError, match=r"the sources \['dice'\] give each session .* Set vllm_mode='colocate'"):
        begin(spec, config)

    assert {} == zoo_server.wait_until(lambda counts: not counts.active).active


def test_other_modes_open_no_session_before_training(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """Where prompts may differ, nobody pays for finding out."""
    spec = MultiOpenRewardSpec({"dice": ORSSource(zoo_server.url, env_name="randomprompt", discover_task_tools=False)})
    fields = small_fields(tmp_path) | {"max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2}
    config = GRPOConfig(**spec.training_arguments(**fields))
    zoo_server.reset_counts()
    begin(spec, config)

    assert {} == zoo_server.counts().opened


def test_what_was_sampled_from_another_prompt_is_not_scored(zoo_server: ServerHandle, tmp_path: Path) -> None:
    """Where groups are sampled together, columns refuse a batch whose prompts differ within a group."""
    spec = MultiOpenRewardSpec({"word": ORSSource(zoo_server.url, env_name="echo")})
    columns = spec.reward_funcs
    fields = small_fields(tmp_path) | {"max_steps": 1, "per_device_train_batch_size": 4, "num_generations": 2}
    begin(spec, GRPOConfig(**spec.training_arguments(**fields, use_vllm=True, vllm_mode="server")))
    played = [play(factories(spec)["word"], task_index=index) for index in (0, 0, 1, 1)]
    arguments = {"slot": [0, 0, 1, 1], "task_index": [0, 0, 1, 1]}
    same = [[{"role": "user", "content": text}] for text in ("a", "a", "b", "b")]
    other = [[{"role": "user", "content": text}] for text in ("a", "a", "b", "c")]

    rewards = score(columns, [("word", each) for each in played], prompts=same, **arguments).rewards

    assert {"word": [None] * 4} == rewards
    with pytest.raises(RoutingError, match=r"source 'word': the rollouts of one group were given different prompts"):
        score(columns, [("word", each) for each in played], prompts=other, **arguments)


def test_a_batch_larger_than_the_sockets_is_said(
    echo_server: ServerHandle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If not all calls of a batch can be made at once for want of open files, a warning says what to raise."""
    spec = MultiOpenRewardSpec({"word": ORSSource(echo_server.url)})
    size = 2 * count_sockets()
    fields = small_fields(tmp_path) | {"max_steps": 1, "per_device_train_batch_size": size, "num_generations": 2}
    config = GRPOConfig(**spec.training_arguments(**fields))

    with caplog.at_level("WARNING", logger="multiors.training"):
        begin(spec, config)

    assert [True] == [f"ulimit -n {max(2 * size, 1024)}." in record.getMessage() for record in caplog.records]
