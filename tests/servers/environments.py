"""Small environments that behave. `shapes.py` has those of unusual shape, `misbehaving.py` those that misbehave.

Each answers deterministically from its task spec, and no served class derives from another served one, because the
SDK caches task lists on the class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from openreward.environments import Environment, ListToolsOutput, TextBlock, ToolOutput, ToolSpec, tool
from pydantic import BaseModel, Field

__all__ = ["Counting", "Echo", "NeverScores", "SmallEnvironment", "Sorting", "Text", "Thermostat", "say"]


def say(text: str, *, reward: float | None = None, finished: bool = False, **metadata: Any) -> ToolOutput:
    """A tool's answer of one text block."""
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished, metadata=metadata or None)


class SmallEnvironment(Environment):
    """An environment whose tasks are a constant, and whose prompt shows the task."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {"train": ({"id": "only"},)}

    @classmethod
    def list_splits(cls) -> list[str]:
        return list(cls.TASKS)

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        return list(cls.TASKS[split])

    def get_prompt(self) -> Any:
        return [TextBlock(text=f"{type(self).__name__}: {json.dumps(self.task_spec)}")]


class Text(BaseModel):
    text: str = Field(description="The text.")


class Echo(SmallEnvironment):
    """Reward 1 for repeating the target; a wrong answer scores 0 and leaves the episode open."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {
        "train": [
            {"id": f"train-{i}", "target": word}
            for i, word in enumerate(("oak", "ash", "elm", "fir", "yew", "box", "may", "bay"))
        ],
        "test": [{"id": "test-0", "target": "pine"}, {"id": "test-1", "target": "plum"}],
    }

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Say {self.task_spec['target']}.")]

    @tool
    def echo(self, args: Text) -> ToolOutput:
        """Say a text and hear it back."""
        hit = args.text == self.task_spec["target"]
        return say(args.text, reward=float(hit), finished=hit)

    @tool(shared=False)
    def hint(self) -> ToolOutput:
        """Get the first letter."""
        return say(str(self.task_spec["target"])[0])

    def list_task_tools(self) -> ListToolsOutput:
        return ListToolsOutput(tools=[ToolSpec(name="hint", description="Get the first letter.", input_schema=None)])


class Pair(BaseModel):
    i: int = Field(description="First position.")
    j: int = Field(description="Second position.")


class Order(BaseModel):
    order: list[int] = Field(description="Positions, smallest number first.")


class Sorting(SmallEnvironment):
    """Compare hidden numbers, then submit their order. Rewards 0 or 10."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {
        "train": [{"numbers": [3, 1, 2]}, {"numbers": [5, 4]}, {"numbers": [1, 9, 8]}, {"numbers": [2, 7]}]
    }

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Sort {len(self.task_spec['numbers'])} hidden numbers.")]

    @tool
    def compare(self, args: Pair) -> ToolOutput:
        """Compare the numbers at two positions."""
        numbers = self.task_spec["numbers"]
        return say("sorting: less" if numbers[args.i] < numbers[args.j] else "sorting: not less")

    @tool
    def submit(self, args: Order) -> ToolOutput:
        """Submit the order."""
        numbers = self.task_spec["numbers"]
        right = sorted(range(len(numbers)), key=numbers.__getitem__) == args.order
        return say(f"sorting: {args.order}", reward=10.0 * right, finished=True)


class Setting(BaseModel):
    mode: Literal["heat", "cool", "off"] = Field(description="What to do.")
    degrees: float | None = Field(default=None, description="By how much.")


class Thermostat(SmallEnvironment):
    """Read a temperature, then submit a mode that fits. Its `submit` is not the one of `Sorting`."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {
        "train": [{"celsius": 12.0}, {"celsius": 31.0}, {"celsius": 21.0}],
        "validation": [{"celsius": 20.0}],
    }

    @tool
    def read(self) -> ToolOutput:
        """Read the temperature."""
        return say(f"thermostat: {self.task_spec['celsius']}")

    @tool
    def submit(self, args: Setting) -> ToolOutput:
        """Set the mode."""
        celsius = self.task_spec["celsius"]
        right = "heat" if celsius < 18 else "cool" if celsius > 24 else "off"
        return say(f"thermostat: {args.mode}", reward=float(args.mode == right), finished=True)


class NeverScores(SmallEnvironment):
    """Its tool works and never says what the answer is worth."""

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return say("nothing here")


class Counting(SmallEnvironment):
    """Says how often its tool ran in this session, and finishes where the task says."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {"train": [{"finish_at": 3}, {"finish_at": None}]}

    num_calls: int = 0

    @tool
    def bump(self) -> ToolOutput:
        """Count one up."""
        self.num_calls += 1
        finished = self.num_calls == self.task_spec["finish_at"]
        return say(f"n={self.num_calls}", reward=float(self.num_calls), finished=finished, n=self.num_calls)
