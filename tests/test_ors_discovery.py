"""What a server offers: the right environment, its tasks, its tools, or one error that says what is wrong."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiors.errors import SourceError
from multiors.ors.discovery import TaskList
from multiors.ors.rollouts.blueprint import TerminalTool
from multiors.ors.source import ORSSource
from tests.servers.launch import ServerHandle, serve
from tests.servers.platform import API_KEY, Platform, serve_platform
from tests.servers.raw import serve_raw

CASES = json.loads((Path(__file__).parent / "data" / "task_specs.json").read_text())
SLACK_S = 5.0  # for a busy machine, on top of a deadline


@pytest.fixture(scope="module")
def platform(echo_server: ServerHandle, mixed_server: ServerHandle) -> Iterator[Platform]:
    """A platform with two environments."""
    with serve_platform({"lab/echo": echo_server.url, "lab/mixed": mixed_server.url}) as platform:
        yield platform


@pytest.fixture
def on_platform(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """The platform as the documented variables name it; it behaves, and its counts start at zero."""
    monkeypatch.setenv("OPENREWARD_SESSION_URL", platform.session_url)
    monkeypatch.setenv("OPENREWARD_API_KEY", API_KEY)
    platform.tell()
    platform.reset_counts()
    return platform


def fetch(url: str, **options: Any) -> TaskList:
    """The task list of a fresh source."""
    return ORSSource(url, **options).task_list


def specs(url: str, **options: Any) -> list[Any]:
    """The task specifications, read back from their JSON text."""
    return [json.loads(spec) for spec in fetch(url, **options).specs or ()]


def tool_names(url: str, **options: Any) -> list[str]:
    """The tools of a fresh source, by the server's names."""
    return [tool.wire_name for tool in ORSSource(url, **options).tools]


def asked(server: ServerHandle) -> dict[str, int]:
    """Requests that a server got, by route, without keepalives: these may still come for sessions just closed."""
    return {route: n for route, n in server.counts().requests.items() if route != "POST /ping"}


def play(source: ORSSource, tool: str, **arguments: Any) -> str:
    """What a tool says in the source's first task."""
    environment = source.environment_factory()
    environment.reset(task_index=0)
    said: str = getattr(environment, tool)(**arguments)
    environment._close()
    return said


# -- the environment


def test_env_name_selects_the_environment(mixed_server: ServerHandle) -> None:
    """On a server of several, every request goes to the environment that was named, whatever its case."""
    mixed_server.reset_counts()
    tasks = specs(mixed_server.url, env_name="ThermoStat")
    tools = tool_names(mixed_server.url, env_name="ThermoStat")
    counts = mixed_server.counts()

    assert [{"celsius": 12.0}, {"celsius": 31.0}, {"celsius": 21.0}] == tasks
    assert ["read", "submit"] == tools
    assert {"thermostat": 1} == counts.opened
    assert "308" not in counts.statuses


def test_an_unknown_env_name_lists_what_the_server_has(mixed_server: ServerHandle) -> None:
    """A name the server does not have is an error before any task is fetched, not its default environment."""
    with pytest.raises(
        SourceError,
        match=r"source 'sort': environment 'sort' is not on the server at http://127\.0\.0\.1:\d+, "
        r"which has \['sorting', 'thermostat'\]\. Pass one of these as env_name=",
    ):
        fetch(mixed_server.url, env_name="sort")


def test_several_environments_and_none_named_is_an_error(mixed_server: ServerHandle) -> None:
    """Which of several environments is meant is never guessed."""
    with pytest.raises(
        SourceError, match=r"has 2 environments and none was named: \['sorting', 'thermostat'\]\. Pass env_name="
    ):
        fetch(mixed_server.url)


def test_a_server_with_one_environment_needs_no_name(echo_server: ServerHandle) -> None:
    """The only environment of a server is found, and asked by its own path."""
    echo_server.reset_counts()
    tasks = fetch(echo_server.url)

    assert 8 == len(tasks.indices)
    assert 1 == echo_server.counts().paths["POST /echo/task_range"]


def test_a_server_that_lists_no_environments_is_taken_at_its_word() -> None:
    """Without a list, a named environment is asked by its path, and an unnamed one without."""
    with serve_raw(list_environments=None) as server:
        named = fetch(server.url, env_name="raw")
        unnamed = fetch(server.url)
        paths = server.counts().paths

    assert 4 == len(named.indices) == len(unnamed.indices)
    assert (1, 1) == (paths["POST /raw/task_range"], paths["POST /task_range"])


def test_an_answer_from_another_environment_is_an_error() -> None:
    """A reply that names another environment than the one asked for is refused, whatever the list says."""
    with (
        serve_raw(answers_as="Other") as server,
        pytest.raises(
            SourceError, match=r"for environment 'raw', but 'Other' answered\. Check the address and env_name="
        ),
    ):
        fetch(server.url, env_name="raw")


def test_a_reply_without_a_name_is_accepted() -> None:
    """Servers that do not name the environment in their replies work."""
    with serve_raw(answers_as="") as server:
        tasks = fetch(server.url, env_name="raw")

    assert 4 == len(tasks.indices)


# -- servers


def test_two_servers_and_two_environments_of_one_server_are_told_apart(
    mixed_server: ServerHandle, echo_server: ServerHandle
) -> None:
    """Sources in one process reach their own server and their own environment, also where tools have one name."""
    sort, heat, echo = (
        ORSSource(mixed_server.url, env_name="sorting"),
        ORSSource(mixed_server.url + "/", env_name="thermostat"),
        ORSSource(echo_server.url, env_name="echo"),
    )
    mixed_server.reset_counts()
    echo_server.reset_counts()
    said = [play(sort, "submit", order=[1, 2, 0]), play(heat, "submit", mode="heat"), play(echo, "echo", text="oak")]

    assert ["sorting: [1, 2, 0]", "thermostat: heat", "oak"] == said
    assert {"sorting": {"submit": 1}, "thermostat": {"submit": 1}} == mixed_server.counts().tool_calls
    assert {"echo": {"echo": 1}} == echo_server.counts().tool_calls


def test_two_sources_of_one_environment_are_two(echo_server: ServerHandle) -> None:
    """The same environment twice, with other tasks each, is two sources with sessions of their own."""
    train, test = ORSSource(echo_server.url), ORSSource(echo_server.url, split="test")

    assert (8, 2) == (len(train.task_list.indices), len(test.task_list.indices))
    assert ("oak", "pine") == (play(train, "echo", text="oak"), play(test, "echo", text="pine"))


@pytest.mark.parametrize("path", ["/list_environments", "/task_range", "/tools"])
def test_a_server_that_hangs_is_an_error_within_the_deadline(path: str) -> None:
    """A request that is never answered ends in an error that names the source and the deadline."""
    with serve_raw(hangs_on=(path,)) as server:
        source = ORSSource(server.url, open_timeout_s=0.3).named("slow")
        started = time.monotonic()
        with pytest.raises(SourceError, match=r"source 'slow': .* did not answer within 0\.3 s\. Check that it is up"):
            source.tools if path == "/tools" else source.task_list  # noqa: B018  # reading it asks the server
        took_s = time.monotonic() - started

    assert took_s < 2 * 0.3 + SLACK_S


def test_a_frozen_server_is_an_error_within_the_deadline(echo_server: ServerHandle) -> None:
    """A server that accepts connections and says nothing is an error, not a hang."""
    with echo_server.paused(), pytest.raises(SourceError, match=r"did not answer within 0\.3 s"):
        fetch(echo_server.url, open_timeout_s=0.3)


def test_a_dead_address_is_an_error_that_names_source_and_remedy() -> None:
    """Where nothing listens, the error says so after a few tries, with the source, the address and what to check."""
    with serve_raw() as server:
        url = server.url

    with pytest.raises(
        SourceError,
        match=rf"source 'gone': the server at {url} cannot be used: cannot connect to .*Check the address and that",
    ):
        ORSSource(url).named("gone").task_list  # noqa: B018  # reading it asks the server


@pytest.mark.parametrize(
    "answers",
    [
        {"/list_environments": {"names": ["raw"]}},
        {"/list_environments": [1, 2]},
        {"/task_range": [{"id": 1}]},
        {"/task_range": {"env_name": "raw"}},
        {"/task_range": {"env_name": "raw", "tasks": None}},
        {"/tools": [{"name": "act"}]},
        {"/tools": {}},
        {"/tools": {"tools": None}},
    ],
)
def test_a_server_that_answers_something_else_is_an_error(answers: dict[str, Any]) -> None:
    """JSON of another shape than ORS defines is an error of the source, not a crash."""
    with serve_raw(answers=answers) as server:
        source = ORSSource(server.url, env_name="raw", discover_task_tools=False)
        with pytest.raises(SourceError, match=r"source 'raw': the server at .* does not speak ORS: "):
            source.tools if "/tools" in answers else source.task_list  # noqa: B018  # reading it asks the server


@pytest.mark.parametrize("status", [400, 404, 500])
def test_an_http_error_is_named_with_its_reason(status: int) -> None:
    """What the server says of a failed request is in the error."""
    with (
        serve_raw(statuses={"/num_tasks": [status]}) as server,
        pytest.raises(SourceError, match=rf"source .* answered HTTP {status}: scripted {status}\."),
    ):
        fetch(server.url, include_metadata=False)


# -- splits, counts, indices


@pytest.mark.parametrize("include_metadata", [True, False])
@pytest.mark.parametrize("indices", [None, [0]])
def test_an_unknown_split_lists_the_splits(
    zoo_server: ServerHandle, include_metadata: bool, indices: list[int] | None
) -> None:
    """A split that does not exist is an error that lists those that do."""
    with pytest.raises(
        SourceError,
        match=r"source 'splits': split 'tran' does not exist; splits on this server: "
        r"\['train', 'test', 'hard-v2', 'zürich'\]\. Pass split=",
    ):
        fetch(zoo_server.url, env_name="splits", split="tran", include_metadata=include_metadata, indices=indices)


@pytest.mark.parametrize("split", ["train", "test", "hard-v2", "zürich"])
def test_a_split_is_asked_by_its_name(zoo_server: ServerHandle, split: str) -> None:
    """Unusual split names work, and give the tasks of that split."""
    assert {split} == {spec["split"] for spec in specs(zoo_server.url, env_name="splits", split=split)}


@pytest.mark.parametrize("include_metadata", [True, False])
@pytest.mark.parametrize("indices", [None, [0]])
def test_a_split_without_tasks_is_an_error(
    zoo_server: ServerHandle, include_metadata: bool, indices: list[int] | None
) -> None:
    """Nothing to draw from is an error before training, with the splits that exist."""
    with pytest.raises(
        SourceError, match=r"split 'train' has no tasks; splits on this server: \['train', 'test'\]\. Pass split="
    ):
        fetch(zoo_server.url, env_name="emptysplit", include_metadata=include_metadata, indices=indices)


@pytest.mark.parametrize("include_metadata", [True, False])
def test_an_index_out_of_range_is_an_error(echo_server: ServerHandle, include_metadata: bool) -> None:
    """Indices that the split does not have are named, with how many tasks it has."""
    with pytest.raises(
        SourceError, match=r"source 'echo': indices \[8, 99\] are out of range; split 'train' has 8 tasks, 0 to 7\."
    ):
        fetch(echo_server.url, env_name="echo", indices=[3, 99, 8], include_metadata=include_metadata)


@pytest.mark.parametrize("include_metadata", [True, False])
@pytest.mark.parametrize(("num_tasks", "expected"), [(3, 3), (8, 8), (100, 8), (None, 8)])
def test_num_tasks_takes_the_first_ones_that_exist(
    echo_server: ServerHandle, include_metadata: bool, num_tasks: int | None, expected: int
) -> None:
    """`num_tasks` counts from the first task, and more than there are means all."""
    tasks = fetch(echo_server.url, num_tasks=num_tasks, include_metadata=include_metadata)

    assert list(range(expected)) == list(tasks.indices)


@pytest.mark.parametrize("include_metadata", [True, False])
def test_indices_keep_their_order(echo_server: ServerHandle, include_metadata: bool) -> None:
    """The task list has exactly the indices that were given, in that order, repetitions included."""
    tasks = fetch(echo_server.url, indices=[5, 0, 5, 2], include_metadata=include_metadata)
    ids = None if tasks.specs is None else [json.loads(spec)["id"] for spec in tasks.specs]

    assert [5, 0, 5, 2] == list(tasks.indices)
    assert (["train-5", "train-0", "train-5", "train-2"] if include_metadata else None) == ids


# -- cost


@pytest.mark.parametrize("options", [{}, {"num_tasks": 5000}, {"indices": list(range(0, 5000, 7))}])
def test_thousands_of_tasks_cost_one_range_request(zoo_server: ServerHandle, options: dict[str, Any]) -> None:
    """All tasks, many of them, or indices close together are one request."""
    zoo_server.reset_counts()
    tasks = specs(zoo_server.url, env_name="many", **options)
    requests = zoo_server.counts().requests

    assert list(options.get("indices", range(5000))) == [task["n"] for task in tasks]
    assert {"POST /{env}/task_range": 1} == {route: n for route, n in requests.items() if "task" in route}


def test_indices_far_apart_cost_one_request_for_each_neighbourhood(zoo_server: ServerHandle) -> None:
    """Sparse indices are fetched in a few ranges that skip what lies between them, all at once."""
    zoo_server.reset_counts()
    tasks = specs(zoo_server.url, env_name="many", indices=[4999, 0, 100, 2500, 2600])
    requests = zoo_server.counts().requests

    assert [4999, 0, 100, 2500, 2600] == [task["n"] for task in tasks]
    assert 3 == requests["POST /{env}/task_range"]


@pytest.mark.parametrize("options", [{}, {"num_tasks": 10}, {"indices": [0, 4999]}])
def test_without_metadata_only_the_number_of_tasks_is_asked_for(
    zoo_server: ServerHandle, options: dict[str, Any]
) -> None:
    """With `include_metadata=False` one request of fixed size tells all that is needed, and no task is built."""
    zoo_server.reset_counts()
    tasks = fetch(zoo_server.url, env_name="many", include_metadata=False, **options)
    requests = zoo_server.counts().requests

    assert list(options.get("indices", range(options.get("num_tasks", 5000)))) == list(tasks.indices)
    assert tasks.specs is None
    assert {"POST /{env}/num_tasks": 1} == {route: n for route, n in requests.items() if "task" in route}


def test_a_plain_server_is_asked_without_a_routing_session(echo_server: ServerHandle) -> None:
    """Only a platform needs a session to find out what there is: elsewhere the list and the tasks are two requests."""
    echo_server.reset_counts()
    num_tasks = len(fetch(echo_server.url).indices)

    assert 8 == num_tasks
    assert {"GET /list_environments": 1, "POST /{env}/task_range": 1} == asked(echo_server)


def test_tasks_and_tools_are_asked_for_once(echo_server: ServerHandle) -> None:
    """What was fetched is kept: reading it again sends nothing."""
    source = ORSSource(echo_server.url)
    first = source.task_list, source.tools, source.train_dataset, source.blueprint
    echo_server.reset_counts()
    second = source.task_list, source.tools, source.train_dataset, source.blueprint

    assert all(one is two for one, two in zip(first, second, strict=True))
    assert {} == asked(echo_server)


def test_an_environment_that_cannot_list_its_tasks_is_read_by_ranges(zoo_server: ServerHandle) -> None:
    """Environments too large to list work, whole and by index."""
    whole = specs(zoo_server.url, env_name="large")
    some = specs(zoo_server.url, env_name="large", indices=[999, 1])

    assert list(range(1000)) == [task["n"] for task in whole]
    assert [999, 1] == [task["n"] for task in some]


def test_a_server_without_ranges_is_asked_for_the_whole_list() -> None:
    """Servers older than `/task_range` are asked for all tasks, of which the wanted ones are kept."""
    with serve_raw(statuses={"/task_range": [404] * 9}) as server:
        first = specs(server.url, num_tasks=2)
        some = specs(server.url, indices=[3, 1])

    assert [{"id": "r0"}, {"id": "r1"}] == first
    assert [{"id": "r3"}, {"id": "r1"}] == some


def test_a_server_that_returns_fewer_tasks_than_it_counts_is_an_error() -> None:
    """A task list that contradicts the count is the server's error, never a shorter list."""
    with (
        serve_raw(num_tasks=9) as server,
        pytest.raises(SourceError, match=r"does not speak ORS: .*/task_range returned"),
    ):
        fetch(server.url, indices=[0, 7])


def test_a_task_list_that_cannot_be_had_is_an_error(flaky_server: ServerHandle) -> None:
    """If the environment's own code fails while it lists tasks, its reason is in the error."""
    with pytest.raises(SourceError, match=r"source 'flakytasks': .* answered HTTP 500: .*the task store is down"):
        fetch(flaky_server.url, env_name="flakytasks")


# -- task specifications


@pytest.mark.parametrize("split", CASES["splits"])
def test_task_specifications_survive_as_they_are(zoo_server: ServerHandle, split: str) -> None:
    """Whatever JSON a task is, its text gives back exactly that."""
    expected = CASES["splits"][split]
    actual = specs(zoo_server.url, env_name="anytasks", split=split)

    assert json.dumps(expected) == json.dumps(actual)  # not ==: 1 and 1.0 and True are told apart


def test_lone_surrogates_survive_as_they_are() -> None:
    """Halves of surrogate pairs are kept, in keys and in values, in a text that is pure ASCII."""
    with serve_raw(tasks=CASES["lone_surrogates"]) as server:
        tasks = fetch(server.url)

    assert CASES["lone_surrogates"] == [json.loads(spec) for spec in tasks.specs or ()]
    assert all(spec.isascii() for spec in tasks.specs or ())


# -- tools


def test_tools_of_a_task_are_found(echo_server: ServerHandle) -> None:
    """A short session of the first task finds the tools that only tasks have, and is closed again."""
    echo_server.reset_counts()
    found = tool_names(echo_server.url)
    counts = echo_server.counts()

    assert ["echo", "hint"] == found
    assert [("train", 0)] == [(session["split"], session["index"]) for session in counts.sessions]
    assert {} == counts.active


def test_task_tools_can_be_left_alone(echo_server: ServerHandle) -> None:
    """With `discover_task_tools=False` no session is opened, and the shared tools are offered."""
    echo_server.reset_counts()
    found = tool_names(echo_server.url, discover_task_tools=False)

    assert ["echo"] == found
    assert {} == echo_server.counts().opened


def test_each_of_the_indices_is_probed(zoo_server: ServerHandle) -> None:
    """With `indices` every listed task is probed once, and all their tools are offered; a clash is said."""
    zoo_server.reset_counts()
    with (
        pytest.warns(
            UserWarning, match=r"source 'pertasktools': tool 'act' has different parameters in different tasks"
        ),
        pytest.warns(UserWarning, match=r"source 'pertasktools': 1 tools are not in all of the 2 probed tasks"),
    ):
        found = tool_names(zoo_server.url, env_name="pertasktools", indices=[1, 0, 1])
    counts = zoo_server.counts()

    assert ["look", "act", "extra"] == found
    assert [0, 1] == sorted(session["index"] for session in counts.sessions)


def test_the_discovery_index_is_the_one_task_that_is_probed(zoo_server: ServerHandle) -> None:
    """`task_tools_discovery_index` is stronger than `indices`."""
    zoo_server.reset_counts()
    found = tool_names(zoo_server.url, env_name="pertasktools", indices=[0], task_tools_discovery_index=1)

    assert ["look", "act", "extra"] == found
    assert [1] == [session["index"] for session in zoo_server.counts().sessions]


def test_tasks_are_probed_at_the_same_time() -> None:
    """Probing many tasks takes as long as probing one: all their sessions are open at once."""
    with serve("Echo", latency_s=0.1) as server:
        found = tool_names(server.url, indices=list(range(8)))
        counts = server.counts()

    assert ["echo", "hint"] == found
    assert 8 == counts.max_in_flight["POST /create"]
    assert {} == counts.active


@pytest.mark.parametrize("options", [{"split": "init"}, {"task_tools_discovery_index": 99}])
def test_a_probe_that_fails_is_said_and_the_shared_tools_remain(
    flaky_server: ServerHandle, options: dict[str, Any]
) -> None:
    """If a task cannot be probed, a warning says which tools may be missing, and the shared ones are offered."""
    with pytest.warns(
        UserWarning,
        match=r"source 'flaky': the tools of 1 of 1 probed tasks could not be read, so tools that only these tasks "
        r"have are missing \(task (0|99): source 'flaky': ",
    ):
        found = tool_names(flaky_server.url, env_name="flaky", **options)

    assert ["act", "rest"] == found
    assert {} == flaky_server.counts().active


def test_a_probe_that_hangs_is_said_within_the_deadline() -> None:
    """A task whose tools never come costs a deadline, and its session is closed."""
    with serve_raw(hangs_on=("/task_tools",)) as server:
        with pytest.warns(UserWarning, match=r"task 0: .* did not answer within 0\.3 s"):
            found = tool_names(server.url, open_timeout_s=0.3)
        active = server.counts().active

    assert ["act"] == found
    assert {} == active


@pytest.mark.parametrize(
    ("env_name", "shown", "terminal"),
    [
        ("essay", ["topic"], TerminalTool("submit", "answer")),
        ("onlyterminal", [], TerminalTool("grade", None)),
        ("echo", ["echo", "hint"], None),
    ],
)
def test_a_terminal_tool_is_found_and_not_shown(
    zoo_server: ServerHandle, env_name: str, shown: list[str], terminal: TerminalTool | None
) -> None:
    """The tool that takes the last message is no tool of the policy's; an environment may have no other."""
    blueprint = ORSSource(zoo_server.url, env_name=env_name).blueprint

    assert shown == [tool.name for tool in blueprint.tools]
    assert terminal == blueprint.terminal


def test_an_environment_without_tools_is_refused() -> None:
    """Where nothing can be called nothing can be scored."""
    with serve_raw(tools=()) as server, pytest.raises(SourceError, match=r"offers no tools"):
        tool_names(server.url)


def test_a_tool_that_cannot_be_bound_names_the_source() -> None:
    """What is wrong with a single tool is an error of its source."""
    with (
        serve_raw(tools=({"name": 7},)) as server,
        pytest.raises(SourceError, match=r"source 'raw': tool number 1 .*name 7"),
    ):
        tool_names(server.url, env_name="raw")


# -- the platform


def test_a_catalogue_name_works_from_tasks_to_a_tool_call(on_platform: Platform) -> None:
    """A catalogue name is looked up, played and closed on the platform, with the platform's key."""
    source = ORSSource("lab/echo")
    tasks, said = len(source.task_list.indices), play(source, "echo", text="oak")
    counts = on_platform.counts()

    assert (8, "oak") == (tasks, said)
    assert (0, [API_KEY]) == (counts["refused"], counts["keys"])
    assert {} == counts["open"]
    assert {} == counts["api"]


def test_a_variant_selects_the_environment_of_a_deployment(on_platform: Platform) -> None:
    """A deployment that serves several environments is told which one."""
    source = ORSSource("lab/mixed", variant="Thermostat")

    assert [{"celsius": 12.0}, {"celsius": 31.0}, {"celsius": 21.0}] == [
        json.loads(spec) for spec in source.task_list.specs or ()
    ]
    assert "thermostat: heat" == play(source, "submit", mode="heat")


def test_an_unknown_variant_lists_what_the_deployment_has(on_platform: Platform) -> None:
    """A variant is checked against the list, as an environment of a server is."""
    with pytest.raises(SourceError, match=r"environment 'fridge' is not on .* which has \['sorting', 'thermostat'\]"):
        fetch("lab/mixed", variant="fridge")


def test_an_unknown_catalogue_name_is_an_error(on_platform: Platform) -> None:
    """What the platform says of a name it does not know is in the error."""
    with pytest.raises(SourceError, match=r"source 'lab/ecko': .* answered HTTP 404: Deployment not found"):
        fetch("lab/ecko")


def test_a_platform_of_ones_own_gets_the_key_of_the_source(platform: Platform) -> None:
    """A URL with `env_name="owner/name"` is a platform; the key is the one that this source was given."""
    options = {"env_name": "lab/echo", "session_url": platform.session_url, "api_key": API_KEY}

    assert 8 == len(fetch(platform.api_url, **options).indices)


@pytest.mark.parametrize("api_key", ["wrong-key", None])
def test_a_refused_key_is_an_error_with_the_remedy(platform: Platform, api_key: str | None) -> None:
    """A wrong or missing key is an error that says how to give one, and does not repeat it."""
    with pytest.raises(
        SourceError, match=r"source 'lab/echo': .* refused the key, or got none\. Pass api_key="
    ) as raised:
        fetch(platform.api_url, env_name="lab/echo", session_url=platform.session_url, api_key=api_key)

    assert "wrong-key" not in str(raised.value)


@pytest.mark.parametrize("told", [{"starting": 4}, {"busy": 1}])
def test_a_platform_that_is_still_starting_is_waited_for(on_platform: Platform, told: dict[str, int]) -> None:
    """The answers "still starting" and "too many requests" are ridden out, and cost no second session."""
    on_platform.tell(**told)
    source = ORSSource("lab/echo")
    tasks, tools = len(source.task_list.indices), len(source.tools)

    assert (8, 2) == (tasks, tools)
    assert {} == on_platform.counts()["open"]


# -- keys


def test_the_platforms_key_never_reaches_another_server(
    echo_server: ServerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPENREWARD_API_KEY is not sent to a self-hosted server: not as a header, not among the secrets."""
    monkeypatch.setenv("OPENREWARD_API_KEY", "platform-key")
    echo_server.reset_counts()
    bare = ORSSource(echo_server.url)
    play(bare, "echo", text=f"{len(bare.task_list.indices)}")
    without = echo_server.counts()
    play(ORSSource(echo_server.url, secrets={"HF_TOKEN": "token"}), "echo", text="oak")
    with_secrets = echo_server.counts()

    assert ([], []) == (list(without.api_keys), list(without.secrets))
    assert [] == list(with_secrets.api_keys)
    assert [["HF_TOKEN"]] == [list(sent) for sent in with_secrets.secrets]


def test_a_sources_own_key_reaches_its_server_with_every_request(echo_server: ServerHandle) -> None:
    """A self-hosted server that was given a key gets it; the server next to it does not."""
    echo_server.reset_counts()
    with serve_raw() as other:
        play(ORSSource(echo_server.url, api_key="own-key"), "echo", text="oak")
        fetch(other.url)
        keys = other.counts().api_keys
    counts = echo_server.counts()

    assert ["own-key"] == list(counts.api_keys)
    assert {"own-key"} == {entry["value"] for sent in counts.secrets for entry in sent.values()}
    assert [] == list(keys)


def test_a_redirect_to_another_host_is_refused_before_the_key_goes_there() -> None:
    """Keys and secrets travel in headers, so a redirect to another host ends in an error, not at that host."""
    with serve_raw() as other, serve_raw(redirect_to=other.url) as server:
        with pytest.raises(SourceError, match=r"redirects to another host, .*keys and secrets are not sent there"):
            fetch(server.url, api_key="own-key", secrets={"HF_TOKEN": "token"})
        counts = other.counts()

    assert {} == counts.requests
    assert [] == list(counts.api_keys)


def test_a_redirect_on_the_same_host_is_followed(echo_server: ServerHandle) -> None:
    """A platform whose deployment needs no prefix redirects to its first environment; that is not another host."""
    echo_server.reset_counts()
    options = {"env_name": "lab/echo", "session_url": echo_server.url}
    tasks = fetch("http://platform.invalid", **options)
    statuses = echo_server.counts().statuses

    assert 8 == len(tasks.indices)
    assert 1 == statuses["308"]


def test_what_a_server_echoes_is_shown_without_key_token_and_session_id() -> None:
    """An error before training shows what the server said, but not what was sent to it, in itself or in a traceback."""
    echo = f"denied: key-of-mine {'A' * 80} 123e4567-e89b-12d3-a456-426614174000"

    with serve_raw(answers={"/list_environments": {"detail": echo}}) as server:
        source = ORSSource(server.url, api_key="key-of-mine")
        with pytest.raises(SourceError, match=r"does not speak ORS") as caught:
            _ = source.task_list

    shown = "".join(traceback.format_exception(caught.value))
    assert [] == [secret for secret in ("key-of-mine", "A" * 80, "123e4567") if secret in shown]
