"""Which tools a source's tasks may call: those all tasks share, and those of the tasks that are probed.

Decides which tool specifications the policy is shown, and that an environment which only its terminal tool
scores is refused. What a specification means is decided in `multiors.ors.tools`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from multiors.errors import SourceError
from multiors.ors.discovery import MAX_CONCURRENT_REQUESTS, requests, translate_errors, unwrap_single_error
from multiors.ors.sessions.runtime import Runtime
from multiors.ors.sessions.session import Secrets, SessionTimeouts, open_probe, secret_values
from multiors.ors.target import Endpoint
from multiors.ors.text import one_line

__all__ = ["fetch_tools"]


async def fetch_tools(
    runtime: Runtime,
    endpoint: Endpoint,
    *,
    label: str,
    split: str,
    probe_indices: Sequence[int],
    secrets: Secrets | None,
    timeouts: SessionTimeouts,
) -> list[Mapping[str, Any]]:
    """The environment's tool specifications: those all tasks share, and those of the probed tasks, by first appearance.

    Each probed task costs one short session; all are open at once.

    Raises:
        SourceError: The environment is scored by its `@terminal` tool, or has no tools.
    """
    with translate_errors(label, endpoint, timeouts.open_s), anyio.fail_after(timeouts.open_s):
        async with requests(runtime, endpoint) as request:
            listing = await request("GET", endpoint.path("/tools"))
        shared = _read_specs(listing)

    _refuse_terminal(listing, label)

    if listing.get("supports_score_group"):
        warnings.warn(
            f"source {label!r}: this environment can also score a group's rollouts together, which is not done; only "
            f"the rewards of its tools count.",
            stacklevel=2,
        )

    listings = await _probe_tasks(runtime, endpoint, label, split, probe_indices, secrets, timeouts)
    specs = _merge_specs(listings or [shared], label)

    if not specs:
        raise SourceError(f"source {label!r}: the environment offers no tools, so nothing could score a rollout.")

    return specs


async def _probe_tasks(
    runtime: Runtime,
    endpoint: Endpoint,
    label: str,
    split: str,
    indices: Sequence[int],
    secrets: Secrets | None,
    timeouts: SessionTimeouts,
) -> list[Sequence[Mapping[str, Any]]]:
    specs_by_index: dict[int, Sequence[Mapping[str, Any]]] = {}
    failures: list[str] = []
    limiter = anyio.CapacityLimiter(MAX_CONCURRENT_REQUESTS)

    async def probe(index: int) -> None:
        async with limiter:
            try:
                with translate_errors(label, endpoint, timeouts.open_s, secrets=secret_values(secrets)):
                    listing = await open_probe(
                        runtime, endpoint, split=split, task_index=index, secrets=secrets, timeouts=timeouts
                    )
                    specs = _read_specs(listing)
            except SourceError as error:
                failures.append(f"task {index}: {error}")
                return
        _refuse_terminal(listing, label)
        specs_by_index[index] = specs

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

    return [specs_by_index[index] for index in sorted(specs_by_index)]


def _read_specs(listing: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    specs: object = listing["tools"]

    if not isinstance(specs, list) or not all(isinstance(spec, dict) for spec in specs):
        raise TypeError("the listed tools are not a list of objects")

    return specs


def _refuse_terminal(listing: Mapping[str, Any], label: str) -> None:
    terminal = listing.get("terminal_tool")

    if terminal:
        name = one_line(str(terminal.get("name")))
        raise SourceError(
            f"source {label!r}: this environment is scored by its terminal tool {name!r}, which receives the final "
            f"message when a rollout ends. That is not supported yet, and every rollout would stay unscored. Remove "
            f"the source, or give the environment an ordinary tool that scores."
        )


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
