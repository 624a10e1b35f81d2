"""Tool calls that are made before the trainer asks for them, so that those of many rollouts overlap.

The calls of one message run in order; each reply waits until the environment's method is called with the same tool and
arguments. What a reply means for the rollout is decided then and not before: a reply that nobody takes counts for
nothing. Whoever starts calls here must know that the trainer will make them, because a call changes its environment.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from multiors.ors.sessions.calls import CallFailed, ToolReply
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.sessions.session import OpenSession
from multiors.records import UnscoredReason

__all__ = ["Answer", "CallsAhead", "ask"]


class Answer(NamedTuple):
    """What a call came to."""

    reply: ToolReply | CallFailed
    duration_s: float
    """Seconds from sending the call to its last byte."""

    @property
    def ends(self) -> bool:
        """Whether no further call can reach the environment."""
        if isinstance(self.reply, ToolReply):
            return self.reply.finished

        return self.reply.is_finished or self.reply.reason is not UnscoredReason.BAD_CALL


async def ask(session: OpenSession, tool: str, arguments: Mapping[str, Any]) -> Answer:
    """Make one call. Runs on the runtime's loop."""
    started = time.monotonic()

    try:
        reply: ToolReply | CallFailed = await session.call(tool, arguments)
    except CallFailed as failure:
        reply = failure

    return Answer(reply, time.monotonic() - started)


@dataclass(eq=False, slots=True)
class _Call:
    tool: str
    arguments: Mapping[str, Any]
    answer: Future[Answer] = field(default_factory=Future)
    was_started: bool = False


class CallsAhead:
    """The calls of one message, begun at once and made one after another.

    Args:
        session: The rollout's session.
        calls: Tool and arguments of each, by the server's names.
    """

    def __init__(self, session: OpenSession, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self._calls = deque(_Call(tool, arguments) for tool, arguments in calls)
        self._run_future = get_runtime().start(self._run, session, tuple(self._calls))
        # Nobody may wait for ever for a call that an end of the process prevented.
        self._run_future.add_done_callback(self._end)

    async def _run(self, session: OpenSession, calls: Sequence[_Call]) -> None:
        for call in calls:
            call.was_started = True
            answer = await ask(session, call.tool, call.arguments)

            if call.answer.set_running_or_notify_cancel():
                call.answer.set_result(answer)
            if answer.ends:
                return

    def _end(self, _future: Future[None]) -> None:
        for call in tuple(self._calls):
            call.answer.cancel()

    def take(self, tool: str, arguments: Mapping[str, Any]) -> Future[Answer] | None:
        """The answer to the next call. None: it was another, or there is none."""
        if self._calls and (self._calls[0].tool, self._calls[0].arguments) == (tool, arguments):
            return self._calls.popleft().answer

        return None

    def drop(self) -> int:
        """End what still runs; how many calls were made that nobody took."""
        self._run_future.cancel()
        return sum(call.was_started for call in self._calls)
