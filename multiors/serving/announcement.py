"""What a server says once it answers: what it serves, for people or machines, and a run file for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from multiors.tables import align

__all__ = ["Served", "announce"]


@dataclass(frozen=True)
class Served:
    """One environment of a server."""

    name: str

    tasks: dict[str, int]
    """Their number, by split."""

    tools: list[str]
    """Those that every task has."""

    terminal_tool: str | None
    """Which tool judges the last message. None: none does."""

    levels: list[int] | None
    """From the easiest; the field `level` of each task's specification. None: tasks say nothing of levels."""

    reward_range: list[float] | None
    """Lowest and highest reward. None: not known."""


def announce(url: str, environments: Sequence[Served], *, as_json: bool) -> str:
    """The text, with a line break at its end."""
    if as_json:
        return json.dumps({"url": url, "environments": [asdict(each) for each in environments]}) + "\n"
    rows = [
        (each.name, split, str(num_tasks), _describe_levels(each), _describe_tools(each))
        for each in environments
        for split, num_tasks in each.tasks.items()
    ]
    count = "1 environment" if len(environments) == 1 else f"{len(environments)} environments"
    lines = [
        f"serving {count} at {url}",
        "",
        *align(("environment", "split", "tasks", "levels", "tools"), rows),
        "",
        "# a run file for it",
        *_write_run_file(url, environments).splitlines(),
        "",
        "Ctrl-C stops it.",
    ]
    return "\n".join(lines) + "\n"


def _describe_levels(served: Served) -> str:
    return "-" if served.levels is None else str(len(served.levels))


def _describe_tools(served: Served) -> str:
    terminal = [] if served.terminal_tool is None else [f"{served.terminal_tool} (the last message)"]
    return ", ".join([*served.tools, *terminal]) or "-"


def _write_run_file(url: str, environments: Sequence[Served]) -> str:
    sources = {each.name: _describe_source(url, each) for each in environments}
    text: str = yaml.safe_dump({"sources": sources}, sort_keys=False, default_flow_style=None, width=120)
    return text


def _describe_source(url: str, served: Served) -> dict[str, Any]:
    source: dict[str, Any] = {"target": url, "env_name": served.name}
    if "train" not in served.tasks:
        source["split"] = next(iter(served.tasks))
    if served.reward_range is not None:
        source["reward"] = {"range": served.reward_range}
    if served.levels is not None and len(served.levels) > 1:
        source["task_curriculum"] = {"name": "ladder", "field": "level"}
    return source
