"""Which of several equal servers a session goes to.

Decides by the sessions this process has open on each, and leaves out a server that could not be reached until it
answers again. A source with one server is not affected: it is always tried.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import aiohttp
import anyio

from multiors.ors.target import Endpoint

__all__ = ["Servers", "is_connection_error"]

logger = logging.getLogger("multiors.ors")

_FIRST_PROBE_S = 0.5
_MAX_PROBE_S = 8.0
_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=10.0)


class Servers:
    """The servers of this process's sources. Use on the runtime's loop only.

    Args:
        client: The HTTP client of a server's address.
        start: Starts a coroutine function in the background.
    """

    def __init__(
        self,
        client: Callable[[str], aiohttp.ClientSession],
        start: Callable[[Callable[[str], Coroutine[Any, Any, None]], str], object],
    ) -> None:
        self._client = client
        self._start = start
        self._num_sessions: Counter[str] = Counter()
        self._left_out: set[str] = set()

    def choose(self, endpoints: Sequence[Endpoint]) -> Endpoint:
        """The live server with the fewest sessions, the first of equals; any of them where none is live."""
        live = [endpoint for endpoint in endpoints if endpoint.session_url not in self._left_out]
        return min(live or endpoints, key=lambda endpoint: self._num_sessions[endpoint.session_url])

    def add_session(self, endpoint: Endpoint) -> None:
        """Count a session, from before it opens."""
        self._num_sessions[endpoint.session_url] += 1

    def remove_session(self, endpoint: Endpoint) -> None:
        """Count a session no more."""
        self._num_sessions[endpoint.session_url] -= 1

    def leave_out(self, endpoint: Endpoint, *, label: str) -> None:
        """Send no session to a server until it answers again."""
        url = endpoint.session_url

        if url not in self._left_out:
            self._left_out.add(url)
            logger.warning("source %r: the server at %s cannot be reached and is left out for now.", label, url)
            self._start(self._wait_for, url)

    async def _wait_for(self, url: str) -> None:
        wait_s = _FIRST_PROBE_S

        while not await self._answers(url):
            await anyio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_PROBE_S)

        self._left_out.discard(url)
        logger.warning("The server at %s answers again and takes sessions.", url)

    async def _answers(self, url: str) -> bool:
        try:
            async with self._client(url).get("/health", timeout=_PROBE_TIMEOUT) as response:
                # A server without this route is there all the same; a gateway that fails stands before none.
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


def is_connection_error(error: BaseException) -> bool:
    """Whether a server could not be reached, or went away; also where the SDK gave up after several attempts."""
    attempts = getattr(error, "errors", None)
    last = attempts[-1] if isinstance(attempts, list) and attempts else error
    return isinstance(last, aiohttp.ClientConnectionError | ConnectionError)
