"""One short episode of a source, played as training plays it: open a session, make one call, close.

Decides which tool is called and what an answer to made-up arguments says about the environment. Nothing is submitted to
a terminal tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from multiors.checks.arguments import make_arguments
from multiors.checks.findings import Level, Notebook
from multiors.errors import SessionError, SourceError
from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.rollouts.factory import EnvironmentFactory
from multiors.ors.tools import BoundTool
from multiors.ors.tools.wording import json_words
from multiors.records import Episode, StepRecord, UnscoredReason

__all__ = ["play_probe"]

_LEVEL_BY_FAILURE: Mapping[UnscoredReason, Level] = {
    UnscoredReason.BAD_CALL: "note",  # the arguments were made up
    UnscoredReason.TOOL_ERROR: "warning",  # and code may fail on them that does not fail on a policy's
}


def play_probe(blueprint: Blueprint, specs: Mapping[str, Mapping[str, Any]], task_index: int, notes: Notebook) -> None:
    """Play one episode and write down how it went. Blocks; not to be called on the runtime's loop.

    Args:
        blueprint: Of the source.
        specs: Its tools by their name on the server, as it sent them.
        task_index: The task that is played.
        notes: Where the finding is written.
    """
    environment = EnvironmentFactory(replace(blueprint, images="show"))()
    tool = _choose_tool(blueprint)

    try:
        environment.reset(task_index=task_index)

        if tool is not None:
            given = make_arguments(specs[tool.wire_name].get("input_schema"))
            names = {parameter.wire_name: parameter.name for parameter in tool.parameters}
            getattr(environment, tool.name)(**{names[name]: value for name, value in given.items() if name in names})
    except (SessionError, SourceError):
        pass  # what went wrong is in the episode
    finally:
        episode = environment._episode()
        environment._close()

    _write(episode, notes)


def _choose_tool(blueprint: Blueprint) -> BoundTool | None:
    """The first tool that needs no arguments, else the first. None: there are only terminal ones."""
    without = [tool for tool in blueprint.tools if not any(parameter.required for parameter in tool.parameters)]
    return next(iter([*without, *blueprint.tools]), None)


def _write(episode: Episode, notes: Notebook) -> None:
    step = episode.steps[-1] if episode.steps else None
    facts = {
        "task_index": episode.task_index,
        "opening_ms": None if episode.opening_s is None else round(episode.opening_s * 1000, 1),
        "tool": None if step is None else step.tool,
        "arguments": None if step is None else dict(step.arguments),
        "call_ms": None if step is None else round(step.duration_s * 1000, 1),
        "reward": None if step is None else step.reward,
        "finished": episode.finished,
        "failure": None if step is None or step.failure is None else step.failure.value,
        "error": episode.error,
    }

    if not episode.opened:
        notes.write("probe", "error", f"task {episode.task_index}: {episode.error}.", **facts)
        return

    opened = f"task {episode.task_index} opened in {facts['opening_ms']:g} ms"

    if step is None:
        notes.write("probe", "ok", f"{opened}; there is nothing to call but a terminal tool.", **facts)
        return

    level: Level = "ok" if step.failure is None else _LEVEL_BY_FAILURE.get(step.failure, "error")
    notes.write("probe", level, f"{opened}; {_describe(step, episode.error)}.", **facts)


def _describe(step: StepRecord, error: str | None) -> str:
    call = f"{step.tool}({json_words(dict(step.arguments))})"

    if step.failure is UnscoredReason.BAD_CALL:
        return f"{call} was refused, which made-up arguments may be: {step.output}"
    if step.failure is not None:
        return f"{call} failed, {step.failure.value}: {error}"

    reward = "no reward" if step.reward is None else f"reward {step.reward:g}"
    return (
        f"{call} took {step.duration_s * 1000:.1f} ms, {reward}{', and finished the episode' if step.finished else ''}"
    )
