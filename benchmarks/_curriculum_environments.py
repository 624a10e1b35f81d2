"""The environments of `curriculum_training.py`: lists of words, to be answered word by word in one call.

A task's level is the length of its list, and an answer is worth 1 if every word of it is right, else 0. So a long list
is the same skill as a short one, several times in a row, and is hardly ever right by chance before short ones are.

    parrot      3 levels   say the same words            nearly solved after the warm start
    dictionary  3 levels   one of 4 answers a word       can be learned
    semaphore   4 levels   one of 5 answers a word       hard: its long lists pay nothing for a long time
    casino      3 levels   any answer                    a coin is tossed: nothing to learn

What the policy is not told anywhere is the table. Imported by the server processes.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

from openreward.environments import TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field

from multiors.quickstart.environments import TableEnvironment

__all__ = ["ENVIRONMENTS", "Casino", "Dictionary", "Parrot", "Semaphore", "WordEnvironment"]

_TASKS_PER_LEVEL = 6
_COIN = random.Random(0)  # in the order of the calls, which differs from run to run


class Words(BaseModel):
    words: str = Field(description="One word for each.")


class WordEnvironment(TableEnvironment):
    """Words to be answered by those that the table gives for them, in their order."""

    table: ClassVar[dict[str, str]] = {}

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"{self.task_spec['words']}")]

    def judge(self, answer: str) -> float:
        """1 if every word is right, else 0."""
        expected = [self.table[word] for word in str(self.task_spec["words"]).split()]
        return float(answer.split() == expected)

    def finish(self, answer: str) -> ToolOutput:
        """End the episode with what the answer is worth."""
        return ToolOutput(blocks=[TextBlock(text="Noted.")], reward=self.judge(answer), finished=True)


def _make_tasks(words: list[str], *, num_levels: int) -> list[dict[str, Any]]:
    """Each word alone, then as many lists of each greater length; always the same."""
    rng = random.Random(num_levels)
    tasks = [{"level": 1, "words": word} for word in words]
    for level in range(2, num_levels + 1):
        lists: set[str] = set()
        while len(lists) < _TASKS_PER_LEVEL:
            lists.add(" ".join(rng.choices(words, k=level)))
        tasks += [{"level": level, "words": text} for text in sorted(lists)]
    return tasks


class Parrot(WordEnvironment):
    """Say the words again."""

    table: ClassVar[dict[str, str]] = {word: word for word in ("apple", "bread", "cheese", "date")}
    tasks: ClassVar[list[dict[str, Any]]] = _make_tasks(list(table), num_levels=3)

    @tool
    async def repeat(self, answer: Words) -> ToolOutput:
        """Say the words again."""
        return self.finish(answer.words)


class Dictionary(WordEnvironment):
    """Say each word in English."""

    table: ClassVar[dict[str, str]] = {"kato": "cat", "domo": "house", "libro": "book", "akvo": "water"}
    tasks: ClassVar[list[dict[str, Any]]] = _make_tasks(list(table), num_levels=3)

    @tool
    async def translate(self, answer: Words) -> ToolOutput:
        """Say each word in English."""
        return self.finish(answer.words)


class Semaphore(WordEnvironment):
    """Say what each flag stands for."""

    table: ClassVar[dict[str, str]] = {
        "red": "stop",
        "green": "go",
        "blue": "turn",
        "white": "wait",
        "black": "dive",
    }
    tasks: ClassVar[list[dict[str, Any]]] = _make_tasks(list(table), num_levels=4)

    @tool
    async def signal(self, answer: Words) -> ToolOutput:
        """Say what each flag stands for."""
        return self.finish(answer.words)


class Casino(WordEnvironment):
    """Bet on each horse. Whatever is said, a coin decides."""

    table: ClassVar[dict[str, str]] = {"bucephalus": "win", "rocinante": "lose", "marengo": "draw"}
    tasks: ClassVar[list[dict[str, Any]]] = _make_tasks(list(table), num_levels=3)

    def judge(self, answer: str) -> float:
        """A coin."""
        return float(_COIN.random() < 0.5)

    @tool
    async def bet(self, answer: Words) -> ToolOutput:
        """Bet on each horse."""
        return self.finish(answer.words)


ENVIRONMENTS: dict[str, type[WordEnvironment]] = {
    cls.__name__.lower(): cls for cls in (Parrot, Dictionary, Semaphore, Casino)
}
"""Every environment by the name it has on its server."""
