"""Where and when sessions open: ahead of time, within limits, on one of several servers, once, and kept alive."""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import aiohttp
import pytest

from multiors import MultiOpenRewardSpec, ORSSource
from multiors.errors import ConfigError, SessionError, SourceError
from multiors.ors.content import join_text
from multiors.ors.rollouts.factory import EnvironmentFactory
from multiors.ors.rollouts.opening import discard, open_ahead, open_now
from multiors.ors.sessions.limits import count_sockets, describe_socket_need
from multiors.ors.sessions.runtime import _goes_through_proxy, get_runtime
from multiors.ors.sessions.servers import Servers
from multiors.ors.sessions.session import _Session
from multiors.ors.target import Endpoint
from multiors.records import UnscoredReason
from tests.playing import factories, keep_alive
from tests.servers.launch import Counts, ServerHandle, configured, serve
from tests.servers.raw import serve_raw


def make_factory(server: ServerHandle, *, keepalive_s: float | None = None, **options: Any) -> EnvironmentFactory:
    """The factory of a source on a server, without probing its tasks."""
    blueprint = ORSSource(server.url, discover_task_tools=False, **options).blueprint
    return EnvironmentFactory(keep_alive(blueprint, keepalive_s))


@pytest.fixture
def idle(echo_server: ServerHandle) -> ServerHandle:
    """`Echo` with nothing open and nothing counted."""
    get_runtime().close_now(list(get_runtime()._open))
    echo_server.reset_counts()
    return echo_server


def all_closed(counts: Counts) -> bool:
    """Whether every session that was opened was deleted."""
    return not counts.active and counts.opened == counts.deleted


# -- ahead of time


def test_a_reset_takes_the_session_that_was_opened_for_it(idle: ServerHandle) -> None:
    """A session opened ahead serves the next reset of its task, and no other is opened."""
    factory = make_factory(idle)
    opening = factory.open_ahead(task_index=3, slot=0)
    environment: Any = factory()

    prompt = environment.reset(task_index=3)
    environment._close()

    assert opening is not None
    assert "Say fir." == prompt
    assert {"echo": 1} == idle.counts().opened


def test_a_reset_of_another_task_leaves_it_alone(idle: ServerHandle) -> None:
    """Sessions opened ahead belong to a source and a task; what nobody takes is closed when it is discarded."""
    factory, other = make_factory(idle), make_factory(idle)
    opening = open_ahead(factory.blueprint, 3)
    environments: list[Any] = [factory(), other()]

    prompts = [environment.reset(task_index=index) for environment, index in zip(environments, (2, 3), strict=True)]
    opening.wait()
    num_opened = idle.counts().opened["echo"]
    discard([opening])
    for environment in environments:
        environment._release()

    assert ["Say elm.", "Say fir."] == prompts
    assert 3 == num_opened
    assert {"echo": 3} == idle.wait_until(all_closed).deleted


def test_what_is_discarded_while_it_opens_is_closed() -> None:
    """If nobody wants a session any more before it is open, the server is left with none."""
    with serve(configured("Slow", PROMPT_S=0.3)) as server:
        factory = make_factory(server)
        openings = [open_ahead(factory.blueprint, index) for index in range(4)]
        server.wait_until(lambda counts: counts.opened.get("slow") == 4)
        discard(openings)
        closed = server.wait_until(all_closed)

    assert {"slow": 4} == closed.deleted


def test_what_is_discarded_while_it_is_created_is_closed() -> None:
    """The request to delete does not overtake the one that creates: the server would know nothing to delete yet."""
    with serve("tests.servers.waiting:LongInTheMaking") as server:
        opening = open_ahead(make_factory(server).blueprint, 0)
        server.wait_until(lambda counts: "POST /create" in counts.requests)
        discard([opening])
        get_runtime().close_now([])
        counts = server.counts()

    assert {"longinthemaking": 1} == counts.opened == counts.deleted


def test_what_is_cancelled_while_it_is_created_is_closed() -> None:
    """An interrupt of whoever waits, and the end of the process, cancel tasks themselves, whatever shields them."""
    with serve("tests.servers.waiting:LongInTheMaking") as server:
        future = get_runtime().start(open_now, make_factory(server).blueprint, 0)
        server.wait_until(lambda counts: "POST /create" in counts.requests)
        future.cancel()
        counts = server.wait_until(lambda counts: "POST /delete_session" in counts.requests)

    assert {"longinthemaking": 1} == counts.opened == counts.deleted


def test_what_ends_before_it_is_created_is_not_created(idle: ServerHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is the request to create made and dropped, which could come after the one to delete."""
    create = _Session._post_create

    async def end_first(session: _Session) -> None:
        opening._scope.cancel()
        await create(session)

    monkeypatch.setattr(_Session, "_post_create", end_first)
    opening: Any = open_ahead(make_factory(idle).blueprint, 0)
    with pytest.raises(SessionError, match="nobody waits"):
        opening.wait()

    requests = idle.counts().requests
    assert requests["POST /create_session"] == requests["POST /delete_session"] == 1
    assert "POST /create" not in requests


def test_what_was_taken_is_not_discarded(idle: ServerHandle) -> None:
    """Discarding a batch's sessions ends those that are left, and not those that rollouts play in."""
    factory = make_factory(idle)
    openings = [open_ahead(factory.blueprint, 0) for _ in range(2)]
    environment: Any = factory()
    environment.reset(task_index=0)

    discard(openings)
    said = environment.echo(text="oak")
    environment._release()

    assert "oak" == said
    assert {"echo": 2} == idle.wait_until(all_closed).deleted


def test_a_failure_to_open_is_its_own_rollouts(flaky_server: ServerHandle) -> None:
    """The error of a session opened ahead comes up where that rollout is reset, and nowhere else."""
    factory = make_factory(flaky_server, env_name="flaky", retries=0)
    openings = [open_ahead(factory.blueprint, index) for index in (0, 2)]
    environments: list[Any] = [factory(), factory()]

    prompts = [environment.reset(task_index=index) for environment, index in zip(environments, (2, 0), strict=True)]

    assert "The environment could not be opened. There is nothing to do here." == prompts[0]
    assert prompts[1].startswith("Flaky:")
    assert [None, '{"fails": "nowhere"}'] == [
        None if (prompt := opening.wait_for_prompt()) is None else join_text(prompt.last).partition(": ")[2]
        for opening in openings
    ][::-1]
    for environment in environments:
        environment._close()


def test_a_row_without_a_task_opens_nothing(idle: ServerHandle) -> None:
    """What reset will refuse is not opened ahead."""
    assert None is make_factory(idle).open_ahead(task_index=None)
    assert "POST /create_session" not in idle.counts().requests


# -- limits


def test_a_limit_of_sessions_holds_and_says_so(idle: ServerHandle) -> None:
    """If all sessions of a source are taken, one more waits its time and is then unreachable, with the limit's name."""
    factory = make_factory(idle, max_sessions=2, open_timeout_s=1.0)
    environments: list[Any] = [factory() for _ in range(3)]
    for environment in environments:
        environment.reset(task_index=0)

    error = environments[2]._episode().error
    environments[0]._close()
    again = environments[2].reset(task_index=0)
    for environment in environments:
        environment._close()

    assert "no session was free within 1 s: max_sessions is 2 for source" in error
    assert "Say oak." == again
    assert {"echo": 3} == idle.counts().opened


def test_calls_under_way_are_limited_per_source() -> None:
    """No more calls of a source are at work than it allows; all of them are made in the end."""
    with serve("tests.servers.waiting:Crowd") as server:
        factory = make_factory(server, max_concurrent_calls=2)
        said = play_at_once([factory] * 6)

    assert 6 == len(said)
    assert {"1", "2"} >= set(said)


def test_calls_under_way_are_limited_over_all_sources() -> None:
    """The limit of a mix counts the calls of all its sources together."""
    with serve("tests.servers.waiting:Crowd") as server:
        sources = {name: ORSSource(server.url, discover_task_tools=False) for name in ("left", "right")}
        spec = MultiOpenRewardSpec(sources, max_concurrent_calls=1)
        said = play_at_once([*factories(spec).values()] * 3)

    assert ["1"] * 6 == said


def test_sessions_are_limited_over_all_sources(idle: ServerHandle) -> None:
    """The limit of a mix counts the sessions of all its sources together."""
    sources = {name: ORSSource(idle.url, discover_task_tools=False, open_timeout_s=0.5) for name in ("left", "right")}
    with MultiOpenRewardSpec(sources, max_sessions=1) as spec:
        environments: list[Any] = [factory() for factory in factories(spec).values()]
        for environment in environments:
            environment.reset(task_index=0)
        errors = [environment._episode().error for environment in environments]

    assert None is errors[0]
    assert "max_sessions is 1 for the mix" in errors[1]


def play_at_once(chosen: list[Any]) -> list[str]:
    """What the tool says in a rollout of each factory, all called from threads of their own at one moment."""
    ready = threading.Barrier(len(chosen))

    def play(factory: Any) -> str:
        environment = factory()
        environment.reset(task_index=0)
        ready.wait()
        said: str = environment.work()
        environment._close()
        return said

    with ThreadPoolExecutor(len(chosen)) as threads:
        return list(threads.map(play, chosen))


@contextmanager
def soft_limit(num_files: int) -> Iterator[None]:
    """Another limit of open files inside the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_sockets_are_half_of_the_open_files() -> None:
    """A process leaves half of its files to the trainer, and says what to do where a batch needs more."""
    with soft_limit(1000):
        available, enough, need = count_sockets(), describe_socket_need(500), describe_socket_need(501)

    assert 500 == available
    assert None is enough
    assert "501 rollouts on each process" in str(need)
    assert str(need).endswith("ulimit -n 1024.")


# -- equal servers


def endpoint(port: int) -> Endpoint:
    """A server's endpoint."""
    return Endpoint(f"http://127.0.0.1:{port}", "env", "echo", is_platform=False)


@pytest.mark.anyio
async def test_the_least_loaded_server_is_chosen() -> None:
    """A session goes to the server with the fewest sessions, the first of equals."""
    servers = Servers(lambda url: pytest.fail("no request"), lambda function, url: None)
    first, second = endpoints = (endpoint(1), endpoint(2))
    chosen = []
    for _ in range(3):
        chosen.append(await servers.choose(endpoints))
        servers.add_session(chosen[-1])
    servers.remove_session(first)
    servers.remove_session(first)

    assert [first, second, first] == chosen
    assert first == await servers.choose(endpoints)


@pytest.mark.anyio
async def test_a_server_that_is_left_out_is_not_chosen(idle: ServerHandle, unused_url: str) -> None:
    """A server that could not be reached gets no session; where all are left out, they are asked once more."""
    started: list[str] = []
    away, back = (Endpoint(url, "env", "echo", is_platform=False) for url in (unused_url, idle.url))

    async with AsyncExitStack() as stack:
        clients = {url: await stack.enter_async_context(aiohttp.ClientSession(url)) for url in (unused_url, idle.url)}
        servers = Servers(lambda url: clients[url], lambda function, url: started.append(url))
        servers.leave_out(away, label="echo")
        servers.leave_out(away, label="echo")
        while_one_is_left = await servers.choose([away, back])
        servers.leave_out(back, label="echo")
        once_more = await servers.choose([away, back])
        with pytest.raises(SessionError, match=r"could not be reached before and still does not answer"):
            await servers.choose([away])

    assert [back, back] == [while_one_is_left, once_more]
    assert [unused_url, idle.url] == started


@pytest.fixture(scope="module")
def twins() -> Iterator[list[ServerHandle]]:
    """Two equal servers of `Echo`."""
    with serve("Echo") as first, serve("Echo") as second:
        yield [first, second]


def test_sessions_are_spread_over_equal_servers(twins: list[ServerHandle]) -> None:
    """Six sessions of a source with two servers are three on each, and their calls go where they live."""
    for server in twins:
        server.reset_counts()
    source = ORSSource([server.url for server in twins], discover_task_tools=False)
    openings = [open_ahead(source.blueprint, index) for index in range(6)]
    environments: list[Any] = [source.environment_factory() for _ in range(6)]
    for index, environment in enumerate(environments):
        environment.reset(task_index=index)
    said = [environment.echo(text="oak") for environment in environments]
    for environment in environments:
        environment._close()

    assert 6 == len(openings)
    assert ["oak"] * 6 == said
    assert [{"echo": 3}] * 2 == [server.counts().opened for server in twins]
    assert [{"echo": {"echo": 3}}] * 2 == [server.counts().tool_calls for server in twins]


def test_a_dead_server_is_left_out_until_it_answers(
    twins: list[ServerHandle], caplog: pytest.LogCaptureFixture
) -> None:
    """If one of two servers dies, no rollout is lost to it; when it answers again it gets sessions again."""
    first, second = twins
    source = ORSSource([first.url, second.url], discover_task_tools=False)
    factory = EnvironmentFactory(source.blueprint)
    first.kill()
    environments: list[Any] = [factory() for _ in range(4)]
    with caplog.at_level(logging.WARNING, logger="multiors.ors"):
        prompts = [environment.reset(task_index=index) for index, environment in enumerate(environments)]
        first.restart()
        first.wait_until(lambda counts: counts.requests.get("GET /health", 0) > 0)
        for environment in environments:
            environment._close()
        get_runtime().run(wait_until_known, first.url)
        again = factory()
        again.reset(task_index=0)
        opened = first.counts().opened
        again._close()

    said = [record.getMessage() for record in caplog.records]
    assert ["Say oak.", "Say ash.", "Say elm.", "Say fir."] == prompts
    assert {"echo": 1} == opened
    assert 1 == sum("cannot be reached. No session is sent to it" in line for line in said)
    assert 1 == sum("answers again" in line for line in said)


async def wait_until_known(url: str) -> None:
    """Until the runtime has heard that a server answers."""
    from anyio import fail_after
    from anyio.lowlevel import checkpoint

    with fail_after(30):
        while url in get_runtime().servers._left_out:
            await checkpoint()


def test_a_server_that_is_away_at_the_start_is_left_out(twins: list[ServerHandle], unused_url: str) -> None:
    """A source works with those of its servers that answer."""
    source = ORSSource([unused_url, twins[1].url], discover_task_tools=False)

    assert 8 == len(source.task_list.indices)
    assert [twins[1].url, unused_url] == [each.session_url for each in source.blueprint.endpoints]
    assert ["echo"] * 2 == [each.environment for each in source.blueprint.endpoints]


@pytest.fixture
def unused_url() -> str:
    """The address of a server that just ended."""
    with serve("Echo") as server:
        return server.url


def test_servers_that_are_all_away_are_an_error(unused_url: str) -> None:
    """If no server of a source answers, that is said before training."""
    with pytest.raises(SourceError, match=r"the server at .* cannot be used: .* Check the address and that it is up"):
        ORSSource([unused_url, unused_url.replace("127.0.0.1", "localhost")]).task_list  # noqa: B018  # asks


@pytest.mark.parametrize("other", ["Sorting", "Many"])
def test_servers_that_are_not_equal_are_an_error(echo_server: ServerHandle, other: str) -> None:
    """A list of different servers is refused: tasks of one would be played on another."""
    with (
        serve(other) as server,
        pytest.raises(SourceError, match=r"its servers are not equal: .* sources of their own"),
    ):
        ORSSource([echo_server.url, server.url]).task_list  # noqa: B018  # asks


@pytest.mark.parametrize(
    "targets", [["http://a:1", "http://a:1"], ["http://a:1", "HTTP://a:1/"], ["http://a:1", "owner/name"]]
)
def test_a_list_names_different_urls(targets: list[str]) -> None:
    """Equal servers are given by URL, each once."""
    with pytest.raises(ConfigError, match=r"names equal servers, so each is a URL and stands there once"):
        ORSSource(targets)


# -- created once


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_an_environment_is_not_created_again_if_it_may_exist(status: int) -> None:
    """An answer that does not say whether the environment was created is not answered with another attempt."""
    with serve_raw(statuses={"/create": [status]}) as server:
        environment: Any = make_factory(server, retries=0)()
        environment.reset(task_index=0)
        counts = server.counts()

    assert [None, UnscoredReason.UNREACHABLE] == [environment.reward, environment._ended_by]
    assert 1 == counts.requests["POST /create"]


def test_an_environment_is_created_again_if_it_was_refused() -> None:
    """A server with too many requests created nothing, so it is asked again."""
    with serve_raw(statuses={"/create": [429, 429]}) as server:
        environment: Any = make_factory(server)()
        prompt = environment.reset(task_index=0)
        environment._close()
        counts = server.counts()

    assert "Act." == prompt
    assert 3 == counts.requests["POST /create"]
    assert 1 == sum(counts.opened.values())


@pytest.mark.parametrize(("status", "num_attempts"), [(500, 3), (503, 3), (400, 1), (422, 1)])
def test_a_session_that_failed_to_open_is_tried_anew(status: int, num_attempts: int) -> None:
    """A failure that may pass is answered with another session, as often as `retries` says; a refusal is not."""
    with serve_raw(statuses={"/create": [status] * 3}) as server:
        environment: Any = make_factory(server, retries=2)()
        prompt = environment.reset(task_index=0)
        counts = server.wait_until(lambda counts: not counts.active)

    assert "The environment could not be opened. There is nothing to do here." == prompt
    assert num_attempts == counts.requests["POST /create"]
    assert num_attempts == counts.requests["POST /create_session"]


def test_a_session_that_opens_at_the_second_attempt_is_played() -> None:
    """One failed attempt costs the rollout nothing but time."""
    with serve_raw(statuses={"/create": [500]}) as server:
        environment: Any = make_factory(server)()
        prompt = environment.reset(task_index=0)
        opened = environment._episode().opened
        environment._close()

    assert ("Act.", True) == (prompt, opened)


# -- kept alive


def test_a_silent_session_is_pinged_again_and_again(idle: ServerHandle) -> None:
    """A session that nobody calls is pinged after each silence."""
    environment: Any = make_factory(idle, keepalive_s=0.05)()
    environment.reset(task_index=0)
    pinged = idle.wait_until(lambda counts: counts.requests.get("POST /ping", 0) >= 3)
    environment._close()

    assert {"200"} == set(pinged.statuses)


def ping_until_dead(statuses: Mapping[str, Any]) -> tuple[Any, Counts]:
    """An environment after a call that follows the given answers to pings."""
    with serve_raw(statuses=statuses) as server:
        environment: Any = make_factory(server, keepalive_s=0.02)()
        environment.reset(task_index=0)
        server.wait_until(lambda counts: counts.requests.get("POST /delete", 0) >= 1)
        with pytest.raises(SessionError, match=r"The environment is gone"):
            environment.act()
        return environment, server.counts()


def test_a_session_that_its_server_ended_is_lost() -> None:
    """A ping that is answered with "gone" ends the session here, and the next call is made to nobody."""
    environment, counts = ping_until_dead({"/ping": [410]})

    assert UnscoredReason.SESSION_LOST == environment._ended_by
    assert (1, 0) == (counts.requests["POST /ping"], counts.requests.get("POST /{env}/call", 0))


def test_a_session_whose_pings_fail_is_lost() -> None:
    """Five pings that fail one after another end it; fewer do not."""
    environment, counts = ping_until_dead({"/ping": [500] * 4 + [200] + [503] * 5})

    assert UnscoredReason.SESSION_LOST == environment._ended_by
    assert (10, 0) == (counts.requests["POST /ping"], counts.requests.get("POST /{env}/call", 0))


# -- proxies


@pytest.mark.parametrize(
    ("variables", "is_used"),
    [
        ({}, False),
        ({"http_proxy": "http://proxy:3128"}, True),
        ({"https_proxy": "http://proxy:3128"}, False),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "example.org"}, False),
    ],
)
def test_a_proxy_is_used_where_the_variables_say_so(
    variables: dict[str, str], is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual variables are read once for each server, with their exceptions."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert is_used == _goes_through_proxy("http://example.org:8001")
