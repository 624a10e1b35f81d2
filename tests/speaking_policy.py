"""The tiny model, taught one conversation by heart: it says what `Echo` asks for, and then that it is done.

For tests in which a real model must make a real call. What it is taught is what it is asked, so nothing of it says
anything about learning.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.tiny_policy import build_tiny_policy

__all__ = ["LAST_WORDS", "build_speaking_policy"]

LAST_WORDS = "Done."


def build_speaking_policy(folder: Path, *, words: Sequence[str], tools: Sequence[Any], num_steps: int = 60) -> Path:
    """Save model and tokenizer to the folder.

    Args:
        folder: Where.
        words: One for each task: the prompt is "Say <word>."
        tools: As JSON schemas; the first one is `echo`.
        num_steps: Steps of the optimizer.
    """
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from multiors.quickstart.policy import Policy
    from multiors.quickstart.warmstart import Episode, fit

    build_tiny_policy(folder)
    policy = Policy(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    episodes = [Episode("echo", tuple(_converse(word)), 1.0) for word in words]
    fit(
        policy,
        episodes,
        tools_by_environment={"echo": tools},
        steps=num_steps,
        rng=random.Random(0),
        batch_size=len(words),
    )
    policy.model.eval()
    policy.model.save_pretrained(folder)
    trl.add_response_schema(policy.tokenizer).save_pretrained(folder)
    return folder


def _converse(word: str) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "echo", "arguments": {"text": word}}}
    return [
        {"role": "user", "content": f"Say {word}."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "echo", "content": word},
        {"role": "assistant", "content": LAST_WORDS},
    ]
