"""Opening the session of a rollout: on which server, within which limits, and ahead of time where someone asks for it.

A trainer that resets one environment after another can have all their sessions opened at once before: `open_ahead`
starts one for (source, task), and the next reset of such an environment takes it. Whoever opens ahead discards what was
not taken. Sessions of one source and task are alike, so it does not matter who takes which.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import aiohttp
import anyio
from openreward.api.errors import OpenRewardError

from multiors.errors import SessionError
from multiors.ors.content import Prompt
from multiors.ors.faults import OPEN_ERRORS, is_connection_error
from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.sessions.calls import back_off
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.sessions.session import OpenSession, open_session
from multiors.ors.target import Endpoint

__all__ = [
    "Opening",
    "discard",
    "discard_owned_by",
    "has_random_prompt",
    "open_ahead",
    "open_now",
    "take_or_open",
]

# Statuses below 500 that say "not now" and not "not so".
_PASSING = (408, 410, 429)


class Opening:
    """A session that is being opened, or was, and that nobody plays in yet."""

    def __init__(self, blueprint: Blueprint, task_index: int) -> None:
        self.blueprint = blueprint
        self.task_index = task_index
        self.stand_in_prompt: Prompt | None = None
        """What a rollout is told if its session does not open. None: that it did not."""

        self._scope: anyio.CancelScope | None = None
        self._is_unwanted = False
        self._future: Future[OpenSession] = get_runtime().start(self._open)

    async def _open(self) -> OpenSession:
        with anyio.CancelScope() as self._scope:
            if not self._is_unwanted:
                return await open_now(self.blueprint, self.task_index)

        raise SessionError("nobody waits for this session any more")

    def wait(self) -> OpenSession:
        """The open session; an interrupt ends the opening.

        Raises:
            One of OPEN_ERRORS: It did not open.
        """
        try:
            return self._future.result()
        except OPEN_ERRORS:
            raise
        except BaseException:
            self.discard()
            raise

    def wait_for_prompt(self) -> Prompt | None:
        """The prompt, once it is there. None: the session did not open."""
        try:
            return self._future.result().prompt
        except OPEN_ERRORS:
            return None

    def discard(self) -> None:
        """End the opening, and the session if it is open already; returns at once."""
        get_runtime().finish_soon(self._end)

    async def _end(self) -> None:
        self._is_unwanted = True

        if self._scope is not None:
            self._scope.cancel()

        with suppress(*OPEN_ERRORS):
            session: OpenSession = await asyncio.wrap_future(self._future)
            await get_runtime().close(session)


_waiting: defaultdict[tuple[str, int], deque[Opening]] = defaultdict(deque)
_lock = threading.Lock()


def open_ahead(blueprint: Blueprint, task_index: int) -> Opening:
    """Start opening a session that a later `take_or_open` gets; returns at once."""
    opening = Opening(blueprint, task_index)

    with _lock:
        _waiting[_key(blueprint, task_index)].append(opening)

    return opening


def take_or_open(blueprint: Blueprint, task_index: int) -> Opening:
    """The first session opened ahead for this task, or one that begins to open now."""
    with _lock:
        openings = _waiting.get(_key(blueprint, task_index))
        opening = openings.popleft() if openings else None

        if not openings:
            _waiting.pop(_key(blueprint, task_index), None)

    return opening or Opening(blueprint, task_index)


def discard_owned_by(owners: Collection[str]) -> None:
    """End those openings of some sources that nobody took."""
    with _lock:
        openings = [opening for waiting in _waiting.values() for opening in waiting]

    discard(opening for opening in openings if opening.blueprint.identity in owners)


def discard(openings: Iterable[Opening]) -> None:
    """End those openings that nobody took."""
    for opening in openings:
        key = _key(opening.blueprint, opening.task_index)

        with _lock:
            is_waiting = opening in _waiting.get(key, ())

            if is_waiting:
                _waiting[key].remove(opening)
            if not _waiting.get(key):
                _waiting.pop(key, None)

        if is_waiting:
            opening.discard()


async def has_random_prompt(blueprint: Blueprint, task_index: int) -> bool:
    """Whether two sessions of one task give different prompts. Runs on the runtime's loop.

    Raises:
        One of OPEN_ERRORS: A session did not open.
    """
    prompts = []

    for _ in range(2):
        session = await open_now(blueprint, task_index)
        prompts.append(session.prompt)
        get_runtime().close_soon(session)

    return prompts[0] != prompts[1]


def _key(blueprint: Blueprint, task_index: int) -> tuple[str, int]:
    return blueprint.identity, task_index


async def open_now(blueprint: Blueprint, task_index: int) -> OpenSession:
    """An open session on the least loaded server; where that cannot be reached, on another, in a session of its own.

    Runs on the runtime's loop; closed with `Runtime.close`.

    Raises:
        One of OPEN_ERRORS: It did not open.
    """
    runtime = get_runtime()
    borrower = object()

    try:
        with anyio.fail_after(blueprint.options.timeouts.open_s):
            await runtime.limiters.acquire(blueprint.caps, "sessions", borrower)
    except TimeoutError:
        sizes = ", ".join(f"{cap.max_sessions} for {cap.holder}" for cap in blueprint.caps if cap.max_sessions)
        raise SessionError(
            f"no session was free within {blueprint.options.timeouts.open_s:g} s: max_sessions is {sizes}. Raise it, "
            f"or play fewer rollouts at once"
        ) from None

    try:
        return await _open_again(blueprint, task_index, borrower)
    except BaseException:
        runtime.limiters.release(blueprint.caps, "sessions", borrower)
        raise


async def _open_again(blueprint: Blueprint, task_index: int, borrower: object) -> OpenSession:
    """Open a session, and where that fails for a reason that may pass, another one."""
    attempt = 0

    while True:
        attempt += 1

        try:
            return await _open_somewhere(blueprint, task_index, borrower)
        except aiohttp.ClientResponseError as error:
            if attempt > blueprint.retries or (error.status < 500 and error.status not in _PASSING):
                raise
        except OpenRewardError as error:
            if attempt > blueprint.retries or is_connection_error(error):
                raise

        await back_off(attempt)


async def _open_somewhere(blueprint: Blueprint, task_index: int, borrower: object) -> OpenSession:
    runtime = get_runtime()
    endpoints = list(blueprint.endpoints)

    while True:
        endpoint = await runtime.servers.choose(endpoints)
        runtime.servers.add_session(endpoint)

        try:
            return await open_session(
                runtime,
                endpoint,
                blueprint.options,
                owner=blueprint.identity,
                label=blueprint.label,
                task_index=task_index,
                wait_turn=partial(runtime.limiters.hold, blueprint.caps, "calls"),
                on_closed=partial(_end, blueprint, endpoint, borrower),
            )
        except BaseException as error:
            runtime.servers.remove_session(endpoint)

            if isinstance(error, TimeoutError) or is_connection_error(error):
                await runtime.servers.check(endpoint, label=blueprint.label)

            endpoints.remove(endpoint)

            if not endpoints or not is_connection_error(error):
                raise


def _end(blueprint: Blueprint, endpoint: Endpoint, borrower: object) -> None:
    runtime = get_runtime()
    runtime.servers.remove_session(endpoint)
    runtime.limiters.release(blueprint.caps, "sessions", borrower)


def _forget_parent() -> None:
    """In a forked child: the sessions in the table are the parent's, and one of its threads may have held the lock."""
    global _lock

    _waiting.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_parent)
