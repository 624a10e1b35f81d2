"""One tool call on the wire: the `/call` stream, and what a call can come to; likewise the scoring of a group.

The stream is read here, because the SDK's own reader (openreward 0.1.167, `api/_session/http.py`) damages texts longer
than 4096 characters, runs a tool again when a connection breaks before it answered, and retries without bound;
`tests/test_sdk_contract.py` says when it no longer does.

The law of a call: a tool runs at most once. A broken stream is resumed by its `task_id`; without one, the outcome of
the call is unknown, and unknown is `session_lost`, never a second execution and never a number. Only what provably did
not run (connection refused, "still starting", "too many requests") is sent again. Knows no SDK, sessions or policies.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import anyio
from httpx_sse import EventSource, SSEError

from multiors.errors import SessionError
from multiors.ors.content import Block, read_blocks
from multiors.records import UnscoredReason

__all__ = ["MAX_ATTEMPTS", "CallFailed", "ToolReply", "back_off", "run_call", "run_group_scoring"]

# The server sends a ping every 10 s while a tool runs (openreward 0.1.167, environments/server.py).
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=30.0)
MAX_ATTEMPTS = 5
_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 8.0
# How long a server may keep a stream open after its last event before the connection is given up.
_END_TIMEOUT_S = 0.1


@dataclass(frozen=True, slots=True)
class ToolReply:
    """What a tool answered."""

    blocks: tuple[Block, ...]
    """Text and images in order, character for character as sent."""

    reward: object
    """As it stood in the JSON; not yet checked to be a finite number."""

    metadata: Mapping[str, Any] | None
    finished: bool


class CallFailed(Exception):
    """A tool call that brought no reply."""

    def __init__(self, reason: UnscoredReason, detail: str, *, is_finished: bool = False) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
        self.is_finished = is_finished
        """The server refused because the episode is over."""


async def run_call(
    client: aiohttp.ClientSession, path: str, *, tool: str, arguments: Mapping[str, Any], headers: Mapping[str, str]
) -> ToolReply:
    """Run a tool once, resuming its stream where it breaks.

    Args:
        client: The HTTP client of the session's server.
        path: Where the environment takes calls.
        tool: The tool's name on the server.
        arguments: By the server's parameter names.
        headers: What routes the request to its session.

    Raises:
        CallFailed: No reply, with the reason.
    """
    body = {"name": tool, "input": dict(arguments)}
    return _parse_reply(await _run_task(client, path, body, headers))


async def run_group_scoring(
    client: aiohttp.ClientSession, path: str, *, candidates: Sequence[Mapping[str, Any]], headers: Mapping[str, str]
) -> list[object]:
    """Have an environment compare the rollouts of a group, once.

    Args:
        client: The HTTP client of the session's server.
        path: Where the environment takes groups.
        candidates: The rollouts as ORS writes them: `messages` and `metadata`.
        headers: What routes the request to its session.

    Returns:
        The reward of each candidate, in order, as it stood in the JSON.

    Raises:
        CallFailed: No scores, with the reason.
    """
    return _parse_scores(await _run_task(client, path, {"candidates": list(candidates)}, headers), len(candidates))


async def _run_task(
    client: aiohttp.ClientSession, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> str:
    """The JSON text that a request came to, whose stream is resumed where it breaks."""
    _encode(body)
    attempt = 0
    task_id: str | None = None

    while True:
        attempt += 1
        call = _Stream(task_id)

        try:
            return await call.read(client, path, body, headers)
        except _NotRun as error:
            wait_s = error.wait_s
            if attempt >= MAX_ATTEMPTS and not error.is_starting:
                raise CallFailed(UnscoredReason.SESSION_LOST, error.detail) from error
        except SessionError as error:
            raise CallFailed(UnscoredReason.SESSION_LOST, str(error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            task_id = call.task_id
            wait_s = None
            if task_id is None or attempt >= MAX_ATTEMPTS:
                detail = f"the connection broke and the outcome of the call is unknown ({type(error).__name__})"
                raise CallFailed(UnscoredReason.SESSION_LOST, detail) from error

        await back_off(attempt, wait_s)


async def back_off(attempt: int, wait_s: float | None = None) -> None:
    """Wait before the next of several attempts: as long as the server asked, or twice as long each time.

    Args:
        attempt: How many attempts were made, from 1.
        wait_s: What the server asked for. None: nothing.
    """
    await anyio.sleep(min(wait_s or _BACKOFF_S * 2 ** min(attempt - 1, 8), _MAX_BACKOFF_S))


class _NotRun(Exception):
    """The server did not run the tool, so sending the call again is safe."""

    def __init__(self, detail: str, *, wait_s: float | None = None, is_starting: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.wait_s = wait_s
        self.is_starting = is_starting


class _Stream:
    """One HTTP request of a call and the events it brings."""

    def __init__(self, task_id: str | None) -> None:
        self.task_id = task_id
        """The server's name for the run. None: it has not said yet."""

    async def read(
        self, client: aiohttp.ClientSession, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> str:
        """The JSON text of the reply.

        Raises:
            _NotRun: Nothing ran.
            CallFailed: The server said so.
            aiohttp.ClientError, TimeoutError: The stream broke; `task_id` tells whether it can be resumed.
        """
        payload = body if self.task_id is None else {**body, "task_id": self.task_id}
        headers = {**headers, "Accept": "text/event-stream", "Content-Type": "application/json"}

        try:
            response = await client.post(path, data=_encode(payload), headers=headers, timeout=_TIMEOUT)
        except aiohttp.ClientConnectorError as error:
            raise _NotRun(f"the server cannot be reached ({type(error).__name__})") from error

        async with response:
            if response.status != 200:
                raise await _read_refusal(response)

            text = await self._collect(response)
            await _read_to_end(response)
            return text

    async def _collect(self, response: aiohttp.ClientResponse) -> str:
        chunks: list[str] = []

        # Closed here and not by the collector: an event loop is told of each stream that was left half read.
        try:
            async with aclosing(EventSource(_Response(response)).aiter_sse()) as events:  # type: ignore[arg-type]  # see _Response
                async for event in events:
                    if event.event == "task_id":
                        self.task_id = event.data.strip()
                    elif event.event == "chunk":
                        chunks.append(event.data)
                    elif event.event == "end":
                        return "".join([*chunks, event.data])
                    elif event.event == "error" and event.data == "unknown task_id":
                        # What a server says that was restarted, or that forgot the result: the tool may have run.
                        detail = "the server forgot the call; its outcome is unknown"
                        raise CallFailed(UnscoredReason.SESSION_LOST, detail)
                    elif event.event == "error":
                        raise CallFailed(UnscoredReason.TOOL_ERROR, event.data)
        except SSEError as error:
            content_type = response.headers.get("Content-Type", "")
            detail = (
                f"the server answered with {content_type!r}, not an event stream; the outcome of the call is unknown"
            )
            raise CallFailed(UnscoredReason.SESSION_LOST, detail) from error

        raise aiohttp.ClientPayloadError("the stream ended before its last event")


class _Response:
    """What httpx-sse reads of a response of httpx, from one of aiohttp (httpx-sse 0.4.3, `_api.py`)."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.headers = {"content-type": response.headers.get("Content-Type", "")}
        self._content = response.content

    def aiter_text(self) -> AsyncIterator[str]:
        return _Texts(self._content)


class _Texts:
    """The text of a body as it comes; an object and not a generator, so that leaving it half read costs nothing."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while chunk := await self._content.readany():
            if text := self._decoder.decode(chunk):
                return text

        raise StopAsyncIteration


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    """Read what follows the last event, so that the connection serves the next request too; the reply is complete."""
    with anyio.move_on_after(_END_TIMEOUT_S, shield=True), suppress(aiohttp.ClientError, OSError):
        while not response.content.at_eof():
            await response.content.readany()


async def _read_refusal(response: aiohttp.ClientResponse) -> Exception:
    """What a status other than 200 means for a call."""
    retry_after = response.headers.get("Retry-After", "")
    wait_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None

    if response.status == 503 and response.headers.get("X-Backend-State") == "starting":
        return _NotRun("the environment is still starting", wait_s=wait_s, is_starting=True)

    if response.status == 429:
        return _NotRun("the server has too many requests (HTTP 429)", wait_s=wait_s)

    detail = _find_detail(await response.text(errors="replace"))

    if response.status in (400, 422):
        return CallFailed(UnscoredReason.BAD_CALL, detail)

    if response.status == 500:
        return CallFailed(UnscoredReason.TOOL_ERROR, detail)

    return CallFailed(UnscoredReason.SESSION_LOST, f"HTTP {response.status}: {detail}")


def _find_detail(text: str) -> str:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return text

    return str(parsed.get("detail", text)) if isinstance(parsed, dict) else text


def _parse_reply(text: str) -> ToolReply:
    try:
        reply = json.loads(text)
        if reply["ok"]:
            output = reply["output"]
            metadata = output.get("metadata")
            return ToolReply(
                blocks=read_blocks(output["blocks"]),
                reward=output.get("reward"),
                metadata=metadata if isinstance(metadata, dict) else None,
                finished=output.get("finished") is True,
            )
        detail = str(reply["error"])
        is_finished = reply.get("reason") == "episode_finished"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        detail = f"the reply is not what ORS defines ({type(error).__name__})"
        raise CallFailed(UnscoredReason.SESSION_LOST, detail) from error

    raise CallFailed(UnscoredReason.BAD_CALL, detail, is_finished=is_finished)


def _parse_scores(text: str, num_candidates: int) -> list[object]:
    try:
        scores = [score["reward"] for score in json.loads(text)["scores"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        detail = f"the scores of the group are not what ORS defines ({type(error).__name__})"
        raise CallFailed(UnscoredReason.SESSION_LOST, detail) from error

    if len(scores) != num_candidates:
        detail = f"{len(scores)} scores came back for the {num_candidates} rollouts of a group"
        raise CallFailed(UnscoredReason.SESSION_LOST, detail)

    return scores


def _encode(body: Mapping[str, Any]) -> bytes:
    """The request body. What JSON or UTF-8 cannot carry is the policy's fault and never sent."""
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        detail = "an argument holds half of a surrogate pair, which is not text"
        raise CallFailed(UnscoredReason.BAD_CALL, detail) from None
    except RecursionError:
        raise CallFailed(UnscoredReason.BAD_CALL, "the arguments are nested too deeply to be sent") from None
    except (TypeError, ValueError) as error:
        raise CallFailed(UnscoredReason.BAD_CALL, f"the arguments are not JSON: {error}") from None
