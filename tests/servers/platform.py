"""A stand-in for the hosted platform: one address for its API, another for sessions, in front of real ORS servers.

It checks `X-API-Key`, finds the server by `X-Deployment` when a session is made and by `X-Session-ID` from then on
(the SDK deletes and pings without naming a deployment), and streams answers through. It can be told to be busy, to be
still starting, or to cut calls; `Told` says how.
"""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
from aiohttp import web

from tests.servers.child import until_terminated
from tests.servers.launch import ServerHandle, launch

__all__ = ["API_KEY", "Platform", "Told", "build", "serve_platform"]

API_KEY = "platform-test-key"

_NOT_FORWARDED = frozenset({"host", "content-length", "transfer-encoding", "connection", "keep-alive"})


@dataclass(frozen=True)
class Told:
    """What the session address does instead of answering, so many times, then no more."""

    starting: int = 0
    """Answers of 503 with `X-Backend-State: starting` and `Retry-After`."""

    busy: int = 0
    """Answers of 429 with `Retry-After`."""

    cut_before_task_id: int = 0
    """Calls whose tool runs and whose stream ends before its first event."""

    cut_after_task_id: int = 0
    """Calls whose tool runs and whose stream ends after the task_id event."""

    on: str = ""
    """End of the path that `starting` and `busy` are for. Empty: any but `/ping`."""

    retry_after_s: int = 0

    failed_uploads: int = 0
    """Uploads of rollouts that are answered with `upload_status`."""

    upload_status: int = 500


class Platform:
    """The platform's two addresses."""

    def __init__(self, handle: ServerHandle) -> None:
        self.process = handle
        self.api_key = API_KEY

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.process.ports[0]}"

    @property
    def session_url(self) -> str:
        return f"http://127.0.0.1:{self.process.ports[1]}"

    def tell(self, **fields: Any) -> None:
        """Misbehave from now on as `Told` says. Without arguments: behave."""
        self.process.ask("PUT", "/_told", asdict(Told(**fields)))

    def counts(self) -> dict[str, Any]:
        """Counts since the start or the last reset.

        `api` and `sessions` have requests by method and path; `deployments` requests by X-Deployment; `refused` those
        with a missing or wrong key; `unkeyed` those of them without one; `keys` the distinct keys; `open` the sessions
        not yet deleted, by deployment; `overrides` the environment variables that each session was asked for with;
        `uploads` the events of each upload that was taken, as they came.
        """
        counts: dict[str, Any] = self.process.ask("GET", "/_counts")["details"]
        return counts

    def reset_counts(self) -> None:
        self.process.reset_counts()


@contextmanager
def serve_platform(
    servers: Mapping[str, str],
    *,
    difficulty: Mapping[str, list[dict[str, Any]]] | None = None,
    secrets: Mapping[str, list[str]] | None = None,
) -> Iterator[Platform]:
    """Serve the stand-in.

    Args:
        servers: URL of an ORS server by catalogue name: ``{"owner/name": "http://127.0.0.1:8001"}``.
        difficulty: By catalogue name, rows of the task-difficulty answer; missing fields are filled in.
        secrets: By catalogue name, the secrets that the environment requires.
    """
    options = {"servers": dict(servers), "difficulty": dict(difficulty or {}), "secrets": dict(secrets or {})}
    with launch("tests.servers.platform:build", options, ports=(0, 0)) as handle:
        yield Platform(handle)


def build(
    *, servers: dict[str, str], difficulty: dict[str, list[dict[str, Any]]], secrets: dict[str, list[str]]
) -> Callable[[list[socket.socket]], Awaitable[None]]:
    """A coroutine function that serves the API on the first socket and sessions on the second."""

    async def serve(sockets: list[socket.socket]) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as client:
            platform = _Platform(servers, difficulty, secrets, client)
            runners = []
            for bound, handle in zip(sockets, (platform.handle_api, platform.handle_session), strict=True):
                app = web.Application(client_max_size=64 * 1024**2)
                app.router.add_route("*", "/{path:.*}", handle)
                runners.append(web.AppRunner(app, access_log=None, shutdown_timeout=0.5))
                await runners[-1].setup()
                await web.SockSite(runners[-1], bound).start()
            await until_terminated()
            for runner in runners:
                await runner.cleanup()

    return serve


class _Platform:
    """Both addresses, and what they share."""

    def __init__(
        self,
        servers: dict[str, str],
        difficulty: dict[str, list[dict[str, Any]]],
        secrets: dict[str, list[str]],
        client: aiohttp.ClientSession,
    ) -> None:
        self._servers = servers
        self._difficulty = difficulty
        self._secrets = secrets
        self._client = client
        self._deployment_by_sid: dict[str, str] = {}
        self._told: Counter[str] = Counter()
        self._on = ""
        self._retry_after_s = 0
        self._upload_status = 500
        self._clear()

    def _clear(self) -> None:
        self._requests: dict[str, Counter[str]] = {"api": Counter(), "sessions": Counter()}
        self._deployments: Counter[str] = Counter()
        self._refused = 0
        self._unkeyed = 0
        self._keys: set[str] = set()
        self._uploads: list[list[dict[str, Any]]] = []
        self._overrides: list[dict[str, str] | None] = []

    # -- the API address

    async def handle_api(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/_counts":
            return self._counts(request)
        if request.path == "/_told":
            return await self._be_told(request)
        refusal = self._note(request, "api")
        if refusal is not None:
            return refusal

        if (request.method, request.path) == ("POST", "/v1/rollouts"):
            return await self._take_upload(request)

        parts = request.path.split("/")
        if parts[1:3] != ["v1", "environments"] or len(parts) not in (5, 6):
            return web.json_response({"detail": "Not Found"}, status=404)
        name = f"{parts[3]}/{parts[4]}"
        if name not in self._servers:
            return web.json_response({"detail": "Environment not found."}, status=404)
        if len(parts) == 5:
            return web.json_response({"id": f"id of {name}"})
        if parts[5] == "variants":
            return web.json_response([])
        if parts[5] == "required-secrets":
            return web.json_response({"secrets": self._secrets.get(name, [])})
        if parts[5] == "task-difficulty":
            return web.json_response({"tasks": self._rows(name, request.query)})

        return web.json_response({"detail": "Not Found"}, status=404)

    async def _take_upload(self, request: web.Request) -> web.Response:
        """Keep the events; the SDK wants a JSON object as an answer and reads nothing in it."""
        if self._take("failed_uploads"):
            return web.json_response({"detail": "Not now."}, status=self._upload_status)
        self._uploads.append((await request.json())["events"])
        return web.json_response({"status": "ok"})

    def _rows(self, name: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        percentiles = dict.fromkeys(("mean", "p1", "p10", "p25", "p50", "p75", "p90", "p99"), 0.0)
        whole = {"num_rollouts": 8, "response_chars": percentiles, "split": "train", "variant": None}
        rows = [{**whole, "min_reward": 0.0, "max_reward": 1.0, **row} for row in self._difficulty.get(name, [])]
        asked = {key: query[key] for key in ("split", "variant") if key in query}
        return [row for row in rows if all(row[key] == value for key, value in asked.items())]

    def _counts(self, request: web.Request) -> web.Response:
        if request.method == "DELETE":
            self._clear()
        details = {
            **self._requests,
            "deployments": self._deployments,
            "refused": self._refused,
            "unkeyed": self._unkeyed,
            "keys": sorted(self._keys),
            "uploads": self._uploads,
            "overrides": self._overrides,
            "open": Counter(self._deployment_by_sid.values()),
        }
        return web.json_response({"details": details})

    async def _be_told(self, request: web.Request) -> web.Response:
        told = await request.json()
        self._on = told.pop("on")
        self._retry_after_s = told.pop("retry_after_s")
        self._upload_status = told.pop("upload_status")
        self._told = Counter(told)
        return web.json_response({})

    # -- the session address

    async def handle_session(self, request: web.Request) -> web.StreamResponse:
        refusal = self._note(request, "sessions") or self._turn_away(request)
        if refusal is not None:
            return refusal

        sid = request.headers.get("X-Session-ID", "")
        deployment = self._deployment_by_sid.get(sid) or request.headers.get("X-Deployment", "")
        if deployment not in self._servers:
            return web.json_response({"detail": "Deployment not found."}, status=404)
        if request.path == "/create_session":
            return await self._create_session(request, deployment)
        if request.path == "/delete_session":
            self._deployment_by_sid.pop(sid, None)

        return await self._forward(request, self._servers[deployment])

    def _note(self, request: web.Request, address: str) -> web.Response | None:
        """Count the request; the refusal, where its key is not ours."""
        self._requests[address][f"{request.method} {request.path}"] += 1
        key = request.headers.get("X-API-Key")
        self._deployments[request.headers.get("X-Deployment", "")] += 1
        if key is not None:
            self._keys.add(key)
        if key == API_KEY:
            return None

        self._refused += 1
        self._unkeyed += key is None
        return web.Response(status=401, text="Missing API key" if key is None else "Invalid API key")

    def _turn_away(self, request: web.Request) -> web.Response | None:
        if request.path == "/ping" or not request.path.endswith(self._on):
            return None
        retry = {"Retry-After": str(self._retry_after_s)}
        if self._take("starting"):
            headers = {**retry, "X-Backend-State": "starting"}
            return web.json_response({"detail": "Environment still starting."}, status=503, headers=headers)
        if self._take("busy"):
            return web.json_response({"detail": "Too many requests."}, status=429, headers=retry)

        return None

    def _take(self, what: str) -> bool:
        """Whether this is still to be done; done now, if so."""
        if self._told[what] <= 0:
            return False
        self._told[what] -= 1
        return True

    async def _create_session(self, request: web.Request, deployment: str) -> web.StreamResponse:
        sid = str(uuid.uuid4())
        self._deployment_by_sid[sid] = deployment
        if request.can_read_body:
            self._overrides.append((await request.json()).get("env"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"event: task_id\r\ndata: {sid}\r\n\r\nevent: end\r\ndata: \r\n\r\n".encode())
        await response.write_eof()
        return response

    async def _forward(self, request: web.Request, server: str) -> web.StreamResponse:
        body = await request.read()
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _NOT_FORWARDED and name.lower() != "x-api-key"
        }
        async with self._client.request(
            request.method, f"{server}{request.path_qs}", data=body, headers=headers, allow_redirects=False
        ) as answer:
            response = web.StreamResponse(
                status=answer.status,
                headers={name: value for name, value in answer.headers.items() if name.lower() not in _NOT_FORWARDED},
            )
            await response.prepare(request)
            is_call = request.path.endswith("/call") and not json.loads(body).get("task_id")
            await self._stream_through(request, answer, response, is_call=is_call)

        return response

    async def _stream_through(
        self, request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse, *, is_call: bool
    ) -> None:
        seen = b""
        async for data in answer.content.iter_any():
            seen += data
            has_task_id = b"\n\r\n" in seen or b"\n\n" in seen
            if is_call and has_task_id and self._take("cut_before_task_id"):
                await _cut(request)
                return
            if is_call and has_task_id and self._take("cut_after_task_id"):
                await response.write(seen[: seen.index(b"\n\r\n") + 3])
                await _cut(request)
                return
            if not is_call:
                await response.write(data)
            elif has_task_id:
                await response.write(seen)
                is_call = False  # The first event went through: the rest does too.
        await response.write_eof()


async def _cut(request: web.Request) -> None:
    """Close the client's connection as a crashed proxy would."""
    if request.transport is not None:
        request.transport.close()
        await asyncio.sleep(0)
