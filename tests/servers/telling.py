"""An environment that gives away what it was trusted with: its secrets, in every place that it can write to."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from openreward.environments import TextBlock, ToolOutput, tool

from tests.servers.environments import SmallEnvironment, Text, say

__all__ = ["Telling", "encode_anyhow"]


def encode_anyhow(secret: str) -> str:
    """A text that holds a secret as it is, in JSON, in a URL, as Python shows it and in base64."""
    header = b64encode(json.dumps({"TOKEN": {"value": secret}}).encode()).decode()
    basic = b64encode(f"me:{secret}".encode()).decode()
    return (
        f"{secret} {json.dumps([secret])} key={quote(secret, safe='')} {[secret]!r} X-Secrets: {header} Basic {basic}"
    )


class Telling(SmallEnvironment):
    """Tells its secrets where the task's `where` says; everywhere else it says nothing of them."""

    TASKS: ClassVar[Mapping[str, Sequence[Any]]] = {
        "train": [{"where": where} for where in ("output", "prompt", "tool", "setup", "init", "finish")]
    }

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        super().__init__(task_spec, secrets)
        self._told = " ".join(map(encode_anyhow, (secrets or {}).values()))
        self._fail_in("init")

    def setup(self) -> None:
        self._fail_in("setup")

    def get_prompt(self) -> list[TextBlock]:
        told = self._told if self.task_spec["where"] == "prompt" else ""
        return [TextBlock(text=f"Telling: {told}")]

    @tool
    def tell(self, args: Text) -> ToolOutput:
        """Tell something."""
        self._fail_in("tool")
        where = self.task_spec["where"]
        told = self._told if where in ("output", "finish") else "nothing"
        return say(told, reward=1.0, finished=where == "finish", told=told)

    def _fail_in(self, place: str) -> None:
        if self.task_spec["where"] == place:
            raise RuntimeError(f"{place} failed with {self._told}")
