"""Messages as OpenAI-compatible endpoints write them, both ways.

Decides what of an endpoint's answer is the reply, its thoughts and its calls, and how a conversation is sent back.
Nothing that an endpoint sends is trusted to be of its documented type. Knows no HTTP.

What goes back is what came: the content, the thoughts under the name they came with, the calls and their ids. Which of
the thoughts a model still reads is its chat template's decision, as in training; those of models that think between
calls read them until the next message of the user.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from multiors.evaluation.policies.policy import Message
from multiors.ors.text import one_line

__all__ = [
    "Answer",
    "AnswerError",
    "Continuation",
    "read_answer",
    "read_continuation",
    "split_thoughts",
    "write_messages",
]

_THOUGHTS = ("reasoning_content", "reasoning")


class AnswerError(ValueError):
    """An endpoint's answer holds no reply; the text says what it holds instead."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint answered."""

    text: str
    """The content as it came; thoughts that no parser took out are still in it."""

    thoughts: str
    thoughts_name: str
    """The field that the thoughts came in. Empty: none did."""

    calls: Sequence[Mapping[str, Any]]
    """Readable ones, as TRL has them, each with its `id`."""

    malformed: Sequence[str]
    unread: str
    """What the unreadable calls say, for the policy to see what it wrote."""

    is_truncated: bool
    num_prompt_tokens: int | None
    num_sampled_tokens: int | None

    def to_message(self, *, with_thoughts: bool) -> dict[str, Any]:
        """The message as it goes back to the endpoint."""
        content = "\n".join(part for part in (self.text, self.unread) if part)
        message: dict[str, Any] = {"role": "assistant", "content": content}

        if self.thoughts_name and with_thoughts:
            message[self.thoughts_name] = self.thoughts
        if self.calls:
            message["tool_calls"] = [_write_call(call) for call in self.calls]
        return message


@dataclass(frozen=True, slots=True)
class Continuation:
    """How an endpoint went on with a text."""

    text: str
    is_truncated: bool
    num_prompt_tokens: int | None
    num_sampled_tokens: int | None


def read_continuation(body: object) -> Continuation:
    """Read the answer to the completion of a text.

    Raises:
        AnswerError: There is no text in it.
    """
    choice, usage = _read_frame(body)
    text = choice.get("text")

    if not isinstance(text, str):
        raise AnswerError(f"the text of its first choice is {_kind(text)}, not a text")

    return Continuation(
        text=text,
        is_truncated=choice.get("finish_reason") == "length",
        num_prompt_tokens=_read_count(usage.get("prompt_tokens")),
        num_sampled_tokens=_read_count(usage.get("completion_tokens")),
    )


def read_answer(body: object, *, turn: int) -> Answer:
    """Read the answer to a chat completion.

    Args:
        body: Decoded JSON.
        turn: For the ids of calls that came without.

    Raises:
        AnswerError: There is no reply in it.
    """
    choice, usage = _read_frame(body)
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise AnswerError(f"the message of its first choice is {_kind(message)}, not an object")

    text, inner = _read_content(message.get("content"), message.get("refusal"))
    name = next((key for key in _THOUGHTS if isinstance(message.get(key), str) and message[key]), "")
    calls, malformed, unread = _read_calls(message.get("tool_calls"), turn)
    return Answer(
        text=text,
        thoughts=message[name] if name else inner,
        thoughts_name=name,
        calls=calls,
        malformed=malformed,
        unread=unread,
        is_truncated=choice.get("finish_reason") == "length",
        num_prompt_tokens=_read_count(usage.get("prompt_tokens")),
        num_sampled_tokens=_read_count(usage.get("completion_tokens")),
    )


def split_thoughts(text: str) -> tuple[str, str]:
    """Thoughts and answer of a text in which `<think>` marks are left, also where the template wrote the first."""
    before, end, after = text.partition("</think>")

    if end and (before.lstrip().startswith("<think>") or "<think>" not in before):
        return before.strip().removeprefix("<think>").strip(), after.lstrip()
    if not end and before.lstrip().startswith("<think>"):
        return before.strip().removeprefix("<think>").strip(), ""

    return "", text


def write_messages(messages: Sequence[Message], *, open_calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Prompt messages or tool results as they go to the endpoint.

    Args:
        messages: As TRL has them.
        open_calls: The calls of the latest reply. A result without `tool_call_id` answers the first of its name that
            no other answers; one that answers none is told by the user.
    """
    told = [message.get("tool_call_id") for message in messages]
    unanswered = [call for call in open_calls if call["id"] not in told]
    written = []

    for message in messages:
        role, content = message["role"], _write_content(message.get("content"))

        if role != "tool":
            calls = [_write_call(call) for call in message.get("tool_calls") or []]
            written.append({"role": role, "content": content, **({"tool_calls": calls} if calls else {})})
            continue

        name, call_id = message.get("name"), message.get("tool_call_id")
        if call_id is None:
            call = next((call for call in unanswered if call["function"]["name"] == name), None)
            unanswered = [each for each in unanswered if each is not call]
            call_id = None if call is None else call["id"]
        if call_id is None:
            written.append({"role": "user", "content": content})
        else:
            written.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": content})

    return written


def _write_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _write_content(content: object) -> object:
    """Text, or where there are images a list of parts with each image in its address."""
    if not isinstance(content, list):
        return "" if content is None else content

    parts = [part for part in content if isinstance(part, Mapping)]
    if all(part.get("type") == "text" for part in parts):
        return "\n".join(str(part.get("text", "")) for part in parts)

    return [
        {"type": "image_url", "image_url": {"url": _encode(part["image"])}} if part.get("type") == "image" else part
        for part in parts
    ]


def _encode(image: Any) -> str:
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _read_frame(body: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The first choice of an answer, and what it says of tokens."""
    if not isinstance(body, Mapping):
        raise AnswerError(f"it is {_kind(body)}, not an object")

    choices, usage = body.get("choices"), body.get("usage")
    if not isinstance(choices, list) or not choices:
        problem = f" and the error {json.dumps(body['error'])}" if body.get("error") else ""
        raise AnswerError(f"it has no choices{problem}")

    return choices[0] if isinstance(choices[0], Mapping) else {}, usage if isinstance(usage, Mapping) else {}


def _read_content(content: object, refusal: object) -> tuple[str, str]:
    """The text of a message's content, and the thoughts of those that come in parts."""
    if content is None:
        return (refusal if isinstance(refusal, str) else ""), ""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise AnswerError(f"the content of its message is {_kind(content)}, not a text")

    texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
    thinking = [part["thinking"] for part in content if part.get("type") == "thinking" and "thinking" in part]
    return "".join(texts), "".join(each if isinstance(each, str) else _read_content(each, None)[0] for each in thinking)


def _read_calls(calls: object, turn: int) -> tuple[list[dict[str, Any]], list[str], str]:
    if calls is None:
        return [], [], ""
    if not isinstance(calls, list):
        raise AnswerError(f"the tool_calls of its message are {_kind(calls)}, not a list")

    read, malformed, unread = [], [], []
    for position, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None

        if not isinstance(name, str) or not name:
            malformed.append(f"call number {position + 1} names no tool")
            continue

        value, problem = _read_arguments(arguments)
        if problem:
            malformed.append(one_line(f"{name}: {problem}"))
            unread.append(f"{name} {arguments}" if isinstance(arguments, str) else name)
            continue

        call_id = call.get("id")
        call_id = call_id if isinstance(call_id, str) and call_id else f"call_{turn}_{position}"
        read.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": value}})

    return read, malformed, "\n".join(unread)


def _read_arguments(arguments: object) -> tuple[dict[str, Any], str]:
    """The arguments of a call, and what is wrong with them. An empty text is no arguments, as some servers write it."""
    if arguments is None or arguments == "":
        return {}, ""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return {}, f"the arguments are no JSON ({error})"

    if not isinstance(arguments, dict):
        return {}, f"the arguments are {_kind(arguments)}, not an object"
    return arguments, ""


def _read_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _kind(value: object) -> str:
    """What a JSON value is, in words."""
    if isinstance(value, bool):
        return "a boolean"
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "something else")
