"""What a server offers: which environments, splits and tasks it has.

Decides whether the environment that answers is the one that was asked for, and turns everything that is wrong with a
source into one error before training. Task specifications leave this module as JSON text, exactly as sent: nothing of
them may become a column, a type or a name. Knows no weights and no rollouts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import aiohttp
import anyio
from openreward.api._session.http import AuthenticationError, request_retryable
from openreward.api.environments.client import matrix_sid_provider

from multiors.errors import SourceError
from multiors.ors.faults import ANSWER_ERRORS, NETWORK_ERRORS, explain
from multiors.ors.sessions.runtime import Runtime
from multiors.ors.sessions.session import sdk_environment
from multiors.ors.target import Endpoint
from multiors.ors.text import one_line, show

__all__ = [
    "MAX_CONCURRENT_REQUESTS",
    "ServerAway",
    "Split",
    "TaskList",
    "fetch_environments",
    "fetch_splits",
    "fetch_tasks",
    "find_environment",
    "find_replicas",
    "requests",
    "translate_errors",
    "unwrap_single_error",
]

# Two wanted indices closer than this are fetched in one range: a request costs about as much as this many tasks.
_MAX_GAP = 256
MAX_CONCURRENT_REQUESTS = 16
_MAX_TASKS = 2**48
_NOT_FOUND = (404, 405, 501)

# Takes the method, the path and a JSON body; returns the JSON of the answer.
_Request = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class TaskList:
    """The tasks of a source, in the order in which its schedule positions count them."""

    indices: Sequence[int]
    """The environment's own index of each task."""

    specs: Sequence[str] | None
    """JSON text of each task specification. None: only their number was asked for."""

    avg_rewards: Sequence[float | None] | None = None
    """What the rollouts of each task that the platform knows earned on average; None for a task without any. None: that
    was not asked for."""

    def digest(self) -> tuple[str, str | None]:
        """Of the indices, and of the specifications. None: only the number of tasks was asked for."""
        specs = None if self.specs is None else _digest(self.specs)
        return _digest(map(str, self.indices)), specs


def _digest(texts: Iterable[str]) -> str:
    found = hashlib.sha256()
    for text in texts:
        found.update(b"%d:%s" % (len(text), text.encode("utf-8", "surrogatepass")))
    return found.hexdigest()


@dataclass(frozen=True, slots=True)
class Split:
    """A list of tasks that a server has."""

    name: str
    kind: str
    """What it is for, as the server says: "train", "validation", "test"."""


class ServerAway(SourceError):
    """A server that did not answer; an equal one may."""


@contextmanager
def translate_errors(
    label: str, endpoint: Endpoint, timeout_s: float, *, secrets: Sequence[str] = (), at: str | None = None
) -> Iterator[None]:
    """Turn what HTTP and the SDK raise into a `SourceError` that names the source and the remedy.

    What a server says is shown without the source's key and `secrets`, and not chained, because a traceback would show
    it whole. `at` is the address that was asked. None: the endpoint's.
    """
    at = f"source {label!r}: the server at {at or endpoint.session_url}"

    hidden = [endpoint.api_key or "", *secrets]

    try:
        yield
    except SourceError:
        raise
    except TimeoutError:
        raise ServerAway(
            f"{at} did not answer within {timeout_s:g} s. Check that it is up and not overloaded."
        ) from None
    except AuthenticationError:
        raise SourceError(
            f"{at} refused the key, or got none. Pass api_key=... to this source, or set OPENREWARD_API_KEY for a "
            f"catalogue name."
        ) from None
    except aiohttp.ClientResponseError as error:
        raise SourceError(f"{at} answered HTTP {error.status}: {show(str(error.message), hidden)}.") from None
    except NETWORK_ERRORS as error:
        told = show(explain(error), hidden).rstrip(".")
        raise ServerAway(f"{at} cannot be used: {told}. Check the address and that it is up.") from None
    except ANSWER_ERRORS as error:
        raise SourceError(f"{at} does not speak ORS: {type(error).__name__}: {show(str(error), hidden)}.") from None


@asynccontextmanager
async def requests(runtime: Runtime, endpoint: Endpoint) -> AsyncIterator[_Request]:
    """Requests that share one routing session, which a platform needs to pick a pod; other servers need none."""
    environment = sdk_environment(runtime, endpoint)

    async def request(method: str, path: str, body: Mapping[str, Any] | None = None, *, sid: str | None = None) -> Any:
        return await request_retryable(
            environment.client,
            method,
            path,
            expect_json=True,
            token=endpoint.api_key,
            json=None if body is None else dict(body),
            sid=sid,
            deployment=endpoint.deployment,
        )

    if not endpoint.is_platform:
        yield request
        return

    async with matrix_sid_provider(environment.client, endpoint.deployment, endpoint.api_key) as sid:
        yield partial(request, sid=sid)


async def find_environment(runtime: Runtime, endpoint: Endpoint, *, label: str, timeout_s: float) -> Endpoint:
    """The endpoint with its environment settled against the server's own list.

    A server with one environment needs no name. A server without a list is taken at its word; its task replies and
    its tools are checked all the same.

    Raises:
        SourceError: The environment is not there, or there are several and none was named.
    """
    names = await fetch_environments(runtime, endpoint, label=label, timeout_s=timeout_s)

    if names is None or (endpoint.is_platform and endpoint.environment is None):
        return endpoint

    shown = [_show(name, endpoint) for name in names]

    if endpoint.environment is None and len(names) != 1:
        raise SourceError(
            f"source {label!r}: the server at {endpoint.session_url} has {len(names)} environments and none was named: "
            f"{shown}. Pass env_name=..."
        )

    if endpoint.environment is not None and endpoint.environment not in names:
        raise SourceError(
            f"source {label!r}: environment {endpoint.environment!r} is not on the server at {endpoint.session_url}, "
            f"which has {shown}. Pass one of these as env_name=..."
        )

    return replace(endpoint, environment=endpoint.environment or names[0])


async def fetch_environments(runtime: Runtime, endpoint: Endpoint, *, label: str, timeout_s: float) -> list[str] | None:
    """Names of a server's environments, in lower case; None where it keeps no such list.

    Raises:
        SourceError: It cannot be asked.
    """
    with translate_errors(label, endpoint, timeout_s), anyio.fail_after(timeout_s):
        async with requests(runtime, endpoint) as request:
            return await _list_environments(request)


async def find_replicas(
    runtime: Runtime, endpoints: Sequence[Endpoint], *, label: str, split: str, timeout_s: float
) -> tuple[Endpoint, ...]:
    """The endpoints of equal servers with their environment settled, those that answer first.

    Servers that do not answer are left out until they do.

    Raises:
        SourceError: No server answers, one has another environment, or their task counts differ.
    """
    found: dict[Endpoint, Endpoint] = {}
    num_tasks: dict[str, int] = {}
    away: dict[Endpoint, ServerAway] = {}

    async def ask(endpoint: Endpoint) -> None:
        try:
            found[endpoint] = await find_environment(runtime, endpoint, label=label, timeout_s=timeout_s)
            if len(endpoints) > 1:
                tasks = await fetch_tasks(
                    runtime,
                    found[endpoint],
                    label=label,
                    split=split,
                    num_tasks=None,
                    indices=None,
                    include_metadata=False,
                    timeout_s=timeout_s,
                )
                num_tasks[endpoint.session_url] = len(tasks.indices)
        except ServerAway as error:
            away[endpoint] = error

    with unwrap_single_error():
        async with anyio.create_task_group() as group:
            for endpoint in endpoints:
                group.start_soon(ask, endpoint)

    live = [endpoint for endpoint in endpoints if endpoint not in away]

    if not live:
        raise away[endpoints[0]]

    if len(set(num_tasks.values())) > 1 or len({found[endpoint].environment for endpoint in live}) > 1:
        raise SourceError(
            f"source {label!r}: its servers are not equal: they have {num_tasks} tasks in split {split!r}. A list of "
            f"targets names copies of one server; make different servers sources of their own."
        )

    for endpoint in away:
        runtime.servers.leave_out(endpoint, label=label)

    settled = [replace(endpoint, environment=found[live[0]].environment) for endpoint in (*live, *away)]
    return tuple(settled)


async def _list_environments(request: _Request) -> list[str] | None:
    """Lower-case names, or None where the server keeps no such list."""
    try:
        names = await request("GET", "/list_environments")
    except aiohttp.ClientResponseError as error:
        if error.status in _NOT_FOUND:
            return None
        raise

    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"/list_environments is not a list of names: {names!r}")

    return [name.lower() for name in names]


async def fetch_splits(runtime: Runtime, endpoint: Endpoint, *, label: str, timeout_s: float) -> list[Split]:
    """The splits of an environment.

    Raises:
        SourceError: They cannot be had.
    """
    with translate_errors(label, endpoint, timeout_s), anyio.fail_after(timeout_s):
        async with requests(runtime, endpoint) as request:
            return _read_splits(await request("GET", endpoint.path("/splits")))


async def fetch_tasks(
    runtime: Runtime,
    endpoint: Endpoint,
    *,
    label: str,
    split: str,
    num_tasks: int | None,
    indices: Sequence[int] | None,
    include_metadata: bool,
    timeout_s: float,
) -> TaskList:
    """Fetch the task list in as few range requests as the wanted indices allow.

    `num_tasks` takes at most so many from the first, `indices` exactly these in this order; both None take all.
    `include_metadata=False` asks for the number of tasks only, at a cost that does not depend on it.

    Raises:
        SourceError: No such split, no tasks, an index out of range, or another environment answered.
    """
    with translate_errors(label, endpoint, timeout_s), anyio.fail_after(timeout_s):
        async with requests(runtime, endpoint) as request:
            fetch = _TaskFetch(request, endpoint, label, split)
            return await fetch.run(num_tasks, indices, include_metadata=include_metadata)


@dataclass(frozen=True, slots=True)
class _TaskFetch:
    request: _Request
    endpoint: Endpoint
    label: str
    split: str

    async def run(self, num_tasks: int | None, indices: Sequence[int] | None, *, include_metadata: bool) -> TaskList:
        if not include_metadata:
            total = await self._count()
            await self._check_not_empty(total)
            self._check_range(indices, total)
            wanted = indices if indices is not None else range(total if num_tasks is None else min(num_tasks, total))
            return TaskList(wanted, None)

        if indices is None:
            specs = await self._fetch_range(0, num_tasks)
            await self._check_not_empty(len(specs))
            return TaskList(range(len(specs)), specs)

        return TaskList(list(indices), await self._fetch_indices(indices))

    async def _fetch_indices(self, indices: Sequence[int]) -> list[str]:
        spec_by_index: dict[int, str] = {}
        limiter = anyio.CapacityLimiter(MAX_CONCURRENT_REQUESTS)

        async def fetch(start: int, stop: int) -> None:
            async with limiter:
                specs = await self._fetch_range(start, stop)
            spec_by_index.update(enumerate(specs, start))

        with unwrap_single_error():
            async with anyio.create_task_group() as group:
                for start, stop in _merge_into_ranges(indices):
                    group.start_soon(fetch, start, stop)

        if any(index not in spec_by_index for index in indices):
            total = await self._count()
            await self._check_not_empty(total)
            self._check_range(indices, total)
            raise ValueError(f"/task_range returned {len(spec_by_index)} tasks of those asked for")

        return [spec_by_index[index] for index in indices]

    async def _fetch_range(self, start: int, stop: int | None) -> list[str]:
        end = {} if stop is None else {"stop": stop}

        try:
            tasks = (await self._post("/task_range", {"split": self.split, "start": start, **end}))["tasks"]
        except aiohttp.ClientResponseError as error:
            if error.status not in _NOT_FOUND:
                raise
            # Servers older than ranges: the whole list, of which the wanted part is kept.
            tasks = (await self._post("/tasks", {"split": self.split}))["tasks"][start:stop]

        return [json.dumps(spec) for spec in tasks]

    async def _count(self) -> int:
        count: object = (await self._post("/num_tasks", {"split": self.split}))["num_tasks"]

        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < _MAX_TASKS:
            raise ValueError("the number of tasks is no number of tasks")

        return count

    async def _post(self, suffix: str, body: Mapping[str, Any]) -> Any:
        try:
            reply = await self.request("POST", self.endpoint.path(suffix), body)
        except aiohttp.ClientResponseError as error:
            if error.status == 400 and "split" in str(error.message).lower():
                raise SourceError(
                    f"source {self.label!r}: split {self.split!r} does not exist; splits on this server: "
                    f"{await self._list_splits()}. Pass split=..."
                ) from None
            raise

        answered = reply.get("env_name", self.endpoint.environment)

        if self.endpoint.environment is not None and str(answered).lower() != self.endpoint.environment:
            raise SourceError(
                f"source {self.label!r}: asked {self.endpoint.session_url} for environment "
                f"{self.endpoint.environment!r}, but {_show(answered, self.endpoint)!r} answered. Check the address "
                f"and env_name=..."
            )

        return reply

    async def _check_not_empty(self, total: int) -> None:
        if total < 1:
            raise SourceError(
                f"source {self.label!r}: split {self.split!r} has no tasks; splits on this server: "
                f"{await self._list_splits()}. Pass split=... or remove the source."
            )

    async def _list_splits(self) -> list[str]:
        splits = _read_splits(await self.request("GET", self.endpoint.path("/splits")))
        return [_show(split.name, self.endpoint) for split in splits]

    def _check_range(self, indices: Sequence[int] | None, total: int) -> None:
        outside = sorted({index for index in indices or () if index >= total})

        if outside:
            raise SourceError(
                f"source {self.label!r}: indices {outside[:5]} are out of range; split {self.split!r} has {total} "
                f"tasks, 0 to {total - 1}. Remove them from indices=..."
            )


def _show(text: object, endpoint: Endpoint) -> str:
    """What a server wrote, as an error may show it: it may have written the key that it was sent."""
    return show(str(text), [endpoint.api_key or ""])


def _read_splits(splits: Sequence[Mapping[str, Any]]) -> list[Split]:
    return [Split(one_line(str(split["name"])), one_line(str(split.get("type", "")))) for split in splits]


def _merge_into_ranges(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Half-open ranges that cover `indices`, small gaps included."""
    ordered = sorted(set(indices))
    start = previous = ordered[0]

    for index in ordered[1:]:
        if index - previous > _MAX_GAP:
            yield start, previous + 1
            start = index
        previous = index

    yield start, previous + 1


@contextmanager
def unwrap_single_error() -> Iterator[None]:
    """Raise the first error of a task group itself: all tasks of a group here fail for the same reason."""
    try:
        yield
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
