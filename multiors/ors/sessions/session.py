"""One open session on an ORS server.

The SDK names, routes and deletes sessions; calls are run by `multiors.ors.sessions.calls`. Decides that what was opened
is closed, whatever happens on the way, that every wait has a deadline, that an environment is created at most once, and
when a session is kept alive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
from openreward._version import USER_AGENT
from openreward.api._session.http import AuthenticationError, _do_request, request_retryable
from openreward.api._session.ping import ErrorResponse
from openreward.api.environments.client import AsyncEnvironment, AsyncSession
from openreward.api.errors import SessionTerminatedError
from openreward.api.sandboxes.secrets import WELL_KNOWN_SECRETS

from multiors.errors import ConfigError, SessionError, SourceError
from multiors.ors.sessions.calls import MAX_ATTEMPTS, CallFailed, ToolReply, back_off, run_call
from multiors.ors.sessions.runtime import Runtime
from multiors.ors.target import Endpoint
from multiors.records import UnscoredReason

__all__ = [
    "OpenSession",
    "Secrets",
    "SessionTimeouts",
    "open_probe",
    "open_session",
    "pair_secrets",
    "sdk_environment",
    "secret_values",
]

logger = logging.getLogger("multiors.ors")

Secrets = Mapping[str, str | tuple[str, list[str]]]

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


@dataclass(frozen=True, slots=True)
class SessionTimeouts:
    """Deadlines in seconds; each covers all retries of its operation."""

    open_s: float = 600.0
    """From asking for a session to having its prompt, an environment's slow `setup` included; also for each thing
    asked of a server before training, because a platform may first have to start the environment."""

    call_s: float = 600.0
    """One tool call, from sending it to its last byte."""

    keepalive_s: float | None = None
    """Silence after which a session is pinged. None: 10 s on a platform, 30 s elsewhere."""


class OpenSession:
    """A session that was opened and must be closed, with its prompt."""

    def __init__(
        self,
        runtime: Runtime,
        session: _Session,
        prompt: str,
        *,
        owner: str,
        dropped_blocks: int,
        timeouts: SessionTimeouts,
        wait_turn: Callable[[], AbstractAsyncContextManager[None]],
        on_closed: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._session = session
        self._timeouts = timeouts
        self._wait_turn = wait_turn
        self._on_closed = on_closed
        self.owner = owner
        self.prompt = prompt
        self.dropped_blocks = dropped_blocks
        """Blocks of the prompt that are no text."""

    @property
    def sid(self) -> str:
        """The session's id on its server; never shown to a policy."""
        return self._session.sid or ""

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Run a tool once, when it is its turn; its deadline begins then.

        Raises:
            CallFailed: No reply, with the reason.
        """
        try:
            async with self._wait_turn():
                with anyio.fail_after(self._timeouts.call_s):
                    return await self._session.call_once(tool, arguments)
        except TimeoutError:
            detail = f"no answer within {self._timeouts.call_s:g} s"
            raise CallFailed(UnscoredReason.SESSION_LOST, detail) from None

    async def close(self) -> None:
        """Delete the session on its server, once. One that cannot be closed is reported, not raised."""
        try:
            await _close(self._runtime, self._session)
        finally:
            self._on_closed()


def secret_values(secrets: Secrets | None) -> list[str]:
    """The values that must not be shown."""
    return [value if isinstance(value, str) else value[0] for value in (secrets or {}).values()]


def sdk_environment(runtime: Runtime, endpoint: Endpoint) -> AsyncEnvironment:
    """The SDK's handle on an environment. Call on the runtime's loop only."""
    namespace, slash, name = endpoint.deployment.rpartition("/")

    return AsyncEnvironment(
        namespace=namespace if slash else None,
        name=name,
        variant=endpoint.environment,
        client=runtime.client(endpoint.session_url),
        api_key=endpoint.api_key,
    )


def pair_secrets(secrets: Secrets | None, endpoint: Endpoint, label: str) -> Secrets | None:
    """Secrets as the SDK takes them: a name it does not know needs the hosts that the secret may go to.

    A server that is not a platform hands secrets to the environment itself and restricts no hosts.

    Raises:
        ConfigError: A value is neither text nor a pair of text and hosts.
        SourceError: The platform must be told the hosts of a secret.
    """
    if secrets is None:
        return None

    paired: dict[str, str | tuple[str, list[str]]] = {}

    for name, secret in secrets.items():
        match secret:
            case str() if name in WELL_KNOWN_SECRETS:
                paired[name] = secret
            case str() if not endpoint.is_platform:
                paired[name] = (secret, [])
            case str():
                raise SourceError(
                    f"source {label!r}: the platform must be told which hosts the secret {name!r} may go to. "
                    f"Pass it as (value, ['host', ...])."
                )
            case [str() as value, [*hosts]]:
                paired[name] = (value, [str(host) for host in hosts])
            case _:
                raise ConfigError(
                    f"source {label!r}: the secret {name!r} is neither text nor a pair. "
                    f"Pass its value, or (value, ['host', ...])."
                )

    return paired


async def open_session(
    runtime: Runtime,
    endpoint: Endpoint,
    *,
    owner: str,
    split: str,
    task_index: int,
    secrets: Secrets | None,
    timeouts: SessionTimeouts,
    wait_turn: Callable[[], AbstractAsyncContextManager[None]],
    on_closed: Callable[[], None],
) -> OpenSession:
    """Open a session for one task and fetch its prompt; what was opened is closed again if anything fails.

    `owner` is the identity of the source, by which its sessions are closed together. Opening, and each call later, are
    made inside `wait_turn()`; `on_closed` is called when a session that was returned has been closed.

    Raises:
        TimeoutError: Not open within `timeouts.open_s`.
        Exception: The SDK's or HTTP client's error.
    """
    session = _make_session(
        runtime, endpoint, split=split, task_index=task_index, secrets=secrets, keepalive_s=timeouts.keepalive_s
    )

    try:
        async with wait_turn():
            with anyio.fail_after(timeouts.open_s):
                await session.__aenter__()
                blocks = await session.get_prompt()
    except BaseException:
        await _close(runtime, session)
        raise

    texts = [block.text for block in blocks if block.type == "text"]
    opened = OpenSession(
        runtime,
        session,
        "\n".join(texts),
        owner=owner,
        dropped_blocks=len(blocks) - len(texts),
        timeouts=timeouts,
        wait_turn=wait_turn,
        on_closed=on_closed,
    )
    runtime.register(opened)

    return opened


async def open_probe(
    runtime: Runtime,
    endpoint: Endpoint,
    *,
    split: str,
    task_index: int,
    secrets: Secrets | None,
    timeouts: SessionTimeouts,
) -> Mapping[str, Any]:
    """The tool listing of one task, read in a session of its own that is closed again.

    Raises:
        TimeoutError: Not read within `timeouts.open_s`.
        Exception: The SDK's or HTTP client's error.
    """
    session = _make_session(runtime, endpoint, split=split, task_index=task_index, secrets=secrets)

    try:
        with anyio.fail_after(timeouts.open_s):
            await session.__aenter__()
            listing: Mapping[str, Any] = await request_retryable(
                session.client,
                "GET",
                endpoint.path("/task_tools"),
                expect_json=True,
                token=endpoint.api_key,
                sid=session.sid,
                deployment=endpoint.deployment,
            )
            return listing
    finally:
        await _close(runtime, session)


def _make_session(
    runtime: Runtime,
    endpoint: Endpoint,
    *,
    split: str,
    task_index: int,
    secrets: Secrets | None,
    keepalive_s: float | None = None,
) -> _Session:
    environment = sdk_environment(runtime, endpoint)
    session = _Session(environment, api_key=endpoint.api_key, split=split, index=task_index, secrets=secrets)
    session.keepalive_s = keepalive_s or (_PLATFORM_KEEPALIVE_S if endpoint.is_platform else _SERVER_KEEPALIVE_S)

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

    async def call_once(self, tool: str, arguments: Mapping[str, Any]) -> ToolReply:
        headers = {"User-Agent": USER_AGENT, "X-Session-ID": self.sid, "X-Deployment": self.deployment}

        if self.api_key is not None:
            headers["X-API-Key"] = self.api_key

        self.heard_s = time.monotonic()

        try:
            self._ensure_alive()
            call = run_call(self.client, self._env_path("/call"), tool=tool, arguments=arguments, headers=headers)
            reply: ToolReply = await self._run_or_die(call)
        except SessionTerminatedError as error:
            raise CallFailed(UnscoredReason.SESSION_LOST, error.reason) from error

        return reply

    async def _post_create(self) -> None:
        # The SDK would send this again also where it is not known whether the environment was created.
        body = {"split": self.split, "index": self.index}
        variant = {} if self.env.variant is None else {"env_name": self.env.variant}
        attempt = 0

        while True:
            attempt += 1
            self.heard_s = time.monotonic()

            try:
                # Given up half-way, it could be overtaken by the request to delete, and the environment would stay.
                with anyio.CancelScope(shield=True, deadline=anyio.current_effective_deadline()):
                    await self._send("/create", {**body, **variant}, self._secrets_headers)
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
        logger.warning(
            "A session of %s could not be closed (%s); its server drops it when it expires.",
            session.base_url,
            type(session.close_error).__name__,
        )
