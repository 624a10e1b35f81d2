"""The quickstart's three environments: real ORS environments, small enough for a policy of 0.1 million parameters.

They differ in what a mixture has to get right: the number of turns, the scale of the reward, the types of the tools'
parameters, and whether a judgement exists at all.

    recycling     one call            0 or 1        always scored
    teahouse      look up, then act   0 to 1        always scored, part marks
    observatory   one call            0 to 10       on overcast nights no one can judge: reward None

Each module-level table is the whole truth of its environment. This module knows nothing of the policy, the trainer or
multiors; it needs only the `openreward` SDK, and is imported by the server processes.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from openreward.environments import Environment, TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field

__all__ = ["ENVIRONMENTS", "Observatory", "Recycling", "Teahouse"]

BIN_BY_ITEM = {
    "newspaper": "paper",
    "envelope": "paper",
    "notebook": "paper",
    "bottle": "glass",
    "jar": "glass",
    "vase": "glass",
    "can": "metal",
    "foil": "metal",
    "nail": "metal",
    "apple": "compost",
    "leaf": "compost",
    "teabag": "compost",
}

CELSIUS_BY_TEA = {
    "gyokuro": 60,
    "sencha": 70,
    "white": 80,
    "oolong": 90,
    "black": 100,
}
TABLES = (1, 2, 3, 4)

PLATE_BY_TARGET = {
    "Mars": ("east", 1),
    "Venus": ("west", 2),
    "Saturn": ("south", 3),
    "Jupiter": ("south", 4),
    "Polaris": ("north", 2),
    "Vega": ("west", 4),
}
NIGHTS = (1, 2, 3, 4)
OVERCAST_NIGHTS = (4,)


def _say(text: str, *, reward: float | None = None, finished: bool = False) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished)


class _TableEnvironment(Environment):
    """An environment whose tasks are a fixed list in one split, `train`."""

    tasks: ClassVar[list[dict[str, Any]]] = []

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return cls.tasks if split == "train" else []


class BinChoice(BaseModel):
    bin: Literal["paper", "glass", "metal", "compost"] = Field(description="Where it goes.")


class Recycling(_TableEnvironment):
    """One item, one call: 1 for the right bin, 0 for another."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"item": item} for item in BIN_BY_ITEM]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Which bin takes this: {self.task_spec['item']}?")]

    @tool
    async def drop(self, choice: BinChoice) -> ToolOutput:
        """Drop the item into a bin."""
        is_right = choice.bin == BIN_BY_ITEM[str(self.task_spec["item"])]
        return _say("Right bin." if is_right else "Wrong bin.", reward=float(is_right), finished=True)


class TableNumber(BaseModel):
    table: int = Field(description="Number of the table.")


class WaterTemperature(BaseModel):
    celsius: int = Field(description="Temperature of the water.")


class Teahouse(_TableEnvironment):
    """Ask a table for its order, then brew it: 1 for the right temperature, 0.4 for ten degrees off, else 0.

    Asking the right table is worth 0.1 until something has been brewed; brewing without an order is worth 0.
    """

    tasks: ClassVar[list[dict[str, Any]]] = [{"table": t, "tea": tea} for tea in CELSIUS_BY_TEA for t in TABLES]

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        self._has_order = False

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Table {self.task_spec['table']} is waiting for tea.")]

    @tool
    async def take_order(self, order: TableNumber) -> ToolOutput:
        """Ask a table which tea it wants."""
        if order.table != self.task_spec["table"]:
            return _say("Nobody sits there.", reward=0.0)
        self._has_order = True
        return _say(f"Please bring {self.task_spec['tea']} tea.", reward=0.1)

    @tool
    async def brew(self, water: WaterTemperature) -> ToolOutput:
        """Brew the tea."""
        degrees_off = abs(water.celsius - CELSIUS_BY_TEA[str(self.task_spec["tea"])])
        if not self._has_order:
            return _say("Nobody ordered this.", reward=0.0, finished=True)
        if degrees_off == 0:
            return _say("Delicious.", reward=1.0, finished=True)
        return _say("Not quite right.", reward=0.4 if degrees_off <= 10 else 0.0, finished=True)


class Pointing(BaseModel):
    direction: Literal["north", "east", "south", "west"] = Field(description="Where to look.")
    minutes: int = Field(description="Exposure, 1 to 4.")


class Observatory(_TableEnvironment):
    """Photograph a target: 6 points for the direction, 4 for the exposure (2 if one minute off).

    On an overcast night the plate shows clouds and no one can judge it: the reward is None, whatever was tried.
    """

    tasks: ClassVar[list[dict[str, Any]]] = [{"night": n, "target": t} for t in PLATE_BY_TARGET for n in NIGHTS]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Night {self.task_spec['night']}: photograph {self.task_spec['target']}.")]

    @tool
    async def expose(self, pointing: Pointing) -> ToolOutput:
        """Point the telescope and expose a plate."""
        if self.task_spec["night"] in OVERCAST_NIGHTS:
            return _say("Only clouds.", finished=True)
        direction, minutes = PLATE_BY_TARGET[str(self.task_spec["target"])]
        minutes_off = abs(pointing.minutes - minutes)
        points = 6.0 * (pointing.direction == direction) + {0: 4.0, 1: 2.0}.get(minutes_off, 0.0)
        return _say(f"{points:.0f} points.", reward=points, finished=True)


ENVIRONMENTS: dict[str, type[Environment]] = {cls.__name__.lower(): cls for cls in (Recycling, Teahouse, Observatory)}
"""Every environment by the name it has on its server."""
