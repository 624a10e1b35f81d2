"""What is asked of all sources of a mix at once, before training.

Decides that every source which fails is named, and not only the first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from multiors.errors import ConfigError, SourceError
from multiors.ors.discovery import fetch_environments
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.source import ORSSource
from multiors.ors.target import resolve_endpoint

__all__ = ["find_random_prompts", "list_environments", "prepare_sources"]


def prepare_sources(sources: Sequence[ORSSource]) -> None:
    """Ask every source for its tasks and tools.

    Raises:
        ConfigError: One source is set up wrongly.
        SourceError: One or more sources cannot be used; all of them are named.
    """
    get_runtime().run(_ask_all, sources, ORSSource.prepare)


def find_random_prompts(sources: Sequence[ORSSource]) -> list[str]:
    """The names of those sources that give two sessions of one task different prompts. Costs two sessions a source.

    Raises:
        SourceError: A session did not open.
    """
    random: list[str] = []

    async def ask(source: ORSSource) -> None:
        if await source.has_random_prompt():
            random.append(source.label)

    get_runtime().run(_ask_all, sources, ask)
    return [source.label for source in sources if source.label in random]


def list_environments(url: str, *, timeout_s: float) -> list[str] | None:
    """Names of the environments of a server; None where it keeps no list of them. They are text of the server.

    Raises:
        ConfigError: The address is none.
        SourceError: The server cannot be asked.
    """
    endpoint, runtime = resolve_endpoint(url, label=url), get_runtime()
    return runtime.run(lambda: fetch_environments(runtime, endpoint, label=url, timeout_s=timeout_s))


async def _ask_all(sources: Sequence[ORSSource], ask: Callable[[ORSSource], Awaitable[None]]) -> None:
    errors: list[ConfigError | SourceError] = []

    async def ask_one(source: ORSSource) -> None:
        try:
            await ask(source)
        except (ConfigError, SourceError) as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        for source in sources:
            group.start_soon(ask_one, source)

    if len(errors) == 1:
        raise errors[0]

    if errors:
        raise SourceError("\n".join([f"{len(errors)} sources cannot be used:", *(f"- {error}" for error in errors)]))
