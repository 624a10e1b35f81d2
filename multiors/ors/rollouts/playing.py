"""An environment played on the runtime's own loop, where nothing may wait: as TRL's trainer plays it, step by step.

Whoever plays thousands of episodes at once does it here; a trainer, which waits for each step, calls the environment
itself. What a session, a reply or a failure means is decided in `environment`, the same for both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from multiors.errors import SessionError
from multiors.ors.faults import OPEN_ERRORS
from multiors.ors.rollouts.ahead import ask
from multiors.ors.rollouts.environment import RolloutEnvironment
from multiors.ors.rollouts.opening import open_now
from multiors.ors.rollouts.showing import Shown
from multiors.ors.sessions.runtime import get_runtime

__all__ = ["call_tool", "can_go_on", "end_episode", "open_episode", "submit_message"]


async def open_episode(environment: RolloutEnvironment, task_index: int, row: list[dict[str, Any]]) -> Shown:
    """Open a session for a task, as `reset` does; what the last message of `row` is continued with.

    Raises:
        SourceError: The prompt has images, and the policy takes none.
    """
    environment._clear(task_index)
    started_s = time.monotonic()

    try:
        session = await open_now(environment._blueprint, task_index)
    except OPEN_ERRORS as error:
        return environment._play_without(error, None, row)

    return environment._play_in(session, row, opening_s=time.monotonic() - started_s)


async def call_tool(environment: RolloutEnvironment, name: str, arguments: Any) -> Shown:
    """Run a tool for the policy, as the environment's method of this name does; what the policy is shown.

    Raises:
        SessionError: There is no such tool, or the call failed; the text is for the policy.
    """
    tool = environment._find_tool(name)

    if tool is None:
        raise SessionError(f"Tool {name} not found.")  # in TRL's words (1.16, grpo_trainer.py)

    made = environment._begin_call(tool, (), arguments if isinstance(arguments, Mapping) else {"": arguments})

    if made is None:
        return environment.last_output

    session, wire_arguments = made
    answer = await ask(session, tool.wire_name, wire_arguments)
    return environment._record_answer(tool.wire_name, wire_arguments, answer)


async def submit_message(environment: RolloutEnvironment, message: str) -> None:
    """Give the environment's terminal tool the policy's last message, if it has one and the episode is not over."""
    answer = environment._start_submission(message)

    if answer is not None:
        await asyncio.wrap_future(answer)
        environment._finish_submission(message, answer)


def can_go_on(environment: RolloutEnvironment) -> bool:
    """Whether a further call can reach the environment."""
    return environment._is_open() and not environment.finished


async def end_episode(environment: RolloutEnvironment) -> None:
    """Close the session and wait for it; what was observed stays readable."""
    session = environment._lease.session
    environment._lease.session = None

    if session is not None:
        await get_runtime().close(session)
