"""What one source's servers say when they are asked before training: address, split, tasks, secrets, tools, prompts.

Decides in which order things are asked, what each answer means for a run, and that one failure hides no other. All is
asked as training asks it, of a copy of the source with short deadlines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from multiors.checks.findings import Level, Notebook
from multiors.errors import ConfigError, SourceError
from multiors.ors.content import Prompt
from multiors.ors.discovery import TaskList, fetch_splits, fetch_tasks, translate_errors
from multiors.ors.probing import ToolListing, fetch_tools
from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.rollouts.opening import open_now
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.sessions.secrets import secret_values
from multiors.ors.source import ORSSource
from multiors.ors.target import Endpoint
from multiors.ors.tools import BoundTool
from multiors.rewards import as_source_reward

__all__ = ["Look", "look_at"]

T = TypeVar("T")

_MAX_PROBES = 3
# How `multiors.ors.tools.schemas` marks what the policy is told in words instead of types.
_IN_WORDS = ": in words only: "


@dataclass
class Look:
    """What is known of a source after it was looked at."""

    source: ORSSource
    """The copy that was asked."""

    notes: Notebook
    remarks: list[str]
    """What the copy would have warned of, not yet written down."""

    tasks: TaskList | None = None
    """The tasks that are drawn from. None: they could not be had."""

    specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The tools that the policy is shown, by their name on the server, as it sent them."""

    blueprint: Blueprint | None = None
    """What opens its sessions. None: its tools could not be had."""

    prompts: dict[int, Prompt] = field(default_factory=dict)
    """By task index."""

    has_random_prompt: bool | None = None
    """Whether two sessions of one task gave different prompts. None: there are no two."""


async def look_at(source: ORSSource, notes: Notebook, *, timeout_s: float) -> Look:
    """Ask one source's servers for everything that a run needs of them. Runs on the runtime's loop.

    Args:
        source: Stays as it is.
        notes: Where findings are written, errors of the servers too.
        timeout_s: Seconds for each thing that is asked.
    """
    remarks: list[str] = []
    twin = source.inspected(timeout_s=timeout_s, say=remarks.append)
    look = Look(twin, notes, remarks)
    notes.hide([*secret_values(source._secrets), *secret_values(source._mix_secrets), source._api_key or ""])
    endpoints = await _ask(notes, "server", _find_servers, twin, notes)

    if endpoints is None:
        return look

    async with anyio.create_task_group() as group:
        group.start_soon(_ask, notes, "split", _look_at_split, twin, endpoints[0], notes)
        tasks = await _ask(notes, "tasks", _look_at_tasks, look, endpoints[0])

    await _ask(notes, "tools", _look_at_tools, look, tasks is not None)

    if tasks is not None and look.blueprint is not None:
        async with anyio.create_task_group() as group:
            group.start_soon(_ask, notes, "tools", _compare_tools, look, tasks)
            group.start_soon(_look_at_prompts, look, look.blueprint, tasks)

    return look


async def _ask(notes: Notebook, subject: str, function: Callable[..., Awaitable[T]], *args: Any) -> T | None:
    """The answer. None: there is none, and it was written down why."""
    try:
        return await function(*args)
    except (ConfigError, SourceError) as error:
        notes.write(subject, "error", str(error))
        return None


async def _find_servers(twin: ORSSource, notes: Notebook) -> tuple[Endpoint, ...]:
    endpoints = twin._resolve()
    notes.hide([endpoint.api_key or "" for endpoint in endpoints])
    endpoints = await twin._find_endpoints()
    servers = get_runtime().servers

    for endpoint in endpoints:
        is_live = len(endpoints) == 1 or await servers.is_live(endpoint)
        named = "" if endpoint.environment is None else f", environment {endpoint.environment!r}"
        deployment = f", {endpoint.deployment}" if endpoint.is_platform else ""
        says = "answers" if is_live else "does not answer, and gets no sessions until it does"
        notes.write(
            "server",
            "ok" if is_live else "warning",
            f"{endpoint.session_url} {says}{deployment}{named}.",
            url=endpoint.session_url,
            environment=endpoint.environment,
            deployment=endpoint.deployment if endpoint.is_platform else None,
            answers=is_live,
        )

    return endpoints


async def _look_at_split(twin: ORSSource, endpoint: Endpoint, notes: Notebook) -> None:
    splits = await fetch_splits(get_runtime(), endpoint, label=twin.label, timeout_s=twin._timeouts.open_s)
    kind = next((split.kind for split in splits if split.name == twin.split), None)
    others = [split.name for split in splits if split.name != twin.split]
    facts = {"split": twin.split, "kind": kind, "splits": {split.name: split.kind for split in splits}}

    if kind is None:
        message = f"split {twin.split!r} is none of those that the server names: {others}."
        notes.write("split", "warning", message, **facts)
    elif kind == "test":
        message = f"split {twin.split!r} is for testing: what is trained on cannot be measured with it afterwards."
        notes.write("split", "warning", message, **facts)
    else:
        beside = f"; the server also has {', '.join(map(repr, others))}" if others else ""
        notes.write("split", "ok", f"{twin.split!r}, of type {kind!r}{beside}.", **facts)


async def _look_at_tasks(look: Look, endpoint: Endpoint) -> TaskList:
    twin = look.source
    tasks = await twin.fetch_tasks()
    whole = await fetch_tasks(
        get_runtime(),
        endpoint,
        label=twin.label,
        split=twin.split,
        num_tasks=None,
        indices=None,
        include_metadata=False,
        timeout_s=twin._timeouts.open_s,
    )
    used, in_split = len(tasks.indices), len(whole.indices)
    look.tasks = tasks
    share = f"all {in_split} of the split" if used == in_split else f"{used} of the split's {in_split}"
    look.notes.write("tasks", "ok", f"{share}.", used=used, in_split=in_split)

    if twin._num_tasks is not None and twin._num_tasks > used:
        message = f"num_tasks={twin._num_tasks} were asked for, and the split has {in_split}."
        look.notes.write("tasks", "note", message)

    return tasks


async def _look_at_tools(look: Look, has_tasks: bool) -> None:
    """Where there are no tasks, only the tools that all tasks share."""
    twin, notes = look.source, look.notes
    options = await _ask(notes, "secrets", twin._find_options)
    _write_remarks(look, "secrets")

    if options is None:
        return

    notes.hide(options.hidden)

    if options.secrets:
        names = sorted(options.secrets)
        notes.write("secrets", "ok", f"sent with each session: {', '.join(names)}.", names=names)

    tools = await twin.fetch_tools(_pick(twin._probe_indices()) if has_tasks else [])
    _write_remarks(look, "tools")
    look.blueprint = twin.blueprint
    look.specs = {spec["name"]: spec for spec in _listing(twin).specs}
    names = [tool.name for tool in tools]
    facts = {"tools": [_describe(tool) for tool in tools]}
    notes.write("tools", "ok", f"{', '.join(names) or 'none that the policy calls'}.", **facts)
    _note_renames(tools, notes)

    for tool in tools:
        if tool.losses:
            level: Level = "note" if all(_IN_WORDS in loss for loss in tool.losses) else "warning"
            notes.write("schema", level, f"tool {tool.name!r}: {'; '.join(tool.losses)}.", losses=tool.losses)

    _note_scoring(look, look.blueprint)


def _note_scoring(look: Look, blueprint: Blueprint) -> None:
    """How its rollouts are scored besides by the rewards of tools that the policy calls."""
    notes, is_asked = look.notes, as_source_reward(look.source.reward).compares_groups

    if blueprint.terminal is not None:
        terminal = blueprint.terminal.name
        message = f"the policy's last message is graded, by the tool {terminal!r} that it does not see."
        notes.write("scoring", "note", message, terminal=terminal)

    if blueprint.group_blocks is not None and is_asked:
        message = "the environment also compares the rollouts of a group, as GroupScore() asks."
        notes.write("scoring", "ok", message, compares_groups=True)
    elif blueprint.group_blocks is not None:
        message = (
            "the environment can also compare the rollouts of a group, which is not done: only the rewards of its "
            "tools count. reward=SourceReward(parts=[GroupScore()]) has it done."
        )
        notes.write("scoring", "note", message, compares_groups=False)
    elif is_asked:
        message = (
            "its reward has GroupScore(), and its environment does not compare the rollouts of a group. Leave "
            "GroupScore out of SourceReward(parts=...)."
        )
        notes.write("scoring", "error", message, compares_groups=False)


def _write_remarks(look: Look, subject: str) -> None:
    while look.remarks:
        look.notes.write(subject, "warning", look.remarks.pop(0))


def _listing(twin: ORSSource) -> ToolListing:
    listing: ToolListing = twin._cache["listing"]
    return listing


def _pick(indices: Sequence[int]) -> list[int]:
    """The first, middle and last of many."""
    if len(indices) <= _MAX_PROBES:
        return list(indices)

    return [indices[0], indices[len(indices) // 2], indices[-1]]


def _describe(tool: BoundTool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "on_server": tool.wire_name,
        "parameters": [
            {"name": parameter.name, "on_server": parameter.wire_name, "required": parameter.required}
            for parameter in tool.parameters
        ],
        "losses": tool.losses,
    }


def _note_renames(tools: Sequence[BoundTool], notes: Notebook) -> None:
    renames = {tool.wire_name: tool.name for tool in tools if tool.wire_name != tool.name}
    renames |= {
        f"{tool.wire_name}({parameter.wire_name})": f"{tool.name}({parameter.name})"
        for tool in tools
        for parameter in tool.parameters
        if parameter.wire_name != parameter.name
    }

    if renames:
        listed = ", ".join(f"{theirs!r} as {ours!r}" for theirs, ours in renames.items())
        notes.write("tools", "note", f"shown under other names than the server's: {listed}.", renames=renames)


async def _compare_tools(look: Look, tasks: TaskList) -> None:
    """Whether the last task has the tools that the policy is shown in all of them."""
    twin, index = look.source, tasks.indices[-1]

    if not twin._discover_task_tools or index in _pick(twin._probe_indices()):
        return

    listing = await fetch_tools(
        get_runtime(),
        (await twin._find_endpoints())[0],
        await twin._find_options(),
        label=twin.label,
        probe_indices=[index],
        say=twin._say,
    )
    _write_remarks(look, "tools")
    there = {str(spec.get("name")): spec for spec in listing.specs}
    remedy = "Tasks of one kind make a source of their own (indices=...)."
    differences = {
        "has the tools {}, which the policy is not shown": [name for name in there if name not in look.specs],
        "lacks the tools {}, which the policy is shown": [name for name in look.specs if name not in there],
        "has other parameters for the tools {} than the policy is shown": [
            name for name in there if name in look.specs and there[name] != look.specs[name]
        ],
    }

    for difference, names in differences.items():
        if names:
            message = f"task {index} {difference.format(names)}. {remedy}"
            look.notes.write("tools", "warning", message, task_index=index, tools=names)


async def _look_at_prompts(look: Look, blueprint: Blueprint, tasks: TaskList) -> None:
    """Read the prompt of the first task twice, and that of the last."""
    first, last = tasks.indices[0], tasks.indices[-1]
    prompts: list[tuple[int, Prompt]] = []

    async def read(index: int) -> None:
        prompt = await _read_prompt(look, blueprint, index)
        if prompt is not None:
            prompts.append((index, prompt))

    async with anyio.create_task_group() as group:
        for index in [first, first, *([last] if last != first else [])]:
            group.start_soon(read, index)

    of_first = [prompt for index, prompt in prompts if index == first]
    look.prompts = dict(sorted(prompts, key=lambda each: each[0]))
    look.has_random_prompt = of_first[0] != of_first[1] if len(of_first) == 2 else None


async def _read_prompt(look: Look, blueprint: Blueprint, index: int) -> Prompt | None:
    """None: its session did not open, and it was written down why."""
    runtime, timeout_s, hidden = get_runtime(), blueprint.options.timeouts.open_s, blueprint.options.hidden

    try:
        with translate_errors(blueprint.label, blueprint.endpoints[0], timeout_s, secrets=hidden):
            session = await open_now(blueprint, index)
    except SourceError as error:
        problem = str(error).removeprefix(f"source {blueprint.label!r}: ")
    else:
        prompt = session.prompt
        await runtime.close(session)
        return prompt

    look.notes.write("prompt", "error", f"task {index}: its session did not open: {problem}", task_index=index)
    return None
