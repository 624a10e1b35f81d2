"""Which server a session goes to, and which servers are away.

Decides by the sessions this process has open on each of several equal servers. A server that does not answer is left
out until it does, so that a dead one costs one deadline and not one for each session and call; whether it answers is
asked in the background, and before a session or call that nobody else could serve.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import aiohttp
import anyio

from multiors.errors import SessionError
from multiors.ors.target import Endpoint

__all__ = ["Servers"]

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
        self._known_until_s: dict[str, float] = {}
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def choose(self, endpoints: Sequence[Endpoint]) -> Endpoint:
        """The live server with the fewest sessions, the first of equals.

        Raises:
            SessionError: None is live.
        """
        live = [endpoint for endpoint in endpoints if endpoint.session_url not in self._left_out]
        live = live or [endpoint for endpoint in endpoints if await self.is_live(endpoint)]

        if not live:
            urls = ", ".join(endpoint.session_url for endpoint in endpoints)
            raise SessionError(f"the server at {urls} could not be reached before and still does not answer")

        return min(live, key=lambda endpoint: self._num_sessions[endpoint.session_url])

    async def is_live(self, endpoint: Endpoint) -> bool:
        """Whether a server takes requests; one that was left out is asked."""
        url = endpoint.session_url

        if url in self._left_out:
            await self._ask(url)

        return url not in self._left_out

    async def check(self, endpoint: Endpoint, *, label: str) -> None:
        """Ask a server, with which something went wrong, whether it is there; leave it out if it is not."""
        if not await self._ask(endpoint.session_url):
            self.leave_out(endpoint, label=label)

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
            logger.warning(
                "source %r: the server at %s cannot be reached. No session is sent to it until it is.", label, url
            )
            self._start(self._wait_for, url)

    async def _wait_for(self, url: str) -> None:
        wait_s = _FIRST_PROBE_S

        while url in self._left_out and not await self._ask(url):
            await anyio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_PROBE_S)

    async def _ask(self, url: str) -> bool:
        """Whether a server answers.

        Those who ask at the same time share the answer, and it holds for as long as it took: the rollouts of a batch
        that fail one after another wait for a server that hangs once, and see at once that one is back.
        """
        async with self._locks[url]:
            asked_s = time.monotonic()

            if asked_s < self._known_until_s.get(url, asked_s):
                return url not in self._left_out

            answers = await self._answers(url)
            answered_s = time.monotonic()
            self._known_until_s[url] = answered_s + (answered_s - asked_s)

        if answers and url in self._left_out:
            self._left_out.discard(url)
            logger.warning("The server at %s answers again and takes sessions.", url)

        return answers

    async def _answers(self, url: str) -> bool:
        try:
            async with self._client(url).get("/health", timeout=_PROBE_TIMEOUT) as response:
                # A server without this route is there all the same; a gateway that fails stands before none.
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
