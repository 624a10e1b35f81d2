"""How long a prompt is as the policy will read it: with the chat template around it and the tools before it.

Decides what of it is compared with what the model takes, and what is said of prompts that are random or hold images.
Counts characters where there is no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multiors.checks.findings import Notebook
from multiors.checks.looking import Look
from multiors.errors import MultiORSError
from multiors.ors.content import ImageBlock, Prompt, join_text, put_before
from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.tools import BoundTool, render_tools

__all__ = ["Limits", "check_prompts", "read_limits"]

# What tokenizers say that were told no length (transformers, VERY_LARGE_INTEGER).
_NO_LENGTH = 10**9


@dataclass(frozen=True, slots=True)
class Limits:
    """What a prompt must fit into."""

    context_tokens: int | None
    """Prompt and completion together. None: not known."""

    completion_tokens: int | None
    """The most that one completion has, tool results included. None: not known."""


def read_limits(tokenizer: Any, args: Any) -> Limits:
    """The limits that a tokenizer and a `GRPOConfig` state.

    Args:
        tokenizer: One of transformers'. None: there is none.
        args: A `GRPOConfig`. None: there is none.
    """
    length = getattr(tokenizer, "model_max_length", None)
    stated = [length if isinstance(length, int) and length < _NO_LENGTH else None]

    if args is not None and args.use_vllm:
        stated.append(args.vllm_max_model_length)

    context = min((each for each in stated if each is not None), default=None)
    return Limits(context, None if args is None else args.max_completion_length)


def check_prompts(
    looks: Iterable[Look], tokenizer: Any, limits: Limits, *, shared_tools: Sequence[BoundTool] | None = None
) -> None:
    """Measure the prompts of all sources that were looked at, and write down what they are like.

    Args:
        looks: At each of them.
        tokenizer: One of transformers'. None: characters are counted.
        limits: What the prompts must fit into.
        shared_tools: The tools that every prompt shows. None: those of its own source.
    """
    for look in looks:
        if look.blueprint is not None and look.prompts:
            tools = look.blueprint.tools if shared_tools is None else shared_tools
            tokens = None if tokenizer is None else _count_all(look, tokenizer, tools)
            _describe(look, look.blueprint, tokens)

            if tokens is not None:
                _check_length(tokens, limits, look.notes)


def _count_all(look: Look, tokenizer: Any, tools: Iterable[BoundTool]) -> int | None:
    """Tokens of the longest prompt. None: they could not be counted, and it was written down why."""
    rendered = render_tools(tools)

    try:
        return max(_count(tokenizer, _as_messages(prompt), rendered) for prompt in look.prompts.values())
    except (MultiORSError, ValueError) as error:
        look.notes.write("prompt", "warning", f"its tokens cannot be counted: {error}.")
        return None


def _as_messages(prompt: Prompt) -> list[dict[str, Any]]:
    """The text of a prompt as the trainer has it: the environment's messages in a row that has none of its own."""
    text = prompt.without_images()
    role = text.messages[-1].role if text.messages else "user"
    row = [{"role": role, "content": join_text(text.last)}]
    put_before(row, text.leading)
    return row


def _count(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> int:
    """Tokens as the trainer renders them; without a chat template those of the text alone.

    Raises:
        ValueError: The chat template cannot render it.
    """
    if not getattr(tokenizer, "chat_template", None):
        return len(tokenizer("\n".join(str(message["content"]) for message in messages))["input_ids"])

    from jinja2 import TemplateError  # comes with whatever renders chat templates

    try:
        text = tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, add_generation_prompt=True, tokenize=False
        )
    except (TemplateError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the chat template cannot render it ({type(error).__name__}: {error})") from error

    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _describe(look: Look, blueprint: Blueprint, tokens: int | None) -> None:
    characters = max(len(join_text(prompt.all_blocks)) for prompt in look.prompts.values())
    images = sum(isinstance(block, ImageBlock) for prompt in look.prompts.values() for block in prompt.all_blocks)
    tasks = f"task{'s' * (len(look.prompts) > 1)} {' and '.join(map(str, look.prompts))}"
    size = f"{characters} characters" + ("" if tokens is None else f", {tokens} tokens with its tools")
    facts = {"characters": characters, "tokens": tokens, "is_random": look.has_random_prompt, "images": images}
    first = next(iter(look.prompts))

    if look.has_random_prompt:
        message = (
            f"two sessions of task {first} have different prompts, so a group's rollouts answer different questions; "
            f"vllm_mode='server' is refused. At most {size}."
        )
    else:
        same = "" if look.has_random_prompt is None else f"; the same in two sessions of task {first}"
        message = f"at most {size} ({tasks}){same}."

    look.notes.write("prompt", "warning" if look.has_random_prompt else "ok", message, **facts)

    if not characters and not images:
        look.notes.write("prompt", "warning", "a prompt is empty: the policy is not told what to do.")

    if images and blueprint.images == "auto":
        message = (
            "prompts hold images, which are shown to a model that takes images; with another, training stops. "
            "images='drop' leaves them out."
        )
        look.notes.write("prompt", "warning", message)
    elif images and blueprint.images == "drop":
        look.notes.write("prompt", "note", "prompts hold images, which the policy is not shown (images='drop').")


def _check_length(tokens: int, limits: Limits, notes: Notebook) -> None:
    context, completion = limits.context_tokens, limits.completion_tokens

    if context is None or tokens + (completion or 0) <= context:
        return

    facts = {"tokens": tokens, "context_tokens": context, "completion_tokens": completion}

    if tokens >= context:
        message = (
            f"{tokens} tokens are not less than the {context} that the model takes with its completion, so nothing "
            f"could be generated. Leave the source out, or use a model with a longer context."
        )
        notes.write("prompt", "error", message, **facts)
    else:
        message = (
            f"{tokens} tokens leave {context - tokens} of the {context} that the model takes, and "
            f"max_completion_length={completion}: long rollouts end before that. Lower it, or use a model with a "
            f"longer context."
        )
        notes.write("prompt", "warning", message, **facts)
