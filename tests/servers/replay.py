"""A server that answers with given bytes: status line, headers and body as a test wrote them, cut where it said.

It speaks no HTTP of its own: what it sends need not be HTTP at all. Requests are told apart by the case they belong to:
the tool that a call names, the metadata of a group's first rollout, else the environment that every request carries in
a header. Requests without an answer of
their own get a sound one, so that each case breaks one thing. It counts the sessions that are
open on it, and names them.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import socket
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from tests.servers.child import until_terminated
from tests.servers.launch import ServerHandle, launch

__all__ = ["CALL", "SCORE_GROUP", "Answer", "Ending", "build", "serve_replay", "tell"]

Ending = Literal["close", "reset", "stay", "hang"]

CALL = "/call"
SCORE_GROUP = "/score_group"

_TOOL = {"name": "act", "description": "Act.", "input_schema": {"type": "object", "properties": {}}}


@dataclass(frozen=True)
class Answer:
    """What is sent, to the byte."""

    raw: bytes
    cuts: Sequence[int] = ()
    """Where the bytes are divided into several writes."""

    ending: Ending = "close"
    """What becomes of the connection: it is closed, reset, kept for the next request, or left without a word."""


@contextmanager
def serve_replay() -> Iterator[ServerHandle]:
    """Serve; what is answered is said by `tell`."""
    with launch("tests.servers.replay:build", {}) as handle:
        yield handle


def tell(server: ServerHandle, answers: Mapping[str, Mapping[str, Answer]]) -> None:
    """Replace the answers, by case and route, and forget the sessions of those before."""
    said = {
        case: {
            route: [base64.b64encode(answer.raw).decode(), list(answer.cuts), answer.ending]
            for route, answer in by_route.items()
        }
        for case, by_route in answers.items()
    }
    server.ask("POST", "/_answers", said, deadline_s=60.0)


def build() -> Callable[[list[socket.socket]], Awaitable[None]]:
    """A coroutine function that serves on the given sockets."""

    async def serve(sockets: list[socket.socket]) -> None:
        server = await asyncio.start_server(_Replay().talk, sock=sockets[0], limit=2**26)
        async with server:
            await until_terminated()

    return serve


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def route(self) -> str:
        return "/" + self.path.partition("?")[0].rpartition("/")[2]

    @property
    def environment(self) -> str:
        return self.headers.get("x-deployment", "").lower()


class _Replay:
    """The server's memory."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[str, Answer]] = {}
        self._environment_by_sid: dict[str, str] = {}
        self._clear()

    def _clear(self) -> None:
        self._requests: Counter[str] = Counter()
        self._opened = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while request := await _read_request(reader):
                answer = self._find_answer(request)
                await _send(writer, answer)
                if answer.ending == "hang":
                    await reader.read()
                if answer.ending == "reset":
                    writer.transport.abort()
                if answer.ending != "stay":
                    break
        writer.close()

    def _find_answer(self, request: _Request) -> Answer:
        if request.path.startswith("/_"):
            return self._control(request)

        self._requests[f"{request.method} {request.route}"] += 1
        body = _parse(request.body)
        sid = request.headers.get("x-session-id", "")
        if request.route == "/create":
            self._environment_by_sid[sid] = request.environment
            self._opened += 1
        elif request.route == "/delete":
            self._environment_by_sid.pop(sid, None)
        case = request.environment
        if request.route == CALL:
            case = str(body.get("name"))
        elif request.route == SCORE_GROUP:
            case = str(body["candidates"][0]["metadata"])
        return self._answers.get(case, {}).get(request.route) or _say_soundly(request)

    def _control(self, request: _Request) -> Answer:
        if request.path == "/_answers":
            self._answers = {
                case: {route: Answer(base64.b64decode(raw), cuts, end) for route, (raw, cuts, end) in told.items()}
                for case, told in _parse(request.body).items()
            }
            self._environment_by_sid.clear()
        elif request.method == "DELETE":
            self._clear()
        sessions = [{"sid": sid, "environment": name} for sid, name in self._environment_by_sid.items()]
        active = {"replay": len(sessions)} if sessions else {}
        opened = {"replay": self._opened}
        return _say({"requests": self._requests, "active": active, "opened": opened, "sessions": sessions})


def _say_soundly(request: _Request) -> Answer:
    name = request.environment
    if request.route == "/create_session":
        return _say_events(("task_id", str(uuid.uuid4())), ("end", ""))
    if request.route == CALL:
        output = {"blocks": [{"type": "text", "text": "acted"}], "reward": 1.0, "finished": False, "metadata": None}
        return _say_events(("task_id", uuid.uuid4().hex), ("end", json.dumps({"ok": True, "output": output})))
    if request.route == "/messages":
        return Answer(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ending="stay")

    sound: dict[str, Any] = {
        "/list_environments": [name],
        "/splits": [{"name": "train", "type": "train"}],
        "/num_tasks": {"num_tasks": 1, "env_name": name},
        "/task_range": {"tasks": [{"id": 0}], "env_name": name},
        "/tasks": {"tasks": [{"id": 0}], "env_name": name},
        "/tools": {"tools": [_TOOL]},
        "/task_tools": {"tools": [_TOOL]},
        "/prompt": [{"type": "text", "text": "Act.", "detail": None}],
    }
    return _say(sound.get(request.route, {}))


def _say(value: Any) -> Answer:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return Answer(head.encode() + body, ending="stay")


def _say_events(*events: tuple[str, str]) -> Answer:
    body = "".join(f"event: {event}\ndata: {data}\n\n" for event, data in events).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    return Answer(head.encode() + body, ending="stay")


async def _read_request(reader: asyncio.StreamReader) -> _Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").splitlines()
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    method, path, *_ = first.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return _Request(method, re.sub("^https?://[^/]*", "", path), headers, body)


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    borders = [0, *sorted(cut for cut in answer.cuts if 0 < cut < len(answer.raw)), len(answer.raw)]
    for start, stop in itertools.pairwise(borders):
        writer.write(answer.raw[start:stop])
        await writer.drain()
        await asyncio.sleep(0)  # the next piece is a write, and mostly a packet, of its own


def _parse(body: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        parsed = json.loads(body)
        if isinstance(parsed, dict):
            return parsed
    return {}
