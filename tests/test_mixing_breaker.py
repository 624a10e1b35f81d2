"""When a source is left out, tried again, and let back in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError, SourceError
from multiors.mixing import CircuitBreaker
from multiors.mixing.breaker import BreakerState, SourceBreakers, update_breaker
from multiors.mixing.observed import Failures, SlotObservation

RULE = CircuitBreaker(max_failure_rate=0.5, window_rollouts=8, probe_after_batches=4, max_probe_interval_batches=10)


def feed(state: BreakerState, *seen: tuple[int, int], batch: int = 0, rule: CircuitBreaker = RULE) -> BreakerState:
    """The state after (rollouts, failed) of one batch after another, each planned two batches later."""
    for number, (num_rollouts, num_failed) in enumerate(seen):
        failures = Failures(num_rollouts, num_failed, "it broke" if num_failed else None)
        state = update_breaker(state, failures, batch=batch + number, next_batch=batch + number + 2, settings=rule)
    return state


def test_a_source_that_fails_too_often_is_left_out() -> None:
    """More than the allowed fraction of the window opens the breaker, and the cause is kept."""
    state = feed(BreakerState(), (4, 2), (4, 3))

    assert BreakerState("open", cause=Failures(8, 5, "it broke"), wait_batches=4, probe_batch=7) == state


def test_a_rate_that_is_allowed_opens_nothing() -> None:
    """Exactly the allowed fraction is allowed."""
    assert "closed" == feed(BreakerState(), (4, 2), (4, 2), (8, 4)).status


def test_fewer_rollouts_than_the_window_are_not_judged() -> None:
    """A source that failed in all of its few rollouts is given as many as the window has."""
    assert "closed" == feed(BreakerState(), (4, 4), (3, 3)).status


def test_only_the_last_rollouts_count() -> None:
    """Failures that lie before the window do not matter any more, however many there were."""
    state = feed(BreakerState(), (4, 4), (4, 0), (4, 0), (4, 2))

    assert (Failures(4, 0, None), Failures(4, 2, "it broke")) == state.window


def test_a_batch_without_the_source_says_nothing() -> None:
    """A source that was not drawn keeps its window."""
    state = feed(BreakerState(), (4, 4))

    assert state == feed(state, (0, 0), batch=1)


def test_rollouts_under_way_when_a_source_is_left_out_change_nothing() -> None:
    """Batches that were planned before the decision still come in, good or bad."""
    state = feed(BreakerState(), (8, 8))

    assert state == feed(state, (8, 8), (8, 0), batch=1)


def probing(state: BreakerState, batch: int) -> BreakerState:
    """The state once the source got its one slot."""
    return BreakerState("probing", cause=state.cause, wait_batches=state.wait_batches, probe_batch=batch)


def test_a_probe_that_works_lets_the_source_back_in() -> None:
    """It begins with an empty window: what was before is not held against it."""
    state = probing(feed(BreakerState(), (8, 8)), 6)

    assert BreakerState() == feed(state, (4, 2), batch=6)


def test_each_probe_that_fails_doubles_the_wait_up_to_the_longest() -> None:
    """4, 8, then 10 batches, which is the most."""
    state = feed(BreakerState(), (8, 8))
    waits = [state.wait_batches]

    for _ in range(3):
        state = feed(probing(state, state.probe_batch), (4, 3), batch=state.probe_batch)
        waits.append(state.wait_batches)

    assert [4, 8, 10, 10] == waits
    assert Failures(4, 3, "it broke") == state.cause


def test_another_batch_than_the_probes_decides_nothing() -> None:
    """A late observation is not taken for the probe's."""
    state = probing(feed(BreakerState(), (8, 8)), 6)

    assert state == feed(state, (8, 0), batch=5)


failures = st.integers(1, 9).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count)))


@given(st.lists(failures, max_size=12))
def test_a_state_survives_json(seen: list[tuple[int, int]]) -> None:
    """Every state is read back as it was written."""
    state = feed(BreakerState(), *seen)

    assert state == BreakerState.from_json(json.loads(json.dumps(state.to_json())))


@given(st.lists(failures, max_size=30), st.floats(0, 0.99), st.integers(1, 20))
def test_a_source_is_left_out_exactly_if_its_window_says_so(
    seen: list[tuple[int, int]], rate: float, size: int
) -> None:
    """The decision is that of the shortest tail of batches which has the window's number of rollouts."""
    rule = CircuitBreaker(max_failure_rate=rate, window_rollouts=size)
    state = BreakerState()

    for number in range(1, len(seen) + 1):
        state = feed(state, seen[number - 1], batch=number, rule=rule)
        tails = [seen[start:number] for start in range(number)]
        window = [tail for tail in tails if sum(count for count, _ in tail) >= size][-1:]
        is_bad = any(sum(failed for _, failed in tail) / sum(count for count, _ in tail) > rate for tail in window)
        assert is_bad == (state.status == "open")
        if is_bad:
            break


def observation(source: int, num_failed: int, error: str | None = None, *, size: int = 8) -> SlotObservation:
    """One slot whose rollouts failed or scored 1.0."""
    return SlotObservation(0, source, (None,) * num_failed + (1.0,) * (size - num_failed), num_failed, error)


def test_the_last_source_that_fails_stops_training() -> None:
    """Where every source fails there is nothing to train on: the error names each, with rate and first error."""
    breakers = SourceBreakers(["sort", "heat"], RULE)
    breakers.update([(0, [observation(0, 8, "no route")])], next_batch=2)
    before = list(breakers.states)

    with pytest.raises(SourceError, match=r"(?s)'sort': 8 of 8 .*no route.*'heat': 7 of 8 .*first: gone.*resume from"):
        breakers.update([(1, [observation(1, 7, "gone")])], next_batch=3)

    assert before == breakers.states


def test_without_settings_no_source_is_left_out() -> None:
    """A mix without a circuit breaker draws from a source that always fails."""
    breakers = SourceBreakers(["sort"], None)

    breakers.update([(0, [observation(0, 8)])], next_batch=2)

    assert ([0], []) == (breakers.closed, breakers.left_out)


def test_those_that_wait_longest_are_probed_first() -> None:
    """At most so many as a batch has room for; the others wait for the next batch."""
    breakers = SourceBreakers(["a", "b", "c"], RULE)
    breakers.states = [BreakerState("open", probe_batch=batch) for batch in (7, 5, 5)]

    rounds = [breakers.begin_probes(batch, most=2) for batch in (4, 7, 8)]

    assert [[], [1, 2], [0]] == rounds


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_failure_rate": 1.0}, r"max_failure_rate=1\.0 is no fraction .* circuit_breaker=None"),
        ({"max_failure_rate": -0.1}, "is no fraction from 0"),
        ({"max_failure_rate": float("nan")}, "is no fraction from 0"),
        ({"max_failure_rate": True}, "is no fraction from 0"),
        ({"window_rollouts": 0}, "window_rollouts=0 is no whole number"),
        ({"probe_after_batches": 1.5}, r"probe_after_batches=1\.5 is no whole number"),
        ({"max_probe_interval_batches": True}, "max_probe_interval_batches=True is no whole number"),
        ({"max_probe_interval_batches": 3}, "max_probe_interval_batches=3 is below probe_after_batches=4"),
    ],
)
def test_impossible_settings_are_refused(changed: dict[str, Any], message: str) -> None:
    """A rate that nothing exceeds, counts that are no counts, and waits that shrink are errors."""
    with pytest.raises(ConfigError, match=message):
        CircuitBreaker(**changed)
