"""One open session on an ORS server.

The SDK names, routes and deletes sessions; calls are run by `multiors.ors.sessions.calls`. Decides that what was opened
is closed, whatever happens on the way, that every wait has a deadline, that an environment is created at most once, and
when a session is kept alive.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import aiohttp
import anyio
import anyio.lowlevel
from openreward._version import USER_AGENT
from openreward.api._session.http import AuthenticationError, _do_request, request_retryable
from openreward.api._session.ping import ErrorResponse
from openreward.api.environments.client import AsyncEnvironment, AsyncSession
from openreward.api.errors import SessionTerminatedError

from multiors.errors import SessionError
from multiors.ors.content import Message, Prompt, read_blocks, read_messages
from multiors.ors.sessions.calls import MAX_ATTEMPTS, CallFailed, ToolReply, back_off, run_call, run_group_scoring
from multiors.ors.sessions.options import SessionOptions
from multiors.ors.sessions.runtime import Runtime
from multiors.ors.target import Endpoint
from multiors.records import UnscoredReason

__all__ = [
    "OpenSession",
    "open_probe",
    "open_session",
    "sdk_environment",
]

logger = logging.getLogger("multiors.ors")

T = TypeVar("T")

_CLOSE_TIMEOUT_S = 10.0
# A server that is no platform only makes up an id. One that answers this in another form than the SDK reads would be
# asked again and again until the whole deadline is over.
_CREATE_TIMEOUT_S = 30.0
# A platform drops a session after about 120 s of silence and is pinged as the SDK would (openreward 0.1.167, ping.py);
# the SDK's own server waits 900 s (environments/server.py).
_PLATFORM_KEEPALIVE_S = 10.0
_SERVER_KEEPALIVE_S = 30.0
_PING_TIMEOUT_S = 10.0
_MAX_FAILED_PINGS = 5


class OpenSession:
    """A session that was opened and must be closed, with its prompt."""

    def __init__(
        self,
        runtime: Runtime,
        session: _Session,
        prompt: Prompt,
        *,
        owner: str,
        endpoint: Endpoint,
        label: str,
        call_timeout_s: float,
        wait_turn: Callable[[], AbstractAsyncContextManager[None]],
        on_closed: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._session = session
        self._endpoint = endpoint
        self._label = label
        self._call_timeout_s = call_timeout_s
        self._wait_turn = wait_turn
        self._on_closed = on_closed
        self.owner = owner
        self.prompt = prompt

    @property
    def sid(self) -> str:
        """The session's id on its server; never shown to a policy."""
        return self._session.sid or ""

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Run a tool once, when it is its turn; its deadline begins then.

        Raises:
            CallFailed: No reply, with the reason.
        """
        return await self._in_turn(self._session.call_once, tool, arguments)

    async def score_group(self, candidates: Sequence[Mapping[str, Any]]) -> list[object]:
        """What the environment says each candidate is worth beside the others, in order; not yet checked to be numbers.

        Raises:
            CallFailed: No scores, with the reason.
        """
        return await self._in_turn(self._session.score_group_once, candidates)

    async def _in_turn(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        servers = self._runtime.servers

        if not await servers.is_live(self._endpoint):
            raise CallFailed(UnscoredReason.SESSION_LOST, "the server could not be reached and still does not answer")

        try:
            async with self._wait_turn():
                with anyio.fail_after(self._call_timeout_s):
                    return await function(*args)
        except TimeoutError:
            failure = CallFailed(UnscoredReason.SESSION_LOST, f"no answer within {self._call_timeout_s:g} s")
        except CallFailed as error:
            failure = error

        if failure.reason is UnscoredReason.SESSION_LOST:
            await servers.check(self._endpoint, label=self._label)

        raise failure

    async def close(self) -> None:
        """Delete the session on its server, once. One that cannot be closed is reported, not raised."""
        try:
            await _close(self._runtime, self._session)
        finally:
            self._on_closed()


def sdk_environment(runtime: Runtime, endpoint: Endpoint) -> AsyncEnvironment:
    """The SDK's handle on an environment. Call on the runtime's loop only."""
    namespace, slash, name = endpoint.deployment.rpartition("/")

    return AsyncEnvironment(
        namespace=namespace if slash else None,
        name=name,
        variant=endpoint.environment,
        client=runtime.client(endpoint.session_url),
        api_key=endpoint.api_key,
        api_client=None if endpoint.api_url is None else runtime.client(endpoint.api_url),
    )


async def open_session(
    runtime: Runtime,
    endpoint: Endpoint,
    options: SessionOptions,
    *,
    owner: str,
    label: str,
    task_index: int,
    wait_turn: Callable[[], AbstractAsyncContextManager[None]],
    on_closed: Callable[[], None],
) -> OpenSession:
    """Open a session for one task and fetch its prompt; what was opened is closed again if anything fails.

    `owner` is the identity of the source, by which its sessions are closed together, and `label` its name. Opening, and
    each call later, are made inside `wait_turn()`; `on_closed` is called when a session that was returned has been
    closed.

    Raises:
        TimeoutError: Not open within the options' `timeouts.open_s`.
        Exception: The SDK's or HTTP client's error.
    """
    session = _make_session(runtime, endpoint, options, task_index=task_index)

    try:
        async with wait_turn():
            with anyio.fail_after(options.timeouts.open_s):
                await session.__aenter__()
                prompt = await session.read_prompt(has_messages=options.has_messages)
    except BaseException:
        await _close(runtime, session)
        raise

    opened = OpenSession(
        runtime,
        session,
        prompt,
        owner=owner,
        endpoint=endpoint,
        label=label,
        call_timeout_s=options.timeouts.call_s,
        wait_turn=wait_turn,
        on_closed=on_closed,
    )
    runtime.register(opened)

    return opened


async def open_probe(
    runtime: Runtime, endpoint: Endpoint, options: SessionOptions, *, task_index: int
) -> Mapping[str, Any]:
    """The tool listing of one task, read in a session of its own that is closed again.

    Raises:
        TimeoutError: Not read within the options' `timeouts.open_s`.
        Exception: The SDK's or HTTP client's error.
    """
    session = _make_session(runtime, endpoint, options, task_index=task_index)

    try:
        with anyio.fail_after(options.timeouts.open_s):
            await session.__aenter__()
            listing: Mapping[str, Any] = await session.get("/task_tools")
            return listing
    finally:
        await _close(runtime, session)


def _make_session(runtime: Runtime, endpoint: Endpoint, options: SessionOptions, *, task_index: int) -> _Session:
    session = _Session(
        sdk_environment(runtime, endpoint),
        api_key=endpoint.api_key,
        split=options.split,
        index=task_index,
        secrets=options.secrets,
        toolset_name=options.toolset,
        env_overrides=options.env_overrides,
    )
    keepalive_s = _PLATFORM_KEEPALIVE_S if endpoint.is_platform else _SERVER_KEEPALIVE_S
    session.keepalive_s = options.timeouts.keepalive_s or keepalive_s

    if not endpoint.is_platform:
        session.creation_timeout = _CREATE_TIMEOUT_S

    return session


class _Session(AsyncSession):
    """The SDK's session, with calls that run a tool at most once and an environment that is created at most once.

    It is pinged after a silence and not by the clock, on the loop that it lives on, and remembers if it could not be
    deleted.
    """

    close_error: Exception | None = None
    keepalive_s: float = _SERVER_KEEPALIVE_S
    heard_s: float = 0.0
    """When the server last heard of this session, on the monotonic clock."""

    async def get(self, suffix: str) -> Any:
        """What the environment answers to a request of this session."""
        return await self._run_or_die(
            _watch(
                request_retryable,
                self.client,
                "GET",
                self._env_path(suffix),
                expect_json=True,
                token=self.api_key,
                sid=self.sid,
                deployment=self.deployment,
            )
        )

    async def read_prompt(self, *, has_messages: bool) -> Prompt:
        """The task's prompt, with roles where the environment has them."""
        if has_messages:
            try:
                return read_messages(await self.get("/messages"))
            except aiohttp.ClientResponseError as error:
                if error.status != 404:
                    raise

        return Prompt((Message("user", read_blocks(await self.get("/prompt"))),))

    async def call_once(self, tool: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Run a tool."""
        return await self._stream("/call", run_call, tool=tool, arguments=arguments)

    async def score_group_once(self, candidates: Sequence[Mapping[str, Any]]) -> list[object]:
        """Have candidates compared."""
        return await self._stream("/score_group", run_group_scoring, candidates=candidates)

    async def _stream(self, suffix: str, run: Callable[..., Coroutine[Any, Any, T]], **arguments: Any) -> T:
        headers = {"User-Agent": USER_AGENT, "X-Session-ID": self.sid, "X-Deployment": self.deployment}

        if self.api_key is not None:
            headers["X-API-Key"] = self.api_key

        self.heard_s = time.monotonic()

        try:
            self._ensure_alive()
            result: T = await self._run_or_die(
                _watch(run, self.client, self._env_path(suffix), headers=headers, **arguments)
            )
        except SessionTerminatedError as error:
            raise CallFailed(UnscoredReason.SESSION_LOST, error.reason) from error

        return result

    async def _post_create(self) -> None:
        # The SDK would send this again also where it is not known whether the environment was created.
        body = {"split": self.split, "index": self.index}
        variant = {} if self.env.variant is None else {"env_name": self.env.variant}
        toolset = {} if self.toolset_name is None else {"toolset_name": self.toolset_name}
        attempt = 0

        if not self.sid:
            raise SessionError("the server gave the session no id")

        while True:
            attempt += 1
            self.heard_s = time.monotonic()
            deadline_s = anyio.current_effective_deadline()

            if deadline_s <= anyio.current_time():
                await anyio.sleep_forever()  # until the end that is due comes up: what is sent now would be dropped

            try:
                # Given up half-way, it could be overtaken by the request to delete, and the environment would stay.
                with anyio.CancelScope(shield=True, deadline=deadline_s):
                    await _see_through(
                        _watch(self._send, "/create", {**body, **variant, **toolset}, self._secrets_headers)
                    )
            except aiohttp.ClientConnectorError:
                wait_s, is_starting = None, False
                if attempt >= MAX_ATTEMPTS:
                    raise
            except aiohttp.ClientResponseError as error:
                wait_s, is_starting = getattr(error, "retry_after", None), getattr(error, "backend_starting", False)
                if not is_starting and (error.status != 429 or attempt >= MAX_ATTEMPTS):
                    raise
            else:
                await anyio.lowlevel.checkpoint()  # where an end of the shielded wait, or of this session, comes up
                return

            await back_off(attempt, wait_s)

    async def _run_ping(self, *_sdk_arguments: Any, **_sdk_options: Any) -> None:
        failed = 0

        while True:
            silence_s = time.monotonic() - self.heard_s
            wait_s = (self.keepalive_s if failed == 0 else min(self.keepalive_s, _PING_TIMEOUT_S)) - silence_s

            if wait_s > 0:
                await anyio.sleep(wait_s)
                continue

            self.heard_s = time.monotonic()

            try:
                with anyio.fail_after(_PING_TIMEOUT_S):
                    await self._send("/ping")
                failed = 0
            except (aiohttp.ClientError, AuthenticationError, OSError, TimeoutError) as error:
                failed += 1
                is_gone = isinstance(error, aiohttp.ClientResponseError) and error.status == 410
                if is_gone or failed == _MAX_FAILED_PINGS:
                    told = "its server ended it" if is_gone else f"{failed} pings failed one after another"
                    self._mark_dead(ErrorResponse(type="error", message=told))
                    return

    async def _send(
        self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        await _do_request(
            self.client,
            "POST",
            path,
            expect_json=False,
            token=self.api_key,
            json=None if body is None else dict(body),
            sid=self.sid,
            deployment=self.deployment,
            extra_headers=None if headers is None else dict(headers),
        )

    def _annotate_error(self, e: Exception) -> Exception:
        # The SDK would write the session's id into the error's text.
        return e

    async def _pre_delete(self) -> None:
        # The SDK swallows this error when it closes; it is kept here so that it can be reported.
        try:
            await super()._pre_delete()
        except Exception as error:
            self.close_error = error
            raise


async def _see_through(request: Coroutine[Any, Any, None]) -> None:
    """Wait for a request to end also where this task itself is cancelled, which no scope shields from."""
    task = asyncio.create_task(request)  # noqa: TID251  it is waited for here, and its error is read

    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})  # ended by a deadline, which cancels again and again
        raise
    finally:
        task.cancel()


async def _watch(function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **arguments: Any) -> T:
    """Run what the SDK makes a task of, whose error nobody reads if whoever waits for it is cancelled just then."""
    task = asyncio.current_task()

    if task is not None:
        task.add_done_callback(_read_error)

    return await function(*args, **arguments)


def _read_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def _close(runtime: Runtime, session: _Session) -> None:
    """End a session, whatever state it is in; bounded, and shielded from the cancellation that may have led here."""
    with anyio.CancelScope(shield=True):
        # Thousands at once would spend their time waiting for each other.
        async with runtime.limiters.closing():
            with anyio.move_on_after(_CLOSE_TIMEOUT_S) as scope:
                try:
                    await session.__aexit__(None, None, None)
                except Exception as error:  # noqa: BLE001  teardown: the rollout is over, its error must hide no other
                    session.close_error = error

    if scope.cancelled_caught:
        session.close_error = SessionError(f"not closed within {_CLOSE_TIMEOUT_S:g} s")

    if session.close_error is not None and session.sid is not None:
        runtime.num_unclosed[session.base_url] += 1
        number = runtime.num_unclosed[session.base_url]

        if number & (number - 1) == 0:  # the first, second, fourth, ...: a server that died with many says it seldom
            logger.warning(
                "%d of the sessions of %s could not be closed (%s); the server drops them when they expire.",
                number,
                session.base_url,
                type(session.close_error).__name__,
            )
