"""The child's side of `launch.serve`: openreward's own server, with a middleware around it that counts.

The counting is outermost, so it sees redirects too, and `/_counts` never reaches the server's own routing. What a
count means is written in `launch.Counts`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from openreward.environments import Environment, Server
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.servers import environments as plain
from tests.servers import features, misbehaving, shapes
from tests.servers.child import resolve
from tests.servers.launch import Configured

__all__ = ["build"]


def build(
    *, environments: Sequence[Configured], latency_s: float, path_prefix: str
) -> Callable[[list[socket.socket]], Awaitable[None]]:
    """A coroutine function that serves on the given sockets."""
    ledger = _Ledger()
    server = Server([_counted(_find(item.path), dict(item.attributes), ledger) for item in environments])
    app = _Counting(server.app, server, ledger, latency_s=latency_s, path_prefix=path_prefix)

    async def serve(sockets: list[socket.socket]) -> None:
        config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=sockets)

    return serve


def _find(path: str) -> type[Environment]:
    """The class that ``module:Class`` or a bare ``Class`` names."""
    if ":" in path:
        found: type[Environment] = resolve(path)
    else:
        modules = (shapes, misbehaving, features)
        found = getattr(next((module for module in modules if hasattr(module, path)), plain), path)

    return found


def _counted(environment: type[Environment], attributes: dict[str, Any], ledger: _Ledger) -> type[Environment]:
    """The same environment under the same name, each run of a tool written down."""
    run_tool_fn = environment._run_tool_fn

    async def counting(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        ledger.tool_calls[environment.name().lower()][name] += 1
        self.__dict__.setdefault("_tool_counter", Counter())[name] += 1
        return await run_tool_fn(self, name, *args, **kwargs)

    return type(environment.__name__, (environment,), {**attributes, "_run_tool_fn": counting})


class _Ledger:
    """What is counted."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.in_flight: Counter[str] = Counter()
        self.clear()

    def clear(self) -> None:
        for counter in (self.requests, self.paths, self.statuses):
            counter.clear()
        self.max_in_flight: Counter[str] = Counter()
        self.opened: Counter[str] = Counter()
        self.deleted: Counter[str] = Counter()
        self.max_active = 0
        self.tool_calls: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.sessions: dict[str, dict[str, Any]] = {}
        self.resumed_calls = 0
        self.api_keys: set[str] = set()
        self.secrets: list[Any] = []

    @contextmanager
    def flight(self, route: str) -> Iterator[None]:
        self.requests[route] += 1
        self.in_flight[route] += 1
        self.max_in_flight[route] = max(self.max_in_flight[route], self.in_flight[route])
        try:
            yield
        finally:
            self.in_flight[route] -= 1


class _Counting:
    """ASGI middleware that writes the ledger, adds latency, strips a path prefix and serves `/_counts`."""

    def __init__(self, app: ASGIApp, server: Server, ledger: _Ledger, *, latency_s: float, path_prefix: str) -> None:
        self._app = app
        self._server = server
        self._ledger = ledger
        self._latency_s = latency_s
        self._path_prefix = path_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == "/_counts":
            await self._answer_counts(scope, receive, send)
        elif scope["path"] == "/_clock":
            await self._move_clock(scope, receive, send)
        elif not scope["path"].startswith(f"{self._path_prefix}/"):
            self._ledger.paths[f"{scope['method']} {scope['path']}"] += 1
            await JSONResponse({"detail": "Not Found"}, 404)(scope, receive, send)
        else:
            path = scope["path"].removeprefix(self._path_prefix)
            await self._count({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    async def _answer_counts(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE":
            self._ledger.clear()
        await JSONResponse(self._counts())(scope, receive, send)

    async def _move_clock(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The server's own expiry compares these with the time, every 5 s (openreward 0.1.167, environments/server.py).
        passed_s = json.loads(await _read(receive))["passed_s"]
        for sid in self._server._last_ping:
            self._server._last_ping[sid] -= passed_s
        await JSONResponse({})(scope, receive, send)

    def _counts(self) -> dict[str, Any]:
        ledger = self._ledger
        active = Counter(env.name().lower() for env in self._server._active_envs.values() if env is not None)
        return {
            "requests": ledger.requests,
            "paths": ledger.paths,
            "statuses": ledger.statuses,
            "max_in_flight": ledger.max_in_flight,
            "active": active,
            "max_active": ledger.max_active,
            "opened": ledger.opened,
            "deleted": ledger.deleted,
            "tool_calls": ledger.tool_calls,
            "sessions": list(ledger.sessions.values()),
            "resumed_calls": ledger.resumed_calls,
            "api_keys": sorted(ledger.api_keys),
            "secrets": ledger.secrets,
        }

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        body = await _read(receive) if scope["method"] == "POST" else b""
        sid = headers.get("x-session-id", "").strip()
        environment = self._server._active_envs.get(sid)
        self._note(scope, headers, body)
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._ledger.flight(f"{scope['method']} {self._route(scope['path'])}"):
            await asyncio.sleep(self._latency_s)
            await self._app(scope, _replay(body, receive), watch)

        self._ledger.statuses[str(status)] += 1
        if scope["path"] == "/create" and status == 200:
            self._note_opened(sid, body)
        if scope["path"] == "/ping" and status == 200 and sid in self._ledger.sessions:
            self._ledger.sessions[sid]["pings"] += 1
        if scope["path"] == "/delete" and environment is not None and sid not in self._server._active_envs:
            self._ledger.deleted[environment.name().lower()] += 1

    def _note(self, scope: Scope, headers: dict[str, str], body: bytes) -> None:
        self._ledger.paths[f"{scope['method']} {scope['path']}"] += 1
        if "x-api-key" in headers:
            self._ledger.api_keys.add(headers["x-api-key"])
        if "x-secrets" in headers:
            secrets = json.loads(base64.b64decode(headers["x-secrets"]))
            if secrets not in self._ledger.secrets:
                self._ledger.secrets.append(secrets)
        if scope["path"].endswith("/call") and body and json.loads(body).get("task_id"):
            self._ledger.resumed_calls += 1

    def _note_opened(self, sid: str, body: bytes) -> None:
        environment = self._server._active_envs.get(sid)
        if environment is None:
            return
        asked = json.loads(body)
        name = environment.name().lower()
        self._ledger.opened[name] += 1
        self._ledger.max_active = max(self._ledger.max_active, len(self._server._active_envs))
        self._ledger.sessions[sid] = {
            "sid": sid,
            "environment": name,
            "split": asked.get("split"),
            "index": asked.get("index"),
            "tool_calls": environment.__dict__.setdefault("_tool_counter", Counter()),
            "pings": 0,
        }

    def _route(self, path: str) -> str:
        first, slash, rest = path.lstrip("/").partition("/")
        return f"/{{env}}/{rest}" if slash and first.lower() in self._server._env_classes else path


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        part: bytes = message.get("body", b"")
        body += part
        if not message.get("more_body", False):
            return body


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once more, then whatever comes."""
    given = False

    async def replaying() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replaying
