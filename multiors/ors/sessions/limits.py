"""How much may happen at once: sessions, calls, and the sockets that both need.

Decides who waits for whom and nothing else. A cap belongs to one source or to a whole mix and travels in pickles; its
count is kept per process. Caps are taken in the order in which they are given, so that no two can wait for each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import anyio

__all__ = ["DEFAULT_MAX_CONCURRENT_CALLS", "Cap", "Limiters", "count_sockets", "describe_socket_need"]

Kind = Literal["sessions", "calls"]

DEFAULT_MAX_CONCURRENT_CALLS = 512
"""Per source and process. A server on a laptop took 2,000 at once without an error (it queues them); a process rarely
plays more rollouts of one source in a batch."""

# What a process with a generous limit of open files gets; more sockets than this only queue in the servers instead.
_MAX_SOCKETS = 4096
_UNKNOWN_LIMIT = 1024
# Closings under way at once: a small server answers some hundreds of them in a second.
_MAX_CLOSING = 128


@dataclass(frozen=True, slots=True)
class Cap:
    """The most that a source, or all sources of a mix, may do at once in one process."""

    key: str
    """Identity of the source or mix; equal keys share one count."""

    holder: str
    """Whose cap it is, as messages name it: "source 'sort'", "the mix"."""

    max_sessions: int | None = None
    """Sessions open or opening. None: as many as there are rollouts."""

    max_concurrent_calls: int | None = None
    """Tool calls and openings under way. None: as many as there are sockets."""


class Limiters:
    """The counts of this process's caps. Use on the runtime's loop only."""

    def __init__(self) -> None:
        self._by_cap: dict[tuple[str, Kind], anyio.CapacityLimiter] = {}
        self._closing: anyio.CapacityLimiter | None = None

    def closing(self) -> anyio.CapacityLimiter:
        """Room for closing a session, to be held while that is done; calls under way do not take it."""
        if self._closing is None:
            self._closing = anyio.CapacityLimiter(_MAX_CLOSING)

        return self._closing

    async def acquire(self, caps: Sequence[Cap], kind: Kind, borrower: object) -> None:
        """Wait until every cap has room for `borrower`, and take it."""
        taken: list[anyio.CapacityLimiter] = []

        try:
            for limiter in self._find(caps, kind):
                await limiter.acquire_on_behalf_of(borrower)
                taken.append(limiter)
        except BaseException:
            for limiter in taken:
                limiter.release_on_behalf_of(borrower)
            raise

    def release(self, caps: Sequence[Cap], kind: Kind, borrower: object) -> None:
        """Give back what `acquire` took."""
        for limiter in self._find(caps, kind):
            limiter.release_on_behalf_of(borrower)

    @asynccontextmanager
    async def hold(self, caps: Sequence[Cap], kind: Kind) -> AsyncIterator[None]:
        """Take room for the length of a block."""
        borrower = object()
        await self.acquire(caps, kind, borrower)

        try:
            yield
        finally:
            self.release(caps, kind, borrower)

    def _find(self, caps: Sequence[Cap], kind: Kind) -> list[anyio.CapacityLimiter]:
        found = []

        for cap in caps:
            size = cap.max_sessions if kind == "sessions" else cap.max_concurrent_calls

            if size is not None:
                if (cap.key, kind) not in self._by_cap:
                    self._by_cap[cap.key, kind] = anyio.CapacityLimiter(size)
                found.append(self._by_cap[cap.key, kind])

        return found


def count_sockets() -> int:
    """Sockets that this process may use for ORS traffic: half of its limit of open files, at most 4,096.

    The other half is for datasets, checkpoints, workers and the trainer's own connections.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _UNKNOWN_LIMIT // 2

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_MAX_SOCKETS, (_MAX_SOCKETS * 2 if soft == resource.RLIM_INFINITY else soft) // 2)


def describe_socket_need(num_rollouts: int) -> str | None:
    """What to do where `num_rollouts` of one process cannot all call at once for want of sockets. None: they can.

    An idle session holds no socket; a session that opens, and each call under way, holds one.
    """
    available = count_sockets()

    if num_rollouts <= available:
        return None

    return (
        f"a generation batch has {num_rollouts} rollouts on each process, and the limit of open files leaves "
        f"{available} sockets for them; the other calls wait their turn. Raise the limit before starting: "
        f"ulimit -n {max(2 * num_rollouts, 1024)}."
    )
