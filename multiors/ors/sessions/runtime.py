"""The event loop that all ORS traffic of a process runs on, and the end of every session.

One background thread with one loop, started at first use; one HTTP client per server, all on one pool of connections.
TRL calls `reset()` and tools synchronously, so the surface is synchronous: `run` waits, `start` does not. Knows nothing
of tasks, tools or rewards.

Rules
- A forked child does not inherit a loop: it gets a runtime of its own, and leaves its parent's sessions alone.
- Sessions are closed at exit before Python stops worker threads, because closing needs the loop and its name resolver.
- A request never follows a redirect to another host: keys and secrets travel in headers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from anyio.from_thread import BlockingPortal, start_blocking_portal
from openreward.api._session.http import set_retry_policy
from yarl import URL

from multiors.errors import SessionError
from multiors.ors.sessions.limits import Limiters, count_sockets
from multiors.ors.sessions.servers import Servers

__all__ = ["Closable", "Runtime", "get_runtime"]

logger = logging.getLogger("multiors.ors")

T = TypeVar("T")

_CONNECT_TIMEOUT_S = 10.0
# A server answers any request within its 25 s "still starting" window (openreward 0.1.167, environments/server.py).
_READ_TIMEOUT_S = 60.0
# uvicorn drops a connection that was idle for 5 s; a call sent on it just then would have no known outcome. The rest is
# for a loop that reads an answer late, because the policy holds the interpreter.
_IDLE_TIMEOUT_S = 2.0
_EXIT_TIMEOUT_S = 15.0
_EXIT_TIMEOUT_PER_SESSION_S = 0.01


class Closable(Protocol):
    """What the runtime closes at exit."""

    @property
    def owner(self) -> str:
        """Identity of the source that opened it."""

    async def close(self) -> None:
        """End the session on its server; bounded in time, never raises."""


class Runtime:
    """The background loop of this process, its HTTP clients and its open sessions."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._portal: AbstractContextManager[BlockingPortal] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start_lock = threading.Lock()
        self._clients: dict[str, aiohttp.ClientSession] = {}
        self._connector: aiohttp.TCPConnector | None = None
        self.limiters = Limiters()
        self.servers = Servers(self.client, self.start)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open: set[Closable] = set()
        self._pending: set[Future[None]] = set()
        self.num_unclosed: Counter[str] = Counter()
        """Sessions that could not be closed, by the address of their server."""

    @property
    def num_open_sessions(self) -> int:
        """Sessions opened here and not yet told to close."""
        return len(self._open)

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run `function(*args)` on the loop and wait for its result; an interrupt cancels it."""
        return self.wait(self.start(function, *args))

    @staticmethod
    def wait(future: Future[T]) -> T:
        """The result of something started; an interrupt cancels it."""
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        """Run `function(*args)` on the loop without waiting, not even for the loop to take it."""
        loop = self._start_loop()
        return asyncio.run_coroutine_threadsafe(self._track(function, *args), loop)

    async def _track(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._tasks.add(task)

        try:
            return await function(*args)
        finally:
            self._tasks.discard(task)

    def client(self, session_url: str) -> aiohttp.ClientSession:
        """The HTTP client of one server. Call on the loop only."""
        client = self._clients.get(session_url)

        if client is None or client.closed:
            trace = aiohttp.TraceConfig()
            trace.on_request_redirect.append(_refuse_other_host)
            client = aiohttp.ClientSession(
                base_url=session_url,
                connector=self._find_connector(),
                connector_owner=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_READ_TIMEOUT_S),
                trust_env=_goes_through_proxy(session_url),
                trace_configs=[trace],
            )
            set_retry_policy(client, "env-server")
            self._clients[session_url] = client

        return client

    def _find_connector(self) -> aiohttp.TCPConnector:
        # One pool for all servers: its limit is what keeps the process from running out of file descriptors.
        if self._connector is None or self._connector.closed:
            self._connector = aiohttp.TCPConnector(limit=count_sockets(), keepalive_timeout=_IDLE_TIMEOUT_S)

        return self._connector

    def register(self, session: Closable) -> None:
        """Remember an open session, to be closed at the latest at exit."""
        self._open.add(session)

    def close_soon(self, session: Closable) -> None:
        """Close a session in the background. Closing twice, or in a forked child, does nothing."""
        if os.getpid() != self.pid or session not in self._open:
            return

        self._open.discard(session)
        self.finish_soon(session.close)

    async def close(self, session: Closable) -> None:
        """Close a session that is not being closed yet. Runs on the loop."""
        if session in self._open:
            self._open.discard(session)
            await session.close()

    def finish_soon(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run what ends a session in the background; `close_now` waits for it."""
        future = self.start(function)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

    def close_now(self, sessions: list[Closable]) -> None:
        """Close `sessions` at once and wait until they and all closings in the background are done."""
        for session in sessions:
            self.close_soon(session)

        timeout_s = _EXIT_TIMEOUT_S + _EXIT_TIMEOUT_PER_SESSION_S * len(self._pending)
        _, unfinished = wait(list(self._pending), timeout=timeout_s)

        if unfinished:
            logger.warning("%d sessions were not closed within %.0f s.", len(unfinished), timeout_s)

    def close_owned_by(self, owners: Collection[str]) -> None:
        """Close the sessions of some sources and wait for it."""
        self.close_now([session for session in list(self._open) if session.owner in owners])

    def shut_down(self) -> None:
        """Close every session, every client and the loop."""
        if os.getpid() != self.pid or self._portal is None:
            return

        self.close_now(list(self._open))
        self.run(self._finish)
        self._portal.__exit__(None, None, None)
        self._portal = self._loop = None

    async def _finish(self) -> None:
        """Interrupt what still runs, let it close what it opened, then close the clients."""
        rest = {task for task in self._tasks if task is not asyncio.current_task()}

        for task in rest:
            # A second cancellation would interrupt the closing that the first one began.
            if not task.cancelling():
                task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_EXIT_TIMEOUT_S)

        for client in self._clients.values():
            await client.close()

        self._clients.clear()

        if self._connector is not None:
            await self._connector.close()

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        # Looked up without the lock first: a finalizer may run at any allocation, also while this thread holds it.
        if self._loop is None:
            with self._lock:
                self._start_in_a_thread()

        if self._loop is None:
            raise RuntimeError("the event loop of multiors could not be started; the error is above.")

        return self._loop

    def _start_in_a_thread(self) -> None:
        # No interrupt reaches a thread of its own: anyio, interrupted while it starts its thread, waits for that one
        # for ever. It is not joined: an interrupted `join` takes the thread for ended.
        is_over = threading.Event()
        threading.Thread(target=self._start_portal, args=(is_over,), name="multiors start").start()
        is_over.wait()

    def _start_portal(self, is_over: threading.Event) -> None:
        try:
            with self._start_lock:  # an interrupted start may still be under way
                if self._loop is None:
                    portal = start_blocking_portal("asyncio", name="multiors")
                    loop = portal.__enter__().call(_running_loop)
                    # Not atexit: that runs after worker threads are gone, and a close may need to resolve a host name.
                    threading._register_atexit(self.shut_down)  # type: ignore[attr-defined]  # see test_sdk_contract
                    self._portal, self._loop = portal, loop
        finally:
            is_over.set()


def _goes_through_proxy(url: str) -> bool:
    # Asked once: aiohttp would ask the environment, and a .netrc file, in a thread of their own at each request.
    parts = urlsplit(url)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def _refuse_other_host(
    _session: aiohttp.ClientSession, _context: object, params: aiohttp.TraceRequestRedirectParams
) -> None:
    headers = params.response.headers
    address = headers.get("Location") or headers.get("URI") or ""  # as aiohttp reads it

    try:
        target = params.url.join(URL(address)).origin()
    except ValueError:
        raise SessionError(f"{params.url.origin()} redirects to what is no address of a server") from None

    if target != params.url.origin():
        raise SessionError(
            f"{params.url.origin()} redirects to another host, {target}; keys and secrets are not sent there. "
            f"Give the source the final address."
        )


_runtime: Runtime | None = None
_runtime_lock = threading.Lock()
# A forked child keeps its parent's runtime referenced, so that no finalizer touches the parent's sockets.
_inherited: list[Runtime | None] = []


def get_runtime() -> Runtime:
    """The runtime of this process, made at first use."""
    global _runtime

    if _runtime is not None:
        return _runtime

    with _runtime_lock:
        if _runtime is None:
            _runtime = Runtime()

        return _runtime


def _forget_parent() -> None:
    global _runtime, _runtime_lock

    _inherited.append(_runtime)
    _runtime = None
    _runtime_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_parent)
