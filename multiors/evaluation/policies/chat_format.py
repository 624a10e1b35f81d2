"""The form in which a model reads a conversation and its calls are read, as in training.

Decides nothing that TRL's `GRPOTrainer` does not: which chat template, which tokens follow a reply when tools have
answered, what of a reply is a call. Keep in step with its `__init__`, `_tokenize_prompts` and `_get_tool_suffix_ids`;
`tests/test_evaluation_trl_contract.py` tells when they change. Imports TRL: load it late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    parse_response,
)

from multiors.errors import ConfigError
from multiors.evaluation.policies.policy import Message, PolicyError
from multiors.ors.text import one_line

__all__ = ["ChatFormat"]

_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


class ChatFormat:
    """A tokenizer with what TRL adds to it. Not for two threads at once.

    Args:
        tokenizer: Gets a padding token and a response template where it has none, as in training.
        name: Of the policy, for messages.
        thinking: Passed to the template as `enable_thinking`. None: the template's default.

    Raises:
        ConfigError: It has no chat template, or one whose calls cannot be read.
    """

    def __init__(self, tokenizer: Any, *, name: str, thinking: bool | None) -> None:
        self.tokenizer = tokenizer
        self._name = name
        self._options = {} if thinking is None else {"enable_thinking": thinking}

        if not hasattr(tokenizer, "apply_chat_template") or not tokenizer.chat_template:
            raise ConfigError(
                f"policy {name!r}: its tokenizer has no chat template, so a conversation cannot be written for it. "
                f"Pass a model that was made for chat, or a tokenizer with `chat_template` set."
            )
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        self._template = self._prepare(tokenizer)

    def _prepare(self, tokenizer: Any) -> str | None:
        try:
            if all(getattr(tokenizer, key, None) is None for key in ("response_template", "response_schema")):
                add_response_schema(tokenizer)
            if is_chat_template_prefix_preserving(tokenizer):
                return None
            template: str | None = get_training_chat_template(tokenizer)
            return template
        except (TemplateError, ValueError) as error:
            raise ConfigError(
                f"policy {self._name!r}: its chat template cannot be used with tools: {one_line(str(error))}. TRL "
                f"could not train it on tools either. Set `response_template` and a prefix-preserving `chat_template` "
                f"on its tokenizer."
            ) from error

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Tokens of a conversation up to where the model goes on.

        Raises:
            PolicyError: The template cannot show it.
        """
        try:
            encoded = self.tokenizer.apply_chat_template(
                [_as_text(messages)],
                tools=list(tools) or None,  # some templates write their words on tools also for none
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                **self._options,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise self._refuse(error) from error

        return list(encoded["input_ids"][0])

    def render_next(self, messages: Sequence[Message]) -> list[int]:
        """Tokens that follow a reply of the model: what was said since, up to where the model goes on.

        Raises:
            PolicyError: The template cannot show it.
        """
        before: list[dict[str, Any]] = [{"role": "user", "content": "dummy"}, {"role": "assistant", "content": ""}]
        if messages[0]["role"] == "tool":
            # Under the tool's own name: some templates write it from the call, not from the result.
            function = {"name": messages[0]["name"], "arguments": {}}
            before[1]["tool_calls"] = [{"type": "function", "function": function}]

        try:
            prefix = self._render_whole(before)
            whole = self._render_whole([*before, *_as_text(messages)], add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError) as error:
            raise self._refuse(error) from error

        # The reply ends with the end of its turn; what templates write after that, such as a line break, is missing.
        ends = [position for position, token in enumerate(prefix) if token == self.tokenizer.eos_token_id]
        prefix = prefix[: ends[-1] + 1] if ends else prefix

        if whole[: len(prefix)] != prefix:
            raise PolicyError(
                f"policy {self._name!r}: its chat template writes a reply otherwise once something follows it, so the "
                f"conversation cannot go on from the tokens that were sampled. Use a prefix-preserving template."
            )

        return whole[len(prefix) :]

    def parse(
        self, ids: Sequence[int], *, prefix: Sequence[int], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, Any], list[str]]:
        """The message in a reply's tokens, and what is wrong with calls in it that cannot be made.

        Text that only looks like a call is text, as in training.
        """
        parsed = parse_response(self.tokenizer, list(ids), prefix=list(prefix), tools=list(tools) or None)
        message: dict[str, Any] = {"role": "assistant", "content": parsed.get("content") or ""}
        thoughts = next((parsed[key] for key in _THOUGHTS if isinstance(parsed.get(key), str)), "")
        calls, malformed = [], []

        for call in parsed.get("tool_calls") or []:
            function = call.get("function", call)
            if isinstance(function["arguments"], dict):
                calls.append({"type": "function", "function": dict(function)})
            else:
                kind = type(function["arguments"]).__name__
                malformed.append(one_line(f"{function['name']}: the arguments are a {kind}, not an object"))

        if thoughts:
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = calls
        return message, malformed

    def encode_reply(self, text: str, *, is_finished: bool) -> list[int]:
        """Tokens of a reply that came as text, with the end of its turn where it was finished."""
        ids, end = list(self.tokenizer(text, add_special_tokens=False)["input_ids"]), self.tokenizer.eos_token_id
        return [*ids, end] if is_finished and ids[-1:] != [end] else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text that a tokenizer makes these tokens of, with its first token left out where it adds that itself."""
        added = self.tokenizer("")["input_ids"]
        skipped = len(added) if added and list(ids[: len(added)]) == list(added) else 0
        return str(self.tokenizer.decode(list(ids[skipped:]), skip_special_tokens=False))

    def _render_whole(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> list[int]:
        ids = self.tokenizer.apply_chat_template(
            list(messages),
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            chat_template=self._template,
            return_dict=False,
            **self._options,
        )
        return list(ids)

    def _refuse(self, error: Exception) -> PolicyError:
        return PolicyError(
            f"policy {self._name!r}: its chat template cannot show the conversation: {one_line(str(error))}."
        )


def _as_text(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with text as their content, as templates of text models have it.

    Raises:
        PolicyError: There are images.
    """
    return [{**message, "content": _join(message.get("content"))} for message in messages]


def _join(content: object) -> object:
    if not isinstance(content, list):
        return content
    if any(not isinstance(block, Mapping) or block.get("type") != "text" for block in content):
        raise PolicyError(
            "the conversation holds an image, and this policy reads text only. Leave images out of the source with "
            "images='drop', or serve a model that sees behind an OpenAI-compatible endpoint."
        )

    return "\n".join(str(block.get("text", "")) for block in content)
