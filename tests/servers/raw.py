"""A small server that speaks raw ORS, for what the SDK's server cannot send.

One environment, its behaviour written down in a `Scenario`: odd rewards, streams cut at chosen points, wrong names,
missing routes, requests that are never answered. It counts what it runs, so that a test can say "once".
"""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from tests.servers.answering import answer_with
from tests.servers.launch import ServerHandle, launch

__all__ = ["Scenario", "build", "serve_raw"]

Cut = Literal["no_response", "before_events", "after_task_id", "mid_chunk"]

_DEFAULT_TOOL = {
    "name": "act",
    "description": "Act.",
    "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": []},
}


@dataclass(frozen=True)
class Scenario:
    """How the server behaves. Paths are as asked, without a variant: ``"/call"`` also means ``"/raw/call"``."""

    environment: str = "raw"
    answers_as: str | None = None
    """The `env_name` in answers about tasks. None: `environment`. Empty: the key is left out."""

    list_environments: Sequence[str] | None = ("raw",)
    """What `/list_environments` says. None: the server has no such route."""

    splits: Sequence[str] = ("train", "test")
    tasks: Sequence[Any] = ({"id": "r0"}, {"id": "r1"}, {"id": "r2"}, {"id": "r3"})
    """The tasks of each split. Sent as ASCII JSON, so lone surrogates can be."""

    num_tasks: Any = None
    """What `/num_tasks` says. None: the number of `tasks`."""

    tools: Sequence[Mapping[str, Any]] = (_DEFAULT_TOOL,)
    output: str = "acted"
    rewards: Sequence[str] = ("1.0",)
    """JSON literals, one per call of a session, the last one over and over: ``("null", "NaN", "1e400")``."""

    finish_at: int | None = None
    """The call of a session that finishes it, counted from 1."""

    result: str | None = None
    """Sent as a call's result instead of one made of `output` and `rewards`; it need not be JSON. `{sid}` in it becomes
    the session's id."""

    events: Sequence[tuple[str, str]] | None = None
    """Sent as a call's events after `task_id`, instead of its result in chunks."""

    chunk_size: int = 4096
    newline: str = "\r\n"
    cut: Cut | None = None
    """Where the answer to a `/call` ends early: before its headers, its events, after task_id, inside a chunk."""

    cut_times: int = 1
    """How many requests to `/call` are cut; those after them are not."""

    forgets_tasks: bool = False
    """Whether a resumed call is answered with "unknown task_id"."""

    lost_after: int | None = None
    """After so many calls of a session the server does not know it any more."""

    create_session: Literal["sse", "json"] = "sse"
    hangs_on: Sequence[str] = ()
    """Paths that are never answered."""

    statuses: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By path, status codes of the first requests, one each; the requests after them are served."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    """By path, JSON that is answered whatever is asked."""

    redirect_to: str | None = None
    """Another server's URL; every request is sent there with a 308."""


@contextmanager
def serve_raw(scenario: Scenario | None = None, **fields: Any) -> Iterator[ServerHandle]:
    """Serve a scenario, given whole or by its fields. `Counts.details` has `executions`: runs by tool name."""
    chosen = Scenario(**fields) if scenario is None else scenario
    with launch("tests.servers.raw:build", {"scenario": chosen}) as handle:
        yield handle


def build(*, scenario: Scenario) -> Callable[[list[socket.socket]], Awaitable[None]]:
    """A coroutine function that serves on the given sockets."""
    return answer_with(_Raw(scenario).handle)


class _Raw:
    """The server's memory, and one method per route."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._num_calls_by_sid: dict[str, int] = {}
        self._results: dict[str, str] = {}
        self._num_cuts = 0
        self._answered: Counter[str] = Counter()
        self._clear()

    def _clear(self) -> None:
        self._requests: Counter[str] = Counter()
        self._paths: Counter[str] = Counter()
        self._executions: Counter[str] = Counter()
        self._opened = 0
        self._deleted = 0
        self._resumed_calls = 0
        self._api_keys: set[str] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/_counts":
            return self._counts(request)

        path = request.path.removeprefix(f"/{self._scenario.environment}")
        self._paths[f"{request.method} {request.path}"] += 1
        self._requests[f"{request.method} {path if path == request.path else '/{env}' + path}"] += 1
        if "X-API-Key" in request.headers:
            self._api_keys.add(request.headers["X-API-Key"])
        if self._scenario.redirect_to is not None:
            return web.Response(status=308, headers={"Location": f"{self._scenario.redirect_to}{request.path_qs}"})
        if path in self._scenario.hangs_on:
            await asyncio.Event().wait()
        status = self._next_status(path)
        if status is not None:
            return web.json_response({"detail": f"scripted {status}"}, status=status)
        if path in self._scenario.answers:
            return web.json_response(self._scenario.answers[path])

        return await self._route(request, path)

    def _next_status(self, path: str) -> int | None:
        scripted = self._scenario.statuses.get(path, ())
        self._answered[path] += 1
        return scripted[self._answered[path] - 1] if self._answered[path] <= len(scripted) else None

    async def _route(self, request: web.Request, path: str) -> web.StreamResponse:
        routes: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "GET /health": self._say({"status": "ok"}),
            "GET /version": self._say({"version": "raw", "build_sha": None}),
            "GET /splits": self._say([{"name": name, "type": "validation"} for name in self._scenario.splits]),
            "GET /tools": self._say({"tools": list(self._scenario.tools)}),
            "POST /num_tasks": self._say({"num_tasks": self._num_tasks()}),
            "POST /tasks": self._tasks,
            "POST /task_range": self._tasks,
            "POST /task": self._task,
            "POST /create_session": self._create_session,
            "POST /create": self._create,
            "POST /ping": self._in_session({"status": "ok"}),
            "GET /prompt": self._in_session([{"type": "text", "text": "Act.", "detail": None}]),
            "GET /task_tools": self._in_session({"tools": list(self._scenario.tools)}),
            "POST /call": self._call,
            "POST /delete": self._delete,
            "POST /delete_session": self._say({}),
        }
        if self._scenario.list_environments is not None:
            routes["GET /list_environments"] = self._say(list(self._scenario.list_environments))
        route = routes.get(f"{request.method} {path}")

        return await route(request) if route else web.json_response({"detail": "Not Found"}, status=404)

    def _counts(self, request: web.Request) -> web.Response:
        if request.method == "DELETE":
            self._clear()
        name = self._scenario.environment
        return web.json_response(
            {
                "requests": self._requests,
                "paths": self._paths,
                "active": {name: len(self._num_calls_by_sid)} if self._num_calls_by_sid else {},
                "opened": {name: self._opened},
                "deleted": {name: self._deleted},
                "tool_calls": {name: self._executions},
                "resumed_calls": self._resumed_calls,
                "api_keys": sorted(self._api_keys),
                "details": {"executions": self._executions},
            }
        )

    @staticmethod
    def _say(answer: Any) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def saying(_: web.Request) -> web.StreamResponse:
            return web.json_response(answer)

        return saying

    def _in_session(self, answer: Any) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def saying(request: web.Request) -> web.StreamResponse:
            return web.json_response(answer) if self._knows(request) else _unknown_session()

        return saying

    def _knows(self, request: web.Request) -> bool:
        return request.headers.get("X-Session-ID") in self._num_calls_by_sid

    # -- tasks

    def _num_tasks(self) -> Any:
        return len(self._scenario.tasks) if self._scenario.num_tasks is None else self._scenario.num_tasks

    def _named(self, answer: dict[str, Any]) -> web.Response:
        name = self._scenario.environment if self._scenario.answers_as is None else self._scenario.answers_as
        return web.json_response({**answer, "env_name": name} if name else answer)

    async def _tasks(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if asked["split"] not in self._scenario.splits:
            return web.json_response({"detail": "Invalid split"}, status=400)
        return self._named({"tasks": list(self._scenario.tasks)[asked.get("start") : asked.get("stop")]})

    async def _task(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        try:
            return self._named({"task": self._scenario.tasks[asked["index"]]})
        except IndexError:
            return web.json_response({"detail": "Invalid index"}, status=400)

    # -- sessions

    async def _create_session(self, request: web.Request) -> web.StreamResponse:
        sid = str(uuid.uuid4())
        if self._scenario.create_session == "json":
            return web.json_response({"sid": sid})
        return await self._stream(request, [("task_id", sid), ("end", "")])

    async def _create(self, request: web.Request) -> web.StreamResponse:
        sid = request.headers["X-Session-ID"]
        self._num_calls_by_sid[sid] = 0
        self._opened += 1
        return web.json_response({"sid": sid})

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        if self._num_calls_by_sid.pop(request.headers.get("X-Session-ID", ""), None) is not None:
            self._deleted += 1
        return web.json_response({})

    # -- calls

    async def _call(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if not self._knows(request) or self._is_lost(request.headers["X-Session-ID"]):
            return _unknown_session()

        task_id = asked.get("task_id")
        if task_id:
            self._resumed_calls += 1
            if self._scenario.forgets_tasks:
                return await self._stream(request, [("error", "unknown task_id")])
        else:
            task_id = uuid.uuid4().hex
            self._results[task_id] = self._execute(request.headers["X-Session-ID"], asked["name"])

        return await self._stream_result(request, task_id)

    def _is_lost(self, sid: str) -> bool:
        lost_after = self._scenario.lost_after
        return lost_after is not None and self._num_calls_by_sid[sid] >= lost_after

    def _execute(self, sid: str, tool: str) -> str:
        self._executions[tool] += 1
        self._num_calls_by_sid[sid] += 1
        n = self._num_calls_by_sid[sid]
        if self._scenario.result is not None:
            return self._scenario.result.replace("{sid}", sid)

        reward = self._scenario.rewards[min(n, len(self._scenario.rewards)) - 1]
        blocks = json.dumps([{"type": "text", "text": self._scenario.output, "detail": None}])
        finished = json.dumps(n == self._scenario.finish_at)
        output = f'{{"blocks": {blocks}, "metadata": null, "reward": {reward}, "finished": {finished}}}'
        return f'{{"ok": true, "output": {output}}}'

    async def _stream_result(self, request: web.Request, task_id: str) -> web.StreamResponse:
        size, result = self._scenario.chunk_size, self._results[task_id]
        chunks = [result[i : i + size] for i in range(0, len(result), size)] or [""]
        events = [*(("chunk", chunk) for chunk in chunks[:-1]), ("end", chunks[-1])]
        if self._scenario.events is not None:
            events = list(self._scenario.events)
        cut = self._scenario.cut if self._num_cuts < self._scenario.cut_times else None
        self._num_cuts += cut is not None
        return await self._stream(request, [("task_id", task_id), *events], cut=cut)

    async def _stream(
        self, request: web.Request, events: Sequence[tuple[str, str]], *, cut: Cut | None = None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if cut != "no_response":
            await response.prepare(request)
        newline = self._scenario.newline
        texts = [f"event: {event}{newline}data: {data}{newline}{newline}" for event, data in events]
        if cut is not None:
            kept = {"no_response": "", "before_events": "", "after_task_id": texts[0]}
            text = kept[cut] if cut in kept else texts[0] + texts[1][: len(texts[1]) // 2]
            await _cut(request, response, text)
            return response

        await response.write("".join(texts).encode())
        await response.write_eof()
        return response


async def _cut(request: web.Request, response: web.StreamResponse, text: str) -> None:
    """Send the text, then close the connection as a crash would."""
    if text:
        await response.write(text.encode())
    if request.transport is not None:
        request.transport.close()
        await asyncio.sleep(0)


def _unknown_session() -> web.Response:
    return web.json_response({"detail": "Active environment not found"}, status=404)
