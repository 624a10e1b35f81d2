"""Environments of unusual shape: splits, numbers and specs of tasks, kinds of tools, kinds of prompts."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from openreward.environments import (
    Environment,
    ImageBlock,
    ListToolsOutput,
    Message,
    RunToolOutput,
    TextBlock,
    ToolOutput,
    ToolSpec,
    terminal,
    tool,
)
from pydantic import BaseModel, Field

from tests.servers.environments import SmallEnvironment, Text, say

__all__ = [
    "AnyTasks",
    "AnyTools",
    "Arguments",
    "Conversation",
    "EmptySplit",
    "Essay",
    "ImagePrompt",
    "Large",
    "Many",
    "MixedPrompt",
    "OnlyTerminal",
    "PerTaskTools",
    "RandomPrompt",
    "Splits",
]


def _read(name: str) -> Any:
    """A file of `tests/data`."""
    return json.loads((Path(__file__).parent.parent / "data" / name).read_text(encoding="utf-8"))


class Splits(SmallEnvironment):
    """Splits of usual and unusual names, each task of its own split and index."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {
        name: [{"split": name, "n": n} for n in range(count)]
        for name, count in {"train": 3, "test": 2, "hard-v2": 4, "zürich": 1}.items()
    }

    @tool
    def where(self) -> ToolOutput:
        """Say the task."""
        return say(json.dumps(self.task_spec), reward=float(self.task_spec["n"]))


class EmptySplit(SmallEnvironment):
    """Its train split has no tasks."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {"train": [], "test": [{"id": "one"}]}

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return say("nothing here")


class Large(SmallEnvironment):
    """Counts and gets tasks one by one; refuses to list them."""

    NUM_TASKS: ClassVar[int] = 1000

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        return cls.NUM_TASKS

    @classmethod
    async def get_task(cls, split: str, index: int) -> Any:
        if not 0 <= index < cls.NUM_TASKS:
            raise IndexError(index)
        return {"id": f"large-{index}", "n": index}

    @tool
    def which(self) -> ToolOutput:
        """Say the task's number."""
        return say(str(self.task_spec["n"]), reward=1.0)


class Many(SmallEnvironment):
    """Thousands of tasks in one list."""

    NUM_TASKS: ClassVar[int] = 5000

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        return [{"id": f"many-{n}", "n": n, "text": f"What is {n} + {n}?"} for n in range(cls.NUM_TASKS)]

    @tool
    def which(self) -> ToolOutput:
        """Say the task's number."""
        return say(str(self.task_spec["n"]), reward=1.0)


class AnyTasks(SmallEnvironment):
    """Task specs of every shape, one shape a split."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = _read("task_specs.json")["splits"]

    @tool
    def show(self) -> ToolOutput:
        """Show the task spec as JSON."""
        return say(json.dumps(self.task_spec), reward=1.0)


class AnyTools(SmallEnvironment):
    """Offers every tool of ``tests/data/tool_specifications.json`` and answers with the arguments it got, as JSON."""

    @staticmethod
    def specs() -> list[dict[str, Any]]:
        return [case["spec"] for case in _read("tool_specifications.json")["cases"]]

    @classmethod
    def list_tools(cls) -> ListToolsOutput:
        return ListToolsOutput(tools=[ToolSpec(**spec) for spec in cls.specs()])

    async def _call_tool(self, name: str, input: Any) -> RunToolOutput:
        """Answer any tool of the list: such names cannot all be methods."""
        if name not in {spec["name"] for spec in self.specs()}:
            return await super()._call_tool(name, input)

        async def answer() -> ToolOutput:
            return say(json.dumps(input, sort_keys=True), reward=1.0, tool=name, arguments=input)

        return await self._run_tool_fn(name, answer, input)


class Point(BaseModel):
    x: float
    y: float
    label: str | None = None


class Everything(BaseModel):
    count: int = Field(description="How many.")
    color: Literal["red", "green"] = Field(default="red", description="Which color.")
    tags: list[str] = Field(default_factory=list, description="Labels.")
    note: str | None = Field(default=None, description="May be left out or null.")
    origin: Point | None = Field(default=None, description="Where it starts.")
    path: list[Point] = Field(default_factory=list, description="Where it goes.")
    headers: dict[str, str] = Field(default_factory=dict, description="Any keys.")


class Arguments(SmallEnvironment):
    """Answers with exactly the arguments that were sent, as JSON with sorted keys."""

    @tool
    def send(self, args: Everything) -> ToolOutput:
        """Send arguments of every kind."""
        return say(json.dumps(args.model_dump(exclude_unset=True), sort_keys=True), reward=1.0)


class Answer(BaseModel):
    answer: str = Field(description="The whole answer.")


class Essay(SmallEnvironment):
    """The policy's last message is its answer: a terminal tool, beside an ordinary one."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {"train": [{"word": "sea"}, {"word": "sun"}]}

    @tool
    def topic(self) -> ToolOutput:
        """Get the word to use."""
        return say(self.task_spec["word"])

    @terminal
    @tool
    def submit(self, args: Answer) -> ToolOutput:
        """Grade the answer."""
        return say("graded", reward=float(self.task_spec["word"] in args.answer), finished=True)


class OnlyTerminal(SmallEnvironment):
    """Nothing to call; the last message is graded, without being looked at."""

    @terminal
    @tool
    def grade(self) -> ToolOutput:
        """Grade."""
        return say("graded", reward=0.5, finished=True)


class Which(BaseModel):
    n: int


class Named(BaseModel):
    name: str


class PerTaskTools(SmallEnvironment):
    """Two tasks, each with a tool `act` of another schema; the second has one tool more."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {"train": [{"kind": "number"}, {"kind": "name"}]}

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return say("nothing here")

    def list_task_tools(self) -> ListToolsOutput:
        if self.task_spec["kind"] == "number":
            specs = [ToolSpec(name="act", description="By number.", input_schema=Which.model_json_schema())]
        else:
            specs = [
                ToolSpec(name="act", description="By name.", input_schema=Named.model_json_schema()),
                ToolSpec(name="extra", description="Only here.", input_schema=None),
            ]
        return ListToolsOutput(tools=specs)

    async def _call_tool(self, name: str, input: Any) -> RunToolOutput:
        """Answer the tools of this task only."""
        model = Which if self.task_spec["kind"] == "number" else Named
        if name == "act":
            return await self._run_tool_fn(name, self._act_on(model), input)
        if name == "extra" and model is Named:
            return await self._run_tool_fn(name, self._extra, input)
        return await super()._call_tool(name, input)

    def _act_on(self, model: type[BaseModel]) -> Any:
        def act(args: BaseModel) -> ToolOutput:
            return say(json.dumps(args.model_dump()), reward=1.0)

        act.__annotations__ = {"args": model, "return": ToolOutput}
        return act

    def _extra(self) -> ToolOutput:
        return say("extra", reward=2.0)


# A red pixel.
_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"


class ImagePrompt(SmallEnvironment):
    """A prompt of one image and no text."""

    def get_prompt(self) -> list[ImageBlock]:
        return [ImageBlock(data=_PNG, mimeType="image/png")]

    @tool
    def look(self) -> ToolOutput:
        """Look at an image."""
        return ToolOutput(blocks=[ImageBlock(data=_PNG, mimeType="image/png")], reward=1.0)


class MixedPrompt(SmallEnvironment):
    """A prompt of text, image, text; a tool that answers alike."""

    def get_prompt(self) -> list[TextBlock | ImageBlock]:
        return [TextBlock(text="before"), ImageBlock(data=_PNG, mimeType="image/png"), TextBlock(text="after")]

    @tool
    def look(self) -> ToolOutput:
        """Look at two texts with an image between them."""
        return ToolOutput(blocks=self.get_prompt(), reward=1.0)


class RandomPrompt(SmallEnvironment):
    """Every session of a task has another prompt."""

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Nonce {random.SystemRandom().getrandbits(64):x}.")]

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return say("nothing here", reward=1.0)


class Conversation(SmallEnvironment):
    """Its prompt is a dialogue: a system turn, a user turn, an assistant turn, a user turn."""

    def get_prompt(self) -> Any:
        return Environment.get_prompt(self)

    def get_messages(self) -> list[Message]:
        turns = (("system", "Be brief."), ("user", "Hello."), ("assistant", "Hello."), ("user", "Say yes."))
        return [Message(role=role, blocks=[TextBlock(text=text)]) for role, text in turns]

    @tool
    def reply(self, args: Text) -> ToolOutput:
        """Reply."""
        return say("heard", reward=float(args.text == "yes"), finished=True)
