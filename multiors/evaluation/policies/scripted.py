"""Policies that no model is needed for: baselines, and players that are programs.

A policy that makes random valid calls says what an environment gives to chance, one that never calls what it gives to
nothing, and one that knows the answer what can be had.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from multiors.errors import ConfigError
from multiors.evaluation.policies.policy import Conversation, Message, Reply, Start
from multiors.evaluation.policies.random_values import draw_value
from multiors.evaluation.policies.seeds import derive_seed

__all__ = ["NeverCalls", "RandomCalls", "Script", "ScriptedPolicy"]

_LAST_WORDS = "I have nothing more to do."

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and its arguments."""

Answer = str | Sequence[Call] | Message
Script = Callable[[Start, Sequence[Message]], Answer | Awaitable[Answer]]
"""What to answer to a conversation: a text, calls, or a whole message."""


class ScriptedPolicy:
    """Answers with what a function says.

    Args:
        function: Called for every reply with the episode's start and the whole conversation so far. It runs on the
            event loop: one that takes long is a coroutine function.
        name: For people. None: the function's.
    """

    max_concurrent_replies = 64
    sees_images = False
    secrets: Sequence[str] = ()

    def __init__(self, function: Script, *, name: str | None = None) -> None:
        self._function = function
        module, own = (
            getattr(function, "__module__", ""),
            getattr(function, "__qualname__", type(function).__qualname__),
        )
        self.name = name or f"{module}:{own}".removeprefix(":")

    def describe(self) -> Mapping[str, Any]:
        """Its kind and name."""
        return {"kind": "scripted", "name": self.name}

    async def open(self) -> None:
        """Nothing is to be made ready."""

    def start(self, start: Start) -> Conversation:
        """Begin an episode."""
        return _Conversation(self._function, start, name=self.name)

    async def close(self) -> None:
        """Nothing is held."""


class RandomCalls(ScriptedPolicy):
    """Calls tools at random with arguments that their schemas take, then says that it is done.

    Every tool is as likely as any other. The episode's seed decides everything.

    Args:
        num_calls: Calls of an episode, one in each turn.
    """

    def __init__(self, *, num_calls: int = 1) -> None:
        if num_calls < 1:
            raise ConfigError(f"num_calls is {num_calls!r}; it is 1 or more. For none at all there is NeverCalls.")

        super().__init__(self._answer, name="random")
        self._num_calls = num_calls

    def describe(self) -> Mapping[str, Any]:
        """Its kind, name and number of calls."""
        return {**super().describe(), "num_calls": self._num_calls}

    def _answer(self, start: Start, messages: Sequence[Message]) -> Answer:
        turn = sum(message.get("role") == "assistant" for message in messages)

        if turn >= self._num_calls or not start.tools:
            return _LAST_WORDS

        rng = random.Random(derive_seed(start.seed, turn, num_bits=64))
        function = rng.choice(start.tools)["function"]
        arguments = draw_value({"type": "object", **(function.get("parameters") or {})}, rng)
        return [(function["name"], arguments)]


class NeverCalls(ScriptedPolicy):
    """Says one sentence and calls nothing."""

    def __init__(self) -> None:
        super().__init__(lambda start, messages: _LAST_WORDS, name="silent")


class _Conversation:
    def __init__(self, function: Script, start: Start, *, name: str) -> None:
        self._function = function
        self._start = start
        self._name = name
        self._messages: list[Message] = []

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """What the function answers.

        Raises:
            ConfigError: It answers with something else.
        """
        self._messages += messages

        try:
            answer = self._function(self._start, tuple(self._messages))
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:
            error.add_note(f"policy={self._name!r} source={self._start.source!r} task_index={self._start.task_index}")
            raise

        message = _as_message(answer, name=self._name)
        self._messages.append(message)
        return Reply(message)

    async def end(self) -> None:
        """Nothing is held."""


def _as_message(answer: object, *, name: str) -> Message:
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    if isinstance(answer, Mapping):
        return {"role": "assistant", "content": "", **answer}
    if isinstance(answer, list | tuple) and all(map(_is_call, answer)):
        calls = [{"type": "function", "function": {"name": tool, "arguments": dict(args)}} for tool, args in answer]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    raise ConfigError(
        f"the policy {name!r} answered with {answer!r:.200}; a script answers with a text, a list of (tool, "
        f"arguments), or a message."
    )


def _is_call(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], Mapping)
    )
