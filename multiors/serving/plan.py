"""What is to be served and where: what the command line asked for, and what the process of the server is told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

__all__ = ["DEFAULT_NUM_TASKS", "MAX_NUM_TASKS", "MAX_SEED", "ServePlan"]

DEFAULT_NUM_TASKS = 1000
MAX_NUM_TASKS = 2**20
"""Of a split: each task has a seed of its own, and seeds of generators have 32 bits."""

MAX_SEED = 2**11 - 1
"""2 splits and 2^20 tasks leave 11 bits."""


@dataclass(frozen=True)
class ServePlan:
    """What one server serves."""

    environments: tuple[str, ...]
    """`quickstart`, `reasoning-gym` or `module:Class`, in the order in which they were asked for."""

    datasets: tuple[str, ...]
    """Generators of reasoning-gym, by name."""

    num_tasks: int
    """Tasks of each split of a generator."""

    seed: int
    """Decides the tasks of generators: 0 <= seed <= MAX_SEED."""

    num_levels: int | None
    """So many levels of a generator at most, from the easiest. None: all that it has."""

    answers: Literal["tool", "message"]
    """How tasks of generators are answered: by a call of a tool, or by the last message."""

    host: str
    port: int
    """0: any that is free."""

    as_json: bool
    """Whether the server says in JSON what it serves."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServePlan:
        fields = json.loads(text)
        return cls(**fields | {name: tuple(fields[name]) for name in ("environments", "datasets")})
