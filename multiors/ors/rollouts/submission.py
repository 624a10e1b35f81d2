"""The policy's last message as the answer of an episode, where the environment grades it with a `@terminal` tool.

Decides what of a completion is that message. It is submitted when the rollout has ended and before it is scored, once,
and only if the episode is not over already; the submissions of a batch run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["find_last_message", "submit_messages"]


def submit_messages(environments: Sequence[Any], completions: Sequence[Any]) -> None:
    """Submit each rollout's last message to its environment and wait until all are judged.

    Args:
        environments: Of this library; those without a terminal tool are left alone.
        completions: What the policy said, one per environment, as TRL gives it to reward functions. Empty: it is not
            known, and nothing is submitted.
    """
    started = []

    for environment, completion in zip(environments, completions, strict=False):
        message = find_last_message(completion)
        answer = None if message is None else environment._start_submission(message)

        if message is not None and answer is not None:
            started.append((environment, message, answer))

    for environment, message, answer in started:
        environment._finish_submission(message, answer)


def find_last_message(completion: Any) -> str | None:
    """The text that ends a rollout. None: it ended in tool calls, or in their results.

    A message of content blocks gives its texts, joined by newlines.
    """
    if isinstance(completion, str):
        return completion

    last = completion[-1] if isinstance(completion, list) and completion else {}

    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None

    content = last.get("content") or ""

    if isinstance(content, str):
        return content

    return "\n".join(block["text"] for block in content if block.get("type") == "text")
