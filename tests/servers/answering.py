"""A small HTTP server whose every request goes to one function, for what no well-behaved server sends."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.servers.child import until_terminated

__all__ = ["answer_with"]


def answer_with(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> Callable[[list[socket.socket]], Awaitable[None]]:
    """A coroutine function that serves on the given sockets until its process is told to end."""

    async def serve(sockets: list[socket.socket]) -> None:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.SockSite(runner, sockets[0]).start()
        await until_terminated()
        await runner.cleanup()

    return serve
