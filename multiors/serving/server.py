"""openreward's server with the environments of a plan, in this process, until it is told to stop."""

from __future__ import annotations

import errno
import inspect
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvicorn
from openreward.environments import Environment, Server

from multiors.errors import ConfigError
from multiors.quickstart.environments import ENVIRONMENTS
from multiors.serving.announcement import Served, announce
from multiors.serving.generators import open_generator
from multiors.serving.gym import GeneratorEnvironment, make_environment
from multiors.serving.own import find_environment, keep_apart
from multiors.serving.plan import ServePlan

__all__ = ["serve"]

_BACKLOG = 1024
_STOP_TIMEOUT_S = 3
"""For requests under way; then sessions are torn down."""


def serve(plan: ServePlan, say: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM, and tear down every session that is open then.

    Args:
        plan: What is served.
        say: Takes what is served and where, once the server answers.

    Raises:
        ConfigError: An environment cannot be served, or the address cannot be had.
        KeyboardInterrupt: SIGINT came.
    """
    with _listen(plan.host, plan.port) as listener:
        environments = keep_apart(_find_environments(plan))
        _check_names(environments)
        try:
            app = Server(environments).app
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the environments cannot be served: {error}") from error

        async def describe() -> str:
            served = [await _describe(each) for each in environments]
            return announce(_find_url(listener), served, as_json=plan.as_json)

        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=_STOP_TIMEOUT_S)
        _AnnouncingServer(config, describe, say).run(sockets=[listener])


class _AnnouncingServer(uvicorn.Server):
    """Says what it serves once it answers."""

    def __init__(
        self, config: uvicorn.Config, describe: Callable[[], Awaitable[str]], say: Callable[[str], object]
    ) -> None:
        super().__init__(config)
        self._describe = describe
        self._say = say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        text = await self._describe()
        await super().startup(sockets)
        if self.started:
            self._say(text)


def _find_environments(plan: ServePlan) -> list[type[Environment]]:
    found: list[type[Environment]] = []
    for name in plan.environments:
        if name == "quickstart":
            found += ENVIRONMENTS.values()
        elif name == "reasoning-gym":
            found += [
                make_environment(
                    open_generator(dataset, num_tasks=plan.num_tasks, seed=plan.seed, num_levels=plan.num_levels),
                    plan.answers,
                )
                for dataset in plan.datasets
            ]
        else:
            found.append(find_environment(name))
    return found


def _check_names(environments: Sequence[type[Environment]]) -> None:
    names = [each.name().lower() for each in environments]
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        raise ConfigError(
            f"several environments are called {repeated[0]!r} in small letters, and a server tells them apart by that. "
            f"Serve one of them, or rename one."
        )


def _listen(host: str, port: int) -> socket.socket:
    """Have the address before anything else: whoever else has it is known at once."""
    try:
        # The protocol is named, or asyncio leaves Nagle's delay on, and each answer waits 40 ms.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(f"--host {host!r} is not an address: {error.strerror}.") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_describe_bind_failure(error, host, port)) from error
    return listener


def _describe_bind_failure(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use. Stop what uses it, or pass another one with --port; 0 is any free one."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host!r} is not an address of this machine."
    return f"port {port} of {host} cannot be used: {os.strerror(error.errno or 0)}. Pass another one with --port."


def _find_url(listener: socket.socket) -> str:
    """An address at which this machine reaches the server."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _describe(environment: type[Environment]) -> Served:
    name = environment.name().lower()
    tools = environment.list_tools()
    levels = list(environment.generator.levels) if issubclass(environment, GeneratorEnvironment) else None
    try:
        splits = [getattr(split, "name", split) for split in environment._list_splits_cached()]
        tasks = {split: await _count_tasks(environment, split) for split in splits}
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"environment {name!r} cannot list its tasks: {type(error).__name__}: {error}. Mend list_splits() or "
            f"list_tasks(), or num_tasks() where it has that."
        ) from error
    return Served(
        name,
        tasks,
        [each.name for each in tools.tools],
        None if tools.terminal_tool is None else tools.terminal_tool.name,
        levels,
        None if levels is None else [0.0, 1.0],
    )


async def _count_tasks(environment: type[Environment], split: str) -> int:
    count: Any = environment.num_tasks(split)
    return int(await count if inspect.isawaitable(count) else count)
