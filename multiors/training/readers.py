"""How the columns read what rollouts did: this library's environments by their episodes.

A reader knows which environment objects are its source's, and turns them into episodes and outcomes. Specs taken by
their slots have a reader of their own (`multiors.training.slots`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from multiors.errors import RoutingError
from multiors.ors.rollouts.comparison import Verdict
from multiors.ors.rollouts.submission import submit_messages
from multiors.records import Episode, UnscoredReason
from multiors.rewards import Outcome, SourceReward, decide_outcome
from multiors.training.groups import compare_groups

__all__ = ["EpisodeReader", "Reading", "SourceReader"]


class Reading(NamedTuple):
    """What was read of one rollout."""

    episode: Episode
    outcome: Outcome
    group_score: float | None = None
    """What its environment says it is worth beside the others of its group. None: not compared, or that failed."""


class SourceReader(Protocol):
    """How the rollouts of one source are read."""

    def owns(self, environment: object) -> bool:
        """Whether an environment object is of this source."""

    def read(
        self, environments: Sequence[Any], reward: SourceReward, truncated: Sequence[bool], arguments: Mapping[str, Any]
    ) -> list[Reading]:
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

    def owns(self, environment: Any) -> bool:
        blueprint = getattr(environment, "_blueprint", None)
        return blueprint is not None and blueprint.identity == self.identity

    def read(
        self, environments: Sequence[Any], reward: SourceReward, truncated: Sequence[bool], arguments: Mapping[str, Any]
    ) -> list[Reading]:
        self._check_prompts(environments, arguments)
        submit_messages(environments, arguments.get("completions") or ())
        outcomes = [
            _decide(environment, reward, is_truncated)
            for environment, is_truncated in zip(environments, truncated, strict=True)
        ]
        verdicts: Sequence[Verdict | None] = [None] * len(environments)

        failures = [_find_failure(environment._episode()) for environment in environments]

        if reward.compares_groups:
            verdicts = compare_groups(environments, [each is None for each in failures], arguments, source=self.source)

        for row, (environment, verdict) in enumerate(zip(environments, verdicts, strict=True)):
            if isinstance(verdict, tuple):
                environment._note_comparison(*verdict)
            if environment._refusal is not None:
                raise environment._refusal
            if reward.needs_comparison and not isinstance(verdict, float):
                # Without its score beside the others, a rollout would be worth less through no fault of the policy.
                reason = verdict[0] if isinstance(verdict, tuple) else failures[row] or UnscoredReason.SESSION_LOST
                outcomes[row] = Outcome(None, reason)

        return [
            Reading(environment._episode(), outcome, verdict if isinstance(verdict, float) else None)
            for environment, outcome, verdict in zip(environments, outcomes, verdicts, strict=True)
        ]

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


def _find_failure(episode: Episode) -> UnscoredReason | None:
    """How the environment failed in a rollout, whatever was scored before. None: it did not."""
    if not episode.opened:
        return UnscoredReason.UNREACHABLE

    failures = [step.failure for step in episode.steps if step.failure is not None and step.failure.is_infrastructure]
    return failures[0] if failures else None


def _decide(environment: Any, reward: SourceReward, is_truncated: bool) -> Outcome:
    episode: Episode = environment._episode()
    return decide_outcome(
        episode.steps, finished=episode.finished, opened=episode.opened, truncated=is_truncated, reward=reward
    )
