"""Policies for tests of the runner: they follow a script, count what is asked of them, and fail when told to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from multiors.evaluation import EvaluationRun, PolicyError, evaluate
from multiors.evaluation.policies import Message, Reply, Start

__all__ = ["Script", "ScriptedPolicy", "calls", "count", "fail", "play", "says"]

Script = Callable[[Start, list[Message]], Reply | Awaitable[Reply]]
"""From what an episode began with, and all messages so far, to the next reply."""


def says(text: str, **fields: Any) -> Reply:
    """A reply in words."""
    return Reply({"role": "assistant", "content": text}, **fields)


def calls(*made: tuple[str, Mapping[str, Any]], text: str = "", **fields: Any) -> Reply:
    """A reply that calls tools."""
    functions = [{"type": "function", "function": {"name": name, "arguments": dict(given)}} for name, given in made]
    return Reply({"role": "assistant", "content": text, "tool_calls": functions}, **fields)


def count(messages: Sequence[Message], role: str = "tool") -> int:
    """How many of the messages are of a role."""
    return sum(message["role"] == role for message in messages)


class ScriptedPolicy:
    """A policy that follows a script; what it was asked is kept."""

    sees_images = False
    secrets: Sequence[str] = ()

    def __init__(self, script: Script, *, max_concurrent_replies: int = 8, name: str = "scripted") -> None:
        self.name = name
        self.max_concurrent_replies = max_concurrent_replies
        self.starts: list[Start] = []
        self.num_open = 0
        self.num_opened = 0
        self.num_ended = 0
        self._script = script

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "scripted", "name": self.name}

    async def open(self) -> None:
        self.num_open += 1
        self.num_opened += 1

    def start(self, start: Start) -> _Conversation:
        self.starts.append(start)
        return _Conversation(self, start)

    async def close(self) -> None:
        self.num_open -= 1


class _Conversation:
    def __init__(self, policy: ScriptedPolicy, start: Start) -> None:
        self._policy = policy
        self._start = start
        self._messages: list[Message] = []

    async def reply(self, messages: Sequence[Message]) -> Reply:
        self._messages.extend(messages)
        reply = self._policy._script(self._start, self._messages)

        if not isinstance(reply, Reply):
            reply = await reply

        self._messages.append(reply.message)
        return reply

    async def end(self) -> None:
        self._policy.num_ended += 1


def fail(*_: Any) -> Reply:
    """The script of a policy that is away."""
    raise PolicyError("the endpoint answered 503")


def play(sources: Any, script: Script | ScriptedPolicy, folder: Any, **options: Any) -> EvaluationRun:
    """An evaluation with one episode per task, unless said otherwise."""
    policy = script if isinstance(script, ScriptedPolicy) else ScriptedPolicy(script)
    return evaluate(sources, policy, folder, **{"episodes_per_task": 1, **options})
