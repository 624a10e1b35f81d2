"""The per-rollout environment that TRL resets, calls and reads: one ORS session behind typed Python methods.

Decides what a failure means for the rollout, what the policy is told about it, and when a session ends. Offers what
TRL's own adapter offers (`reset`, one method per tool, `reward`, `rewards`, `metadata`, `finished`, `last_output`);
everything else is underscored, because TRL shows every public method to the policy as a tool.

The law here
- The last reward before the end counts; a later failure does not erase it, a call after `finished` reaches no server.
- A reward that is not a finite number is the server's error, not a number.
- A session that cannot open does not stop training: the rollout is played without an environment and stays unscored.
- What the policy reads after a failure is short and holds no session id, secret or stack trace.
"""

from __future__ import annotations

import logging
import operator
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from reprlib import repr as shorten
from typing import Any, ClassVar

from multiors.errors import RoutingError, SessionError, SourceError
from multiors.numeric import parse_step_reward
from multiors.ors.content import Block, Prompt, describe_images, has_images, show_blocks
from multiors.ors.faults import OPEN_ERRORS, explain
from multiors.ors.rollouts.ahead import Answer, CallsAhead, ask
from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.rollouts.comparison import Verdict, as_candidate, start_comparison
from multiors.ors.rollouts.opening import take_or_open
from multiors.ors.rollouts.showing import Shown, show_prompt, shows_images
from multiors.ors.sessions.calls import CallFailed
from multiors.ors.sessions.runtime import Runtime, get_runtime
from multiors.ors.sessions.session import OpenSession
from multiors.ors.text import one_line
from multiors.ors.tools import BoundTool, bind_arguments
from multiors.records import Episode, StepRecord, UnscoredReason

__all__ = ["RolloutEnvironment"]

logger = logging.getLogger("multiors.ors")

_UNOPENED = "The environment could not be opened. There is nothing to do here."
_ENDED = "The environment is gone; the episode cannot go on."
_FINISHED = "The episode has already finished; this call was not made."
_UNSHOWN = "The tool answered with an image, which cannot be shown here."
_EMPTY = "(no output)"


class RolloutEnvironment:
    """One rollout's environment. Each source has a subclass of its own, with its tools as methods."""

    _blueprint: ClassVar[Blueprint]
    _reported: ClassVar[set[str]]

    reward: float | None
    """Last reward of the rollout. None: nothing scored it."""

    rewards: list[float | None]
    """Step rewards in the order of the calls; None where a call was not scored or failed."""

    metadata: list[Mapping[str, Any] | None]
    """Step metadata in the order of the calls."""

    finished: bool
    """Whether a tool ended the episode."""

    last_output: str
    """What the policy saw last of a tool."""

    _task_index: int | None
    _steps: list[StepRecord]
    _opened: bool
    _session: str | None
    _opening_s: float | None
    _ended_by: UnscoredReason | None
    _error: str | None
    _refusal: SourceError | None
    _num_messages: int | None

    _on_call: Callable[[], None] | None = None
    """Called before each call, by whoever wants to start the calls of other rollouts with it. None: nobody."""

    _num_unmatched: int = 0
    """Calls made ahead that the trainer did not make after all."""

    def __init__(self) -> None:
        self._ahead: CallsAhead | None = None
        self._lease = _Lease()
        weakref.finalize(self, self._lease.release)
        self._clear(None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} environment, task_index={self._task_index}>"

    def reset(self, *, task_index: int | None = None, prompt: Any = None, **_columns: Any) -> Shown:
        """Open a fresh session for a task and return its prompt.

        An earlier session is closed in the background. If no session can be opened, the rollout goes on without one.
        Of a prompt with several messages the last one is returned, and the others are put into the row's `prompt`.

        Args:
            task_index: The environment's own index of the task, from the row.
            prompt: The row's own messages, to the last of which the trainer adds what is returned. Without them, the
                messages of the environment are returned as one text.

        Raises:
            RoutingError: The row has no task index.
            SourceError: The prompt has images, and the policy's model takes none.
        """
        index = self._check_index(task_index)
        self._release()
        self._clear(index)
        opening = take_or_open(self._blueprint, index)
        started_s = time.monotonic()

        try:
            session = opening.wait()
        except OPEN_ERRORS as error:
            return self._play_without(error, opening.stand_in_prompt, prompt)

        return self._play_in(session, prompt, opening_s=time.monotonic() - started_s)

    def _play_without(self, error: BaseException, stand_in: Prompt | None, row: Any) -> Shown:
        """Begin the rollout though its session did not open, with one of OPEN_ERRORS; it stays unscored."""
        within = f" within {self._blueprint.options.timeouts.open_s:g} s" if isinstance(error, TimeoutError) else ""
        self._fail(UnscoredReason.UNREACHABLE, f"the session did not open{within}: {explain(error)}")

        try:  # with the prompt of its group, where that is known
            return _UNOPENED if stand_in is None else self._begin_with(stand_in, row)
        except SessionError:
            return _UNOPENED

    def _play_in(self, session: OpenSession, row: Any, *, opening_s: float) -> Shown:
        """Begin the rollout in a session, which ends with it.

        Raises:
            SourceError: The prompt has images, and the policy's model takes none.
        """
        self._lease.hold(session)
        self._session, self._opening_s = session.sid, opening_s

        try:
            shown = self._begin_with(session.prompt, row)
        except SessionError as error:
            self._fail(UnscoredReason.UNREACHABLE, str(error))
            self._lease.release()
            return _UNOPENED
        except SourceError:
            self._lease.release()
            raise

        self._opened = True
        return shown

    def _begin_with(self, prompt: Prompt, row: Any) -> Shown:
        """What the trainer adds to the last message of the row's prompt; what comes before goes into the row itself.

        Raises:
            SessionError: There is nothing to show, or an image that cannot be read.
            SourceError: There is an image, and the policy's model takes none.
        """
        if has_images(prompt.all_blocks) and not shows_images(self._blueprint, self._task_index):
            self._report_once("images", "the prompt holds images, which the policy is not shown")
            prompt = prompt.without_images()
            if prompt.is_empty:
                raise SessionError("the prompt has images only, which the policy is not shown")

        shown = show_prompt(prompt, row)
        self._num_messages = len(row) if isinstance(row, list) else None
        return shown

    def _close(self) -> None:
        """Close the session and wait for it."""
        self._release()
        get_runtime().close_now([])

    def _release(self) -> None:
        """Close the session in the background; what was observed stays readable."""
        self._drop_ahead()
        self._lease.release()

    def _episode(self) -> Episode:
        """What happened since the last `reset`."""
        return Episode(
            task_index=self._task_index,
            steps=tuple(self._steps),
            opened=self._opened,
            finished=self.finished,
            error=self._error,
            session=self._session,
            opening_s=self._opening_s,
        )

    def _call(self, tool: BoundTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shown:
        """Run a tool for the policy and return what it sees.

        Raises:
            SessionError: The call failed; the text is for the policy. TRL counts it as a tool failure.
        """
        if self._task_index is None:
            raise SessionError(f"source {self._blueprint.label!r}: {tool.name!r} was called before reset().")

        if self._on_call is not None:
            self._on_call()

        made = self._begin_call(tool, args, kwargs)

        if made is None:
            return _FINISHED

        session, arguments = made
        return self._record_answer(
            tool.wire_name, arguments, Runtime.wait(self._ask(session, tool.wire_name, arguments))
        )

    def _begin_call(
        self, tool: BoundTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[OpenSession, Mapping[str, Any]] | None:
        """The session that a call goes to, and its arguments by the server's names. None: the episode is over.

        Raises:
            SessionError: The arguments do not fit, or there is no session any more.
        """
        if self.finished:
            self.last_output = _FINISHED
            return None

        try:
            arguments = bind_arguments(tool, args, kwargs)
        except TypeError as error:
            raise self._refuse(tool.wire_name, kwargs, UnscoredReason.BAD_CALL, str(error)) from None

        session = self._lease.session

        if session is None or self._ended_by is not None:
            reason = self._ended_by or UnscoredReason.SESSION_LOST
            raise self._refuse(tool.wire_name, arguments, reason, _ENDED if self._opened else _UNOPENED)

        return session, arguments

    def _record_answer(self, tool: str, arguments: Mapping[str, Any], answer: Answer) -> Shown:
        """Record what a call came to; what the policy sees of it.

        Raises:
            SessionError: The call failed.
        """
        reply, duration_s = answer

        if isinstance(reply, CallFailed):
            return self._handle_failure(tool, arguments, reply, duration_s)

        try:
            shown, is_unshown = self._show(reply.blocks), False
        except SessionError as error:
            failure = CallFailed(UnscoredReason.TOOL_ERROR, str(error))
            return self._handle_failure(tool, arguments, failure, duration_s)
        except SourceError as error:
            self._refusal = self._refusal or error  # raised where the rollout is scored: TRL swallows it here
            shown, is_unshown = _UNSHOWN, True

        reward, is_bad = parse_step_reward(reply.reward)
        step = StepRecord(
            tool=tool,
            arguments=arguments,
            output=shown if isinstance(shown, str) else describe_images(reply.blocks),
            reward=reward,
            finished=reply.finished,
            failure=UnscoredReason.BAD_REWARD if is_bad else None,
            duration_s=duration_s,
        )
        self._record(step, metadata=reply.metadata)

        if is_bad:
            self._fail(UnscoredReason.BAD_REWARD, f"tool {tool!r} sent the reward {shorten(reply.reward)}", ends=False)
        if is_unshown:
            raise SessionError(_UNSHOWN)

        return shown

    def _show(self, blocks: Sequence[Block]) -> Shown:
        """Blocks of a tool's as the policy sees them.

        Raises:
            SessionError: An image cannot be read.
            SourceError: There is an image, and the policy's model takes none.
        """
        if has_images(blocks) and not shows_images(self._blueprint, self._task_index):
            self._report_once("images", "a tool answered with images, which the policy is not shown")
            blocks = [block for block in blocks if isinstance(block, str)]

        return show_blocks(blocks) or _EMPTY

    def _start_submission(self, message: str) -> Future[Answer] | None:
        """Give the terminal tool the policy's last message. None: there is no such tool, or no episode to end."""
        terminal, session = self._blueprint.terminal, self._lease.session

        if terminal is None or session is None or self.finished or self._ended_by is not None:
            return None

        return get_runtime().start(ask, session, terminal.name, terminal.take(message))

    def _finish_submission(self, message: str, answer: Future[Answer]) -> None:
        """Wait for what the terminal tool says, and record it like any call."""
        terminal = self._blueprint.terminal

        if terminal is not None:
            with suppress(SessionError):
                self._record_answer(terminal.name, terminal.take(message), Runtime.wait(answer))

    def _is_open(self) -> bool:
        """Whether the rollout's session can still be asked."""
        return self._lease.session is not None and self._ended_by is None

    def _as_candidate(self, completion: Any) -> dict[str, Any]:
        """The completion as the environment takes it to compare it with others."""
        return as_candidate(completion, self._blueprint.group_blocks or ())

    def _start_comparison(self, candidates: Sequence[Mapping[str, Any]]) -> Future[list[Verdict]]:
        """Have the candidates of the rollout's group compared in its session, which is open."""
        session = self._lease.session

        if session is None:
            raise SessionError(f"source {self._blueprint.label!r}: a group was to be compared in a closed session.")

        return start_comparison(session, candidates)

    def _note_comparison(self, reason: UnscoredReason, detail: str) -> None:
        """Note that the rollout could not be compared with the others of its group."""
        self._fail(reason, detail, ends=False)

    def _find_tool(self, name: str) -> BoundTool | None:
        """The tool behind a method of this environment. None: there is no such method."""
        return self._blueprint.find_tool(name)

    def _start_ahead(self, calls: Sequence[tuple[BoundTool, Mapping[str, Any]]]) -> None:
        """Start calls that the trainer is about to make, in this order; their replies wait for it."""
        self._drop_ahead()
        session = self._lease.session

        if session is None or self.finished or self._ended_by is not None:
            return

        sent = []

        for tool, arguments in calls:
            try:
                sent.append((tool.wire_name, bind_arguments(tool, (), arguments)))
            except TypeError:
                continue  # refused here, when the trainer makes it

        if sent:
            self._ahead = CallsAhead(session, sent)

    def _end_ahead(self) -> int:
        """Drop the calls that the trainer did not make; how many of them had been made, since this was last asked."""
        self._drop_ahead()
        num_unmatched, self._num_unmatched = self._num_unmatched, 0
        return num_unmatched

    def _ask(self, session: OpenSession, tool: str, arguments: Mapping[str, Any]) -> Future[Answer]:
        if self._ahead is not None:
            answer = self._ahead.take(tool, arguments)

            if answer is not None:
                return answer

            self._drop_ahead()

        return get_runtime().start(ask, session, tool, arguments)

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            self._num_unmatched += self._ahead.drop()
            self._ahead = None

    def _handle_failure(self, tool: str, arguments: Mapping[str, Any], failure: CallFailed, duration_s: float) -> str:
        if failure.is_finished:
            # The reply that finished the episode never came, and with it perhaps the reward.
            self._fail(UnscoredReason.SESSION_LOST, f"tool {tool!r}: the episode ended in a reply that was lost")
            self._refuse(tool, arguments, UnscoredReason.SESSION_LOST, _FINISHED, duration_s)
            self.finished = True
            return _FINISHED

        if failure.reason is UnscoredReason.BAD_CALL:
            raise self._refuse(tool, arguments, failure.reason, self._hide(failure.detail), duration_s)

        self._fail(failure.reason, f"tool {tool!r}: {failure.detail}")
        self._lease.release()
        told = "The tool failed; the episode cannot go on." if failure.reason is UnscoredReason.TOOL_ERROR else _ENDED
        raise self._refuse(tool, arguments, failure.reason, told, duration_s) from None

    def _refuse(
        self, tool: str, arguments: Mapping[str, Any], reason: UnscoredReason, told: str, duration_s: float = 0.0
    ) -> SessionError:
        """Record a call that brought no reply; the error to raise for it."""
        told = one_line(told)
        self._record(StepRecord(tool=tool, arguments=arguments, output=told, failure=reason, duration_s=duration_s))
        return SessionError(told)

    def _record(self, step: StepRecord, *, metadata: Mapping[str, Any] | None = None) -> None:
        self._steps.append(step)
        self.rewards.append(step.reward)
        self.metadata.append(metadata)
        self.finished = step.finished
        self.last_output = step.output

        if step.reward is not None:
            self.reward = step.reward

    def _fail(self, reason: UnscoredReason, detail: str, *, ends: bool = True) -> None:
        """Note a failure of the environment; `ends` says that no further call can reach it."""
        detail = self._hide(detail)
        self._error = self._error or detail

        if ends:
            self._ended_by = reason

        self._report_once(reason, detail)

    def _hide(self, text: str) -> str:
        """`text` on one line without this source's key and secrets, and without the session's id."""
        sid = self._lease.session.sid if self._lease.session is not None else ""
        return self._blueprint.hide_secrets(text.replace(sid, "…") if sid else text)

    def _report_once(self, kind: str, detail: str) -> None:
        """Warn of the first case of a kind in this process; later ones are in the metrics, and in the log at DEBUG."""
        level = logging.DEBUG if kind in self._reported else logging.WARNING
        self._reported.add(kind)
        logger.log(level, "source %r, task %s: %s", self._blueprint.label, self._task_index, detail)

    def _clear(self, task_index: int | None) -> None:
        self._task_index = task_index
        self._steps = []
        self._opened = False
        self._session = None
        self._opening_s = None
        self._ended_by = None
        self._error = None
        self._refusal = None
        self._num_messages = None
        self.reward = None
        self.rewards = []
        self.metadata = []
        self.finished = False
        self.last_output = ""

    def _check_index(self, task_index: object) -> int:
        try:
            if not isinstance(task_index, bool):
                return operator.index(task_index)  # type: ignore[arg-type]  # anything may stand in a row
        except TypeError:
            pass

        raise RoutingError(
            f"source {self._blueprint.label!r}: a row has task_index={task_index!r}, which is no whole number. Train "
            f"on the train_dataset of the same spec as the environments, and set remove_unused_columns=False."
        )


class _Lease:
    """Holds at most one session, and lets it go once; survives the environment, so that a finalizer can use it."""

    def __init__(self) -> None:
        self.session: OpenSession | None = None

    def hold(self, session: OpenSession) -> None:
        self.session = session

    def release(self) -> None:
        session, self.session = self.session, None

        if session is not None:
            get_runtime().close_soon(session)
