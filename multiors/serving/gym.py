"""A generator of reasoning-gym as an ORS environment: the question is the prompt, one answer ends the episode."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from openreward.environments import Environment, TextBlock, ToolOutput, terminal, tool
from pydantic import BaseModel, Field

from multiors.serving.generators import SPLITS, Generator

__all__ = ["GeneratorEnvironment", "find_answer", "make_environment"]


class GeneratorEnvironment(Environment):
    """What both ways to answer share."""

    generator: ClassVar[Generator]
    how_to_answer: ClassVar[str]

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        self._entry = self.generator.make_entry(self.task_spec)

    @classmethod
    def list_splits(cls) -> list[str]:
        return list(SPLITS)

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return cls.generator.list_specs(split)

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"{self._entry['question'].strip()}\n\n{self.how_to_answer}")]

    def _judge(self, answer: str | None) -> ToolOutput:
        score = self.generator.score(self._entry, answer)
        said = "This answer cannot be scored." if score is None else f"Score: {score:g}."
        return ToolOutput(blocks=[TextBlock(text=said)], reward=score, finished=True)


class Answer(BaseModel):
    text: str = Field(description="The final answer alone, in the form that the question asks for.")


class _ToolAnswers(GeneratorEnvironment):
    how_to_answer = "Call the tool `answer` with your final answer alone. You have one try."

    # Not async: the server runs it in a thread, and goes on answering others.
    @tool(exclusive=True)
    def answer(self, answer: Answer) -> ToolOutput:
        """Give the final answer. This ends the task."""
        return self._judge(answer.text)


class Message(BaseModel):
    text: str = Field(description="The last message.")


class _MessageAnswers(GeneratorEnvironment):
    how_to_answer = "Write your final answer alone between <answer> and </answer>."

    @terminal
    @tool
    def submit(self, message: Message) -> ToolOutput:
        """Score the last message."""
        return self._judge(find_answer(message.text))


def make_environment(generator: Generator, answers: Literal["tool", "message"]) -> type[GeneratorEnvironment]:
    """The environment of a generator, under the generator's name."""
    base = _ToolAnswers if answers == "tool" else _MessageAnswers
    return type(generator.name, (base,), {"__doc__": f"{generator.name} of reasoning-gym.", "generator": generator})


def find_answer(message: str) -> str | None:
    """What stands between the last pair of tags of a message. None: there is no such pair."""
    before, closing, _ = message.rpartition("</answer>")
    _, opening, answer = before.rpartition("<answer>")
    return answer.strip() if opening and closing else None
