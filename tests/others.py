"""Environments that are not ORS, as TRL's users write them: a class with tools, rows of its own, reward functions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from datasets import Dataset

__all__ = ["Fails", "Guess", "Judge", "Oven", "guess_rows", "reward_of"]


class Guess:
    """Which word is meant; the row says which. As in TRL's examples, the object keeps its reward."""

    def __init__(self, greeting: str = "Guess") -> None:
        self.greeting = greeting
        self.rows: list[dict[str, Any]] = []
        self.reward: float | None = None
        self.done = False

    def reset(self, word: str = "oak", **row: Any) -> str | None:
        """Begin."""
        self.rows.append({"word": word, **row})
        self.word, self.reward, self.done = word, None, False
        return f"{self.greeting} the word. Say {word}."

    def guess(self, word: str) -> str:
        """Guess the word.

        Args:
            word: The word.
        """
        if self.done:
            raise ValueError("The game is over.")

        self.reward, self.done = float(word == self.word), True
        return f"guessed {word}"


class Judge(Guess):
    """Scores itself."""

    def get_reward(self) -> float | None:
        """Not a tool."""
        return self.reward


class Oven(Guess):
    """Has one tool that is awaited, and scores itself in the same way."""

    async def bake(self, word: str) -> str:
        """Bake a word.

        Args:
            word: The word.
        """
        await asyncio.sleep(0)
        return self.guess(word)

    async def get_reward(self) -> float | None:
        """Not a tool."""
        await asyncio.sleep(0)
        return self.reward


class Fails:
    """Fails as its row says: in its reset, its tool or its reward, each in ways of its own."""

    def __init__(self) -> None:
        self.count = 0.0

    def reset(self, *, fails: str, **row: Any) -> str:
        """Begin."""
        self.count = 0.0
        self.fails = fails

        if fails == "reset":
            raise ConnectionError("nobody answers")

        return "Count."

    def press(self) -> str:
        """Press."""
        self.count += 1.0

        if self.fails == "tool":
            raise ConnectionError("the line broke")
        if self.fails == "text":
            json.loads("")
        if self.fails == "refuse":
            raise ValueError("not now")

        return str(self.count)

    def get_reward(self) -> float | None:
        """Not a tool."""
        if self.fails == "reward":
            raise RuntimeError("no verdict")

        return float("nan") if self.fails == "nan" else None


def guess_rows(*words: str, **columns: Sequence[Any]) -> Dataset:
    """One row for each word."""
    return Dataset.from_dict({"word": list(words), **columns})


def reward_of(environments: Sequence[Any], **_: Any) -> list[float | None]:
    """What the objects keep, as TRL's examples read it."""
    return [environment.reward for environment in environments]
