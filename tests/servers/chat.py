"""A small server in the shape of an OpenAI-compatible endpoint, for what no sound one would send.

It answers what a `Scenario` says and keeps what it was asked, so that a test can say "never" of a key. The fields of
another scenario, put to `/_scenario`, begin anew.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.servers.answering import answer_with
from tests.servers.launch import ServerHandle, launch

__all__ = ["Scenario", "build", "complete", "go_on", "serve_chat"]


def complete(
    content: Any = "Done.", *, finish_reason: str = "stop", usage: Any = None, **message: Any
) -> dict[str, Any]:
    """The body of a sound answer with the given message."""
    return {
        "id": "chat-1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": content, **message},
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10} if usage is None else usage,
    }


def go_on(text: Any, *, finish_reason: str = "stop") -> dict[str, Any]:
    """The body of a sound answer that goes on with a text."""
    return {
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }


@dataclass(frozen=True)
class Scenario:
    """How the endpoint behaves."""

    models: Any = field(default_factory=lambda: [{"id": "m", "object": "model", "created": 0, "owned_by": "nobody"}])
    """What `/v1/models` lists. None: there is no such route."""

    answers: Sequence[Any] = field(default_factory=lambda: [complete()])
    """Bodies of the answers to chat requests in order, the last one over and over. A text is sent as it is, anything
    else as JSON."""

    statuses: Sequence[int] = ()
    """Status codes of the first chat requests, one each; those after them are answered with 200."""

    refusal: Any = field(default_factory=lambda: {"error": {"message": "scripted refusal"}})
    """Body of what is answered with another status."""

    models_status: int = 200
    redirect_to: str | None = None
    """Another server's URL; every chat request is sent there with a 307."""

    hangs: bool = False
    """Whether chat requests are never answered."""

    cut: bool = False
    """Whether the connection is closed in the middle of an answer."""

    num_padding: int = 0
    """Blanks before each answer, which JSON allows."""


@contextmanager
def serve_chat(**fields: Any) -> Iterator[ServerHandle]:
    """Serve a scenario. `Counts.details` has `requests`: one per chat request, its `headers` and `body`."""
    with launch("tests.servers.chat:build", {"scenario": Scenario(**fields)}) as handle:
        yield handle


def build(*, scenario: Scenario) -> Callable[[list[socket.socket]], Awaitable[None]]:
    """A coroutine function that serves on the given sockets."""
    return answer_with(_Chat(scenario).handle)


class _Chat:
    def __init__(self, scenario: Scenario) -> None:
        self._begin(scenario)

    def _begin(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._requests: list[dict[str, Any]] = []
        self._headers: list[dict[str, str]] = []
        self._num_answered = 0
        self._in_flight = 0
        self._max_in_flight = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/_counts":
            return self._counts()
        if request.path == "/_scenario":
            self._begin(Scenario(**await request.json()))
            return web.json_response({})

        self._headers.append({name.lower(): value for name, value in request.headers.items()})
        if request.path == "/v1/models" and self._scenario.models is not None:
            body = {"object": "list", "data": self._scenario.models}
            is_well = self._scenario.models_status == 200
            return web.json_response(body if is_well else self._scenario.refusal, status=self._scenario.models_status)
        if request.path not in ("/v1/chat/completions", "/v1/completions"):
            return web.json_response({"detail": "Not Found"}, status=404)

        self._requests.append({"headers": dict(self._headers[-1]), "body": await request.json()})
        self._in_flight += 1
        self._max_in_flight = max(self._max_in_flight, self._in_flight)
        try:
            return await self._answer(request)
        finally:
            self._in_flight -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        scenario, number = self._scenario, len(self._requests) - 1
        if scenario.redirect_to is not None:
            return web.Response(status=307, headers={"Location": f"{scenario.redirect_to}{request.path_qs}"})
        if scenario.hangs:
            await asyncio.Event().wait()
        if number < len(scenario.statuses) and scenario.statuses[number] != 200:
            # Asked again at once.
            headers = {"Retry-After-Ms": "1"}
            return web.json_response(scenario.refusal, status=scenario.statuses[number], headers=headers)

        answer = scenario.answers[min(self._num_answered, len(scenario.answers) - 1)]
        self._num_answered += 1
        text = " " * scenario.num_padding + (answer if isinstance(answer, str) else json.dumps(answer))
        if not scenario.cut:
            return web.Response(text=text, content_type="application/json")

        response = web.StreamResponse(headers={"Content-Length": str(len(text))})
        await response.prepare(request)
        await response.write(text[: len(text) // 2].encode())
        if request.transport is not None:
            request.transport.close()
        return response

    def _counts(self) -> web.Response:
        details: Mapping[str, Any] = {"requests": self._requests, "headers": self._headers}
        return web.json_response({"details": details, "max_in_flight": {"chat": self._max_in_flight}})
