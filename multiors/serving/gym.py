"""A generator of reasoning-gym as an ORS environment: the question is the prompt, one answer ends the episode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

from openreward.environments import Environment, TextBlock, ToolOutput, terminal, tool
from pydantic import BaseModel, Field

from multiors.serving.generators import SPLITS, Generator

__all__ = ["GeneratorEnvironment", "find_answer", "make_environment"]


class GeneratorEnvironment(Environment):
    """What both ways to answer share.

    Questions are made and answers scored in one thread of the generator's own: some take seconds, and must keep neither
    the loop nor the threads that the server shares among sessions.
    """

    generator: ClassVar[Generator]
    thread: ClassVar[ThreadPoolExecutor]
    how_to_answer: ClassVar[str]

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        self.generator.check_spec(self.task_spec)
        self._entry: Any = None

    async def setup(self) -> None:
        self._entry = await self._run(self.generator.make_entry, self.task_spec)

    @classmethod
    def list_splits(cls) -> list[str]:
        return list(SPLITS)

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return cls.generator.list_specs(split)

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"{self._entry['question'].strip()}\n\n{self.how_to_answer}")]

    async def _judge(self, answer: str | None) -> ToolOutput:
        score = await self._run(self.generator.score, self._entry, answer)
        said = "This answer cannot be scored." if score is None else f"Score: {score:g}."
        return ToolOutput(blocks=[TextBlock(text=said)], reward=score, finished=True)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)


class Answer(BaseModel):
    text: str = Field(description="The final answer alone, in the form that the question asks for.")


class _ToolAnswers(GeneratorEnvironment):
    how_to_answer = "Call the tool `answer` with your final answer alone. You have one try."

    @tool(exclusive=True)
    async def answer(self, answer: Answer) -> ToolOutput:
        """Give the final answer. This ends the task."""
        return await self._judge(answer.text)


class Message(BaseModel):
    text: str = Field(description="The last message.")


class _MessageAnswers(GeneratorEnvironment):
    how_to_answer = "Write your final answer alone between <answer> and </answer>."

    @terminal
    @tool
    async def submit(self, message: Message) -> ToolOutput:
        """Score the last message."""
        return await self._judge(find_answer(message.text))


def make_environment(generator: Generator, answers: Literal["tool", "message"]) -> type[GeneratorEnvironment]:
    """The environment of a generator, under the generator's name."""
    base = _ToolAnswers if answers == "tool" else _MessageAnswers
    attributes = {
        "__doc__": f"{generator.name} of reasoning-gym.",
        "generator": generator,
        "thread": ThreadPoolExecutor(max_workers=1, thread_name_prefix=generator.name),
    }
    return type(generator.name, (base,), attributes)


def find_answer(message: str) -> str | None:
    """What stands between the last pair of tags of a message. None: there is no such pair."""
    before, closing, _ = message.rpartition("</answer>")
    _, opening, answer = before.rpartition("<answer>")
    return answer.strip() if opening and closing else None
