"""Environments that use what ORS has beyond tools and text: roles, groups, toolsets, secrets, images."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from openreward.environments import ImageBlock, TextBlock, ToolOutput, terminal, tool
from openreward.environments.types import GroupCandidate, Message, ToolCallBlock, ToolResultBlock

from tests.servers.environments import SmallEnvironment, Text, say

__all__ = ["Dialogue", "FlakyGrader", "Judged", "Pictures", "Sandboxed", "Secretive", "Silent", "png"]


class Dialogue(SmallEnvironment):
    """A prompt with a system message and an earlier exchange; the task's word is asked for in the last message."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {
        "train": [{"target": word, "shows": "turns"} for word in ("oak", "ash", "elm", "fir")],
        "calls": [{"target": word, "shows": "calls"} for word in ("oak", "ash")],
        "system": [{"target": word, "shows": "system"} for word in ("oak", "ash")],
    }

    def get_messages(self) -> list[Message]:
        system = Message(role="system", blocks=[TextBlock(text="You repeat words.")])
        asked = Message(role="user", blocks=[TextBlock(text=f"Say {self.task_spec['target']}.")])
        if self.task_spec["shows"] == "system":
            return [system, asked]
        if self.task_spec["shows"] == "calls":
            call = ToolCallBlock(id="1", name="repeat", input={"text": "yew"})
            result = ToolResultBlock(tool_call_id="1", blocks=[TextBlock(text="yew")])
            return [
                system,
                Message(role="user", blocks=[TextBlock(text="Say yew.")]),
                Message(role="assistant", blocks=[call]),
                Message(role="user", blocks=[result]),
                asked,
            ]
        return [
            system,
            Message(role="user", blocks=[TextBlock(text="Hello."), TextBlock(text="Who are you?")]),
            Message(role="assistant", blocks=[TextBlock(text="An echo.")]),
            asked,
        ]

    @tool
    def repeat(self, args: Text) -> ToolOutput:
        """Say a text."""
        right = args.text == self.task_spec["target"]
        return say(args.text, reward=float(right), finished=True)


class Silent(SmallEnvironment):
    """Has a system message, and a tool that never scores."""

    def get_messages(self) -> list[Message]:
        system = Message(role="system", blocks=[TextBlock(text="You look and say nothing.")])
        return [system, Message(role="user", blocks=[TextBlock(text="Look around.")])]

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return say("nothing here")


class Judged(SmallEnvironment):
    """Compares the rollouts of a group by the length of their last words; the task says how the comparison goes.

    The tool `draft` scores nothing, `mark` scores 0.25, `crash` raises.
    """

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {
        "train": [{"judge": "well", "n": n} for n in range(4)],
        "raises": [{"judge": "raises", "n": n} for n in range(4)],
        "too_few": [{"judge": "too_few", "n": n} for n in range(2)],
        "one_nan": [{"judge": "one_nan", "n": n} for n in range(2)],
    }
    num_comparisons: ClassVar[int] = 0

    @tool
    def draft(self, args: Text) -> ToolOutput:
        """Write a draft."""
        return say(f"draft: {args.text}")

    @tool
    def mark(self) -> ToolOutput:
        """Have a quarter of a point."""
        return say("marked", reward=0.25)

    @tool
    def crash(self) -> ToolOutput:
        """Raise."""
        raise RuntimeError("the pen broke")

    def score_group(self, candidates: Sequence[GroupCandidate]) -> list[float]:
        if self.task_spec["judge"] == "raises":
            raise RuntimeError("the judge is asleep")
        scores = [float(len(_last_words(candidate))) for candidate in candidates]
        if self.task_spec["judge"] == "one_nan":
            scores[-1] = float("nan")
        return scores[:-1] if self.task_spec["judge"] == "too_few" else scores


def _last_words(candidate: GroupCandidate) -> str:
    texts = [
        block.text
        for message in candidate.messages
        if message.role == "assistant"
        for block in message.blocks
        if block.type == "text"
    ]
    return texts[-1] if texts else ""


class _Sandbox:
    async def run(self, command: str) -> tuple[str, int]:
        return f"ran {command}", 0


class Sandboxed(SmallEnvironment):
    """Has what a toolset of the SDK needs, and one tool of its own."""

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        super().__init__(task_spec, secrets)
        self.sandbox = _Sandbox()

    @tool
    def submit(self) -> ToolOutput:
        """Finish."""
        return say("done", reward=1.0, finished=True)


class Secretive(SmallEnvironment):
    """Tells the names and values of the secrets it was given."""

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        super().__init__(task_spec, secrets)
        self._given = secrets or {}

    @tool
    def tell(self) -> ToolOutput:
        """Tell all secrets."""
        return say(json.dumps(self._given, sort_keys=True, default=str), reward=1.0)


def png(colour: tuple[int, int, int], *, size: tuple[int, int] = (4, 4)) -> str:
    """A picture of one colour, as base64."""
    from io import BytesIO

    from PIL import Image

    written = BytesIO()
    Image.new("RGB", size, colour).save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()


class Pictures(SmallEnvironment):
    """Shows a red picture between words in its prompt, and in the answers of its tools; a split says where.

    `prompt`: both, `tool`: in answers only, `only`: a prompt of nothing else, `broken`: bytes that are no picture.
    """

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {
        split: [{"shows": split, "n": n} for n in range(2)] for split in ("prompt", "tool", "only", "broken")
    }

    def get_prompt(self) -> list[TextBlock | ImageBlock]:
        picture = ImageBlock(data=png((255, 0, 0)), mimeType="image/png")
        shows = self.task_spec["shows"]
        if shows == "only":
            return [picture]
        if shows == "tool":
            return [TextBlock(text="Look.")]
        if shows == "broken":
            picture = ImageBlock(data=base64.b64encode(b"no picture").decode(), mimeType="image/png")
        return [TextBlock(text="before"), picture, TextBlock(text="after")]

    @tool
    def look(self) -> ToolOutput:
        """Look at a picture."""
        picture = ImageBlock(data=png((0, 0, 255)), mimeType="image/png")
        return ToolOutput(blocks=[TextBlock(text="It is blue:"), picture], reward=1.0)

    @tool
    def stare(self) -> ToolOutput:
        """Look at a picture without words."""
        return ToolOutput(blocks=[ImageBlock(data=png((0, 0, 255)), mimeType="image/png")], reward=0.5)

    @tool
    def squint(self) -> ToolOutput:
        """Look at a picture that is none."""
        return ToolOutput(blocks=[ImageBlock(data="bm8gcGljdHVyZQ==", mimeType="image/png")], reward=1.0)


class FlakyGrader(SmallEnvironment):
    """Grades the last message, and breaks over it."""

    @tool
    @terminal
    def grade(self, args: Text) -> ToolOutput:
        """Grade the answer."""
        raise RuntimeError(f"the grader broke over {args.text!r}")
