"""From the tool calls of one rollout to what the environment says it is worth, or to why there is no such number.

Rules 1, 2, 5 and 6 of the semantics, and the eight reasons. A pure function of the recorded steps: it knows no server
and no reward function of the user's.

Which reason a rollout gets when several apply. Where the environment failed, the policy is not blamed:

1. `unreachable`: the session never opened, so nothing else can be said.
2. `session_lost`: after it nothing could be scored.
3. `bad_reward`: the environment did judge, and its judgement was unusable. Nearer to the cause than 4.
4. `tool_error`: the environment's code raised, and nobody knows what would have come of the call.

Otherwise it is the policy's doing, or nobody's:

5. `truncated`: the budget ran out in an unfinished episode; what came before might have been put right.
6. `no_tool_call`: nothing was called.
7. `bad_call`: the last call was refused. Refused calls before one that was accepted are not the reason.
8. `no_score`: the last call ran, and like those before it returned no reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multiors.numeric import to_finite
from multiors.records import StepRecord, UnscoredReason
from multiors.rewards.composition import SourceReward
from multiors.rewards.reduction import Reduction, needs_whole_episode, reduce_rewards

__all__ = ["Outcome", "decide_outcome", "decide_value", "find_failure", "refine_reason"]

_ENVIRONMENT_FAILURES = (UnscoredReason.SESSION_LOST, UnscoredReason.BAD_REWARD, UnscoredReason.TOOL_ERROR)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rollout was worth to its environment alone."""

    value: float | None
    """None: unscored."""

    reason: UnscoredReason | None
    """Why it is unscored. None exactly when `value` is a number."""

    detail: str | None = field(default=None, compare=False)
    """One line on what no step shows: why the step rewards together make no score. None: the steps say it."""


def decide_outcome(
    steps: Sequence[StepRecord], *, finished: bool, opened: bool, truncated: bool, reward: SourceReward
) -> Outcome:
    """The last score before or at the end of the episode, or why there is none.

    Unscored and failed steps leave an earlier score as it is. Steps after the one that finished the episode are not
    looked at. `reward.unscored` and `reward.unfinished` replace what the policy is answerable for; a rollout in which
    the environment failed keeps its earlier score, or stays unscored.

    Args:
        steps: Tool calls in order.
        finished: Whether the episode ended. A step that says so counts as well.
        opened: Whether the session was ever opened.
        truncated: Whether the token or turn budget ran out.
        reward: The source's rule.
    """
    failure = find_failure(steps, opened=opened)
    if not opened:
        return Outcome(None, failure)
    counted = _until_finished(steps)
    is_finished = finished or any(step.finished for step in counted)
    if failure is None and not is_finished and reward.unfinished is not None:
        return Outcome(reward.unfinished, None)
    if failure is not None and needs_whole_episode(reward.reduction):
        return Outcome(None, failure)
    try:
        value = _reduce(counted, reward.reduction)
    except OverflowError:
        return Outcome(None, UnscoredReason.BAD_REWARD, "the step rewards add up to more than a number can hold")
    if value is None and failure is not None:
        return Outcome(None, failure)
    return _conclude(value, counted, truncated=truncated and not is_finished, reward=reward)


def decide_value(
    values: Sequence[float],
    steps: Sequence[StepRecord],
    *,
    failure: UnscoredReason | None,
    finished: bool,
    truncated: bool,
    reward: SourceReward,
) -> Outcome:
    """The sum of what the reward functions of an environment's own said of a rollout, or why there is no such number.

    For environments whose calls have no rewards: what they say, they say at the end, so a rollout in which the
    environment failed is unscored. Otherwise as `decide_outcome`.

    Args:
        values: What scored the rollout; finite. Empty: nothing did.
        steps: Tool calls in order.
        failure: How the environment failed. None: it did not.
        finished: Whether the episode ended.
        truncated: Whether the token or turn budget ran out.
        reward: The source's rule.
    """
    if failure is not None:
        return Outcome(None, failure)
    if not finished and reward.unfinished is not None:
        return Outcome(reward.unfinished, None)
    try:
        value = math.fsum(values) if values else None
    except OverflowError:
        return Outcome(None, UnscoredReason.BAD_REWARD, "its reward functions add up to more than a number can hold")
    return _conclude(value, _until_finished(steps), truncated=truncated and not finished, reward=reward)


def _conclude(value: float | None, steps: Sequence[StepRecord], *, truncated: bool, reward: SourceReward) -> Outcome:
    """The outcome where the environment did not fail, or had scored before it did; without a score, the policy's."""
    if value is not None:
        return _rescale(value, reward)
    if reward.unscored is not None:
        return Outcome(reward.unscored, None)
    return Outcome(None, _explain_policy(steps, truncated=truncated))


def find_failure(steps: Sequence[StepRecord], *, opened: bool) -> UnscoredReason | None:
    """How the environment failed in a rollout, whatever was scored before. None: it did not.

    Args:
        steps: Tool calls in order; those after the one that finished the episode are not looked at.
        opened: Whether the session was ever opened.
    """
    if not opened:
        return UnscoredReason.UNREACHABLE
    counted = _until_finished(steps)
    failures = {step.failure for step in counted}
    if any(step.reward is not None and not _is_scored(step) for step in counted):
        failures.add(UnscoredReason.BAD_REWARD)
    return next((failure for failure in _ENVIRONMENT_FAILURES if failure in failures), None)


def refine_reason(
    reason: UnscoredReason | None, messages: Sequence[Mapping[str, Any]], *, has_malformed_call: bool = False
) -> UnscoredReason | None:
    """The reason by what the policy wrote, which no step shows.

    A policy that called only tools that do not exist, or wrote calls that cannot be read, called no tool of the
    environment's, but did call.

    Args:
        reason: By the steps alone.
        messages: The completion.
        has_malformed_call: Whether a call could not be read.
    """
    called = has_malformed_call or any(message.get("tool_calls") for message in messages)
    return UnscoredReason.BAD_CALL if reason is UnscoredReason.NO_TOOL_CALL and called else reason


def _reduce(steps: Sequence[StepRecord], reduction: Reduction) -> float | None:
    rewards = [step.reward for step in steps if step.reward is not None and _is_scored(step)]
    is_final = bool(steps) and steps[-1].finished and _is_scored(steps[-1])
    return reduce_rewards(rewards, reduction, final_reward=steps[-1].reward if is_final else None)


def _rescale(value: float, reward: SourceReward) -> Outcome:
    """The outcome in the user's units; what the environment cannot have meant is a bad reward."""
    low, high = reward.range or (-math.inf, math.inf)
    scaled = reward.scale * value + reward.offset
    if not low <= value <= high:
        detail = f"the outcome {value!r} is outside the declared range=({low!r}, {high!r})"
        return Outcome(None, UnscoredReason.BAD_REWARD, detail)
    if not math.isfinite(scaled):
        detail = f"the outcome {value!r} times scale={reward.scale!r} plus offset={reward.offset!r} is no finite number"
        return Outcome(None, UnscoredReason.BAD_REWARD, detail)
    low, high = reward.clip or (-math.inf, math.inf)
    return Outcome(min(max(scaled, low), high), None)


def _until_finished(steps: Sequence[StepRecord]) -> Sequence[StepRecord]:
    end = next((index for index, step in enumerate(steps) if step.finished), len(steps) - 1)
    return steps[: end + 1]


def _is_scored(step: StepRecord) -> bool:
    return to_finite(step.reward) is not None


def _explain_policy(steps: Sequence[StepRecord], *, truncated: bool) -> UnscoredReason:
    if truncated:
        return UnscoredReason.TRUNCATED
    if not steps:
        return UnscoredReason.NO_TOOL_CALL
    if steps[-1].failure is UnscoredReason.BAD_CALL:
        return UnscoredReason.BAD_CALL
    return UnscoredReason.NO_SCORE
