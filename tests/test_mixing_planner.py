"""Planning batch by batch: the static schedule's slots while all is well, reproducible decisions where it is not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import RoutingError, SourceError
from multiors.mixing import SHARE_UNITS, CircuitBreaker, build_schedule
from multiors.mixing.observed import SlotObservation
from multiors.mixing.planner import BatchPlanner
from tests.planners import planner_of

Fails = Callable[[str, int], bool]
"""Whether the rollouts of a source fail in a batch."""


RULE = CircuitBreaker(window_rollouts=1, probe_after_batches=2, max_probe_interval_batches=8)


@dataclass(frozen=True)
class Mix:
    """What a run is planned from."""

    shares: tuple[float, ...]
    num_tasks: tuple[int, ...]
    prompts_per_batch: int = 8
    seed: int = 0
    lag: int = 2
    rule: CircuitBreaker | None = RULE

    @property
    def names(self) -> list[str]:
        """One letter per source."""
        return [chr(ord("a") + index) for index in range(len(self.shares))]

    def planner(self) -> BatchPlanner:
        """A planner that has planned nothing."""
        return planner_of(
            dict(zip(self.names, self.shares, strict=True)),
            self.num_tasks,
            prompts_per_batch=self.prompts_per_batch,
            seed=self.seed,
            lag=self.lag,
            breaker=self.rule,
        )


def normalized(parts: Sequence[float]) -> tuple[float, ...]:
    """Shares in proportion to some numbers."""
    return tuple(part / sum(parts) for part in parts)


mixes = st.builds(
    lambda parts, size, seed, lag: Mix(
        normalized([share for share, _ in parts]), tuple(tasks for _, tasks in parts), size, seed, lag
    ),
    st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(1, 30)), min_size=1, max_size=8),
    st.sampled_from([1, 2, 5, 16]),
    st.integers(0, 2**64 - 1),
    st.integers(2, 4),
)
outages = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 30), st.integers(1, 20)), max_size=4)
"""(source, first batch, batches) in which a source fails."""


def failing(found: Sequence[tuple[int, int, int]], *, spared: str = "a") -> Fails:
    """Fails in these outages; one source never does."""
    return lambda name, batch: (
        name != spared
        and any(name == chr(ord("a") + source) and first <= batch < first + count for source, first, count in found)
    )


def observe(planner: BatchPlanner, batch: int, fails: Fails) -> None:
    """Score a batch: two rollouts a slot."""
    planned = planner.plan(batch)
    names = [planner.names[source] for source in planned.source_index]
    planner.observe(
        batch,
        [
            SlotObservation(slot, int(source), (None, None), 2, f"{name} broke in batch {batch}")
            if fails(name, batch)
            else SlotObservation(slot, int(source), (0.0, 1.0), 0)
            for slot, (source, name) in enumerate(
                zip(planned.source_index, names, strict=True), start=batch * planner.prompts_per_batch
            )
        ],
    )


@dataclass
class Run:
    """What a run drew, batch by batch."""

    sources: list[list[int]]
    positions: list[list[int]]
    shares: list[tuple[float, ...]]
    left_out: list[list[int]]
    """Left out once the batch was planned, not counting those that are probed in it."""

    residuals: list[list[float]]
    planner: BatchPlanner


def play(mix: Mix, num_batches: int, fails: Fails = lambda *_: False, *, saves: bool = False) -> Run:
    """Plan as far ahead as a trainer may, and score as late; `saves`: each time with a new planner from JSON."""
    planner = mix.planner()
    run = Run([], [], [], [], [], planner)
    for batch in range(num_batches):
        planned = planner.plan(batch)
        run.sources.append(planned.source_index.tolist())
        run.positions.append(planned.position.tolist())
        run.shares.append(planned.shares)
        run.left_out.append([index for index in planner.breakers.left_out if planned.shares[index] == 0])
        run.residuals.append((planner._residual / SHARE_UNITS).tolist())
        if batch >= mix.lag - 1:
            observe(planner, batch - mix.lag + 1, fails)
        if saves:
            state = json.loads(json.dumps(planner.state(), sort_keys=True))
            planner = mix.planner()
            assert [] == planner.restore(state, batch=batch)
    run.planner = planner
    return run


@given(mixes, st.integers(1, 25))
def test_while_all_is_well_the_slots_are_the_static_schedules(mix: Mix, num_batches: int) -> None:
    """A breaker that never opens changes nothing: the same source and task in every slot."""
    schedule = build_schedule(
        mix.shares,
        mix.num_tasks,
        num_slots=num_batches * mix.prompts_per_batch,
        prompts_per_batch=mix.prompts_per_batch,
        seed=mix.seed,
    )

    run = play(mix, num_batches)

    assert schedule.source_index.tolist() == list(chain(*run.sources))
    assert schedule.position.tolist() == list(chain(*run.positions))


@given(mixes, outages)
def test_every_batch_is_full_and_every_pass_is_complete(mix: Mix, found: list[tuple[int, int, int]]) -> None:
    """Whatever is left out, batches have their size, and a source draws each of its tasks before one again."""
    run = play(mix, 40, failing(found))

    assert {mix.prompts_per_batch} == {len(batch) for batch in run.sources}
    for index, num_tasks in enumerate(mix.num_tasks):
        walk = [
            position
            for sources, positions in zip(run.sources, run.positions, strict=True)
            for source, position in zip(sources, positions, strict=True)
            if source == index
        ]
        for start in range(0, len(walk), num_tasks):
            assert len(walk[start : start + num_tasks]) == len({*walk[start : start + num_tasks]} & {*range(num_tasks)})


@given(mixes, outages)
def test_a_source_that_is_left_out_is_not_drawn(mix: Mix, found: list[tuple[int, int, int]]) -> None:
    """While it waits it gets no slot, and each probe is one slot."""
    run = play(mix, 40, failing(found))

    for sources, shares, left_out in zip(run.sources, run.shares, run.left_out, strict=True):
        counts = Counter(sources)
        assert set() == set(left_out) & set(counts)
        assert all(counts[index] == 0 for index, share in enumerate(shares) if share == 0)
    assert all(abs(sum(shares) - 1) < 1e-9 for shares in run.shares)


@given(mixes, outages)
def test_the_others_get_its_slots_in_proportion(mix: Mix, found: list[tuple[int, int, int]]) -> None:
    """What is planned for sources that are drawn from keeps their proportions, and what is drawn follows it."""
    run = play(mix, 40, failing(found))

    for sources, shares, residuals in zip(run.sources, run.shares, run.residuals, strict=True):
        drawn = Counter(sources)
        whole = [index for index, share in enumerate(shares) if share and not is_probe(share, drawn[index], mix, index)]
        ratios = [shares[index] / mix.shares[index] for index in whole]
        assert max(ratios, default=1.0) == pytest.approx(min(ratios, default=1.0))
        assert abs(sum(residuals)) < 1e-9
        assert max(map(abs, residuals)) < 2


def is_probe(share: float, num_slots: int, mix: Mix, index: int) -> bool:
    """Whether a source got one slot to be tried."""
    return num_slots == 1 and share == 1 / mix.prompts_per_batch and share != mix.shares[index]


@given(mixes, outages)
def test_a_planner_that_is_restored_before_every_batch_goes_on_as_if_it_never_stopped(
    mix: Mix, found: list[tuple[int, int, int]]
) -> None:
    """Its state is all there is, and survives JSON."""
    whole, parts = play(mix, 30, failing(found)), play(mix, 30, failing(found), saves=True)

    assert (whole.sources, whole.positions) == (parts.sources, parts.positions)
    assert whole.planner.fingerprint() == parts.planner.fingerprint()


@given(st.permutations([0, 1, 2, 3]), st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), st.integers(1, 20))))
def test_the_order_of_the_sources_decides_nothing(order: list[int], found: list[tuple[int, int, int]]) -> None:
    """Sources named in another order are left out in the same batches, and draw as often, to a slot."""
    parts = (8, 4, 3, 1)
    fails = failing(found)

    def count(order: Sequence[int]) -> tuple[list[set[str]], list[dict[str, int]]]:
        mix = Mix(tuple(parts[index] / 16 for index in order), (5,) * 4, prompts_per_batch=16)
        named = ["abcd"[index] for index in order]
        planner = planner_of(
            dict(zip(named, mix.shares, strict=True)),
            mix.num_tasks,
            prompts_per_batch=16,
            seed=0,
            lag=2,
            breaker=mix.rule,
        )
        left_out, counts = [], []
        for batch in range(40):
            drawn = Counter(planner.plan(batch).source_index.tolist())
            left_out.append({named[index] for index in planner.breakers.left_out})
            counts.append({name: drawn[index] for index, name in enumerate(named)})
            if batch:
                observe(planner, batch - 1, fails)
        return left_out, counts

    straight, mixed = count([0, 1, 2, 3]), count(order)

    assert straight[0] == mixed[0]
    assert all(
        abs(one[name] - other[name]) <= 1 for one, other in zip(straight[1], mixed[1], strict=True) for name in one
    )


# -- one story, in numbers

STORY = Mix(shares=(0.5, 0.25, 0.25), num_tasks=(5, 5, 5))


def counts(run: Run) -> list[list[int]]:
    """Slots of each source, batch by batch."""
    return [np.bincount(sources, minlength=len(run.shares[0])).tolist() for sources in run.sources]


def test_a_source_is_left_out_probed_and_let_back_in() -> None:
    """It fails in batches 1 to 6; each decision holds two batches after what it was taken from."""
    run = play(STORY, 16, lambda name, batch: name == "b" and 1 <= batch <= 6)

    assert [[4, 2, 2]] * 3 == counts(run)[:3]
    assert [0, 0, 1, 0, 0, 0, 0, 0, 1] == [batch[1] for batch in counts(run)[3:12]]
    assert {2} <= {batch[1] for batch in counts(run)[13:]}
    assert [("b", "opened", 3, 5), ("b", "probe_failed", 7, 11), ("b", "readmitted", 13, None)] == [
        (event.source, event.kind, event.batch, event.probe_batch) for event in run.planner.breakers.events
    ]


def test_what_it_missed_is_not_made_up_for() -> None:
    """Once it is back, a source has its share and no more."""
    run = play(STORY, 40, lambda name, batch: name == "b" and 1 <= batch <= 6)

    assert 2.0 == np.mean([batch[1] for batch in counts(run)[20:]])


def test_a_batch_that_is_asked_for_again_is_the_same() -> None:
    """The trainer reads a batch as often as it trains on it."""
    planner = STORY.planner()

    batches = [planner.plan(batch) for batch in (0, 0, 1, 0, 1)]

    assert batches[0] is batches[1] is batches[3]
    assert batches[2] is batches[4]


def test_an_observation_that_comes_again_changes_nothing() -> None:
    """A run that is resumed in the middle of a batch generates the batch again; its first outcome counts."""
    planner = STORY.planner()
    for batch in range(2):
        planner.plan(batch)
    observe(planner, 0, lambda *_: False)
    before = planner.fingerprint()

    observe(planner, 0, lambda *_: True)
    pending = planner.fingerprint()
    planner.plan(2)
    planned = planner.fingerprint()
    is_new = planner.observe(0, [])

    assert before == pending
    assert (False, planned) == (is_new, planner.fingerprint())


def test_a_batch_is_not_planned_from_what_did_not_happen_yet() -> None:
    """Reading ahead would freeze the mix; the error says how to see what is to come."""
    planner = STORY.planner()
    planner.plan(1)

    with pytest.raises(RoutingError, match=r"batch 2 is planned from .* until batch 0.*not scored yet.*spec\.plan\(\)"):
        planner.plan(2)


def test_a_forgotten_batch_is_not_planned_again() -> None:
    """It would be another one."""
    run = play(STORY, 10)

    with pytest.raises(RoutingError, match="rows of batch 0 are asked for again, after batch 9 was planned"):
        run.planner.plan(0)


def test_an_outcome_without_a_plan_is_refused() -> None:
    """Rollouts of rows that were never handed out are not of this mix."""
    with pytest.raises(RoutingError, match="rollouts of batch 3 were scored, but 0 batches were planned"):
        STORY.planner().observe(3, [])


def test_the_end_of_all_sources_names_them_and_resuming_tries_them_again() -> None:
    """Training stops; a planner that is restored from before the end draws from all of them."""
    planner = STORY.planner()
    for batch in range(2):
        planner.plan(batch)
    observe(planner, 0, lambda *_: True)
    state = planner.state()

    with pytest.raises(SourceError, match=r"'a': 8 of 8 rollouts failed; the first: a broke in batch 0"):
        planner.plan(2)
    again = STORY.planner()
    again.restore(state, batch=2)

    assert {0, 1, 2} == set(again.plan(2).source_index.tolist())
    observe(again, 1, lambda *_: True)
    with pytest.raises(SourceError, match="every source of the mix fails"):
        again.plan(3)


# -- a mix that has changed


def state_after(num_batches: int, fails: Fails = lambda *_: False) -> dict[str, Any]:
    """The state of the story's planner."""
    return play(STORY, num_batches, fails).planner.state()


def test_sources_that_stay_go_on_where_they_were() -> None:
    """One source was removed and one is new: it is said, and the others go on in their tasks."""
    state = state_after(10)
    changed = planner_of(
        {"a": 0.5, "new": 0.25, "c": 0.25}, [5, 5, 5], prompts_per_batch=8, seed=0, lag=2, breaker=STORY.rule
    )

    told = changed.restore(state, batch=10)

    assert ["source 'b' is no longer in the mix", "source 'new' is new and begins with its first tasks"] == told
    assert [40, 0, 20] == changed._draws
    assert 0 == changed._residual.sum()
    assert 8 == len(changed.plan(11).source_index)


def test_batches_of_a_former_mix_are_planned_again() -> None:
    """What was handed out and not trained yet is drawn anew, from the tasks it would have drawn."""
    state = state_after(10)
    changed = planner_of({"a": 0.75, "c": 0.25}, [5, 5], prompts_per_batch=8, seed=0, lag=2, breaker=STORY.rule)

    changed.restore(state, batch=9)

    assert [36, 18] == changed._draws
    assert {0, 1} == set(changed.plan(9).source_index.tolist())


def test_what_is_owed_is_saved_exactly() -> None:
    """Also where it is more than a float can tell from its neighbours."""
    planner, again = STORY.planner(), STORY.planner()
    owed = [2**60 + 1, -(2**59) - 1, -(2**59)]
    planner._residual = np.array(owed)

    again.restore(json.loads(json.dumps(planner.state())), batch=0)

    assert owed == again._residual.tolist()


def test_a_source_that_was_left_out_stays_so_in_a_changed_mix() -> None:
    """It is probed at once."""
    state = state_after(6, lambda name, batch: name == "b")
    changed = planner_of({"b": 0.5, "c": 0.5}, [5, 5], prompts_per_batch=8, seed=0, lag=2, breaker=STORY.rule)

    changed.restore(state, batch=6)

    assert [1, 7] == np.bincount(changed.plan(6).source_index).tolist()


@pytest.mark.parametrize(
    ("num_tasks", "size", "seed", "batch", "said"),
    [
        ((5, 6, 5), 8, 0, 10, "source 'b' has 6 tasks, and had 5"),
        ((5, 5, 5), 4, 0, 20, "prompts_per_batch is 4, and was 8"),
        ((5, 5, 5), 8, 1, 10, "seed is 1, and was 0"),
        ((5, 5, 5), 8, 0, 4, "the run goes on at batch 4, the checkpoint's was 10"),
    ],
)
def test_what_changed_is_said_and_the_run_goes_on(
    num_tasks: tuple[int, ...], size: int, seed: int, batch: int, said: str
) -> None:
    """Another number of tasks, batch size, seed or place in the run is no reason to stop."""
    changed = Mix(STORY.shares, num_tasks, size, seed).planner()

    told = changed.restore(state_after(10), batch=batch)

    assert [said] == told
    assert size == len(changed.plan(batch).source_index)


def test_another_order_of_the_sources_is_said() -> None:
    """Each goes on where it was."""
    shares = {"b": 0.25, "a": 0.5, "c": 0.25}
    changed = planner_of(shares, [5, 5, 5], prompts_per_batch=8, seed=0, lag=2, breaker=None)

    told = changed.restore(state_after(10), batch=10)

    assert ["the sources stand in another order"] == told
    assert [20, 40, 20] == changed._draws


@given(mixes, st.integers(0, 12))
def test_a_planner_without_a_state_begins_where_the_schedule_is(mix: Mix, batch: int) -> None:
    """A checkpoint of a run without a breaker is resumed with what the static schedule has there."""
    slots = (batch + 1) * mix.prompts_per_batch
    schedule = build_schedule(
        mix.shares, mix.num_tasks, num_slots=slots, prompts_per_batch=mix.prompts_per_batch, seed=mix.seed
    )
    planner = mix.planner()

    planner.restart(batch)
    planned = planner.plan(batch)

    assert schedule.source_index[-mix.prompts_per_batch :].tolist() == planned.source_index.tolist()
    assert schedule.position[-mix.prompts_per_batch :].tolist() == planned.position.tolist()


def test_a_breaker_that_was_switched_off_leaves_nothing_out() -> None:
    """A state with a source that was left out, restored without a breaker, draws from it again."""
    state = state_after(6, lambda name, batch: name == "b")
    planner = Mix(STORY.shares, STORY.num_tasks, rule=None).planner()

    told = planner.restore(state, batch=6)

    assert [] == told
    assert {0, 1, 2} == set(planner.plan(6).source_index.tolist())
