"""Environments whose sessions wait for each other, so that a test can tell without a clock what happened at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from openreward.environments import ToolOutput, terminal, tool
from pydantic import BaseModel

from tests.servers.environments import Echo, SmallEnvironment, say

__all__ = ["Crowd", "Fading", "GradedTogether", "LongInTheMaking", "Together", "Unlucky"]

_DEADLINE_S = 60.0


class _Gathering:
    """Lets `size` of those that wait through together."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Event] = []

    async def join(self, size: int) -> None:
        """Wait until there are `size`."""
        event = asyncio.Event()
        self._waiting.append(event)
        if len(self._waiting) == size:
            for other in self._waiting:
                other.set()
            self._waiting.clear()
        await asyncio.wait_for(event.wait(), _DEADLINE_S)


class Together(SmallEnvironment):
    """Opens and answers only where `SIZE` sessions open, and `SIZE` calls are made, at the same time."""

    SIZE: ClassVar[int] = 4
    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {"train": [{"n": n} for n in range(4)]}
    _openings: ClassVar[_Gathering] = _Gathering()
    _calls: ClassVar[_Gathering] = _Gathering()

    async def setup(self) -> None:
        await self._openings.join(self.SIZE)

    @tool
    async def work(self) -> ToolOutput:
        """Work with the others."""
        await self._calls.join(self.SIZE)
        return say("done", reward=float(self.task_spec["n"]))


class Answer(BaseModel):
    text: str


class GradedTogether(SmallEnvironment):
    """Grades last messages only `SIZE` at a time; each is worth the number that it says."""

    SIZE: ClassVar[int] = 4
    _gradings: ClassVar[_Gathering] = _Gathering()

    @terminal
    @tool
    async def grade(self, args: Answer) -> ToolOutput:
        """Grade a number with the others."""
        await self._gradings.join(self.SIZE)
        return say("graded", reward=float(args.text), finished=True)


class Crowd(SmallEnvironment):
    """Says how many of its calls were ever at work together."""

    _num_at_work: ClassVar[int] = 0
    _most: ClassVar[int] = 0

    @tool
    async def work(self) -> ToolOutput:
        """Work for a moment."""
        Crowd._num_at_work += 1
        Crowd._most = max(Crowd._most, Crowd._num_at_work)
        await asyncio.sleep(0.05)
        Crowd._num_at_work -= 1
        return say(str(Crowd._most), reward=1.0)


class LongInTheMaking(SmallEnvironment):
    """Takes its time before the server knows of it, so that a request to delete it comes too early."""

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        super().__init__(task_spec, secrets)
        time.sleep(0.5)

    @tool
    def act(self) -> ToolOutput:
        """Act."""
        return say("acted", reward=1.0)


class Unlucky(SmallEnvironment):
    """The first of every three sessions does not open."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {"train": [{"n": n} for n in range(4)]}
    _num_sessions: ClassVar[int] = 0

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        super().__init__(task_spec, secrets)
        Unlucky._num_sessions += 1
        self.number = Unlucky._num_sessions

    def setup(self) -> None:
        if self.number % 3 == 1:
            raise RuntimeError("no luck")

    @tool
    def act(self) -> ToolOutput:
        """Act."""
        return say("acted", reward=1.0)


class Fading(Echo):
    """`Echo`, whose first sessions open; the others wait until the server is killed."""

    NUM_SESSIONS: ClassVar[int] = 2
    _num_sessions: ClassVar[int] = 0

    async def setup(self) -> None:
        Fading._num_sessions += 1
        if Fading._num_sessions > self.NUM_SESSIONS:
            await asyncio.Event().wait()
