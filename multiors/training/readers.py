"""How the columns read what rollouts did: this library's environments by their episodes.

A reader knows which environment objects are its source's, and turns them into episodes and outcomes. Specs taken by
their slots have a reader of their own (`multiors.training.slots`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from multiors.ors.rollouts.submission import submit_messages
from multiors.records import Episode
from multiors.rewards import Outcome, SourceReward, decide_outcome

__all__ = ["EpisodeReader", "SourceReader"]


class SourceReader(Protocol):
    """How the rollouts of one source are read."""

    def owns(self, environment: object) -> bool:
        """Whether an environment object is of this source."""

    def read(
        self, environments: Sequence[Any], reward: SourceReward, truncated: Sequence[bool], arguments: Mapping[str, Any]
    ) -> list[tuple[Episode, Outcome]]:
        """What each rollout did, and what it was worth to the environment alone."""

    def release(self, environment: object) -> None:
        """End the rollout's session."""

    def find_task(self, task_index: int) -> str | None:
        """The JSON text of the source's task at an index. None: not known."""


@dataclass(frozen=True, slots=True)
class EpisodeReader:
    """Reads the environments of this library."""

    identity: str
    """Of the source's blueprint."""

    find_task: Callable[[int], str | None]
    """The JSON text of the source's task at an index. None: not known."""

    def owns(self, environment: Any) -> bool:
        blueprint = getattr(environment, "_blueprint", None)
        return blueprint is not None and blueprint.identity == self.identity

    def read(
        self, environments: Sequence[Any], reward: SourceReward, truncated: Sequence[bool], arguments: Mapping[str, Any]
    ) -> list[tuple[Episode, Outcome]]:
        submit_messages(environments, arguments.get("completions") or ())

        return [
            (
                episode,
                decide_outcome(
                    episode.steps,
                    finished=episode.finished,
                    opened=episode.opened,
                    truncated=is_truncated,
                    reward=reward,
                ),
            )
            for episode, is_truncated in zip(
                (environment._episode() for environment in environments), truncated, strict=True
            )
        ]

    def release(self, environment: Any) -> None:
        environment._release()
