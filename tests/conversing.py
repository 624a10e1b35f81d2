"""Conversations with a policy by hand: an episode's start, and what it replies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from multiors.evaluation.policies import Policy, Reply, Start

__all__ = ["SAY", "asked", "begin", "converse", "opened", "tool"]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A tool as policies see it; all its parameters are required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": parameters}}


SAY = tool("say", text={"type": "string", "description": "What to say."})


def begin(seed: int = 0, *, tools: Sequence[Any] = (SAY,)) -> Start:
    """The start of an episode."""
    return Start(source="a", task_index=0, task=None, tools=tools, seed=seed)


def asked(text: str) -> list[dict[str, Any]]:
    """A prompt."""
    return [{"role": "user", "content": text}]


@asynccontextmanager
async def opened(policy: Policy) -> AsyncIterator[Policy]:
    """The policy, open inside the block."""
    await policy.open()
    try:
        yield policy
    finally:
        await policy.close()


async def converse(policy: Policy, *turns: Sequence[Any], start: Start | None = None) -> list[Reply]:
    """The policy's replies to what it is told turn by turn."""
    conversation = policy.start(start or begin())
    replies = [await conversation.reply(messages) for messages in turns]
    await conversation.end()
    return replies
