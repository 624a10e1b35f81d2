"""The way to an OpenAI-compatible endpoint: one request, one decoded answer.

Decides where a key may go, what is asked again, and how a failure is told: in one line, without the key. Knows nothing
of conversations; what an answer means is read elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from multiors.errors import ConfigError
from multiors.ors.text import show

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["ChatClient", "EndpointError"]

_OFFICIAL_HOST = "api.openai.com"
_KEY_VARIABLE = "OPENAI_API_KEY"
_NO_KEY = "none"
_CONNECT_TIMEOUT_S = 10.0
_LIST_TIMEOUT_S = 60.0
_MAX_ANSWER_BYTES = 16 * 1024**2
# All that a request carries beside the key. What the client's own variables (OPENAI_CUSTOM_HEADERS, OPENAI_ORG_ID and
# the like) would add is meant for one host, and this may be another.
_HEADERS = re.compile(r"host|accept|accept-encoding|connection|content-.*|transfer-encoding|user-agent|x-stainless-.*")
# How OpenAI, vLLM, SGLang, llama.cpp, Anthropic and TGI say it.
_TOO_LONG = re.compile(
    r"context_length_exceeded|maximum (?:context|model|input|sequence) length|context (?:length|size|window|limit)"
    r"|max_model_len|(?:prompt|input|conversation) is (?:too long|longer)|too many (?:input|prompt) tokens"
    r"|max_new_tokens` must",
    re.IGNORECASE,
)


class EndpointError(Exception):
    """An endpoint gave no answer. The text says why and what helps, and holds no key."""

    def __init__(self, what: str, *, status: int | None = None, is_too_long: bool = False) -> None:
        super().__init__(what)
        self.status = status
        """The status it answered with. None: it did not answer, or not with JSON."""

        self.is_too_long = is_too_long
        """Whether it refused a conversation for its length."""


class ChatClient:
    """Asks one endpoint.

    Args:
        base_url: Where `/chat/completions` is.
        api_key: Sent there only. None: OPENAI_API_KEY where that is OpenAI's own host, no key elsewhere.
        timeout_s: Seconds for one attempt.
        retries: Attempts after the first.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(self, base_url: str, *, api_key: str | None, timeout_s: float, retries: int) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s is {timeout_s!r}; it is more than 0.")
        if retries < 0:
            raise ConfigError(f"retries is {retries!r}; it is 0 or more.")

        self.url = _check_url(base_url)
        self.is_official = _is_official(self.url)
        """Whether it is OpenAI's own."""

        self._api_key = _find_key(api_key, is_official=self.is_official)
        self._timeout_s = timeout_s
        self._retries = retries
        self._client: AsyncOpenAI | None = None

    def __repr__(self) -> str:
        return f"ChatClient({self.url!r})"

    @property
    def secrets(self) -> list[str]:
        """The key, if there is one."""
        return [self._api_key] if self._api_key else []

    async def open(self) -> None:
        """Make ready, for the event loop that this is called on."""
        self._client = await anyio.to_thread.run_sync(self._make)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def list_models(self) -> dict[str, Mapping[str, Any]]:
        """What the endpoint says of each model that it serves, by the model's name.

        Raises:
            EndpointError: It does not say.
        """
        timeout_s = min(self._timeout_s, _LIST_TIMEOUT_S)
        body = await self._ask(
            lambda client: client.models.with_streaming_response.list(timeout=timeout_s), timeout_s=timeout_s
        )
        models = body.get("data") if isinstance(body, Mapping) else None
        models = [each for each in models if isinstance(each, Mapping)] if isinstance(models, list) else []
        return {each["id"]: each for each in models if isinstance(each.get("id"), str)}

    async def complete(self, request: Mapping[str, Any]) -> Any:
        """The decoded body of the answer to a chat completion; nothing of it is checked.

        Raises:
            EndpointError: There is no answer.
        """
        return await self._ask(lambda client: client.chat.completions.with_streaming_response.create(**request))

    async def continue_text(self, request: Mapping[str, Any]) -> Any:
        """The decoded body of the answer to a completion of a text; nothing of it is checked.

        Raises:
            EndpointError: There is no answer.
        """
        return await self._ask(lambda client: client.completions.with_streaming_response.create(**request))

    def show(self, text: str) -> str:
        """A text of the endpoint's as one line without the key."""
        return show(text, self.secrets).rstrip(".")

    def _make(self) -> AsyncOpenAI:
        import openai

        client = openai.AsyncOpenAI(
            base_url=self.url,
            api_key=self._api_key or _NO_KEY,
            timeout=openai.Timeout(self._timeout_s, connect=min(self._timeout_s, _CONNECT_TIMEOUT_S)),
            max_retries=self._retries,
            # Without redirects: neither key nor conversation goes where nobody sent it.
            http_client=openai.DefaultAsyncHttpxClient(
                follow_redirects=False, event_hooks={"request": [self._keep_own_headers]}
            ),
        )
        # The client imports these at first use, and the event loop must not wait for that.
        for each in (client.chat.completions, client.completions, client.models):
            _ = each.with_streaming_response
        return client

    async def _keep_own_headers(self, request: Any) -> None:
        for name in list(request.headers):
            if not _HEADERS.fullmatch(name.lower()):
                del request.headers[name]
        if self._api_key:
            request.headers["Authorization"] = f"Bearer {self._api_key}"

    async def _ask(self, send: Any, *, timeout_s: float | None = None) -> Any:
        import openai

        timeout_s = self._timeout_s if timeout_s is None else timeout_s

        if self._client is None:
            raise EndpointError(f"{self.url} is not open")

        # No error gets the client's as its cause: that one carries the request, and so the key.
        try:
            return json.loads(await self._read(send(self._client), timeout_s=timeout_s))
        except openai.APIStatusError as error:
            raise self._refused(error) from None
        except (openai.APITimeoutError, TimeoutError):
            raise EndpointError(f"it did not answer in {timeout_s:g} s") from None
        except _transport_errors() as error:
            raise EndpointError(f"the connection broke in the middle of its answer ({type(error).__name__})") from None
        except openai.APIConnectionError as error:
            why = self.show(str(error.__cause__ or error))
            raise EndpointError(f"it cannot be reached ({why}). Is it running, and is this its address?") from None
        except openai.OpenAIError as error:
            raise EndpointError(self.show(str(error))) from None
        except (ValueError, RecursionError):
            raise EndpointError(
                "its answer is no JSON. Is this the address of the API, which usually ends in /v1?"
            ) from None

    async def _read(self, answer: Any, *, timeout_s: float) -> bytes:
        chunks, size = [], 0

        async with answer as response:
            with anyio.fail_after(timeout_s):
                async for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    size += len(chunk)

                    if size > _MAX_ANSWER_BYTES:
                        raise EndpointError(f"its answer has more than {_MAX_ANSWER_BYTES:,} bytes")

        return b"".join(chunks)

    def _refused(self, error: Any) -> EndpointError:
        text, status = _text_of(error.body), error.status_code
        return EndpointError(
            f"it answered {status}: {self.show(text) or 'nothing'}. {_remedy(status)}".rstrip(),
            status=status,
            is_too_long=status in (400, 413, 422) and _TOO_LONG.search(text) is not None,
        )


def _check_url(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
        parts = urlsplit("")

    if not is_right:
        raise ConfigError("base_url is no address of a server; it is written as in 'http://127.0.0.1:8000/v1'.")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(
            f"base_url holds a user, a query or a fragment, which would stand in every record; it is written as in "
            f"'{parts.scheme}://{parts.hostname}/v1', and a key is given with api_key=..."
        )
    return base_url.rstrip("/")


def _is_official(url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_there = host == _OFFICIAL_HOST or host.endswith(f".{_OFFICIAL_HOST}")
    return parts.scheme == "https" and parts.port in (None, 443) and is_there


def _find_key(api_key: str | None, *, is_official: bool) -> str | None:
    key = (os.environ.get(_KEY_VARIABLE) if is_official else None) if api_key is None else api_key
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("the key of the endpoint holds spaces or characters that no header can carry. Copy it again.")
    return key


def _text_of(body: object) -> str:
    """What an endpoint says went wrong, with its code."""
    found = [body, body.get("error"), body.get("detail")] if isinstance(body, Mapping) else [body]
    texts = [each.get("message") if isinstance(each, Mapping) else each for each in found]
    codes = [each.get("code") for each in found if isinstance(each, Mapping)]
    text = next((each for each in texts if isinstance(each, str) and each), "")
    return text + "".join(f" ({code})" for code in codes if isinstance(code, str) and code)


def _remedy(status: int) -> str:
    if status in (401, 403):
        return (
            f"Give the endpoint's key: with api_key=..., on the command line in MULTIORS_POLICY_API_KEY. "
            f"{_KEY_VARIABLE} is sent to {_OFFICIAL_HOST} only."
        )
    if 300 <= status < 400:
        return "Redirects are not followed: pass the address that it redirects to."
    if status == 404:
        return "Are the address (it usually ends in /v1) and the model's name right?"
    return "Fields that it needs or does not take are set with extra_body=..." if status in (400, 422) else ""


def _transport_errors() -> type[Exception]:
    """What reading an answer raises: the root of the errors of the HTTP package that the SDK has, httpx or httpx2."""
    import openai

    packages = [base.__module__.partition(".")[0] for base in openai.DefaultAsyncHttpxClient.__mro__]
    errors: type[Exception] = next(sys.modules[name].HTTPError for name in packages if name.startswith("httpx"))
    return errors
