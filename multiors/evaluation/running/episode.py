"""One episode: a session, a conversation with the policy, and a record of both.

Plays as a training does (TRL 1.16, `_tool_call_loop`): the same prompt and tools, the same texts after a failure, the
same reductions and reasons. It ends earlier in one thing: after the call that finished the episode the policy is not
asked again, since nothing that it could say would count. Knows no other episode and no file.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import anyio
import anyio.to_thread

from multiors.errors import ConfigError, SessionError
from multiors.evaluation.folder import EpisodeKey
from multiors.evaluation.policies.policy import Conversation, Message, Policy, Reply, Start
from multiors.evaluation.running.choice import make_seed
from multiors.evaluation.running.sources import EvaluatedSource
from multiors.numeric import to_finite
from multiors.ors.rollouts.environment import RolloutEnvironment
from multiors.ors.rollouts.playing import call_tool, can_go_on, end_episode, open_episode, submit_message
from multiors.ors.rollouts.submission import find_last_message
from multiors.records import RolloutRecord, UnscoredReason
from multiors.rewards import RewardPart, check_values, compose, decide_outcome, naming, refine_reason

__all__ = ["Limits", "play_episode"]

_PASSING = (UnscoredReason.UNREACHABLE, UnscoredReason.SESSION_LOST)
"""What another session may mend. The environment's own errors are no accidents: they may be what the policy brings
about, and playing on until one does not happen would favour the policy."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an episode may be."""

    max_turns: int = 50
    """Messages of the policy whose tool calls are made, as TRL's `max_tool_calling_iterations`."""

    max_completion_tokens: int | None = None
    """Tokens after the prompt, those of the tools' answers included, as TRL's `max_completion_length`; checked after
    each turn. None: any number. A policy that counts no tokens has no such limit."""

    timeout_s: float = 3600.0
    """Seconds for the whole episode; then it counts as truncated."""

    def __post_init__(self) -> None:
        least = {"max_turns": 0} if self.max_completion_tokens is None else {"max_turns": 0, "max_completion_tokens": 1}

        for name, minimum in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ConfigError(f"limits: {name}={value!r} is no whole number from {minimum} upwards.")

        if (to_finite(self.timeout_s) or 0.0) <= 0.0:
            raise ConfigError(f"limits: timeout_s={self.timeout_s!r} is no time. Pass seconds above 0.")

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return asdict(self)


@dataclass(slots=True)
class _Transcript:
    """What was said, and what it cost."""

    prompt: list[dict[str, Any]] = field(default_factory=lambda: [{"role": "user", "content": ""}])
    messages: list[Message] = field(default_factory=list)
    is_truncated: bool = False
    has_malformed_call: bool = False
    error: str | None = None
    policy_s: float = 0.0
    replies: list[Reply] = field(default_factory=list)

    def add(self, reply: Reply) -> None:
        malformed = list(reply.malformed_calls)
        self.replies.append(replace(reply, message={}))
        self.messages.append({**reply.message, "malformed_calls": malformed} if malformed else reply.message)
        self.has_malformed_call = self.has_malformed_call or bool(malformed)
        self.is_truncated = self.is_truncated or reply.is_truncated

    @property
    def num_prompt_tokens(self) -> int | None:
        return _add([reply.num_prompt_tokens for reply in self.replies])

    @property
    def num_sampled_tokens(self) -> int | None:
        return _add([reply.num_sampled_tokens for reply in self.replies])

    @property
    def num_tokens(self) -> int | None:
        """Of everything after the prompt, as far as the policy has read it."""
        if not self.replies:
            return None

        first, last = self.replies[0], self.replies[-1]
        ends = (first.num_prompt_tokens, last.num_prompt_tokens, last.num_sampled_tokens)
        return None if None in ends else _add([ends[1], ends[2]]) - ends[0]  # type: ignore[operator]  # none is None


async def play_episode(
    played: EvaluatedSource, policy: Policy, key: EpisodeKey, *, seed: int, limits: Limits, retries: int
) -> RolloutRecord:
    """Play one episode, and where its session was lost or never opened, another one in a fresh session.

    Runs on the runtime's loop.

    Args:
        played: Its source.
        policy: Who plays.
        key: Which episode.
        seed: Of the evaluation.
        limits: How long it may be.
        retries: How often it is played anew.

    Raises:
        PolicyError: The policy gave no reply.
        RewardError: A reward function broke its contract.
    """
    _, task_index, episode = key
    start = Start(
        source=played.name,
        task_index=task_index,
        task=played.find_task(task_index),
        tools=played.tools,
        seed=make_seed(seed, played.name, task_index, episode),
    )
    num_attempts = 0

    while True:
        num_attempts += 1
        record = await _play_once(played, policy, start, limits)

        if record.reason not in _PASSING or num_attempts > retries:
            return replace(record, episode=episode, num_attempts=num_attempts)


async def _play_once(played: EvaluatedSource, policy: Policy, start: Start, limits: Limits) -> RolloutRecord:
    environment = played.factory()
    transcript = _Transcript()
    started_s = time.monotonic()

    try:
        with anyio.move_on_after(limits.timeout_s) as scope:
            await _converse(environment, policy, start, transcript, limits)

        if scope.cancelled_caught:
            transcript.is_truncated = True
            transcript.error = f"the episode took longer than {limits.timeout_s:g} s"

        return await _score(played, environment, start, transcript, started_s=started_s)
    finally:
        with anyio.CancelScope(shield=True):
            await end_episode(environment)


async def _converse(
    environment: RolloutEnvironment, policy: Policy, start: Start, transcript: _Transcript, limits: Limits
) -> None:
    """Let the policy write and the tools answer, until no call follows, nothing can answer, or a limit is reached."""
    prompt = transcript.prompt
    _continue_prompt(prompt, await open_episode(environment, start.task_index, prompt))

    if not can_go_on(environment):
        return

    conversation = policy.start(start)

    try:
        await _take_turns(environment, conversation, transcript, limits)
    finally:
        with anyio.CancelScope(shield=True):
            await conversation.end()

    message = find_last_message(list(transcript.messages))

    if message is not None:
        await submit_message(environment, message)


async def _take_turns(
    environment: RolloutEnvironment, conversation: Conversation, transcript: _Transcript, limits: Limits
) -> None:
    new: Sequence[Message] = transcript.prompt

    for turn in range(limits.max_turns + 1):
        asked_s = time.monotonic()

        try:
            reply = await conversation.reply(new)
        finally:
            transcript.policy_s += time.monotonic() - asked_s

        transcript.add(reply)
        calls = reply.message.get("tool_calls") or ()

        if _is_over(transcript.num_tokens, limits.max_completion_tokens) or (calls and turn == limits.max_turns):
            transcript.is_truncated = True

        if not calls or transcript.is_truncated:
            return

        new = [await _make_call(environment, call) for call in calls]
        transcript.messages.extend(new)

        if not can_go_on(environment):
            return


async def _make_call(environment: RolloutEnvironment, call: Mapping[str, Any]) -> Message:
    """The message that answers a call, in the form that a trainer gives it."""
    function = call["function"]
    name = function["name"]

    try:
        result: Any = await call_tool(environment, name, function.get("arguments"))
    except SessionError as error:
        result = {"error": str(error)}

    content = result if isinstance(result, list) else str(result)
    answered = {"tool_call_id": call["id"]} if call.get("id") else {}
    return {"role": "tool", "name": name, "content": content, **answered}


def _continue_prompt(prompt: list[dict[str, Any]], shown: str | list[dict[str, Any]]) -> None:
    """Add what an environment shows to the last message, as TRL does."""
    content = prompt[-1]["content"]

    if isinstance(shown, list):
        content = ([{"type": "text", "text": content}] if isinstance(content, str) else content) + shown
    elif isinstance(content, list):
        content = [*content, {"type": "text", "text": shown}]
    else:
        content += shown

    prompt[-1] = {**prompt[-1], "content": content}


async def _score(
    played: EvaluatedSource, environment: RolloutEnvironment, start: Start, transcript: _Transcript, *, started_s: float
) -> RolloutRecord:
    if environment._refusal is not None:
        raise environment._refusal

    episode = environment._episode()
    outcome = decide_outcome(
        episode.steps,
        finished=episode.finished,
        opened=episode.opened,
        truncated=transcript.is_truncated,
        reward=played.reward,
    )
    values = await _call_parts(played, environment, start, transcript)
    reward = compose(outcome.value, list(values.values()), played.reward)
    reason = refine_reason(outcome.reason, transcript.messages, has_malformed_call=transcript.has_malformed_call)

    return RolloutRecord(
        source=played.name,
        task_index=start.task_index,
        slot=None,
        step=0,
        reward=reward,
        outcome=outcome.value,
        parts=values,
        reason=None if reward is not None else reason,
        error=episode.error or outcome.detail or transcript.error,
        finished=episode.finished,
        steps=episode.steps,
        messages=tuple(transcript.messages),
        prompt=tuple(transcript.prompt),
        session=episode.session,
        opening_s=episode.opening_s,
        num_tokens=transcript.num_tokens,
        seed=start.seed,
        num_prompt_tokens=transcript.num_prompt_tokens,
        num_sampled_tokens=transcript.num_sampled_tokens,
        policy_s=transcript.policy_s,
        duration_s=time.monotonic() - started_s,
    )


async def _call_parts(
    played: EvaluatedSource, environment: RolloutEnvironment, start: Start, transcript: _Transcript
) -> dict[str, float | None]:
    """What the user's reward functions say, with the arguments that a trainer gives them for a batch of one."""
    values: dict[str, float | None] = {}

    if not played.reward.parts:
        return values

    task = played.source.find_task(start.task_index)
    arguments = {
        "environments": [environment],
        "environment": [played.name],
        "prompts": [list(transcript.prompt)],
        "completions": [list(transcript.messages)],
        "task_index": [start.task_index],
        "task": [task],
        "tasks": [None if task is None else json.loads(task)],
        "slot": [None],
        "trainer_state": None,
        "log_extra": _ignore,
        "log_metric": _ignore,
    }

    for part in played.reward.parts:
        assert isinstance(part, RewardPart)

        with naming(part, source=played.name):
            # The user's function may wait for something of its own; the loop may not.
            returned = await anyio.to_thread.run_sync(lambda: part.function(**arguments))  # noqa: B023  awaited here
            returned = await returned if inspect.isawaitable(returned) else returned

        values[part.name] = check_values(returned, source=played.name, part=part, num_rollouts=1)[0]

    return values


def _ignore(*_: object, **__: object) -> None:
    """An evaluation has no table of completions and no step to log for."""


def _add(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _is_over(number: int | None, limit: int | None) -> bool:
    return number is not None and limit is not None and number >= limit
