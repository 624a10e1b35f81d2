"""`ORSSource`: what it asks and when, what it refuses, and how it stands in for TRL's own spec."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from multiors.errors import ConfigError, SourceError
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.source import ORSSource
from tests.servers.launch import ServerHandle
from tests.servers.raw import serve_raw

CASES = json.loads((Path(__file__).parent / "data" / "task_specs.json").read_text())
URL = "http://127.0.0.1:1"


@pytest.fixture
def trl_spec(echo_server: ServerHandle, monkeypatch: pytest.MonkeyPatch) -> Any:
    """TRL's own spec, as a function of its options, for the server of `Echo`."""
    from trl.experimental.openreward import OpenRewardSpec

    monkeypatch.setenv("OPENREWARD_API_URL", echo_server.url)
    monkeypatch.setenv("OPENREWARD_SESSION_URL", echo_server.url)
    made = []

    def make(**options: Any) -> Any:
        made.append(OpenRewardSpec(echo_server.url, **options))
        return made[-1]

    yield make
    for spec in made:
        spec._sdk_client.close()


def asked(server: ServerHandle) -> dict[str, int]:
    """Requests that a server got, by route, without keepalives: these may still come for sessions just closed."""
    return {route: n for route, n in server.counts().requests.items() if route != "POST /ping"}


# -- construction


def test_construction_asks_nothing(echo_server: ServerHandle) -> None:
    """Making, naming and printing a source sends no request, and its server need not be there."""
    echo_server.reset_counts()
    sources = [ORSSource(echo_server.url), ORSSource(URL), ORSSource("owner/name")]
    shown = [repr(source.named("seta")) for source in sources]

    assert {} == asked(echo_server)
    assert [f"ORSSource({target!r})" for target in (echo_server.url, URL, "owner/name")] == shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tasks": 3, "indices": [1]}, r"num_tasks=3 and indices=\.\.\. were both given\. Pass one of them"),
        ({"num_tasks": 0}, r"num_tasks holds 0; it takes whole numbers from 1 upwards"),
        ({"num_tasks": -3}, r"num_tasks holds -3; it takes whole numbers from 1 upwards"),
        ({"num_tasks": 2.0}, r"num_tasks holds 2\.0; it takes whole numbers"),
        ({"num_tasks": True}, r"num_tasks holds True; it takes whole numbers"),
        ({"indices": []}, r"indices=\[\] names no task\. Pass at least one, or leave it out"),
        ({"indices": [0, -1]}, r"indices holds -1; it takes whole numbers from 0 upwards"),
        ({"indices": ["0"]}, r"indices holds '0'; it takes whole numbers from 0 upwards"),
        ({"indices": [None]}, r"indices holds None; it takes whole numbers from 0 upwards"),
        ({"task_tools_discovery_index": -1}, r"task_tools_discovery_index holds -1; it takes whole numbers from 0"),
        ({"open_timeout_s": 0}, r"open_timeout_s=0 is not a positive number of seconds"),
        ({"open_timeout_s": float("inf")}, r"open_timeout_s=inf is not a positive number of seconds"),
        ({"call_timeout_s": float("nan")}, r"call_timeout_s=nan is not a positive number of seconds"),
        ({"call_timeout_s": "10"}, r"call_timeout_s='10' is not a positive number of seconds"),
    ],
)
def test_a_wrong_argument_is_refused_at_construction(options: dict[str, Any], message: str) -> None:
    """What cannot be right is an error that names the source, the value and what holds instead."""
    with pytest.raises(ConfigError, match=rf"^source 'sorting': {message}"):
        ORSSource(URL, env_name="sorting", **options)


@pytest.mark.parametrize("target", [None, 7, "", "  ", [], ["http://host", 7]])
def test_a_target_is_text(target: Any) -> None:
    """A target that is no text is refused with the forms that exist."""
    with pytest.raises(ConfigError, match=r"is no text\. Pass 'owner/name', 'http://host:port', or a list of URLs"):
        ORSSource(target)


def test_indices_are_copied() -> None:
    """Changing the list afterwards changes nothing."""
    indices = [2, 0]
    source = ORSSource(URL, indices=indices)
    indices.append(99)

    assert [2, 0] == source._indices


def test_a_named_copy_is_a_source_of_its_own(echo_server: ServerHandle) -> None:
    """The copy has its own name and identity, the same settings, and fetches for itself."""
    original = ORSSource(echo_server.url, num_tasks=2, weight=3.0)
    assert 2 == len(original.task_list.indices)
    echo_server.reset_counts()
    twin = original.named("seta")
    tasks = twin.task_list

    assert ("seta", 3.0, original.task_list) == (twin.label, twin.weight, tasks)
    assert tasks is not original.task_list
    assert original.identity != twin.identity
    assert 1 == echo_server.counts().requests["POST /{env}/task_range"]


def test_every_option_of_trls_spec_is_read() -> None:
    """A source made of TRL's spec has its target and all of its options."""
    from trl.experimental.openreward import OpenRewardSpec

    options: dict[str, Any] = {
        "split": "test",
        "indices": [3, 1],
        "api_key": "k",
        "secrets": {"HF_TOKEN": "t"},
        "env_name": "sorting",
        "include_metadata": False,
        "discover_task_tools": False,
        "task_tools_discovery_index": 4,
    }
    read = ORSSource.from_openreward_spec(OpenRewardSpec(URL, **options))
    counted = ORSSource.from_openreward_spec(OpenRewardSpec("owner/name", num_tasks=5))

    assert {
        name: value for name, value in vars(ORSSource(URL, **options)).items() if name[1:] in {*options, "targets"}
    } == {name: value for name, value in vars(read).items() if name[1:] in {*options, "targets"}}
    assert (("owner/name",), 5) == (counted._targets, counted._num_tasks)


# -- fetching


def test_everything_is_fetched_once_whoever_asks(echo_server: ServerHandle) -> None:
    """Threads that read a source's slots at the same time share one fetch."""
    source = ORSSource(echo_server.url)
    echo_server.reset_counts()
    with ThreadPoolExecutor(8) as threads:
        datasets = list(threads.map(lambda _: source.train_dataset, range(8)))
        tools = list(threads.map(lambda _: source.tools, range(8)))
    requests = echo_server.counts().requests

    assert all(dataset is datasets[0] for dataset in datasets)
    assert all(each is tools[0] for each in tools)
    assert (1, 1, 1) == (
        requests["GET /list_environments"],
        requests["POST /{env}/task_range"],
        requests["GET /{env}/tools"],
    )


def test_preparing_fetches_everything(echo_server: ServerHandle) -> None:
    """After `prepare` a mix asks the server nothing more before the first rollout."""
    source = ORSSource(echo_server.url)
    get_runtime().run(source.prepare)
    echo_server.reset_counts()
    names = (
        [tool.name for tool in source.tools],
        len(source.task_list.indices),
        source.blueprint.endpoints[0].environment,
    )

    assert (["echo", "hint"], 8, "echo") == names
    assert {} == asked(echo_server)


def test_a_failed_fetch_is_tried_again() -> None:
    """An error is not remembered: when the server is right, the same source works."""
    with serve_raw(statuses={"/task_range": [500]}) as server:
        source = ORSSource(server.url)
        with pytest.raises(SourceError, match="HTTP 500"):
            source.task_list  # noqa: B018  # reading it asks the server
        tasks = source.task_list

    assert 4 == len(tasks.indices)


def test_the_tools_can_be_printed(echo_server: ServerHandle) -> None:
    """The table shows each tool with its parameters, as the policy sees them."""
    assert ["tool  parameters", "echo  text: str", "hint  (none)"] == ORSSource(
        echo_server.url
    ).describe_tools().splitlines()


# -- the dataset


@pytest.mark.parametrize(
    "options", [{}, {"num_tasks": 3}, {"indices": [5, 0, 5]}, {"split": "test"}, {"include_metadata": False}]
)
def test_the_dataset_is_trls_where_both_are_defined(
    echo_server: ServerHandle, trl_spec: Any, options: dict[str, Any]
) -> None:
    """For plain metadata the columns, their order, their types and their values are those of TRL's spec."""
    theirs = trl_spec(**options).train_dataset
    ours = ORSSource(echo_server.url, **options).train_dataset

    assert theirs.column_names == ours.column_names
    assert theirs.features == ours.features
    assert theirs.to_list() == ours.to_list()


def test_reserved_keys_are_kept_in_a_json_column(zoo_server: ServerHandle) -> None:
    """A task key that TRL would take for its own becomes no column; a warning says so, and the JSON has all keys."""
    (spec,) = CASES["splits"]["reserved_names"]
    source = ORSSource(zoo_server.url, env_name="anytasks", split="reserved_names")
    with pytest.warns(UserWarning, match=r"source 'anytasks': the task keys \['completion', .*\] cannot be columns"):
        dataset = source.train_dataset
    plain = {"reward", "split", "tools"}

    assert [{"role": "user", "content": ""}] == dataset[0]["prompt"]
    assert 0 == dataset[0]["task_index"]
    assert {"prompt", "task_index", "task"} <= set(dataset.column_names) <= {"prompt", "task_index", "task"} | plain
    assert json.dumps(spec) == json.dumps(json.loads(dataset[0]["task"]))
    assert all(spec[key] == dataset[0][key] for key in plain & set(dataset.column_names))


@pytest.mark.parametrize("split", ["mixed_types", "nested", "numbers", "non_objects", "missing_keys", "texts"])
def test_tasks_that_arrow_would_change_are_kept_in_a_json_column(zoo_server: ServerHandle, split: str) -> None:
    """What columns hold is what the server sent; what they cannot hold is in the JSON column, unchanged."""
    source = ORSSource(zoo_server.url, env_name="anytasks", split=split)
    fits = split in ("missing_keys", "texts")
    if fits:
        dataset = source.train_dataset
    else:
        with pytest.warns(UserWarning, match=r"source 'anytasks': .* cannot be columns"):
            dataset = source.train_dataset
    specs = CASES["splits"][split]

    assert fits == ("task" not in dataset.column_names)
    for i, spec in enumerate(specs):
        row = dataset[i]
        if not fits:
            assert json.dumps(spec) == json.dumps(json.loads(row["task"]))
        for key in set(row) - {"prompt", "task_index", "task"}:
            assert json.dumps(spec.get(key)) == json.dumps(row[key])


def test_lone_surrogates_are_kept_in_a_json_column() -> None:
    """Text that is no Unicode cannot be a column, in a key or in a value; its JSON is plain ASCII."""
    with serve_raw(tasks=CASES["lone_surrogates"]) as server:
        source = ORSSource(server.url)
        with pytest.warns(UserWarning, match="cannot be columns"):
            dataset = source.train_dataset

    assert CASES["lone_surrogates"] == [json.loads(row["task"]) for row in dataset]


# -- rewards


def test_the_reward_function_is_trls_where_both_are_defined(echo_server: ServerHandle, trl_spec: Any) -> None:
    """Alone, a source scores each rollout by its last reward, and None stays None, as TRL's spec does."""
    source = ORSSource(echo_server.url)
    scored, unscored = source.environment_factory(), source.environment_factory()
    scored.reset(task_index=0)
    scored.echo(text="oak")  # type: ignore[attr-defined]  # a tool
    unscored.reset(task_index=0)
    environments = [scored, unscored]
    theirs = trl_spec().reward_funcs(environments=environments, prompts=[], completions=[])
    ours = source.reward_funcs(environments=environments, prompts=[], completions=[])

    counts = echo_server.wait_until(lambda counts: not counts.active)

    assert [1.0, None] == theirs == ours
    assert {} == counts.active


def test_a_reward_of_its_own_is_composed_by_a_mix_only() -> None:
    """Alone, a source with `reward=` has no reward function, and says who has."""
    with pytest.raises(
        ConfigError, match=r"source 'sorting': reward=\.\.\. is composed by a mix\. Use MultiOpenRewardSpec"
    ):
        ORSSource(URL, env_name="sorting", reward=object()).reward_funcs  # noqa: B018  # reading it is the test
