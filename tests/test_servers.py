"""The test servers do what the other tests rely on."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers.launch import ServerHandle, configured, serve
from tests.servers.platform import API_KEY, serve_platform
from tests.servers.raw import serve_raw


@contextmanager
def _session(url: str, environment: str, *, index: int = 0, headers: Mapping[str, str] | None = None) -> Iterator[Any]:
    """An ORS session over plain HTTP: a function that calls a tool and returns what the server said."""
    with httpx.Client(base_url=url, headers=headers, timeout=10) as client:
        created = client.post("/create_session", json={})
        sid = created.text.split("data: ")[1].split()[0]
        client.headers["X-Session-ID"] = sid
        body = {"env_name": environment, "split": "train", "index": index}
        client.post("/create", json=body).raise_for_status()

        def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
            answer = client.post(f"/{environment}/call", json={"name": tool, "input": arguments})
            answer.raise_for_status()
            return dict(json.loads(answer.text.split("event: end\r\ndata: ")[1]))

        yield call
        client.post("/delete")
        client.post("/delete_session")


def test_counts_tell_environments_tools_and_sessions_apart(mixed_server: ServerHandle) -> None:
    """A server counts requests by route, and sessions and tool runs by environment."""
    mixed_server.reset_counts()
    with _session(mixed_server.url, "sorting") as sort, _session(mixed_server.url, "thermostat", index=1) as heat:
        sort("compare", i=0, j=1)
        sort("submit", order=[1, 2, 0])
        heat("submit", mode="cool")
        during = mixed_server.counts()
    after = mixed_server.counts()

    assert {"sorting": 1, "thermostat": 1} == during.active
    assert {"sorting": {"compare": 1, "submit": 1}, "thermostat": {"submit": 1}} == during.tool_calls
    assert 3 == during.requests["POST /{env}/call"]
    assert [
        ("sorting", 0, {"compare": 1, "submit": 1}),
        ("thermostat", 1, {"submit": 1}),
    ] == [(session["environment"], session["index"], session["tool_calls"]) for session in during.sessions]
    assert {} == after.active
    assert after.opened == after.deleted == {"sorting": 1, "thermostat": 1}


def test_same_named_tools_say_which_environment_answered(mixed_server: ServerHandle) -> None:
    """Both environments have a tool `submit`, and each signs its answer."""
    with _session(mixed_server.url, "sorting") as sort, _session(mixed_server.url, "thermostat") as heat:
        sorted_output = sort("submit", order=[1, 2, 0])["output"]
        heated_output = heat("submit", mode="off")["output"]

    assert ("sorting: [1, 2, 0]", 10.0) == (sorted_output["blocks"][0]["text"], sorted_output["reward"])
    assert ("thermostat: off", 0.0) == (heated_output["blocks"][0]["text"], heated_output["reward"])


def test_counting_does_not_hide_the_redirect_to_the_default_environment(mixed_server: ServerHandle) -> None:
    """A path without an environment is still answered with a 308 to the first one, and counted."""
    mixed_server.reset_counts()
    answer = httpx.get(f"{mixed_server.url}/tools")

    assert 308 == answer.status_code
    assert "/sorting/tools" == answer.headers["location"]
    assert {"308": 1} == mixed_server.counts().statuses


def test_a_key_that_was_sent_is_seen() -> None:
    """The counts show the distinct values of X-API-Key."""
    with serve("Echo") as server:
        with _session(server.url, "echo"):
            without = server.counts().api_keys
        with _session(server.url, "echo", headers={"X-API-Key": "k"}):
            with_key = server.counts().api_keys

    assert [] == without
    assert ["k"] == with_key


def test_restart_keeps_the_port_and_forgets_the_sessions() -> None:
    """After a restart the same URL answers, and knows no session."""
    with serve("Echo") as server:
        url, pid = server.url, server.pid
        with _session(url, "echo"):
            server.restart()
        counts = server.counts()

    assert url == server.url
    assert pid != server.pid
    assert {} == counts.opened


def test_a_paused_server_accepts_and_says_nothing() -> None:
    """While a server is paused a request times out; afterwards it is answered."""
    with serve("Echo") as server:
        with server.paused(), pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{server.url}/health", timeout=0.2)
        answer = httpx.get(f"{server.url}/health")

    assert {"status": "ok"} == answer.json()


def test_a_server_under_a_path_prefix_is_only_there() -> None:
    """With a path prefix the root of the host answers 404."""
    with serve("Echo", path_prefix="/ors") as server:
        below = httpx.get(f"{server.url}/list_environments")
        root = httpx.get(f"http://127.0.0.1:{server.port}/list_environments")

    assert ["echo"] == below.json()
    assert 404 == root.status_code


def test_class_attributes_can_be_configured() -> None:
    """`configured` sets attributes of the class in the server's process."""
    with serve(configured("Slow", NUM_TASKS=3, TOOL_S=0.25)) as server:
        tasks = server.ask("POST", "/slow/tasks", {"split": "train"})["tasks"]

    assert [0, 1, 2] == [task["n"] for task in tasks]
    assert {0.25} == {task["tool_s"] for task in tasks}


def test_an_unknown_environment_fails_with_the_servers_traceback() -> None:
    """What goes wrong while a server is built is raised by `serve`."""
    with pytest.raises(RuntimeError, match="NoSuchEnvironment"), serve("NoSuchEnvironment"):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a stopped child that its parent died")
def test_servers_die_with_a_killed_parent(tmp_path: Path) -> None:
    """When the process that started servers is killed, its servers end, also a paused one."""
    script = (
        "from tests.servers.launch import serve\n"
        "with serve('Echo') as one, serve('Echo') as two:\n"
        "    two.pause()\n"
        "    print(one.pid, two.pid, flush=True)\n"
        "    input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # a killed parent cleans nothing up
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.communicate()

    assert 2 == len(pids)
    assert all(_ends(pid) for pid in pids)


def _ends(pid: int, *, deadline_s: float = 10.0) -> bool:
    """Whether the process, which is no child of ours, ends in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ended, _, _ = select.select([descriptor], [], [], deadline_s)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        return bool(ended)
    finally:
        os.close(descriptor)


def test_every_shape_of_task_spec_is_served_as_it_is_written(zoo_server: ServerHandle) -> None:
    """`AnyTasks` serves the specs of the data file unchanged, whatever their shape."""
    splits = [split["name"] for split in zoo_server.ask("GET", "/anytasks/splits")]
    served = {split: zoo_server.ask("POST", "/anytasks/tasks", {"split": split})["tasks"] for split in splits}

    with open("tests/data/task_specs.json", encoding="utf-8") as file:
        assert json.load(file)["splits"] == served


def test_every_tool_specification_is_offered_and_answers(tools_server: ServerHandle) -> None:
    """`AnyTools` lists the specifications of the data file unchanged, and answers with the arguments it got."""
    with open("tests/data/tool_specifications.json", encoding="utf-8") as file:
        specs = [case["spec"] for case in json.load(file)["cases"]]
    offered = tools_server.ask("GET", "/anytools/tools")["tools"]
    with _session(tools_server.url, "anytools") as call:
        outputs = [call(spec["name"], x=1)["output"] for spec in specs]

    assert specs == offered
    assert [('{"x": 1}', spec["name"]) for spec in specs] == [
        (output["blocks"][0]["text"], output["metadata"]["tool"]) for output in outputs
    ]


def test_flaky_fails_exactly_where_its_task_says(flaky_server: ServerHandle) -> None:
    """Each kind of `Flaky` task fails in its own place."""
    places = {}
    for kind in ("nowhere", "init", "setup", "prompt"):
        with httpx.Client(base_url=flaky_server.url, headers={"X-Session-ID": f"flaky-{kind}"}) as client:
            created = client.post("/create", json={"env_name": "flaky", "split": kind, "index": 0})
            prompt = client.get("/flaky/prompt")
            client.post("/delete")
        places[kind] = (created.status_code, prompt.status_code)

    assert {"nowhere": (200, 200), "init": (500, 404), "setup": (200, 500), "prompt": (200, 500)} == places


@pytest.mark.parametrize(
    ("cut", "num_executions"),
    [("no_response", 1), ("before_events", 1), ("after_task_id", 1), ("mid_chunk", 1), (None, 1)],
)
def test_a_raw_stream_is_cut_where_asked_after_the_tool_ran(cut: Any, num_executions: int) -> None:
    """A cut call has run its tool once, and a cut stream ends without its end."""
    with serve_raw(cut=cut) as server, _open_raw(server) as client:
        try:
            text = client.post("/raw/call", json={"name": "act", "input": {}}).text
        except httpx.TransportError as error:
            text = type(error).__name__
        executions = server.counts().details["executions"]["act"]

    assert num_executions == executions
    assert ("event: end" in text) == (cut is None)


def test_a_raw_call_is_resumed_by_its_task_id_without_running_again() -> None:
    """After a cut, asking with the task_id gives the result of the one run."""
    with serve_raw(cut="after_task_id") as server, _open_raw(server) as client:
        task_id = ""
        with pytest.raises(httpx.RemoteProtocolError), client.stream("POST", "/raw/call", json=_CALL) as stream:  # noqa: PT012  # the id comes before the cut
            for line in stream.iter_lines():
                task_id = line.removeprefix("data: ") if line.startswith("data: ") else task_id
        resumed = client.post("/raw/call", json={**_CALL, "task_id": task_id}).text
        counts = server.counts()

    assert "event: end" in resumed
    assert {"act": 1} == counts.details["executions"]
    assert 1 == counts.resumed_calls


@pytest.mark.parametrize("literal", ["NaN", '"0.7"', "[1]", "true", "1e400", "null"])
def test_a_raw_reward_reaches_the_wire_as_written(literal: str) -> None:
    """Rewards are JSON literals, also those that no JSON encoder writes."""
    with serve_raw(rewards=(literal,)) as server, _open_raw(server) as client:
        text = client.post("/raw/call", json=_CALL).text

    assert f'"reward": {literal},' in text


def test_a_raw_server_refuses_forgets_and_redirects_as_its_scenario_says() -> None:
    """Scripted statuses come first, a lost session is a 404, and a redirect names the other server."""
    with serve_raw(statuses={"/call": (503, 410)}, lost_after=1) as server, _open_raw(server) as client:
        answers = [client.post("/raw/call", json=_CALL).status_code for _ in range(4)]
        executions = server.counts().details["executions"]
        with serve_raw(redirect_to=server.url, list_environments=None) as other:
            redirected = httpx.get(f"{other.url}/raw/splits?x=1")

    assert [503, 410, 200, 404] == answers
    assert {"act": 1} == executions
    assert (308, f"{server.url}/raw/splits?x=1") == (redirected.status_code, redirected.headers["location"])


def test_a_raw_server_is_silent_only_where_told() -> None:
    """A hanging route is never answered, the others are; a missing route is a 404."""
    with serve_raw(hangs_on=("/splits",), list_environments=None) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{server.url}/raw/splits", timeout=0.2)
        tools = httpx.get(f"{server.url}/raw/tools")
        environments = httpx.get(f"{server.url}/list_environments")

    assert (200, 404) == (tools.status_code, environments.status_code)


_CALL = {"name": "act", "input": {}}


@contextmanager
def _open_raw(server: ServerHandle) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"X-Session-ID": "s"}, timeout=10) as client:
        client.post("/create", json={"split": "train", "index": 0}).raise_for_status()
        yield client


def test_the_platform_wants_its_key_and_routes_by_deployment(mixed_server: ServerHandle) -> None:
    """Without the key both addresses answer 401; with it a session reaches the server of its deployment."""
    with serve("Echo") as echo, serve_platform({"a/mix": mixed_server.url, "b/echo": echo.url}) as platform:
        refused = httpx.post(f"{platform.session_url}/create_session", headers={"X-Deployment": "b/echo"})
        refused_api = httpx.get(f"{platform.api_url}/v1/environments/b/echo/task-difficulty")
        keyed = {"X-API-Key": API_KEY, "X-Deployment": "b/echo"}
        with _session(platform.session_url, "echo", headers=keyed) as call:
            output = call("echo", text="oak")["output"]
        counts = platform.counts()
        keys_behind = echo.counts().api_keys

    assert 401 == refused.status_code
    assert 401 == refused_api.status_code
    assert 1.0 == output["reward"]
    assert 2 == counts["refused"]
    assert {} == counts["open"]
    assert [] == keys_behind


def test_the_platform_is_starting_as_often_as_told(echo_server: ServerHandle) -> None:
    """A platform told to be starting says so, and how long to wait, and then answers."""
    keyed = {"X-API-Key": API_KEY, "X-Deployment": "b/echo"}
    with serve_platform({"b/echo": echo_server.url}) as platform:
        platform.tell(starting=1, retry_after_s=3)
        first = httpx.post(f"{platform.session_url}/create_session", headers=keyed)
        second = httpx.post(f"{platform.session_url}/create_session", headers=keyed)

    assert (503, "starting", "3") == (first.status_code, first.headers["X-Backend-State"], first.headers["Retry-After"])
    assert 200 == second.status_code


@pytest.mark.parametrize(("told", "has_task_id"), [("cut_before_task_id", False), ("cut_after_task_id", True)])
def test_the_platform_cuts_a_call_whose_tool_ran(echo_server: ServerHandle, told: str, has_task_id: bool) -> None:
    """A cut call has run behind the platform, and its stream ends before or after the task_id event."""
    echo_server.reset_counts()
    keyed = {"X-API-Key": API_KEY, "X-Deployment": "b/echo"}
    seen = ""
    with serve_platform({"b/echo": echo_server.url}) as platform:
        with httpx.Client(base_url=platform.session_url, headers=keyed) as client:
            sid = client.post("/create_session").text.split("data: ")[1].split()[0]
            client.headers["X-Session-ID"] = sid
            client.post("/create", json={"split": "train", "index": 0})
            platform.tell(**{told: 1})
            body = {"name": "echo", "input": {"text": "x"}}
            with pytest.raises(httpx.RemoteProtocolError), client.stream("POST", "/echo/call", json=body) as stream:  # noqa: PT012  # what came before the cut
                for text in stream.iter_text():
                    seen += text
            client.post("/delete")
        counts = echo_server.counts()

    assert {"echo": {"echo": 1}} == counts.tool_calls
    assert has_task_id == ("event: task_id" in seen)
    assert "event: end" not in seen


def test_the_platform_answers_about_difficulty_and_secrets() -> None:
    """The API address fills in rows of difficulty and lists required secrets."""
    with serve_platform(
        {"b/echo": "http://127.0.0.1:1"},
        difficulty={"b/echo": [{"task_index": 3, "avg_reward": 0.25}]},
        secrets={"b/echo": ["openai"]},
    ) as platform:
        keyed = {"X-API-Key": API_KEY}
        rows = httpx.get(f"{platform.api_url}/v1/environments/b/echo/task-difficulty", headers=keyed).json()["tasks"]
        secrets = httpx.get(f"{platform.api_url}/v1/environments/b/echo/required-secrets", headers=keyed).json()

    assert [(3, 0.25, "train")] == [(row["task_index"], row["avg_reward"], row["split"]) for row in rows]
    assert {"secrets": ["openai"]} == secrets
