"""Which tools a source's tasks may call: those all tasks share, and those of the tasks that are probed.

Decides which tool specifications the policy is shown, and which tool takes its last message. What a specification means
is decided in `multiors.ors.tools`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from multiors.errors import SourceError
from multiors.ors.discovery import MAX_CONCURRENT_REQUESTS, requests, translate_errors, unwrap_single_error
from multiors.ors.rollouts.blueprint import TerminalTool
from multiors.ors.sessions.runtime import Runtime
from multiors.ors.sessions.session import Secrets, SessionTimeouts, open_probe, secret_values
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


async def fetch_tools(
    runtime: Runtime,
    endpoint: Endpoint,
    *,
    label: str,
    split: str,
    probe_indices: Sequence[int],
    secrets: Secrets | None,
    timeouts: SessionTimeouts,
) -> ToolListing:
    """The environment's tools: those all tasks share, and those of the probed tasks.

    Each probed task costs one short session; all are open at once.

    Raises:
        SourceError: The environment has no tools, nor a terminal one.
    """
    with translate_errors(label, endpoint, timeouts.open_s), anyio.fail_after(timeouts.open_s):
        async with requests(runtime, endpoint) as request:
            listing = await request("GET", endpoint.path("/tools"))
        shared = _read_listing(listing)

    if listing.get("supports_score_group"):
        warnings.warn(
            f"source {label!r}: this environment can also score a group's rollouts together, which is not done; only "
            f"the rewards of its tools count.",
            stacklevel=2,
        )

    listings = await _probe_tasks(runtime, endpoint, label, split, probe_indices, secrets, timeouts)
    specs = _merge_specs([listing.specs for listing in listings or [shared]], label)
    terminal = next((listing.terminal for listing in (shared, *listings) if listing.terminal is not None), None)

    if not specs and terminal is None:
        raise SourceError(f"source {label!r}: the environment offers no tools, so nothing could score a rollout.")

    return ToolListing([spec for spec in specs if terminal is None or spec.get("name") != terminal.name], terminal)


async def _probe_tasks(
    runtime: Runtime,
    endpoint: Endpoint,
    label: str,
    split: str,
    indices: Sequence[int],
    secrets: Secrets | None,
    timeouts: SessionTimeouts,
) -> list[ToolListing]:
    listing_by_index: dict[int, ToolListing] = {}
    failures: list[str] = []
    limiter = anyio.CapacityLimiter(MAX_CONCURRENT_REQUESTS)

    async def probe(index: int) -> None:
        async with limiter:
            try:
                with translate_errors(label, endpoint, timeouts.open_s, secrets=secret_values(secrets)):
                    listing = await open_probe(
                        runtime, endpoint, split=split, task_index=index, secrets=secrets, timeouts=timeouts
                    )
                    listing_by_index[index] = _read_listing(listing)
            except SourceError as error:
                failures.append(f"task {index}: {error}")

    with unwrap_single_error():
        async with anyio.create_task_group() as group:
            for index in indices:
                group.start_soon(probe, index)

    if failures:
        warnings.warn(
            f"source {label!r}: the tools of {len(failures)} of {len(indices)} probed tasks could not be read, so "
            f"tools that only these tasks have are missing ({failures[0]}).",
            stacklevel=2,
        )

    return [listing_by_index[index] for index in sorted(listing_by_index)]


def _read_listing(listing: Mapping[str, Any]) -> ToolListing:
    specs: object = listing["tools"]

    if not isinstance(specs, list) or not all(isinstance(spec, dict) for spec in specs):
        raise TypeError("the listed tools are not a list of objects")

    terminal = listing.get("terminal_tool")

    if not terminal:
        return ToolListing(specs, None)

    name, argument = terminal["name"], terminal.get("arg")

    if not isinstance(name, str) or not (argument is None or isinstance(argument, str)):
        raise TypeError("the terminal tool has no name, or an argument that is no name")

    return ToolListing(specs, TerminalTool(name, argument))


def _merge_specs(listings: Sequence[Sequence[Mapping[str, Any]]], label: str) -> list[Mapping[str, Any]]:
    spec_by_name: dict[str, Mapping[str, Any]] = {}

    for spec in (spec for listing in listings for spec in listing):
        first = spec_by_name.setdefault(str(spec.get("name")), spec)
        if first != spec:
            warnings.warn(
                f"source {label!r}: tool {one_line(str(spec.get('name')))!r} has different parameters in different "
                f"tasks; the policy is shown those of the first.",
                stacklevel=2,
            )

    return list(spec_by_name.values())
