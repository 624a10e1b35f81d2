"""When a source is left out of the mix because its environment fails, and when it is let back in.

A source is *closed* while it is drawn from, *open* while it is left out, and *probing* while the outcome of one slot
decides which of the two it becomes. A pure function of what was observed, in batches: it knows no clock, no reward and
no share. A rollout counts as failed where the environment is at fault and nothing scored it; what the policy did badly
never opens a source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from multiors.errors import ConfigError, SourceError
from multiors.mixing.observed import Failures, SlotObservation, add_failures, count_failures, slide
from multiors.mixing.settings import check_count, is_number

__all__ = ["BreakerEvent", "BreakerState", "CircuitBreaker", "SourceBreakers", "update_breaker"]


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """When a mix stops drawing from a source whose environment fails, and how it finds out that it works again.

    While a source is left out, the others get its slots in proportion to their shares. What it missed is not made up
    for later.

    Example:
        >>> CircuitBreaker(max_failure_rate=0.25).window_rollouts
        16
    """

    max_failure_rate: float = 0.5
    """A source is left out once more than this fraction of its last rollouts failed. From 0 to below 1."""

    window_rollouts: int = 16
    """The last rollouts of a source that are looked at: those of its last batches, as many as it takes. Fewer are never
    judged."""

    probe_after_batches: int = 4
    """Batches until a source that was left out is tried again with one slot. Doubled after each try that fails."""

    max_probe_interval_batches: int = 64
    """The most batches between two tries."""

    def __post_init__(self) -> None:
        rate: object = self.max_failure_rate
        if not (is_number(rate) and 0 <= rate < 1):
            raise ConfigError(
                f"CircuitBreaker: max_failure_rate={rate!r} is no fraction from 0 to below 1. To leave no source out, "
                f"pass circuit_breaker=None."
            )
        for name in ("window_rollouts", "probe_after_batches", "max_probe_interval_batches"):
            check_count("CircuitBreaker", name, getattr(self, name))
        if self.max_probe_interval_batches < self.probe_after_batches:
            raise ConfigError(
                f"CircuitBreaker: max_probe_interval_batches={self.max_probe_interval_batches} is below "
                f"probe_after_batches={self.probe_after_batches}. Raise the one, or lower the other."
            )


@dataclass(frozen=True, slots=True)
class BreakerState:
    """One source's state, between two batches."""

    status: Literal["closed", "open", "probing"] = "closed"

    window: tuple[Failures, ...] = ()
    """The last batches in which the source was drawn, while it is closed."""

    cause: Failures | None = None
    """What the last decision to leave the source out was taken from. None: it is drawn from."""

    wait_batches: int = 0
    """Batches from the last decision to the next probe, while the source is left out."""

    probe_batch: int = 0
    """The batch in which it is probed next (open), or was (probing)."""

    def to_json(self) -> dict[str, Any]:
        """The state as JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BreakerState:
        """What `to_json` was called on."""
        window = tuple(Failures(*failures) for failures in values["window"])
        cause = None if values["cause"] is None else Failures(*values["cause"])
        return cls(**{**values, "window": window, "cause": cause})


class BreakerEvent(NamedTuple):
    """A decision to report."""

    source: str
    kind: Literal["opened", "readmitted", "probe_failed"]

    batch: int
    """The first batch it holds for."""

    cause: Failures | None
    """What the source was left out for."""

    probe_batch: int | None
    """When the source is tried next. None: it is drawn from again."""


def update_breaker(
    state: BreakerState, seen: Failures, *, batch: int, next_batch: int, settings: CircuitBreaker
) -> BreakerState:
    """The state after an observation.

    Args:
        state: The state before.
        seen: What became of the source's rollouts in `batch`. None of them: nothing changes.
        batch: The batch that was observed.
        next_batch: The batch that is planned next, from which on a decision holds; later than `batch`.
        settings: The rule.
    """
    if not seen.num_rollouts:
        return state
    if state.status == "closed":
        return _watch(state, seen, next_batch=next_batch, settings=settings)
    if state.status == "open" or batch != state.probe_batch:
        return state  # rollouts that were under way when the source was left out
    if seen.rate <= settings.max_failure_rate:
        return BreakerState()
    wait = min(2 * state.wait_batches, settings.max_probe_interval_batches)
    return BreakerState("open", cause=seen, wait_batches=wait, probe_batch=next_batch + wait)


def _watch(state: BreakerState, seen: Failures, *, next_batch: int, settings: CircuitBreaker) -> BreakerState:
    window = slide([*state.window, seen], settings.window_rollouts, count=lambda failures: failures.num_rollouts)
    total = add_failures(window)
    if total.num_rollouts < settings.window_rollouts or total.rate <= settings.max_failure_rate:
        return BreakerState(window=tuple(window))
    wait = settings.probe_after_batches
    return BreakerState("open", cause=total, wait_batches=wait, probe_batch=next_batch + wait)


class SourceBreakers:
    """The breakers of a mix.

    Args:
        names: The sources.
        settings: The rule. None: no source is ever left out.
    """

    def __init__(self, names: Sequence[str], settings: CircuitBreaker | None) -> None:
        self._names = tuple(names)
        self._settings = settings
        self.states = [BreakerState()] * len(self._names)
        self.events: list[BreakerEvent] = []
        """Decisions, in order; whoever reports them clears the list."""

        self.may_retry = False
        """Whether, if all sources fail, all are tried again: a run was resumed, and nothing was seen since."""

    @property
    def closed(self) -> list[int]:
        """The sources that are drawn from."""
        return [index for index, state in enumerate(self.states) if state.status == "closed"]

    @property
    def left_out(self) -> list[int]:
        """The other sources."""
        return [index for index, state in enumerate(self.states) if state.status != "closed"]

    def update(self, batches: Iterable[tuple[int, Sequence[SlotObservation]]], *, next_batch: int) -> None:
        """Take observations of batches, in order, before a batch is planned.

        Raises:
            SourceError: Every source fails; nothing has changed then.
        """
        if self._settings is None:
            return
        states = list(self.states)
        for batch, observations in batches:
            for index, seen in enumerate(count_failures(observations, len(states))):
                states[index] = update_breaker(
                    states[index], seen, batch=batch, next_batch=next_batch, settings=self._settings
                )
        if all(state.status != "closed" for state in states):
            if not self.may_retry:
                raise SourceError(self._explain_end(states))
            states = [BreakerState()] * len(states)
        for name, before, after in zip(self._names, self.states, states, strict=True):
            if before.status != after.status:
                self.events.append(_describe_change(name, before, after, batch=next_batch))
        self.states = states

    def begin_probes(self, batch: int, *, most: int) -> list[int]:
        """The sources to be tried in this batch with one slot each, those that wait longest first."""
        due = [
            (state.probe_batch, index)
            for index, state in enumerate(self.states)
            if state.status == "open" and state.probe_batch <= batch
        ]
        probes = [index for _, index in sorted(due)[:most]]
        for index in probes:
            self.states[index] = replace(self.states[index], status="probing", probe_batch=batch)
        return probes

    def _explain_end(self, states: Sequence[BreakerState]) -> str:
        causes = [state.cause or Failures(0, 0, None) for state in states]
        lines = [
            f"- source {name!r}: {cause.num_failed} of {cause.num_rollouts} rollouts failed"
            + (f"; the first: {cause.error}" if cause.error else "")
            for name, cause in zip(self._names, causes, strict=True)
        ]
        return "\n".join(
            [
                "every source of the mix fails, so there is nothing left to train on:",
                *lines,
                "Repair the environments and resume from the last checkpoint; all of them are then tried again.",
            ]
        )


def _describe_change(name: str, before: BreakerState, after: BreakerState, *, batch: int) -> BreakerEvent:
    if after.status == "closed":
        return BreakerEvent(name, "readmitted", batch, before.cause, None)
    kind: Literal["opened", "probe_failed"] = "opened" if before.status == "closed" else "probe_failed"
    return BreakerEvent(name, kind, batch, after.cause, after.probe_batch)
