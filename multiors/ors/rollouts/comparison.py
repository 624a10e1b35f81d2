"""The rollouts of one group compared by their environment (ORS's `score_group`): what it is sent, and what it says.

Decides how a completion becomes a candidate, and what a score or a failure means. Which rollouts make up a group, and
which session asks, is decided by whoever knows the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from reprlib import repr as shorten
from typing import Any

from multiors.numeric import parse_step_reward
from multiors.ors.sessions.calls import CallFailed
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.sessions.session import OpenSession
from multiors.records import UnscoredReason

__all__ = ["Verdict", "as_candidate", "start_comparison"]

Verdict = float | tuple[UnscoredReason, str]
"""A candidate's score, or why it has none."""


def as_candidate(completion: Any, kinds: Sequence[str]) -> dict[str, Any]:
    """A rollout's completion as ORS takes it: messages of blocks.

    Args:
        completion: What the policy said and was answered, as TRL gives it to reward functions.
        kinds: Kinds of blocks that the environment takes; tool calls and results are left out if it knows none.
    """
    if isinstance(completion, str):
        completion = [{"role": "assistant", "content": completion}]

    messages: list[dict[str, Any]] = []
    calls: list[str] = []

    for message in completion if isinstance(completion, list) else []:
        blocks = _text_blocks(message.get("content"))

        if message.get("role") == "tool":
            call = calls.pop(0) if calls else "call"
            result = {"type": "tool_result", "tool_call_id": call, "blocks": blocks, "is_error": False}
            if "tool_result" in kinds:
                messages.append({"role": "user", "blocks": [result]})
            continue

        for position, each in enumerate(message.get("tool_calls") or ()):
            function = each.get("function") or {}
            calls.append(f"call_{len(messages)}_{position}")
            if "tool_call" in kinds:
                arguments = function.get("arguments")
                blocks.append(
                    {
                        "type": "tool_call",
                        "id": calls[-1],
                        "name": str(function.get("name")),
                        "input": arguments if isinstance(arguments, Mapping) else {},
                    }
                )

        if blocks:
            messages.append({"role": "assistant", "blocks": blocks})

    return {"messages": messages, "metadata": None}


def start_comparison(session: OpenSession, candidates: Sequence[Mapping[str, Any]]) -> Future[list[Verdict]]:
    """Have the rollouts of a group compared, once; one verdict for each, in order."""
    return get_runtime().start(_compare, session, candidates)


async def _compare(session: OpenSession, candidates: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    try:
        rewards = await session.score_group(candidates)
    except CallFailed as failure:
        # The session lives on; what failed is the comparison.
        verdict = (UnscoredReason.TOOL_ERROR, f"the rollouts of the group could not be compared: {failure.detail}")
        return [verdict] * len(candidates)

    return [_judge(reward) for reward in rewards]


def _judge(reward: object) -> Verdict:
    value, is_bad = parse_step_reward(reward)

    if value is None or is_bad:
        return UnscoredReason.BAD_REWARD, f"the comparison of the group gave a rollout the score {shorten(reward)}"

    return value


def _text_blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []

    return [{"type": "text", "text": block["text"]} for block in content or () if block.get("type") == "text"]
