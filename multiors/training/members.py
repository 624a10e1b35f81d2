"""The sources of a mix, this library's and others' alike: how they get into it, and what a mix reads off them."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from multiors.errors import ConfigError
from multiors.mixing import (
    CircuitBreaker,
    MixRules,
    Plan,
    Schedule,
    SourceRows,
    StoppingStrategy,
    Weights,
    count_slots,
    list_tasks,
    resolve_shares,
)
from multiors.mixing.curricula import Curriculum, SourceTasks, chain
from multiors.ors.sessions.limits import Cap, describe_socket_need
from multiors.ors.sessions.secrets import Secrets, check_secrets
from multiors.ors.source import ORSSource
from multiors.rewards import SourceReward
from multiors.training.others import TRLSource, check_slots
from multiors.training.readers import EpisodeReader, SourceReader
from multiors.training.settings import BatchShape, check_max_sessions
from multiors.training.table import TABLE_COLUMNS

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = [
    "check_group_scores",
    "check_mix",
    "check_sessions",
    "check_shared_secrets",
    "count_tasks",
    "describe_tasks",
    "log_plan",
    "make_eval_rows",
    "make_reader",
    "make_rows",
    "make_rules",
    "name_sources",
]

logger = logging.getLogger("multiors.training")

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def name_sources(sources: object, *, cap: Cap, secrets: Secrets | None) -> dict[str, ORSSource | TRLSource]:
    """The sources of a mix from what the user passed: ours under their names, TRL's as ours, any other by its slots.

    Args:
        sources: By name.
        cap: How much all of them may do at once.
        secrets: Of the mix.

    Raises:
        ConfigError: There is no source, or a name or a secret cannot be used.
        SourceError: One has no slots.
    """
    if not isinstance(sources, Mapping) or not sources:
        raise ConfigError("a mix needs at least one source. Pass {'name': ORSSource(...), ...}.")

    if secrets is not None:
        check_secrets(secrets, "the mix")

    return {
        _check_name(name): _as_source(name, source, mix_cap=cap, mix_secrets=secrets)
        for name, source in sources.items()
    }


def check_mix(
    sources: Mapping[str, ORSSource | TRLSource],
    *,
    seed: int,
    num_slots: int | None,
    cap: Cap,
    weights: Weights | None,
    stopping_strategy: StoppingStrategy,
    tools: str,
) -> None:
    """Check everything about a mix that can be known without a server.

    Args:
        sources: By name.
        seed: Of the run.
        num_slots: Slots that were asked for.
        cap: Limits of the mix.
        weights: Of the mix.
        stopping_strategy: What decides the length of the schedule.
        tools: The mode.

    Raises:
        ConfigError: An argument is wrong.
    """
    counts: dict[str, tuple[object, int]] = {
        "seed": (seed, 0),
        "num_slots": (num_slots, 1),
        "max_sessions": (cap.max_sessions, 1),
        "max_concurrent_calls": (cap.max_concurrent_calls, 1),
    }

    for name, (value, least) in counts.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise ConfigError(f"{name}={value!r} is no whole number from {least} upwards.")

    resolve_shares(
        {name: source.weight for name, source in sources.items()}, dict.fromkeys(sources, 1), weights=weights
    )
    count_slots(
        [1 / len(sources)] * len(sources),
        [1] * len(sources),
        stopping_strategy=stopping_strategy,
        num_slots=num_slots,
        prompts_per_batch=None,
    )

    others = [name for name, source in sources.items() if not isinstance(source, ORSSource)]

    if tools == "union" and others:
        raise ConfigError(
            f"tools='union' needs ORSSource or OpenRewardSpec sources, and {others} are no ORS environments. Use "
            f"tools='separate'."
        )


def check_shared_secrets(sources: Mapping[str, ORSSource | TRLSource], secrets: Secrets | None) -> None:
    """Warn of secrets of the mix that go to no source, perhaps for a typing error."""
    asked = {
        name
        for source in sources.values()
        if isinstance(source, ORSSource)
        for name in source.blueprint.options.secrets or ()
    }
    unasked = [name for name in secrets or () if name not in asked]

    if unasked:
        warnings.warn(
            f"the mix's secrets {unasked} go to no source: none names them, and no environment is known to require "
            f"them. Name them where they belong: ORSSource(..., secrets={{{unasked[0]!r}: None}}).",
            stacklevel=4,
        )


def count_tasks(source: ORSSource | TRLSource) -> int:
    """How many tasks a source has."""
    return len(source.task_list.indices if isinstance(source, ORSSource) else source.task_indices)


def make_eval_rows(sources: Mapping[str, ORSSource | TRLSource]) -> dict[str, Dataset]:
    """Every task of each source once, by source."""
    return {name: list_tasks(make_rows(name, source)) for name, source in sources.items()}


def make_rows(name: str, source: ORSSource | TRLSource) -> SourceRows:
    """What a source contributes to the rows of a mix."""
    if isinstance(source, ORSSource):
        tasks = source.task_list
        return SourceRows(name, tasks.indices, tasks.specs, avg_rewards=tasks.avg_rewards)

    return SourceRows(name, source.task_indices, source.rows.specs, source.rows.prompts)


def describe_tasks(name: str, source: ORSSource | TRLSource, reward: SourceReward) -> SourceTasks:
    """What a curriculum may know of a source; of its tasks only their number, where it does not choose among them."""
    known = SourceTasks(name, count_tasks(source), reward.outcome_range, digest=source.task_digest)

    if source.task_curriculum is None:
        return known

    rows = make_rows(name, source)
    return replace(known, specs=rows.tasks, avg_rewards=rows.avg_rewards)


def make_rules(
    sources: Mapping[str, ORSSource | TRLSource],
    curriculum: Curriculum | Sequence[Curriculum] | None,
    circuit_breaker: CircuitBreaker | None,
) -> MixRules:
    """What changes a mix, from what the user passed.

    Raises:
        ConfigError: Something is of another kind.
    """
    return MixRules(
        circuit_breaker,
        None if curriculum is None else chain(curriculum),
        {name: source.task_curriculum for name, source in sources.items() if source.task_curriculum is not None},
    )


def make_reader(name: str, source: ORSSource | TRLSource) -> SourceReader:
    """How the rollouts of a source are read."""
    if isinstance(source, ORSSource):
        return EpisodeReader(name, source.identity, source.find_task)

    return source.make_reader()


def check_group_scores(sources: Mapping[str, ORSSource | TRLSource], rewards: Mapping[str, SourceReward]) -> None:
    """Check that groups are compared by environments that can do so; one that nobody asks to is warned about.

    Raises:
        ConfigError: A source has `GroupScore()` among its parts, and its environment compares no groups.
    """
    for name, source in sources.items():
        can_compare = isinstance(source, ORSSource) and source.scores_groups

        if rewards[name].compares_groups and not can_compare:
            raise ConfigError(
                f"source {name!r}: its reward has GroupScore(), and its environment does not score groups. Leave "
                f"GroupScore out of SourceReward(parts=...)."
            )

        if isinstance(source, ORSSource) and not rewards[name].compares_groups:
            source.remark_group_scores()


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in TABLE_COLUMNS:
        raise ConfigError(
            f"source name {name!r} cannot be used: names have letters, digits, '-' and '_', and are none of "
            f"{sorted(TABLE_COLUMNS)}, which the trainer's tables use. Choose another."
        )

    return name


def _as_source(name: str, source: Any, *, mix_cap: Cap, mix_secrets: Secrets | None) -> ORSSource | TRLSource:
    if isinstance(source, ORSSource):
        return source.named(name, mix_cap=mix_cap, mix_secrets=mix_secrets)

    if type(source).__name__ != "OpenRewardSpec":
        if isinstance(source, TRLSource):
            return source.named(name)
        check_slots(name, source)
        return TRLSource(source).named(name)

    try:
        return ORSSource.from_openreward_spec(source).named(name, mix_cap=mix_cap, mix_secrets=mix_secrets)
    except AttributeError as error:
        warnings.warn(
            f"source {name!r}: this version of TRL keeps the options of OpenRewardSpec elsewhere ({error}), so only "
            f"its three slots are used. Lost: routing by env_name, safe tool names, reasons of failures, closing of "
            f"sessions. Pass an ORSSource instead.",
            stacklevel=5,
        )
        return TRLSource(source).named(name)


def check_sessions(
    sources: Mapping[str, ORSSource | TRLSource],
    mix_cap: Cap,
    shape: BatchShape,
    schedule: Schedule,
    *,
    may_give_all_slots: bool,
    evaluated_per_process: int,
) -> None:
    """Check the limits of sessions against the rollouts that a batch may have.

    Args:
        sources: By name.
        mix_cap: Of the mix.
        shape: The trainer's batches.
        schedule: What is drawn in each.
        may_give_all_slots: Whether a source may get the slots of all others, whatever the schedule says.
        evaluated_per_process: Rollouts of a batch that is evaluated on one process, perhaps of one source; 0 if there
            is none.

    Raises:
        ConfigError: A limit is too low.
    """
    own = {f"source {name!r}": source for name, source in sources.items() if isinstance(source, ORSSource)}
    limits = {holder: source.max_sessions for holder, source in own.items()} | {"the mix": mix_cap.max_sessions}

    if not any(limits.values()):
        return

    most_slots = schedule.most_slots(len(sources), prompts_per_batch=shape.prompts_per_batch)
    num_rollouts = {
        f"source {name!r}": shape.rollouts_per_process
        if may_give_all_slots
        else min(num_slots * shape.num_generations, shape.rollouts_per_process)
        for name, num_slots in zip(sources, most_slots, strict=True)
    }
    num_rollouts["the mix"] = shape.rollouts_per_process
    check_max_sessions(limits, {holder: max(number, evaluated_per_process) for holder, number in num_rollouts.items()})


def log_plan(plan: Plan, shape: BatchShape) -> None:
    """Say what a training run will draw, and what in it may surprise."""
    logger.info("%s", plan)

    for source in plan.sources:
        if source.slots == 0:
            logger.warning("source %r gets no slot: the run is too short for its share.", source.name)

    socket_need = describe_socket_need(shape.rollouts_per_process)

    if socket_need:
        logger.warning("%s", socket_need)
