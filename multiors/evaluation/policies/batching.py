"""Requests that are answered many at a time, by a function that runs in a thread.

Decides who answers when: whoever asks while nothing runs waits one turn of the event loop, takes all who asked
meanwhile, and answers them together; who asks while a batch runs is in the next. No timer, no task of its own. Nobody's
cancellation takes a batch from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from multiors.evaluation.policies.policy import PolicyError

__all__ = ["Batcher"]

Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Place(Generic[Request, Answer]):
    """One who waits."""

    request: Request
    called: anyio.Event = field(default_factory=anyio.Event)
    """Set once there is an answer, or it is this one's turn to lead."""

    leads: bool = False
    answers: list[Answer] = field(default_factory=list)
    """One answer, or none yet."""

    error: BaseException | None = None


class Batcher(Generic[Request, Answer]):
    """Collects requests and answers them in batches, one batch at a time.

    Args:
        answer: Answers a batch, in its order. Runs in a thread, never twice at once.
        max_size: Requests of a batch, at most; the others wait, first come, first served.
    """

    def __init__(self, answer: Callable[[Sequence[Request]], Sequence[Answer]], *, max_size: int) -> None:
        self._answer = answer
        self._max_size = max_size
        self._waiting: list[_Place[Request, Answer]] = []
        self._is_led = False

    async def ask(self, request: Request) -> Answer:
        """The answer to one request.

        Raises:
            PolicyError: The batch failed; who led it gets the error itself.
        """
        place: _Place[Request, Answer] = _Place(request)
        self._waiting.append(place)

        try:
            if self._is_led:
                await place.called.wait()
            else:
                self._is_led = place.leads = True

            if place.leads:
                await anyio.lowlevel.checkpoint()
                await self._answer_waiting()
        finally:
            if place in self._waiting:
                self._waiting.remove(place)
            if place.leads:
                self._hand_over()

        if place.error is not None:
            raise PolicyError(f"a batch of replies failed: {type(place.error).__name__}.") from place.error

        return place.answers[0]

    async def _answer_waiting(self) -> None:
        batch = self._waiting[: self._max_size]
        del self._waiting[: self._max_size]

        try:
            # Shielded: a leader that is cancelled still answers the others.
            with anyio.CancelScope(shield=True):
                answers = await anyio.to_thread.run_sync(self._answer, [place.request for place in batch])
        except BaseException as error:
            for place in batch:
                place.error = error
                place.called.set()
            raise

        for place, answer in zip(batch, answers, strict=True):
            place.answers.append(answer)
            place.called.set()

    def _hand_over(self) -> None:
        self._is_led = bool(self._waiting)

        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].called.set()
