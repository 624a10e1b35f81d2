"""What the ors room leans on in the openreward SDK beyond its documented surface, and why `/call` is ours.

A failure here says what changed upstream and which file of ours has to follow. The three faults come last: each fails
with the words "delete ours" once the SDK is right, because then `multiors/ors/sessions/calls.py` has lost its reason.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import httpx
import pytest
from httpx_sse import EventSource, ServerSentEvent, SSEError
from openreward import OpenReward
from openreward._version import USER_AGENT
from openreward.api._session import http, ping
from openreward.api._session.http import AuthenticationError, request_retryable, set_retry_policy
from openreward.api.environments.client import (
    AsyncEnvironment,
    AsyncEnvironmentsAPI,
    AsyncSession,
    matrix_sid_provider,
)
from openreward.api.environments.types import TextBlock
from openreward.api.errors import MaxRetriesError, OpenRewardError, SessionTerminatedError
from openreward.api.sandboxes.secrets import (
    WELL_KNOWN_SECRETS,
    augment_secrets_with_api_key,
    build_secrets_header,
)

from multiors.ors.target import resolve_endpoint
from tests.servers.launch import ServerHandle
from tests.servers.misbehaving import long_text
from tests.servers.raw import serve_raw


@asynccontextmanager
async def opened(server: ServerHandle, environment: str, kind: type[AsyncSession] = AsyncSession) -> AsyncIterator[Any]:
    """A session of the SDK's own, or of a subclass, on an environment's first task."""
    async with AsyncEnvironmentsAPI(server.url, "") as api:
        handle = api.get(environment, variant=environment)
        async with kind(handle, split="train", index=0) as sdk_session:
            yield sdk_session


# -- signatures


@pytest.mark.parametrize(
    ("function", "names", "user"),
    [
        (matrix_sid_provider, ["client", "server_name", "token"], "discovery.py opens its routing session with it"),
        (
            request_retryable,
            ["client", "method", "path", "expect_json", "token", "json", "sid", "deployment"],
            "discovery.py and session.py send plain requests with it",
        ),
        (
            http._do_request,
            ["client", "method", "path", "expect_json", "token", "json", "sid", "deployment", "extra_headers"],
            "session.py creates environments and pings with it, because it sends a request once",
        ),
        (ping.ErrorResponse, ["type", "message"], "session.py declares a session dead with it"),
        (set_retry_policy, ["client", "policy"], "runtime.py marks its clients with it"),
        (
            AsyncEnvironment,
            ["namespace", "name", "variant", "client", "api_key"],
            "session.py builds the handle with a client of its own",
        ),
        (AsyncSession, ["env", "secrets", "api_key", "split", "index"], "session.py subclasses it"),
    ],
)
def test_functions_take_the_arguments_that_are_passed(function: Any, names: list[str], user: str) -> None:
    """What we call by name still has these parameters."""
    actual = list(inspect.signature(function).parameters)

    assert [] == [name for name in names if name not in actual], f"{function.__name__} takes {actual} now; {user}"


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("_run_or_die", "a call ends when the session dies"),
        ("_ensure_alive", "a dead session gets no call"),
        ("_annotate_error", "overridden, so that no session id gets into an error"),
        ("_pre_delete", "overridden, so that a session that cannot be closed is reported"),
        ("_env_path", "calls go to the environment's own path"),
        ("_mark_dead", "the keepalive's verdict"),
        ("_post_create", "overridden, so that an environment is created at most once"),
        ("_run_ping", "overridden, so that a session is pinged after a silence and on our loop"),
        ("__aenter__", "opens"),
        ("__aexit__", "closes"),
        ("get_prompt", "reads the prompt"),
    ],
)
def test_sessions_have_the_methods_that_are_used(name: str, user: str) -> None:
    """`multiors.ors.sessions.session._Session` uses or overrides these methods of the SDK's session."""
    assert callable(getattr(AsyncSession, name, None)), (
        f"AsyncSession.{name} is gone ({user}): see ors/sessions/session.py"
    )


def test_the_private_modules_hold_what_is_imported() -> None:
    """The errors and values that we take from private modules are what the code takes them for."""
    assert USER_AGENT.startswith("openreward"), "USER_AGENT is sent with every call: see ors/sessions/session.py"
    assert not issubclass(AuthenticationError, OpenRewardError), (
        "one except clause less in environment.py, discovery.py"
    )
    assert issubclass(SessionTerminatedError, OpenRewardError), "session.py turns it into session_lost"
    assert "why" == SessionTerminatedError("why", sid="s").reason, "session.py shows the reason without the id"
    assert issubclass(http.SessionResponseError, aiohttp.ClientResponseError), "discovery.py reads status and message"


def test_a_library_can_close_before_worker_threads_end() -> None:
    """Python still has `threading._register_atexit`, in which ors/sessions/runtime.py closes sessions at exit."""
    assert callable(getattr(threading, "_register_atexit", None)), "threading._register_atexit is gone"


# -- behaviour that is built on


@pytest.mark.anyio
async def test_a_handle_is_made_without_a_request(echo_server: ServerHandle) -> None:
    """Making a handle sends nothing; variant and client select the environment, the names only the deployment."""
    echo_server.reset_counts()
    async with aiohttp.ClientSession(base_url=echo_server.url) as client:
        handle = AsyncEnvironment(namespace="lab", name="echo", variant="echo", client=client, api_key=None)
        requests = echo_server.counts().requests
        splits = await handle.list_splits()

    assert {} == requests
    assert "lab/echo" == handle.deployment_name
    assert ["train", "test"] == splits


@pytest.mark.anyio
async def test_a_session_has_the_attributes_that_are_read(echo_server: ServerHandle) -> None:
    """Id, client, deployment, key, address and the time limit of creation are where `session.py` reads them."""
    async with opened(echo_server, "echo") as sdk_session:
        blocks = await sdk_session.get_prompt()
        names = [
            name
            for name in ("sid", "client", "deployment", "base_url", "creation_timeout")
            if getattr(sdk_session, name)
        ]

    assert ["sid", "client", "deployment", "base_url", "creation_timeout"] == names
    assert hasattr(sdk_session, "api_key")
    assert [TextBlock(text="Say oak.", detail=None)] == blocks
    assert "text" == blocks[0].type


@pytest.mark.anyio
async def test_closing_calls_pre_delete_and_swallows_its_error() -> None:
    """The SDK says nothing of a session that it could not delete; our override is where the error can be seen."""
    seen: list[Exception] = []

    class Watching(AsyncSession):
        async def _pre_delete(self) -> None:
            try:
                await super()._pre_delete()
            except aiohttp.ClientResponseError as error:
                seen.append(error)
                raise

    with serve_raw(statuses={"/delete": [500]}) as server:
        async with opened(server, "raw", Watching):
            pass

    assert [500] == [error.status for error in seen if isinstance(error, aiohttp.ClientResponseError)]


@pytest.mark.anyio
async def test_errors_of_a_session_carry_its_id() -> None:
    """The SDK writes the session's id into error texts, which is why `_annotate_error` is overridden."""
    with serve_raw(statuses={"/prompt": [401]}) as server:
        async with opened(server, "raw") as sdk_session:
            with pytest.raises(AuthenticationError) as raised:
                await sdk_session.get_prompt()

    assert sdk_session.sid in str(raised.value), "delete ours: _Session._annotate_error has nothing to undo any more"


def test_a_key_that_was_not_given_is_added_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an api_key argument the SDK adds no key to the secrets, whatever the environment holds."""
    monkeypatch.setenv("OPENREWARD_API_KEY", "platform-key")

    assert augment_secrets_with_api_key(None, None, "http://h", None) is None
    assert {"HF_TOKEN": "t"} == augment_secrets_with_api_key({"HF_TOKEN": "t"}, None, "http://h", None)
    assert "api_key" in (augment_secrets_with_api_key(None, "k", "http://h", None) or {})


def test_secrets_of_unknown_name_need_their_hosts() -> None:
    """A bare value is for well-known names only, so `source.py` pairs the others with hosts."""
    assert "huggingface.co" in WELL_KNOWN_SECRETS["HF_TOKEN"]
    with pytest.raises(ValueError, match="WELL_KNOWN_SECRETS"):
        build_secrets_header({"MY_TOKEN": "s"})
    assert build_secrets_header({"MY_TOKEN": ("s", [])})


@pytest.mark.parametrize("platform", [None, "https://ors.example.org", "https://ors.example.org:8443"])
def test_the_platforms_session_address_is_the_sdks(platform: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same variables we derive the session address that the SDK derives."""
    if platform is not None:
        monkeypatch.setenv("OPENREWARD_URL", platform)
    client = OpenReward(api_key="k")
    ours = resolve_endpoint("owner/name", label="seta", api_key="k").session_url

    assert client.session_base_url == ours


def test_a_server_names_a_call_before_it_answers(echo_server: ServerHandle) -> None:
    """The `/call` stream begins with the task_id that resumes it, and of another says "unknown task_id"."""
    headers = {"X-Session-ID": "contract"}
    with httpx.Client(base_url=echo_server.url, headers=headers, timeout=10) as client:
        client.post("/create", json={"env_name": "echo", "split": "train", "index": 0}).raise_for_status()
        first = client.post("/echo/call", json={"name": "echo", "input": {"text": "oak"}}).text
        task_id = first.split("data: ")[1].split()[0]
        again = client.post("/echo/call", json={"name": "echo", "input": {"text": "oak"}, "task_id": task_id}).text
        unknown = client.post("/echo/call", json={"name": "echo", "input": {}, "task_id": "no such"}).text
        client.post("/delete")

    assert ["event: task_id", "event: end"] == [line for line in first.splitlines() if line.startswith("event")]
    assert first == again, "a resumed call is replayed whole: see ors/sessions/calls.py"
    assert "event: error\r\ndata: unknown task_id" in unknown, (
        "ors/sessions/calls.py tells a forgotten call by these words"
    )


@pytest.mark.anyio
async def test_httpx_sse_reads_headers_and_text_and_nothing_else() -> None:
    """`calls.py` gives httpx-sse an object with two attributes; it keeps spaces and splits at line ends only."""

    class Response:
        def __init__(self, content_type: str) -> None:
            self.headers = {"content-type": content_type}

        async def aiter_text(self) -> AsyncIterator[str]:
            for text in ("event: chunk\r\nda", "ta:   two \u2028\x85\x0b\r", "\n\r\n: ping\n\nevent: end\ndata:\n\n"):
                yield text

    def read(content_type: str) -> AsyncIterator[ServerSentEvent]:
        return EventSource(Response(content_type)).aiter_sse()  # type: ignore[arg-type]  # the rule under test

    events = [(event.event, event.data) async for event in read("text/event-stream; charset=utf-8")]
    with pytest.raises(SSEError, match="text/event-stream"):
        await anext(read("application/json"))

    assert [("chunk", "  two \u2028\x85\x0b"), ("end", "")] == events, (
        "see _Response and _Texts in ors/sessions/calls.py"
    )


# -- the faults that make us own /call


@pytest.mark.anyio
async def test_the_sdk_damages_long_texts(flaky_server: ServerHandle) -> None:
    """The SDK strips white space where it puts chunks of an answer together."""
    async with opened(flaky_server, "longoutput") as sdk_session:
        output = await sdk_session.call_tool("print_text", {"kind": "spaces"})
    text = "".join(block.text for block in output.blocks)

    assert long_text("spaces") != text, "delete ours: the SDK delivers long texts unchanged now"
    assert long_text("spaces").replace(" ", "") == text.replace(" ", "")


@pytest.mark.anyio
async def test_the_sdk_runs_a_tool_again_when_a_connection_breaks() -> None:
    """Without a task_id the SDK sends a call once more, although its tool may have run."""
    with serve_raw(cut="before_events") as server:
        async with opened(server, "raw") as sdk_session:
            await sdk_session.call_tool("act", {})
        executions = server.counts().details["executions"]

    assert {"act": 2} == executions, "delete ours: the SDK does not run a tool twice any more"


@pytest.mark.anyio
async def test_the_sdk_retries_without_bound() -> None:
    """A stream that breaks after its headers is asked for again for ever, beyond the SDK's own five retries."""
    ended: list[str] = []

    async def call(sdk_session: Any) -> None:
        try:
            await sdk_session.call_tool("act", {})
        except (aiohttp.ClientError, MaxRetriesError) as error:
            ended.append(type(error).__name__)

    with serve_raw(cut="before_events", cut_times=1_000_000) as server:
        async with opened(server, "raw") as sdk_session, anyio.create_task_group() as group:
            group.start_soon(call, sdk_session)
            counts = await anyio.to_thread.run_sync(
                lambda: server.wait_until(lambda counts: bool(ended) or counts.tool_calls["raw"].get("act", 0) > 6)
            )
            group.cancel_scope.cancel()

    assert [] == ended, "delete ours: the SDK gives up a call after its own number of retries now"
    assert counts.tool_calls["raw"]["act"] > 6
