"""A rollout's HTTP requests and nothing else: what any client of an ORS server has to send, and so the limit of all.

The requests are those of the openreward SDK (0.1.167), in its order. Answers are read and not looked at, apart from the
session's id; nothing is retried, kept alive or checked beyond its status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

__all__ = ["BareClient", "connect"]

# A server closes a connection that was idle for 5 s (uvicorn's default), and a request sent just then would be lost.
_IDLE_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class BareClient:
    """Opens, plays and closes sessions of one environment. A session is what `open` returns."""

    client: aiohttp.ClientSession
    environment: str

    async def open(self, task_index: int) -> Mapping[str, str]:
        """Open a session and read its prompt."""
        text = await self._ask("POST", "/create_session", json={})
        data = next(line for line in text.splitlines() if line.startswith("data:"))
        session = {"X-Session-ID": data.removeprefix("data:").strip()}
        body = {"split": "train", "index": task_index, "env_name": self.environment}
        await self._ask("POST", "/create", json=body, headers=session)
        await self._ask("GET", f"/{self.environment}/prompt", headers=session)

        return session

    async def call(self, session: Mapping[str, str], tool: str, arguments: Mapping[str, Any]) -> None:
        """Run a tool."""
        body = {"name": tool, "input": dict(arguments)}
        await self._ask("POST", f"/{self.environment}/call", json=body, headers=session)

    async def ping(self, session: Mapping[str, str]) -> None:
        """Keep a session alive."""
        await self._ask("POST", "/ping", headers=session)

    async def close(self, session: Mapping[str, str]) -> None:
        """End a session."""
        await self._ask("POST", "/delete", headers=session)
        await self._ask("POST", "/delete_session", headers=session)

    async def _ask(self, method: str, path: str, **options: Any) -> str:
        async with self.client.request(method, path, **options) as response:
            return await response.text()


@asynccontextmanager
async def connect(url: str, environment: str) -> AsyncIterator[BareClient]:
    """A client with a pool of connections of its own, without a limit."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_TIMEOUT_S)
    async with aiohttp.ClientSession(base_url=url, connector=connector, raise_for_status=True) as client:
        yield BareClient(client, environment)
