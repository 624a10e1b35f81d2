"""The preflight: everything about a mix that can be found out before it is trained on.

`findings` are what comes out; `looking` asks one source's servers, `probe` plays one episode of it with made-up
`arguments`; `prompts` measures what the policy will read; `mix` looks at batches, limits and the schedule. Nothing here
raises for what a server does, and what is wrong with one source hides nothing of the others; only the plan of the mix
needs the tasks of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.to_thread

from multiors.checks.findings import CheckFinding, CheckReport, Notebook
from multiors.checks.looking import Look, look_at
from multiors.checks.mix import check_plan, check_random_prompts, check_shared_tools, check_training
from multiors.checks.others import look_at_other
from multiors.checks.probe import play_probe
from multiors.checks.prompts import check_prompts, read_limits
from multiors.errors import ConfigError
from multiors.mixing.curricula import SourceTasks
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.source import ORSSource
from multiors.spec import MultiOpenRewardSpec
from multiors.training import TRLSource

__all__ = ["CheckFinding", "CheckReport", "check"]


def check(
    spec: MultiOpenRewardSpec,
    *,
    training: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    probe: bool = False,
    timeout_s: float = 10.0,
) -> CheckReport:
    """Look at everything about a mix that can be looked at before training.

    All sources are asked at once. The spec stays as it is: what was fetched for the check is not kept.

    Args:
        spec: The mix.
        training: Fields of `GRPOConfig`, as they would be passed to `spec.training_arguments`. None: what depends on
            them is not checked.
        tokenizer: The policy's, of transformers; then prompts are measured in tokens. None: in characters.
        probe: Whether one episode of each source is played, with one tool call.
        timeout_s: Seconds for each thing that is asked of a source.

    Returns:
        All findings. Whatever is wrong with sources or settings is one of them, and not an exception.

    Raises:
        ConfigError: An argument is wrong.
    """
    given: object = spec

    if not isinstance(given, MultiOpenRewardSpec):
        raise ConfigError(f"check() looks at a mix, and got a {type(given).__name__}. Pass a MultiOpenRewardSpec.")
    if training is not None and not isinstance(training, Mapping):
        raise ConfigError(f"training is a {type(training).__name__}. Pass a mapping of GRPOConfig fields.")
    if tokenizer is not None and not hasattr(tokenizer, "apply_chat_template"):
        raise ConfigError(
            f"tokenizer is a {type(tokenizer).__name__}, which has no apply_chat_template. Pass a tokenizer or "
            f"processor of transformers, as AutoTokenizer.from_pretrained(...) loads it."
        )

    seconds: object = timeout_s

    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < math.inf:
        raise ConfigError(f"timeout_s={timeout_s!r} is not a positive number of seconds.")

    notebooks = {name: Notebook(name) for name in (*spec.sources, None)}
    notes = notebooks[None]
    usable = check_training(spec, training, notes)
    looks, tasks = get_runtime().run(_look_at_all, spec, notebooks, probe, timeout_s)

    limits = read_limits(tokenizer, None if usable is None else usable.args)
    blueprints = {name: look.blueprint for name, look in looks.items() if look.blueprint is not None}
    shared_tools = check_shared_tools(blueprints, notes) if spec._tools == "union" else None
    check_prompts(looks.values(), tokenizer, limits, shared_tools=shared_tools)
    check_random_prompts(usable, [name for name, look in looks.items() if look.has_random_prompt], notes)
    check_plan(spec, usable, tasks, notebooks)

    return CheckReport(tuple(finding for each in notebooks.values() for finding in each.findings), tuple(spec.sources))


async def _look_at_all(
    spec: MultiOpenRewardSpec, notebooks: Mapping[str | None, Notebook], probe: bool, timeout_s: float
) -> tuple[dict[str, Look], dict[str, SourceTasks | None]]:
    """What is known of each source of this library, and of each source's tasks. None: they could not be counted."""
    looks: dict[str, Look] = {}
    tasks: dict[str, SourceTasks | None] = {}

    async def look(name: str, source: ORSSource | TRLSource) -> None:
        reward_range = spec._rewards[name].outcome_range

        if not isinstance(source, ORSSource):
            rows = await look_at_other(source, notebooks[name], timeout_s=timeout_s)
            tasks[name] = None if rows is None else SourceTasks(name, len(rows.indices), reward_range, specs=rows.specs)
            return

        found = looks[name] = await look_at(source, notebooks[name], timeout_s=timeout_s)
        listed = found.tasks
        tasks[name] = None

        if listed is not None:
            tasks[name] = SourceTasks(
                name, len(listed.indices), reward_range, specs=listed.specs, avg_rewards=listed.avg_rewards
            )

        if probe and found.blueprint is not None and found.prompts:
            first = next(iter(found.prompts))
            await anyio.to_thread.run_sync(play_probe, found.blueprint, found.specs, first, found.notes)

    async with anyio.create_task_group() as group:
        for name, source in spec.sources.items():
            group.start_soon(look, name, source)

    return {name: looks[name] for name in spec.sources if name in looks}, {name: tasks[name] for name in spec.sources}
