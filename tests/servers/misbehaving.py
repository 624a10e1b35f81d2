"""Environments written to misbehave: raising, slow, scoring strangely, answering at length.

What the SDK's server refuses to send at all is in `raw.py`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from openreward.environments import TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field

from tests.servers.environments import SmallEnvironment, say

__all__ = ["Brittle", "Flaky", "FlakyTasks", "Held", "LongOutput", "ScriptedRewards", "Slow", "long_text"]


class Flaky(SmallEnvironment):
    """Fails where the task's `fails` says: init, setup, prompt, teardown, tool, tool_type, or nowhere.

    The split `train` holds one task of each kind, in the order of `KINDS`; each kind is also a split of four tasks.
    """

    KINDS: ClassVar[Sequence[str]] = ("nowhere", "init", "setup", "prompt", "teardown", "tool", "tool_type")
    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {
        "train": [{"fails": kind} for kind in ("nowhere", "init", "setup", "prompt", "teardown", "tool", "tool_type")],
        "nowhere": [{"fails": "nowhere", "n": n} for n in range(4)],
        "init": [{"fails": "init", "n": n} for n in range(4)],
        "setup": [{"fails": "setup", "n": n} for n in range(4)],
        "prompt": [{"fails": "prompt", "n": n} for n in range(4)],
        "teardown": [{"fails": "teardown", "n": n} for n in range(4)],
        "tool": [{"fails": "tool", "n": n} for n in range(4)],
        "tool_type": [{"fails": "tool_type", "n": n} for n in range(4)],
    }

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        super().__init__(task_spec, secrets)
        self._fail_in("init")

    def setup(self) -> None:
        self._fail_in("setup")

    def teardown(self) -> None:
        self._fail_in("teardown")

    def get_prompt(self) -> list[TextBlock]:
        self._fail_in("prompt")
        blocks: list[TextBlock] = super().get_prompt()
        return blocks

    @tool
    def act(self) -> ToolOutput:
        """Act."""
        self._fail_in("tool")
        if self.task_spec["fails"] == "tool_type":
            return "no ToolOutput"
        return say("acted", reward=1.0)

    @tool
    def rest(self) -> ToolOutput:
        """Rest; never fails."""
        return say("rested", reward=0.5)

    def _fail_in(self, place: str) -> None:
        if self.task_spec["fails"] == place:
            raise RuntimeError(f"flaky {place}: token=hunter2 is written here")


class Brittle(SmallEnvironment):
    """Its tool raises in the tasks of BROKEN, which `configured(Brittle, BROKEN=...)` sets; in the others it scores."""

    NUM_TASKS: ClassVar[int] = 32
    BROKEN: ClassVar[Sequence[int]] = ()

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        return [{"n": n} for n in range(cls.NUM_TASKS)]

    @tool
    def press(self) -> ToolOutput:
        """Press the button."""
        if self.task_spec["n"] in self.BROKEN:
            raise RuntimeError(f"the button of task {self.task_spec['n']} is stuck")
        return say("pressed", reward=1.0, finished=True)


class FlakyTasks(SmallEnvironment):
    """Its task list cannot be had."""

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        raise RuntimeError("the task store is down")

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return say("nothing here")


class Slow(SmallEnvironment):
    """Takes its time, in seconds of the task spec, which `configured(Slow, SETUP_S=..., ...)` sets for every task."""

    NUM_TASKS: ClassVar[int] = 64
    SETUP_S: ClassVar[float] = 0.0
    PROMPT_S: ClassVar[float] = 0.0
    TOOL_S: ClassVar[float] = 0.0
    TEARDOWN_S: ClassVar[float] = 0.0
    BLOCKING: ClassVar[bool] = False

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        seconds = {
            "setup_s": cls.SETUP_S,
            "prompt_s": cls.PROMPT_S,
            "tool_s": cls.TOOL_S,
            "teardown_s": cls.TEARDOWN_S,
        }
        return [{"n": n, **seconds} for n in range(cls.NUM_TASKS)]

    async def _take(self, place: str) -> None:
        if self.BLOCKING:
            time.sleep(self.task_spec[place])  # noqa: ASYNC251  # a server whose code blocks the loop is the point
        else:
            await asyncio.sleep(self.task_spec[place])

    async def setup(self) -> None:
        await self._take("setup_s")

    async def teardown(self) -> None:
        await self._take("teardown_s")

    async def get_prompt(self) -> Any:
        await self._take("prompt_s")
        return super().get_prompt()

    @tool
    async def work(self) -> ToolOutput:
        """Work for a while."""
        await self._take("tool_s")
        return say("done", reward=1.0, finished=True)


class Held(SmallEnvironment):
    """Works until another session lets everyone go."""

    _is_free: ClassVar[asyncio.Event] = asyncio.Event()

    @tool
    async def work(self) -> ToolOutput:
        """Work until let go."""
        await self._is_free.wait()
        return say("worked", reward=0.5)

    @tool
    async def let_go(self) -> ToolOutput:
        """Let all sessions go."""
        self._is_free.set()
        return say("let go")

    @tool
    def finish(self) -> ToolOutput:
        """Finish at once."""
        return say("finished", reward=1.0, finished=True)


class Score(BaseModel):
    value: str = Field(description="A number as Python reads it, or null, or raise.")
    finished: bool = Field(default=False, description="Whether the episode ends.")


class ScriptedRewards(SmallEnvironment):
    """Scores what it is asked to score (`score`), or what its task scripts, call after call (`step`)."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {
        "train": [
            {"script": ["1.0", "null", "raise"]},
            {"script": ["null", "null"]},
            {"script": ["0.0"]},
            {"script": ["1.0", "0.0"]},
            {"script": ["-1.0"]},
            {"script": ["nan"]},
            {"script": ["inf"]},
            {"script": ["0.5", "nan"]},
        ]
    }

    num_steps: int = 0

    @tool
    def score(self, args: Score) -> ToolOutput:
        """Score the value."""
        return self._score(args.value, finished=args.finished)

    @tool
    def step(self) -> ToolOutput:
        """Take the next step of the script; after the last one the episode is finished."""
        script = self.task_spec["script"]
        self.num_steps += 1
        return self._score(script[self.num_steps - 1], finished=self.num_steps == len(script))

    @staticmethod
    def _score(value: str, *, finished: bool) -> ToolOutput:
        if value == "raise":
            raise RuntimeError("the scorer broke")
        return say(f"scored {value}", reward=None if value == "null" else float(value), finished=finished)


Kind = Literal["spaces", "indented", "unicode", "blank_lines", "empty", "no_blocks", "two_blocks"]


def long_text(kind: Kind) -> str:
    """The text that `LongOutput` sends for a kind: what a policy must see byte for byte."""
    if kind == "spaces":
        return "word" + " " * 10_000 + "end"
    if kind == "indented":
        return "".join(f"{' ' * (n % 64)}line {n}\t|\n" for n in range(600))
    if kind == "unicode":
        return "".join(chr(0x4E00 + n % 2000) + " \U0001f680é\u2028" for n in range(4_000))
    if kind == "blank_lines":
        return "\n\n\r\n" * 3_000 + ": no comment\ndata: no field\n\n"
    return {"empty": "", "no_blocks": "", "two_blocks": "one\ntwo"}[kind]


class Long(BaseModel):
    kind: Kind = Field(description="Which text.")


class LongOutput(SmallEnvironment):
    """Answers with long texts whose white space matters; `long_text` says which."""

    @tool
    def print_text(self, args: Long) -> ToolOutput:
        """Print a text."""
        if args.kind == "no_blocks":
            return ToolOutput(blocks=[], reward=1.0)
        texts = ["one", "two"] if args.kind == "two_blocks" else [long_text(args.kind)]
        return ToolOutput(blocks=[TextBlock(text=text) for text in texts], reward=1.0)

    @tool
    def measure(self) -> ToolOutput:
        """Answer with 10,000 dots per call of this session."""
        return say("." * 10_000, reward=math.pi)
