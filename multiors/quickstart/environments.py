"""The quickstart's four environments: real ORS environments, small enough for a policy of 0.1 million parameters.

They differ in what a mixture has to get right: the number of turns, the scale of the reward, the types of the tools'
parameters, what is judged, and whether a judgement exists at all.

    recycling     one call            0 or 1        always scored
    teahouse      look up, then act   0 to 1        always scored, part marks
    observatory   one call            0 to 10       on overcast nights no one can judge: reward None
    museum        look up, then say   0, 0.5 or 1   the last message is judged, by a tool that the policy never sees

Each module-level table is the whole truth of its environment. This module knows nothing of the policy, the trainer or
multiors; it needs only the `openreward` SDK, and is imported by the server processes.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from openreward.environments import Environment, TextBlock, ToolOutput, terminal, tool
from pydantic import BaseModel, Field

__all__ = ["ENVIRONMENTS", "Museum", "Observatory", "Recycling", "TableEnvironment", "Teahouse"]

BIN_BY_ITEM = {
    "newspaper": "paper",
    "envelope": "paper",
    "bottle": "glass",
    "jar": "glass",
    "can": "metal",
    "foil": "metal",
    "apple": "compost",
    "leaf": "compost",
}

CELSIUS_BY_TEA = {"gyokuro": 60, "sencha": 70, "white": 80, "oolong": 90}
GUESTS = ("Ada", "Emmy", "Grace", "Sofia")

PLATE_BY_TARGET = {
    "Mars": ("east", 1),
    "Saturn": ("south", 3),
    "Venus": ("west", 4),
    "Vega": ("north", 2),
}
NIGHTS = (1, 2, 3, 4, 5)
OVERCAST_NIGHTS = (5,)

# Esperanto, whose adjectives stand before their nouns.
ENGLISH_BY_ADJECTIVE = {"granda": "big", "nova": "new", "verda": "green"}
ENGLISH_BY_NOUN = {"kato": "cat", "domo": "house", "libro": "book"}


def _say(text: str, *, reward: float | None = None, finished: bool = False) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished)


class TableEnvironment(Environment):
    """An environment whose tasks are a fixed list in one split, `train`."""

    tasks: ClassVar[list[dict[str, Any]]] = []

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return cls.tasks if split == "train" else []


class BinChoice(BaseModel):
    item: str = Field(description="What to drop.")
    bin: Literal["paper", "glass", "metal", "compost"] = Field(description="Where it goes.")


class Recycling(TableEnvironment):
    """One item, one call: 1 for the right bin, 0 for another."""

    tasks: ClassVar[list[dict[str, Any]]] = [{"item": item} for item in BIN_BY_ITEM]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Sort this: {self.task_spec['item']}.")]

    @tool
    async def drop(self, choice: BinChoice) -> ToolOutput:
        """Drop the item into a bin."""
        item = str(self.task_spec["item"])
        is_right = choice.item == item and choice.bin == BIN_BY_ITEM[item]
        return _say("Right bin." if is_right else "Wrong bin.", reward=float(is_right), finished=True)


class Guest(BaseModel):
    guest: str = Field(description="Name of the guest.")


class Brewing(BaseModel):
    tea: str = Field(description="The tea that was ordered.")
    celsius: int = Field(description="Temperature of the water.")


class Teahouse(TableEnvironment):
    """Ask a guest for the order, then brew it: 1 for the right temperature, 0.2 for an order not or wrongly brewed.

    Brewing without an order is worth nothing. Temperatures close to the right one earn no more than others: a reward
    that did so would teach the policy to brew everything lukewarm.
    """

    tasks: ClassVar[list[dict[str, Any]]] = [{"guest": g, "tea": tea} for tea in CELSIUS_BY_TEA for g in GUESTS]

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        self._has_order = False

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"{self.task_spec['guest']} is waiting for tea.")]

    @tool
    async def take_order(self, order: Guest) -> ToolOutput:
        """Ask a guest which tea to bring."""
        if order.guest != self.task_spec["guest"]:
            return _say("Nobody answers.", reward=0.0)
        self._has_order = True
        return _say(f"Please bring {self.task_spec['tea']} tea.", reward=0.2)

    @tool
    async def brew(self, brewing: Brewing) -> ToolOutput:
        """Brew the tea."""
        if not self._has_order:
            return _say("Nobody ordered this.", reward=0.0, finished=True)
        tea = str(self.task_spec["tea"])
        is_right = brewing.tea == tea and brewing.celsius == CELSIUS_BY_TEA[tea]
        return _say("Delicious." if is_right else "Not quite right.", reward=1.0 if is_right else 0.2, finished=True)


class Pointing(BaseModel):
    target: str = Field(description="What to photograph.")
    direction: Literal["north", "east", "south", "west"] = Field(description="Where to look.")
    minutes: int = Field(description="Exposure, 1 to 4.")


class Observatory(TableEnvironment):
    """Photograph a target: 6 points for the direction, 4 for the exposure.

    On an overcast night the plate shows clouds and no one can judge it: the reward is None, whatever was tried. The
    prompt does not say which night it is.
    """

    tasks: ClassVar[list[dict[str, Any]]] = [{"night": n, "target": t} for t in PLATE_BY_TARGET for n in NIGHTS]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Photograph {self.task_spec['target']} tonight.")]

    @tool
    async def expose(self, pointing: Pointing) -> ToolOutput:
        """Point the telescope and expose a plate."""
        if self.task_spec["night"] in OVERCAST_NIGHTS:
            return _say("Only clouds.", finished=True)
        target = str(self.task_spec["target"])
        if pointing.target != target:
            return _say("Not what was asked for.", reward=0.0, finished=True)
        direction, minutes = PLATE_BY_TARGET[target]
        points = 6.0 * (pointing.direction == direction) + 4.0 * (pointing.minutes == minutes)
        return _say(f"{points:.0f} points.", reward=points, finished=True)


class Explanation(BaseModel):
    text: str = Field(description="What each word of the label means.")


class Museum(TableEnvironment):
    """Read a label in Esperanto and say what it means: half for each of its two words, nothing for other than two.

    For `verda domo` the best answer is `verda means green, domo means house`.

    What the policy says last is its answer. It calls no tool to hand it in: `grade` is not among those that it sees.
    """

    tasks: ClassVar[list[dict[str, Any]]] = [
        {"label": f"{adjective} {noun}"} for adjective in ENGLISH_BY_ADJECTIVE for noun in ENGLISH_BY_NOUN
    ]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Explain the label.")]

    @tool
    async def read_label(self) -> ToolOutput:
        """Read what the label says."""
        return _say(str(self.task_spec["label"]))

    @terminal
    @tool
    async def grade(self, explanation: Explanation) -> ToolOutput:
        """Compare an explanation with the label."""
        adjective, noun = str(self.task_spec["label"]).split()
        expected = [f"{adjective} means {ENGLISH_BY_ADJECTIVE[adjective]}", f"{noun} means {ENGLISH_BY_NOUN[noun]}"]
        parts = explanation.text.strip().split(", ")
        num_right = sum(part == right for part, right in zip(parts, expected, strict=False))
        return _say("Thank you.", reward=num_right / 2 if len(parts) == 2 else 0.0, finished=True)


ENVIRONMENTS: dict[str, type[Environment]] = {
    cls.__name__.lower(): cls for cls in (Recycling, Teahouse, Observatory, Museum)
}
"""Every environment by the name it has on its server."""
