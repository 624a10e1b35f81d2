"""The records that cross rooms: what happened in a rollout, and why it has no score.

Frozen, picklable and JSON-safe with None intact. This module knows no server, no trainer and no arithmetic: rewards are
decided in `multiors.rewards`, steps are written by `multiors.ors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Episode", "RolloutRecord", "StepRecord", "UnscoredReason"]


class UnscoredReason(StrEnum):
    """Why a rollout has no reward. A rollout without a reward has exactly one of these."""

    NO_TOOL_CALL = "no_tool_call"
    """The policy called no tool."""

    NO_SCORE = "no_score"
    """Tools ran, none of them returned a reward."""

    TOOL_ERROR = "tool_error"
    """The environment's own code raised."""

    BAD_CALL = "bad_call"
    """The policy's tool name or arguments were refused."""

    SESSION_LOST = "session_lost"
    """The session expired, its server died, or the outcome of a call is unknown."""

    UNREACHABLE = "unreachable"
    """The session never opened."""

    BAD_REWARD = "bad_reward"
    """The server sent a reward that is not a finite number."""

    TRUNCATED = "truncated"
    """The token or turn budget ran out before anything was scored."""

    @property
    def is_infrastructure(self) -> bool:
        """Whether the environment is at fault, not the policy: such a rollout stays unscored whatever is configured."""
        return self in _INFRASTRUCTURE


_INFRASTRUCTURE = frozenset(
    {
        UnscoredReason.TOOL_ERROR,
        UnscoredReason.SESSION_LOST,
        UnscoredReason.UNREACHABLE,
        UnscoredReason.BAD_REWARD,
    }
)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One tool call of a rollout."""

    tool: str
    """The tool's name on the server."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What was sent, by the server's parameter names."""

    output: str = ""
    """The text the policy saw."""

    reward: float | None = None
    """Step reward, finite. None: the step was not scored."""

    finished: bool = False
    """Whether this call ended the episode."""

    failure: UnscoredReason | None = None
    """What went wrong with the call: BAD_CALL, TOOL_ERROR, SESSION_LOST, UNREACHABLE or BAD_REWARD. None: nothing."""

    duration_s: float = 0.0
    """Seconds from sending the call to its last byte."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What one rollout did in its environment, before anything is decided about its worth."""

    task_index: int | None
    """The environment's own index of the task. None: the environment has no such index."""

    steps: tuple[StepRecord, ...]
    opened: bool
    """Whether the session opened and gave its prompt."""

    finished: bool
    """Whether a tool said that the episode is over."""

    error: str | None = None
    """One line on what failed first, without secrets or session ids. None: nothing failed."""

    session: str | None = None
    """The session's id on its server, to find it in the server's log. None: there was none."""

    opening_s: float | None = None
    """Seconds the rollout waited for its session and prompt. None: not measured."""


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One rollout as it was trained on, or one episode of an evaluation."""

    source: str
    task_index: int | None
    """The environment's own index of the task. None: the environment has no such index."""

    slot: int | None
    """Position in the schedule. None outside training."""

    step: int
    """The optimizer step that was under way when the rollout was scored, from 1, as in the trainer's log; while the
    trainer evaluates, the last one. 0: outside a trainer."""

    reward: float | None
    """What the trainer was given for this rollout, before reward weights. None: unscored."""

    outcome: float | None
    """What the environment alone was worth."""

    parts: Mapping[str, float | None]
    """Value of each of the user's reward functions, by name, unweighted."""

    reason: UnscoredReason | None
    """Why there is no reward. None exactly when `reward` is a number."""

    error: str | None
    """One line on what failed, without secrets or session ids. None: nothing failed."""

    finished: bool
    steps: tuple[StepRecord, ...]
    messages: tuple[Mapping[str, Any], ...] = ()
    """The completion as chat messages, in order."""

    prompt: tuple[Mapping[str, Any], ...] = ()
    """The prompt as chat messages, as the policy was given it."""

    session: str | None = None
    """The session's id on its server, to find it in the server's log. None: there was none."""

    opening_s: float | None = None
    """Seconds the rollout waited for its session and prompt. None: not measured."""

    num_tokens: int | None = None
    """Tokens of the completion, with those of the tools' answers. None: not known."""

    episode: int | None = None
    """In an evaluation: which of the task's episodes it was, from 0. None: in training."""

    seed: int | None = None
    """Of everything random in the episode that the policy decides. None: in training."""

    num_prompt_tokens: int | None = None
    """Tokens the policy read, over all turns; what it read twice counts twice. None: in training, or not known."""

    num_sampled_tokens: int | None = None
    """Tokens the policy wrote, over all turns. None: in training, or not known."""

    policy_s: float | None = None
    """Seconds that the episode waited for the policy. None: not measured."""

    duration_s: float | None = None
    """Seconds from the first request for a session to the score. None: not measured."""

    num_attempts: int | None = None
    """Sessions in which the episode was played from its beginning; the record is that of the last. None: in
    training."""

    def to_json(self) -> dict[str, Any]:
        """The record as JSON-ready values; None stays None."""
        return asdict(self)
