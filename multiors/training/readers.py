"""How the columns read what rollouts did: this library's environments by their episodes.

A reader knows which environment objects are its source's, and turns them into episodes and outcomes. Environments that
are not ORS have a reader of their own (`multiors.training.others`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from multiors.errors import RoutingError
from multiors.ors.rollouts.submission import submit_messages
from multiors.records import Episode, UnscoredReason
from multiors.rewards import Outcome, SourceReward, decide_outcome, find_failure
from multiors.training.groups import compare_groups

__all__ = ["EpisodeReader", "Reading", "SourceReader", "is_async", "judge"]


class Reading(NamedTuple):
    """What was read of one rollout."""

    episode: Episode
    outcome: Outcome
    group_score: float | None = None
    """What its environment says it is worth beside the others of its group. None: not compared, or that failed."""

    values: Mapping[str, float | None] = {}
    """Of each of several reward functions that make up the outcome, by name. Empty: it is made up otherwise."""


class SourceReader(Protocol):
    """How the rollouts of one source are read."""

    @property
    def is_async(self) -> bool:
        """Whether what `read` returns is awaited."""

    def owns(self, environment: object) -> bool:
        """Whether an environment object is of this source."""

    def show(self, environment: Any) -> Any:
        """What the user's functions are given for an environment object of this source."""

    def read(
        self, environments: Sequence[Any], reward: SourceReward, truncated: Sequence[bool], arguments: Mapping[str, Any]
    ) -> list[Reading] | Coroutine[Any, Any, list[Reading]]:
        """What each rollout did, and what it was worth to the environment alone.

        Called once per batch, also for one without rollouts of the source.
        """

    def release(self, environment: object) -> None:
        """End the rollout's session."""

    def find_task(self, task_index: int) -> str | None:
        """The JSON text of the source's task at an index. None: not known."""


@dataclass(frozen=True, slots=True)
class EpisodeReader:
    """Reads the environments of this library."""

    source: str
    """The source's name."""

    identity: str
    """Of its blueprint."""

    find_task: Callable[[int], str | None]
    """The JSON text of the source's task at an index. None: not known."""

    is_async: ClassVar[bool] = False

    def show(self, environment: Any) -> Any:
        return environment

    def owns(self, environment: Any) -> bool:
        blueprint = getattr(environment, "_blueprint", None)
        return blueprint is not None and blueprint.identity == self.identity

    def read(
        self, environments: Sequence[Any], reward: SourceReward, truncated: Sequence[bool], arguments: Mapping[str, Any]
    ) -> list[Reading]:
        self._check_prompts(environments, arguments)
        submit_messages(environments, arguments.get("completions") or ())
        readings = [
            Reading(environment._episode(), judge(environment, reward, truncated=is_truncated))
            for environment, is_truncated in zip(environments, truncated, strict=True)
        ]
        return self._compare(environments, readings, reward, arguments) if reward.compares_groups else readings

    def _compare(
        self,
        environments: Sequence[Any],
        readings: Sequence[Reading],
        reward: SourceReward,
        arguments: Mapping[str, Any],
    ) -> list[Reading]:
        """The readings with what the environment says of each rollout beside the others of its group."""
        failures = [find_failure(reading.episode.steps, opened=reading.episode.opened) for reading in readings]
        verdicts = compare_groups(environments, [each is None for each in failures], arguments, source=self.source)
        compared = []

        for environment, reading, failure, verdict in zip(environments, readings, failures, verdicts, strict=True):
            if isinstance(verdict, float):
                compared.append(reading._replace(group_score=verdict))
                continue

            reason = failure or UnscoredReason.SESSION_LOST  # nobody's session could be asked

            if verdict is not None:
                reason = verdict[0]
                environment._note_comparison(*verdict)

            # Without its score beside the others, a rollout would be worth less through no fault of the policy.
            outcome = Outcome(None, reason) if reward.needs_comparison else reading.outcome
            compared.append(Reading(environment._episode(), outcome))

        return compared

    def _check_prompts(self, environments: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        """A trainer that left out what an environment put into the row's prompt trained on another one."""
        for environment, prompt in zip(environments, arguments.get("prompts") or (), strict=False):
            expected = environment._num_messages

            if expected is not None and isinstance(prompt, list) and len(prompt) != expected:
                raise RoutingError(
                    f"source {self.source!r}: the environment's prompt makes {expected} messages, and the policy was "
                    f"given {len(prompt)}. This trainer copies rows before it resets environments; use GRPOTrainer or "
                    f"ConcurrentGRPOTrainer of the TRL version in this library's constraints."
                )

    def release(self, environment: Any) -> None:
        environment._release()


def judge(environment: Any, reward: SourceReward, *, truncated: bool) -> Outcome:
    """What a rollout of this library's environments was worth to its environment alone.

    Raises:
        SourceError: A tool showed an image to a policy that takes none; where it did, the trainer swallowed the error.
    """
    if environment._refusal is not None:
        raise environment._refusal

    episode: Episode = environment._episode()
    return decide_outcome(
        episode.steps, finished=episode.finished, opened=episode.opened, truncated=truncated, reward=reward
    )


def is_async(function: Any) -> bool:
    """Whether what it returns is awaited, as TRL tells it."""
    return any(inspect.iscoroutinefunction(each) for each in (function, type(function).__call__))
