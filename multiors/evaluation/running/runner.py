"""The runner: plays what is left of an evaluation, many episodes at once, and writes each down when it is over.

Decides how much runs at once, when a policy that fails ends the evaluation, and that an interruption loses only the
episodes that were under way. What an episode is, is decided in `episode`; what counts as played, in `folder`. Nothing
of an episode is kept in memory once it is written.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Protocol

import anyio
import anyio.to_thread

from multiors.errors import ConfigError
from multiors.evaluation.folder import EpisodeKey, EvaluationRun, Manifest, begin_folder, find_left
from multiors.evaluation.policies.policy import Policy, PolicyError
from multiors.evaluation.running.episode import Limits, play_episode
from multiors.evaluation.running.sources import EvaluatedSource, prepare_evaluation
from multiors.ors.sessions.runtime import get_runtime
from multiors.records import RolloutRecord
from multiors.rollout_log import RolloutLog

__all__ = ["Watcher", "begun", "check_counts", "evaluate", "make_manifest", "opened", "play_all"]

logger = logging.getLogger("multiors.evaluation")

_PACKAGES = ("multiors", "openreward", "transformers", "trl")
_MOST_POLICY_FAILURES = 20
"""So many failures in a row, without one episode in between that ended: then the policy is away."""

_LEAST_CONCURRENT_EPISODES = 64
_NO_LIMIT = 10**9
_UNWIND_TIMEOUT_S = 60.0


class Watcher(Protocol):
    """Is told how an evaluation goes on, one call at a time; episodes that are over wait for it."""

    def begin(self, run: EvaluationRun, left: Sequence[EpisodeKey]) -> None:
        """The episodes that are left to play are known."""

    def add(self, record: RolloutRecord) -> None:
        """An episode is over, and handed to the disk."""


class _Nobody:
    """Is told and does nothing."""

    def begin(self, run: EvaluationRun, left: Sequence[EpisodeKey]) -> None:
        pass

    def add(self, record: RolloutRecord) -> None:
        pass


_NOBODY = _Nobody()
_LIMITS = Limits()


def evaluate(
    sources: Any,
    policy: Policy,
    output: str | os.PathLike[str],
    *,
    num_tasks: int | None = None,
    episodes_per_task: int = 4,
    split: str | None = None,
    seed: int = 0,
    limits: Limits = _LIMITS,
    max_concurrent_episodes: int | None = None,
    retries: int = 1,
    replay_failed: bool = False,
    watcher: Watcher = _NOBODY,
) -> EvaluationRun:
    """Play a policy on every source, and write each episode to a folder; of one begun earlier, what is missing.

    Args:
        sources: A `MultiOpenRewardSpec`, or sources by name.
        policy: Who plays.
        output: The folder; new, empty, or of the same evaluation.
        num_tasks: Tasks of each source, at most, chosen by `seed`. None: all.
        episodes_per_task: How often each task is played.
        split: Whose tasks are played. None: that of each source.
        seed: Decides tasks, and every episode's luck, together with source, task and episode.
        limits: How long an episode may be.
        max_concurrent_episodes: Of all sources. None: as many as the policy answers at once, and at least 64.
        retries: How often an episode is played anew whose session was lost or never opened.
        replay_failed: Whether those episodes are played again in which the environment failed.
        watcher: Who is told of each episode.

    Raises:
        ConfigError: An argument is wrong, or the folder holds another evaluation.
        SourceError: A source cannot be used.
        PolicyError: The policy gave no reply in some episodes, which are missing, or in so many that it seems away.
    """
    check_counts(
        num_tasks=num_tasks, episodes_per_task=episodes_per_task, max_concurrent_episodes=max_concurrent_episodes
    )
    check_counts(least=0, seed=seed, retries=retries)
    named = getattr(sources, "sources", sources)
    played = prepare_evaluation(named, num_tasks=num_tasks, split=split, seed=seed, sees_images=policy.sees_images)
    made = {"seed": seed, "episodes_per_task": episodes_per_task, "limits": limits}

    with begun(output, played, policy, **made) as (run, write):
        left = find_left(run, also_failed=replay_failed)
        watcher.begin(run, left)
        play_all(
            played,
            policy,
            left,
            seed=seed,
            limits=limits,
            retries=retries,
            max_concurrent_episodes=max_concurrent_episodes,
            on_record=_in_turn(write, watcher.add),
        )

    return run


@contextmanager
def begun(
    output: str | os.PathLike[str], played: Mapping[str, EvaluatedSource], policy: Policy, **made: Any
) -> Iterator[tuple[EvaluationRun, Callable[[RolloutRecord], None]]]:
    """The evaluation in its folder, and what takes a record there, while the policy is ready."""
    # What a policy is may be known only once it is open, as which model an endpoint serves.
    with opened(policy):
        manifest = make_manifest(played, policy, **made)

        hidden = [*policy.secrets, *(secret for each in played.values() for secret in each.source.blueprint.hidden)]

        with begin_folder(output, manifest) as run, _written(run, hidden) as write:
            yield run, write


@contextmanager
def opened(policy: Policy) -> Iterator[None]:
    """The policy is ready inside the block.

    Raises:
        ConfigError: It cannot be used.
    """
    runtime = get_runtime()

    try:
        runtime.run(policy.open)
        yield
    finally:
        runtime.run(policy.close)


def make_manifest(
    played: Mapping[str, EvaluatedSource],
    policy: Policy,
    *,
    seed: int,
    episodes_per_task: int,
    limits: Limits,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> Manifest:
    """What an evaluation is of, begun now.

    Args:
        played: The sources by name.
        policy: Who plays.
        seed: As of `evaluate`.
        episodes_per_task: As of `evaluate`.
        limits: As of `evaluate`.
        about: What the policy cannot say of itself, as when in a training it was played.
    """
    return Manifest(
        policy={**policy.describe(), **about},
        sources={name: each.plan for name, each in played.items()},
        seed=seed,
        episodes_per_task=episodes_per_task,
        limits=limits.to_json(),
        begun=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={name: version(name) for name in _PACKAGES},
    )


@contextmanager
def _written(run: EvaluationRun, hidden: Sequence[str]) -> Iterator[Callable[[RolloutRecord], None]]:
    """What takes a record to the folder; all are on the disk when the block is left.

    Raises:
        ConfigError: Some could not be written. What takes records raises it too: no more are played for nothing.
    """
    log = RolloutLog(run.folder, max_files=_NO_LIMIT)
    log.hide(hidden)

    def write(record: RolloutRecord) -> None:
        log.write([record])
        _check_written(log)

    try:
        yield write
    finally:
        log.close()

    _check_written(log)


def _check_written(log: RolloutLog) -> None:
    if log.num_lost:
        raise ConfigError(
            f"episodes could not be written to {str(log.folder)!r}; the log says why. Make room, and "
            f"run the same evaluation again: it goes on where this one ended."
        )


def play_all(
    played: Mapping[str, EvaluatedSource],
    policy: Policy,
    keys: Sequence[EpisodeKey],
    *,
    seed: int,
    limits: Limits,
    retries: int,
    max_concurrent_episodes: int | None,
    on_record: Callable[[RolloutRecord], None],
) -> None:
    """Play some episodes, each once, and wait for them. Sessions are closed when it returns, however it does.

    Args:
        played: The sources by name.
        policy: Who plays; it is open.
        keys: What is played, in the order in which it is begun.
        seed: Of the evaluation.
        limits: How long an episode may be.
        retries: How often an episode is played anew whose session was lost or never opened.
        max_concurrent_episodes: As of `evaluate`.
        on_record: Called with each episode that is over, one at a time, on a thread where it may wait.

    Raises:
        PolicyError: As of `evaluate`.
    """
    if not keys:
        return

    run = _Run(played, policy, keys, seed=seed, limits=limits, retries=retries, on_record=on_record)
    runtime = get_runtime()

    try:
        runtime.run(run.play, max_concurrent_episodes)
    except BaseException:
        runtime.run(run.unwind)  # an interrupt does not wait for what it interrupts
        raise
    finally:
        runtime.close_owned_by({each.source.identity for each in played.values()})

    run.report()


class _Run:
    """Episodes under way."""

    def __init__(
        self,
        played: Mapping[str, EvaluatedSource],
        policy: Policy,
        keys: Sequence[EpisodeKey],
        *,
        seed: int,
        limits: Limits,
        retries: int,
        on_record: Callable[[RolloutRecord], None],
    ) -> None:
        self._played = played
        self._policy = policy
        self._waiting: dict[str, deque[EpisodeKey]] = {name: deque() for name in played}
        self._seed = seed
        self._limits = limits
        self._retries = retries
        self._on_record = on_record
        self._failures: list[PolicyError] = []
        self._num_in_row = 0
        self._is_over: anyio.Event | None = None
        self._keeping = anyio.CapacityLimiter(1)

        for key in keys:
            self._waiting[key[0]].append(key)

    async def play(self, max_concurrent_episodes: int | None) -> None:
        """Play all episodes.

        Raises:
            PolicyError: The policy seems to be away.
        """
        self._is_over = anyio.Event()

        try:
            await self._play_all(max_concurrent_episodes)
        finally:
            self._is_over.set()

    async def unwind(self) -> None:
        """Wait until an interrupted `play` has ended, if it began."""
        if self._is_over is not None:
            with anyio.move_on_after(_UNWIND_TIMEOUT_S):
                await self._is_over.wait()

    async def _play_all(self, max_concurrent_episodes: int | None) -> None:
        caps = [each.source.mix_max_sessions for each in self._played.values()]
        asked = max_concurrent_episodes or max(_LEAST_CONCURRENT_EPISODES, self._policy.max_concurrent_replies)
        at_once = min([asked, *(cap for cap in caps if cap is not None)])
        limiter = anyio.CapacityLimiter(at_once)
        policy_error: PolicyError | None = None

        try:
            # What ends the evaluation is one error, and not a group of them.
            async with anyio.create_task_group() as group:

                async def work(name: str) -> None:
                    nonlocal policy_error

                    try:
                        await self._work(name, limiter)
                    except PolicyError as error:
                        policy_error = policy_error or error
                        group.cancel_scope.cancel()

                for name, each in self._played.items():
                    for _ in range(min(at_once, each.source.max_sessions or at_once, len(self._waiting[name]))):
                        group.start_soon(work, name)
        except BaseExceptionGroup as errors:
            raise _first(errors) from None

        if policy_error is not None:
            raise policy_error

    async def _work(self, name: str, limiter: anyio.CapacityLimiter) -> None:
        """Play episodes of a source, one after another, until none is left."""
        waiting = self._waiting[name]

        while waiting:
            async with limiter:
                if waiting:
                    await self._play(waiting.popleft())

    async def _play(self, key: EpisodeKey) -> None:
        try:
            record = await play_episode(
                self._played[key[0]], self._policy, key, seed=self._seed, limits=self._limits, retries=self._retries
            )
        except PolicyError as error:
            self._failures.append(error)
            self._num_in_row += 1

            if self._num_in_row >= _MOST_POLICY_FAILURES:
                raise PolicyError(
                    f"the policy {self._policy.name!r} gave no reply in {self._num_in_row} episodes in a row; the last "
                    f"time: {_without_stop(error)}. What was played is kept: run the same evaluation again to go on."
                ) from error

            return

        self._num_in_row = 0

        # What was played to its end is kept also where the evaluation is interrupted now. Waits for the disk.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._on_record, record, limiter=self._keeping)

    def report(self) -> None:
        """Say that episodes are missing.

        Raises:
            PolicyError: There are some.
        """
        if self._failures:
            raise PolicyError(
                f"the policy {self._policy.name!r} gave no reply in {len(self._failures)} episodes, which are missing; "
                f"the first: {_without_stop(self._failures[0])}. Run the same evaluation again to play them."
            )


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group that is not itself one."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _without_stop(error: PolicyError) -> str:
    return str(error).rstrip(".")


def _in_turn(*steps: Callable[[RolloutRecord], None]) -> Callable[[RolloutRecord], None]:
    def take(record: RolloutRecord) -> None:
        for step in steps:
            step(record)

    return take


def check_counts(*, least: int = 1, **counts: Any) -> None:
    """Check arguments that are whole numbers, or None.

    Raises:
        ConfigError: One is something else, or less than `least`.
    """
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise ConfigError(f"{name}={value!r} is no whole number from {least} upwards.")
