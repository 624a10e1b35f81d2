"""One evaluation played by the processes of a training together: each its part of the episodes, the first writes all.

Decides who plays what, and that the processes agree: what fails in one of them fails in all, since each waits for the
others. What an episode is, which are left and how they are kept is decided elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from multiors.errors import MultiORSError, SessionError
from multiors.evaluation.folder import EpisodeKey, EvaluationRun, find_left
from multiors.evaluation.policies.policy import Policy
from multiors.evaluation.running.episode import Limits
from multiors.evaluation.running.runner import begun, opened, play_all
from multiors.evaluation.running.sources import EvaluatedSource
from multiors.ors.text import one_line
from multiors.records import RolloutRecord

__all__ = ["Played", "Processes", "play_together"]

T = TypeVar("T")

_RETRIES = 1


@dataclass(frozen=True, slots=True)
class Processes:
    """This process, and the others."""

    rank: int
    count: int
    exchange: Callable[[list[Any]], list[Any]]
    """The items of all processes, in the order of the processes; every process calls it as often as the others."""

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def agree(self, attempt: Callable[[], T]) -> list[T]:
        """Do something in every process.

        Returns:
            What each process got, in the order of the processes.

        Raises:
            SessionError: It failed in one of them; here the error is what it was.
        """
        mine: tuple[Any, str | None] = (None, None)
        failure: Exception | None = None

        try:
            mine = (attempt(), None)
        except Exception as error:  # noqa: BLE001  # whatever it is, the others wait to be told
            failure, mine = error, (None, _describe(error))

        found: list[tuple[Any, str | None]] = self.exchange([mine])

        if failure is not None:
            raise failure

        for rank, (_, error_text) in enumerate(found):
            if error_text is not None:
                raise SessionError(f"process {rank}: {error_text}")

        return [value for value, _ in found]


@dataclass(frozen=True, slots=True)
class Played:
    """What is played, by whoever plays it."""

    sources: Mapping[str, EvaluatedSource]
    """By name."""

    seed: int
    episodes_per_task: int
    limits: Limits
    about: Mapping[str, Any]
    """What the policy cannot say of itself."""


def play_together(
    output: str | os.PathLike[str], played: Played, make_policy: Callable[[], Policy], processes: Processes
) -> EvaluationRun | None:
    """Play an evaluation, or of one begun earlier what is missing, and write each episode to its folder.

    Every process calls this with the same arguments. Only the first needs to see the folder.

    Args:
        output: The folder.
        played: What is played.
        make_policy: Makes the one who plays in this process.
        processes: Who plays together.

    Returns:
        The evaluation, in the first process.

    Raises:
        ConfigError: The folder holds another evaluation.
        PolicyError: The policy gave no reply.
        SessionError: It failed in another process.
    """
    with ExitStack() as stack:
        part = _Part(output, played, processes, stack)
        left = processes.agree(lambda: part.begin(make_policy()))[0]
        records = processes.agree(lambda: part.play(left))
        processes.agree(lambda: part.end([record for each in records for record in each]))

    return part.run


class _Part:
    """What one process does in an evaluation."""

    def __init__(self, output: str | os.PathLike[str], played: Played, processes: Processes, stack: ExitStack) -> None:
        self.run: EvaluationRun | None = None
        self._output = output
        self._played = played
        self._processes = processes
        self._stack = stack
        self._records: list[RolloutRecord] = []
        self._keep: Callable[[RolloutRecord], None] = self._records.append

    def begin(self, policy: Policy) -> list[EpisodeKey]:
        """Make ready; in the first process, the episodes that are left for all."""
        self._policy = policy

        if not self._processes.is_first:
            self._stack.enter_context(opened(policy))
            return []

        self.run, self._keep = self._stack.enter_context(
            begun(
                self._output,
                self._played.sources,
                policy,
                seed=self._played.seed,
                episodes_per_task=self._played.episodes_per_task,
                limits=self._played.limits,
                about=self._played.about,
            )
        )
        return find_left(self.run, also_failed=False)

    def play(self, left: Sequence[EpisodeKey]) -> list[RolloutRecord]:
        """Play this process's part; what it could not write itself."""
        play_all(
            self._played.sources,
            self._policy,
            left[self._processes.rank :: self._processes.count],
            seed=self._played.seed,
            limits=self._played.limits,
            retries=_RETRIES,
            max_concurrent_episodes=None,
            on_record=self._keep,
        )
        return self._records

    def end(self, records: Sequence[RolloutRecord]) -> None:
        """Write what the other processes played, in the first one, and end."""
        for record in records if self._processes.is_first else ():
            self._keep(record)

        self._stack.close()


def _describe(error: Exception) -> str:
    text = one_line(str(error))
    return text if isinstance(error, MultiORSError) else f"{type(error).__name__}: {text}"
