"""What the platform knows of a catalogue environment besides its tasks: the secrets it requires, how hard tasks were.

Servers that are no platform, and platforms whose address for this is not known, know nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
import anyio
from openreward.api.environments.client import AsyncEnvironment

from multiors.errors import SourceError
from multiors.ors.discovery import ServerAway, translate_errors
from multiors.ors.remarks import Say, warn
from multiors.ors.sessions.runtime import Runtime
from multiors.ors.sessions.session import sdk_environment
from multiors.ors.target import Endpoint

__all__ = ["fetch_average_rewards", "list_required_secrets"]


async def list_required_secrets(
    runtime: Runtime, endpoint: Endpoint, *, label: str, timeout_s: float, say: Say = warn
) -> list[str]:
    """Names of the secrets that an environment requires, as far as the platform says; that it cannot be asked is said.

    Raises:
        SourceError: The platform refused the key, or its answer makes no sense.
    """
    if endpoint.api_url is None:
        return []

    try:
        with translate_errors(label, endpoint, timeout_s, at=endpoint.api_url), anyio.fail_after(timeout_s):
            return await _ask_for_secrets(sdk_environment(runtime, endpoint))
    except ServerAway as error:
        say(f"{error} So it is not known which secrets the environment requires.")
        return []


async def _ask_for_secrets(environment: AsyncEnvironment) -> list[str]:
    try:
        names: object = await environment.list_required_secrets()
    except aiohttp.ClientResponseError as error:
        if error.status == 404:
            return []
        raise

    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("the required secrets are not a list of names")

    return names


async def fetch_average_rewards(
    runtime: Runtime, endpoint: Endpoint, *, label: str, split: str, timeout_s: float
) -> Mapping[int, float]:
    """The mean reward of the rollouts that were logged on the platform for each task of a split, by task index.

    Raises:
        SourceError: This is no platform, or it does not answer.
    """
    if endpoint.api_url is None:
        raise SourceError(
            f"source {label!r}: the server at {endpoint.session_url} keeps no record of how hard its tasks are; the "
            f"platform does, for catalogue names. Leave task_difficulty out."
        )

    with translate_errors(label, endpoint, timeout_s, at=endpoint.api_url), anyio.fail_after(timeout_s):
        rows = await sdk_environment(runtime, endpoint).get_task_difficulty(split=split)
        return {int(row.task_index): float(row.avg_reward) for row in rows if row.avg_reward is not None}
