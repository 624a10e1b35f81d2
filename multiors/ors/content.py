"""What an environment shows: blocks of text and images, and the messages of a prompt.

Decides how they become what a chat template takes, and what a policy that reads text only is given instead. Knows no
server and no trainer.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from multiors.errors import SessionError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "Block",
    "ImageBlock",
    "Message",
    "Prompt",
    "ToolCallBlock",
    "ToolResultBlock",
    "describe_images",
    "has_images",
    "join_text",
    "put_before",
    "read_blocks",
    "read_messages",
    "show_blocks",
]

_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """A picture as it came from the server."""

    data: str
    """Base64."""

    mime_type: str

    def decode(self) -> Image:
        """The picture.

        Raises:
            SessionError: It cannot be read.
        """
        from PIL import Image as pictures

        try:
            image = pictures.open(BytesIO(base64.b64decode(self.data)))
            image.load()
        except (binascii.Error, OSError, ValueError, SyntaxError, pictures.DecompressionBombError) as error:
            raise SessionError(f"the environment sent an image that cannot be read ({type(error).__name__})") from error

        return image.convert("RGB")


@dataclass(frozen=True, slots=True)
class ToolCallBlock:
    """A tool call in a prompt, as an example of one."""

    name: str
    arguments: str
    """JSON text of an object."""


@dataclass(frozen=True, slots=True)
class ToolResultBlock:
    """The result of a tool call in a prompt."""

    blocks: tuple[str | ImageBlock, ...]


Block = str | ImageBlock


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a prompt."""

    role: str
    """"system", "user" or "assistant"."""

    blocks: tuple[Block | ToolCallBlock | ToolResultBlock, ...]

    @property
    def shown(self) -> tuple[Block, ...]:
        """Its text and images."""
        return tuple(block for block in self.blocks if isinstance(block, str | ImageBlock))


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an environment begins an episode with; equal prompts are equal values."""

    messages: tuple[Message, ...]

    @property
    def last(self) -> tuple[Block, ...]:
        """Text and images of the last message, which a trainer adds to its own."""
        return self.messages[-1].shown if self.messages else ()

    @property
    def all_blocks(self) -> tuple[Block, ...]:
        """Text and images of all messages, those in the results of tool calls too."""
        blocks: list[Block] = []

        for block in (block for message in self.messages for block in message.blocks):
            if isinstance(block, ToolResultBlock):
                blocks += block.blocks
            elif not isinstance(block, ToolCallBlock):
                blocks.append(block)

        return tuple(blocks)

    @property
    def is_empty(self) -> bool:
        """Whether it says and shows nothing."""
        return not any(self.all_blocks)

    @property
    def leading(self) -> tuple[Message, ...]:
        """The messages before the last one."""
        return self.messages[:-1]

    def flatten(self) -> tuple[Block, ...]:
        """All messages as one, each under its role; a single user message as it is."""
        if len(self.messages) < 2 and all(message.role == "user" for message in self.messages):
            return self.last

        blocks: list[Block] = []

        for message in self.messages:
            images = [block for block in message.shown if isinstance(block, ImageBlock)]
            blocks += [f"[{message.role}]\n{join_text(message.shown)}\n", *images]

        return tuple(blocks)

    def without_images(self) -> Prompt:
        """The same prompt without its images."""
        return Prompt(tuple(Message(message.role, _drop_images(message.blocks)) for message in self.messages))


def read_blocks(blocks: Iterable[Mapping[str, Any]]) -> tuple[Block, ...]:
    """Text and images of a wire list of blocks; kinds that are not known are left out.

    Raises:
        KeyError, TypeError, AttributeError: It is not what ORS defines.
    """
    return tuple(
        ImageBlock(_text(block["data"]), _text(block["mimeType"])) if block["type"] == "image" else _text(block["text"])
        for block in blocks
        if block.get("type") in ("text", "image")
    )


def read_messages(messages: Sequence[Mapping[str, Any]]) -> Prompt:
    """A wire list of messages as a prompt. Reasoning is left out: policies are not shown that of others.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is not what ORS defines.
    """
    read = []

    for message in messages:
        if message["role"] not in _ROLES:
            raise ValueError(f"a message has the role {message['role']!r}")

        blocks: list[Block | ToolCallBlock | ToolResultBlock] = []

        for block in message["blocks"]:
            if block.get("type") == "tool_call":
                blocks.append(ToolCallBlock(_text(block["name"]), json.dumps(dict(block["input"]))))
            elif block.get("type") == "tool_result":
                blocks.append(ToolResultBlock(read_blocks(block["blocks"])))
            else:
                blocks += read_blocks([block])

        read.append(Message(message["role"], tuple(blocks)))

    return Prompt(tuple(read))


def has_images(blocks: Iterable[Block]) -> bool:
    """Whether a block is an image."""
    return any(isinstance(block, ImageBlock) for block in blocks)


def join_text(blocks: Iterable[Block]) -> str:
    """The texts, joined by newlines; empty ones and images are left out."""
    return "\n".join(block for block in blocks if isinstance(block, str) and block)


def show_blocks(blocks: Sequence[Block]) -> str | list[dict[str, Any]]:
    """What a chat template takes as content: text, or where there are images a list of blocks in order.

    Raises:
        SessionError: An image cannot be read.
    """
    if not has_images(blocks):
        return join_text(blocks)

    return [
        {"type": "image", "image": block.decode()} if isinstance(block, ImageBlock) else {"type": "text", "text": block}
        for block in blocks
        if block
    ]


def describe_images(blocks: Sequence[Block]) -> str:
    """The text, with each image as a remark in its place: what a record keeps."""
    return "\n".join(
        f"[image: {block.mime_type}, {len(block.data) * 3 // 4:,} bytes]" if isinstance(block, ImageBlock) else block
        for block in blocks
        if block
    )


def put_before(prompt: list[dict[str, Any]], messages: Sequence[Message]) -> None:
    """Put an environment's messages before the last message of a row's prompt, in place and at most once.

    A system message of the environment's comes first, and joins that of the row: chat templates take one.

    Raises:
        SessionError: An image cannot be read.
    """
    shown = [turn for message in messages for turn in _show_message(message)]
    own = prompt[:-1]

    if all(any(_holds(turn, other) for other in own) for turn in shown):
        return  # nothing to put, or a row that is played again

    system = [turn for turn in (*own[:1], *shown[:1]) if turn["role"] == "system"]
    rest = [turn for turn in (*own, *shown) if turn not in system]

    if len(system) == 2 and all(isinstance(turn["content"], str) for turn in system):
        system = [{"role": "system", "content": "\n\n".join(turn["content"] for turn in system)}]

    prompt[:-1] = [*system, *rest]


def _show_message(message: Message) -> list[dict[str, Any]]:
    """One turn as chat messages: results of tool calls are messages of their own."""
    turns: list[dict[str, Any]] = []
    calls = [
        {"type": "function", "function": {"name": block.name, "arguments": json.loads(block.arguments)}}
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]

    for block in message.blocks:
        if isinstance(block, ToolResultBlock):
            turns.append({"role": "tool", "content": show_blocks(block.blocks)})

    if calls:
        turns.append({"role": message.role, "content": show_blocks(message.shown), "tool_calls": calls})
    elif message.shown or not turns:
        turns.append({"role": message.role, "content": show_blocks(message.shown)})

    return turns


def _holds(turn: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether `other` says what `turn` says, perhaps after something of its own."""
    if isinstance(turn["content"], str) and isinstance(other["content"], str):
        return bool(turn["role"] == other["role"] and other["content"].endswith(turn["content"]))

    return turn == other


def _drop_images(blocks: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        ToolResultBlock(_drop_images(block.blocks)) if isinstance(block, ToolResultBlock) else block
        for block in blocks
        if not isinstance(block, ImageBlock)
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a block of text holds no text")

    try:
        value.encode()
    except UnicodeEncodeError:
        # Halves of surrogate pairs, which JSON can carry, are no characters: no tokenizer takes them.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    return value
