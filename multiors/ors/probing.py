"""Which tools a source's tasks may call: those all tasks share, and those of the tasks that are probed.

Decides which tool specifications the policy is shown, and which tool takes its last message. What a specification means
is decided in `multiors.ors.tools`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio

from multiors.errors import SourceError
from multiors.ors.discovery import MAX_CONCURRENT_REQUESTS, requests, translate_errors, unwrap_single_error
from multiors.ors.remarks import Say, warn
from multiors.ors.rollouts.blueprint import TerminalTool
from multiors.ors.sessions.options import SessionOptions
from multiors.ors.sessions.runtime import Runtime
from multiors.ors.sessions.session import open_probe
from multiors.ors.target import Endpoint
from multiors.ors.text import one_line

__all__ = ["ToolListing", "fetch_tools"]


@dataclass(frozen=True, slots=True)
class ToolListing:
    """What an environment lists."""

    specs: Sequence[Mapping[str, Any]]
    """Of the tools that the policy is shown, in order of first appearance."""

    terminal: TerminalTool | None
    """None: there is none."""

    message_blocks: tuple[str, ...] | None = None
    """Kinds of blocks that it takes in messages. None: its server is older than messages with roles."""

    scores_groups: bool = False
    """Whether it compares the rollouts of a group."""


async def fetch_tools(
    runtime: Runtime,
    endpoint: Endpoint,
    options: SessionOptions,
    *,
    label: str,
    probe_indices: Sequence[int],
    say: Say = warn,
) -> ToolListing:
    """The environment's tools: those all tasks share, and those of the probed tasks.

    Each probed task costs one short session; all are open at once. What is odd about them is said to `say`.

    Raises:
        SourceError: The environment has no tools, nor a terminal one; or there is a toolset, and no task could be
            probed for its tools.
    """
    timeout_s = options.timeouts.open_s

    with translate_errors(label, endpoint, timeout_s), anyio.fail_after(timeout_s):
        async with requests(runtime, endpoint) as request:
            listing = await request("GET", endpoint.path("/tools"))
        shared = _read_listing(listing)

    listings = await _probe_tasks(runtime, endpoint, options, label, probe_indices, say)
    specs = _merge_specs(listings or {-1: shared}, label, say)
    terminal = next((each.terminal for each in (shared, *listings.values()) if each.terminal is not None), None)

    if not specs and terminal is None:
        raise SourceError(f"source {label!r}: the environment offers no tools, so nothing could score a rollout.")

    shown = [spec for spec in specs if terminal is None or spec.get("name") != terminal.name]
    return replace(shared, specs=shown, terminal=terminal)


async def _probe_tasks(
    runtime: Runtime, endpoint: Endpoint, options: SessionOptions, label: str, indices: Sequence[int], say: Say
) -> dict[int, ToolListing]:
    """The tool listing of each task, by index, in order."""
    listing_by_index: dict[int, ToolListing] = {}
    failures: dict[int, SourceError] = {}
    limiter = anyio.CapacityLimiter(MAX_CONCURRENT_REQUESTS)

    async def probe(index: int) -> None:
        async with limiter:
            try:
                with translate_errors(label, endpoint, options.timeouts.open_s, secrets=options.hidden):
                    listing = await open_probe(runtime, endpoint, options, task_index=index)
                    listing_by_index[index] = _read_listing(listing)
            except SourceError as error:
                failures[index] = error

    with unwrap_single_error():
        async with anyio.create_task_group() as group:
            for index in indices:
                group.start_soon(probe, index)

    if failures and options.toolset is not None:
        raise next(iter(failures.values()))

    if failures:
        index, error = next(iter(failures.items()))
        say(
            f"source {label!r}: the tools of {len(failures)} of {len(indices)} probed tasks could not be read, so "
            f"tools that only these tasks have are missing (task {index}: {error})."
        )

    return dict(sorted(listing_by_index.items()))


def _read_listing(listing: Mapping[str, Any]) -> ToolListing:
    specs: object = listing["tools"]

    if not isinstance(specs, list) or not all(isinstance(spec, dict) for spec in specs):
        raise TypeError("the listed tools are not a list of objects")

    terminal = listing.get("terminal_tool")

    blocks = listing.get("message_block_types")
    kinds = tuple(kind for kind in blocks if isinstance(kind, str)) if isinstance(blocks, list) else None
    scores_groups = listing.get("supports_score_group") is True

    if not terminal:
        return ToolListing(specs, None, kinds, scores_groups)

    name, argument = terminal["name"], terminal.get("arg")

    if not isinstance(name, str) or not (argument is None or isinstance(argument, str)):
        raise TypeError("the terminal tool has no name, or an argument that is no name")

    return ToolListing(specs, TerminalTool(name, argument), kinds, scores_groups)


def _merge_specs(listings: Mapping[int, ToolListing], label: str, say: Say) -> list[Mapping[str, Any]]:
    """Each tool once, by name; that some tasks differ from others is said."""
    spec_by_name: dict[str, Mapping[str, Any]] = {}
    tasks_by_name: defaultdict[str, list[int]] = defaultdict(list)
    different: dict[str, int] = {}

    for index, listing in listings.items():
        for spec in listing.specs:
            name = str(spec.get("name"))
            tasks_by_name[name].append(index)
            if spec_by_name.setdefault(name, spec) != spec:
                different.setdefault(name, index)

    for name, index in different.items():
        say(
            f"source {label!r}: tool {one_line(name)!r} has different parameters in different tasks (first in task "
            f"{index}); the policy is shown those of the first, and the environment refuses what it does not take."
        )

    partial = {name: tasks for name, tasks in tasks_by_name.items() if len(set(tasks)) < len(listings)}

    if partial:
        name, tasks = next(iter(partial.items()))
        say(
            f"source {label!r}: {len(partial)} tools are not in all of the {len(listings)} probed tasks; "
            f"{one_line(name)!r}, for one, only in {tasks[:5]}. The policy is shown them in every task; where a task "
            f"lacks one, the environment refuses its call. Tasks of one kind make a source of their own (indices=...)."
        )

    return list(spec_by_name.values())
