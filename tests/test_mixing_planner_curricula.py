"""Planning with curricula: exact batches, decisions that follow from what was observed, and nothing lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.mixing import SHARE_UNITS, BatchPlanner, CircuitBreaker, MixRules, PlannedBatch, lay_out
from multiors.mixing.curricula import (
    Curriculum,
    Gates,
    Ladder,
    LearningProgress,
    Pools,
    ScoreBandit,
    ShareSchedule,
    SourceTasks,
    WorstSource,
    chain,
)
from multiors.mixing.observed import SlotObservation
from multiors.mixing.quota import apportion_some
from multiors.mixing.settings import read_settings

SIZE, GENERATIONS, LAG = 8, 4, 2
NAMES = ["a", "b", "c"]
SHARES = {"a": 0.5, "b": 0.25, "c": 0.25}
LEVELS = 3

Reward = Callable[[str, int, int], float | None]
"""The reward of a rollout, by source, batch and place in its group."""

RULES = {
    "progress": MixRules(curriculum=LearningProgress()),
    "bandit": MixRules(curriculum=ScoreBandit()),
    "variance": MixRules(curriculum=ScoreBandit("variance")),
    "worst": MixRules(curriculum=WorstSource()),
    "gates": MixRules(curriculum=Gates(after={"c": {"a": 0.5}}, graduate_at={"a": 0.8}, window_groups=4)),
    "tasks": MixRules(task_curricula={"a": Ladder(field="level", min_groups=2), "b": Pools()}),
    "all": MixRules(
        CircuitBreaker(window_rollouts=4, probe_after_batches=2),
        chain([ShareSchedule.stages([(0, SHARES), (6, {"a": 1, "b": 1, "c": 2})]), LearningProgress()]),
        {"a": Ladder(field="level", min_groups=2)},
    ),
}
each_rule = pytest.mark.parametrize("rules", RULES.values(), ids=RULES)


def tasks_of(name: str) -> SourceTasks:
    """Twelve tasks on three levels, in turn."""
    specs = [json.dumps({"level": position % LEVELS}) for position in range(12)]
    return SourceTasks(name, 12, (0.0, 1.0), specs, digest=("twelve", "by level"))


def planner_of(rules: MixRules, shares: Mapping[str, float] = SHARES, **others: SourceTasks) -> BatchPlanner:
    """A planner that has planned nothing; some sources may be others than usual."""
    return BatchPlanner(
        shares,
        [others.get(name, tasks_of(name)) for name in shares],
        prompts_per_batch=SIZE,
        seed=0,
        lag=LAG,
        rules=rules,
        num_batches=30,
    )


def learn(name: str, batch: int, place: int) -> float | None:
    """One source gets better, one is noise, one is never scored in every third batch."""
    if name == "a":
        return float(place < batch // 3)
    return None if name == "c" and batch % 3 == 0 else float((batch * 7 + place) % 2)


def observe(planner: BatchPlanner, batch: int, reward: Reward) -> None:
    """Score a batch that was planned."""
    planned = planner.plan(batch)
    planner.observe(
        batch,
        [
            SlotObservation(
                batch * SIZE + place,
                int(source),
                tuple(reward(planner.names[source], batch, each) for each in range(GENERATIONS)),
                num_failed=0,
            )
            for place, source in enumerate(planned.source_index)
        ],
    )


def play(
    rules: MixRules,
    num_batches: int = 24,
    reward: Reward = learn,
    *,
    shares: Mapping[str, float] = SHARES,
    saves: bool = False,
) -> tuple[list[PlannedBatch], BatchPlanner]:
    """Plan as far ahead as a trainer does; `saves`: with a new planner from JSON before each batch."""
    planner = planner_of(rules, shares)
    found = []
    for batch in range(num_batches):
        if saves and batch:
            state = json.loads(json.dumps(planner.state(), allow_nan=False))
            planner = planner_of(rules, shares)
            assert [] == planner.restore(state, batch=batch)
        found.append(planner.plan(batch))
        if batch:
            observe(planner, batch - 1, reward)
    return found, planner


def as_lists(planned: Sequence[PlannedBatch]) -> list[Any]:
    """What can be compared."""
    return [(batch.source_index.tolist(), batch.position.tolist(), batch.shares) for batch in planned]


@each_rule
def test_every_batch_has_its_size_and_its_shares_sum_to_one(rules: MixRules) -> None:
    """Rule 9: whatever is decided."""
    planned, _ = play(rules)

    assert {SIZE} == {len(batch.source_index) for batch in planned}
    assert [pytest.approx(1)] * len(planned) == [sum(batch.shares) for batch in planned]


@each_rule
def test_a_planner_that_is_saved_before_every_batch_draws_the_same(rules: MixRules) -> None:
    """Rule 16: a run can be killed anywhere."""
    (whole, at_once), (parts, restored) = play(rules), play(rules, saves=True)

    assert as_lists(whole) == as_lists(parts)
    assert at_once.fingerprint() == restored.fingerprint()


@each_rule
def test_an_observation_of_the_last_two_batches_decides_nothing_yet(rules: MixRules) -> None:
    """What a trainer may not have scored yet cannot matter."""
    planned, _ = play(rules, 12)
    changed, _ = play(rules, 12, lambda name, batch, place: 0.0 if batch >= 12 - LAG else learn(name, batch, place))

    assert as_lists(planned) == as_lists(changed)


@pytest.mark.parametrize("name", ["progress", "bandit", "variance", "worst", "gates"])
@given(st.permutations(NAMES))
def test_the_order_of_the_sources_decides_no_share(name: str, order: list[str]) -> None:
    """Sources named in another order get the same shares of every batch, but for the last bits."""

    def reward(source: str, batch: int, place: int) -> float | None:
        return learn(source, batch, place) if batch else 0.5

    def fix(curriculum: Curriculum | None, order: Sequence[str]) -> list[dict[str, float]]:
        # One group of each source a batch, so that the quota, whose ties follow the order, decides nothing.
        planner = planner_of(MixRules(curriculum=curriculum), dict.fromkeys(order, 1 / 3))
        shares = []
        for batch in range(12):
            shares.append(dict(zip(order, planner.plan(batch).shares, strict=True)))
            if batch:
                groups = [tuple(reward(each, batch - 1, place) for place in range(4)) for each in order]
                observations = [
                    SlotObservation((batch - 1) * SIZE + index, index, group, 0) for index, group in enumerate(groups)
                ]
                planner.observe(batch - 1, observations)
        return shares

    straight, mixed = fix(RULES[name].curriculum, NAMES), fix(RULES[name].curriculum, order)

    assert [pytest.approx(shares) for shares in straight] == mixed


def test_a_locked_source_is_not_drawn_and_is_owed_nothing_when_it_opens() -> None:
    """What a gate kept from it is not made up for."""
    planned, planner = play(RULES["gates"], 24)
    counts = [Counter(batch.source_index.tolist())[2] for batch in planned]
    first = next(number for number, count in enumerate(counts) if count)

    assert first > LAG
    assert [0.0] * first == [batch.shares[2] for batch in planned[:first]]
    assert counts[first] <= SIZE * planned[first].shares[2] + 1
    assert "source 'c' is open: reached was 'a' 0.5" in planner.take_changes()
    assert [] == planner.take_changes()


def test_a_ladder_is_told_of_the_tasks_that_its_source_drew() -> None:
    """It climbs exactly where the tasks of its current level are solved."""

    def solve(name: str, batch: int, place: int) -> float | None:
        return 1.0 if name == "a" else 0.0

    planned, planner = play(RULES["tasks"], 10, solve)
    levels = [{int(each) % LEVELS for each in batch.position[batch.source_index == 0]} for batch in planned]

    assert [{0}, {0}] == levels[:LAG]
    assert {0, 1, 2} == set.union(*levels)
    assert {"level": 2.0} == planner.measure()["a"]
    assert 1.0 >= sum(planner.measure()["b"].values()) > 0


@given(st.integers(0, 12))
def test_a_schedule_of_shares_is_laid_out_as_it_would_be_planned(batch: int) -> None:
    """Beside a breaker that never opens, and from any batch on, the same slots are drawn as without one."""
    schedule = ShareSchedule.stages([(0, SHARES), (4, {"a": 0, "b": 1, "c": 3})], warm_up=3)
    tasks = [SourceTasks(name, 12) for name in NAMES]
    laid_out, shares, *_ = lay_out(
        SHARES,
        tasks,
        MixRules(curriculum=schedule),
        run_slots=SIZE * 13,
        num_slots=None,
        stopping_strategy="max_slots",
        prompts_per_batch=SIZE,
        seed=0,
    )
    planner = planner_of(MixRules(CircuitBreaker(), schedule))

    planner.restart(batch)
    planned = planner.plan(batch)

    assert laid_out.source_index[batch * SIZE :][:SIZE].tolist() == planned.source_index.tolist()
    assert laid_out.position[batch * SIZE :][:SIZE].tolist() == planned.position.tolist()
    assert pytest.approx(np.bincount(laid_out.source_index) / laid_out.num_slots, abs=1 / laid_out.num_slots) == shares


def test_what_changed_of_the_curricula_is_said_and_the_run_goes_on() -> None:
    """Another rule, other settings, or none: what fits is kept."""
    state = play(RULES["all"], 8)[1].state()
    ladder = {"a": Ladder(field="level", min_groups=2)}

    told = {
        "none": planner_of(MixRules(RULES["all"].breaker)).restore(state, batch=8),
        "other": planner_of(MixRules(None, ScoreBandit(), ladder)).restore(state, batch=8),
        "tasks": planner_of(MixRules(None, RULES["all"].curriculum, {"a": Pools(), "b": Pools()})).restore(
            state, batch=8
        ),
    }
    new = play(MixRules(CircuitBreaker()), 8)[1].state()
    told["new"] = planner_of(RULES["progress"]).restore(new, batch=8)

    assert told == {
        "none": [
            "the checkpoint was made with the curriculum ShareSchedule + LearningProgress, now off",
            "source 'a' has no task curriculum any more, so it begins anew in its tasks",
        ],
        "other": [
            "the curriculum is ScoreBandit, and was ShareSchedule + LearningProgress; what that one knew is forgotten"
        ],
        "tasks": [
            "source 'a' has another task curriculum than before, so it begins anew in its tasks",
            "source 'b' has a task curriculum, and had none, so it begins anew in its tasks",
        ],
        "new": ["the checkpoint was made without a curriculum, so it knows nothing yet"],
    }


def test_a_source_whose_task_curriculum_is_off_begins_anew_in_its_tasks() -> None:
    """Its draws of before were no walk, so none of its tasks counts as drawn."""
    rules = MixRules(CircuitBreaker(), task_curricula={"a": Pools()})
    before, after = planner_of(rules), planner_of(MixRules(CircuitBreaker()))
    before.plan(0)

    after.restore(before.state(), batch=1)
    plain = planner_of(MixRules(CircuitBreaker()))
    found = [planner.plan(batch) for planner, batch in ((after, 1), (plain, 0))]

    first, anew = ([*batch.position[batch.source_index == 0]] for batch in found)
    assert anew == first


def test_other_shares_are_said_on_resume() -> None:
    """Rule 16: weights that changed change what is drawn."""
    changed = planner_of(RULES["progress"], {"a": 0.25, "b": 0.5, "c": 0.25})

    told = changed.restore(play(RULES["progress"], 8)[1].state(), batch=8)

    assert told == [
        "source 'a' has a share of 25.00%, and had 50.00%",
        "source 'b' has a share of 50.00%, and had 25.00%",
    ]
    assert SIZE == len(changed.plan(8).source_index)


def test_other_shares_are_said_on_resume_also_where_sources_came_and_went() -> None:
    """Among the sources that stayed; what they have because another one came or went is no change of weights."""
    state = play(RULES["progress"], 8)[1].state()

    same = planner_of(RULES["progress"], {"a": 0.25, "b": 0.125, "d": 0.625}).restore(state, batch=8)
    other = planner_of(RULES["progress"], {"a": 0.25, "b": 0.25, "d": 0.5}).restore(state, batch=8)

    came_and_went = ["source 'c' is no longer in the mix", "source 'd' is new and begins with its first tasks"]
    assert came_and_went == same
    assert other == [
        *came_and_went,
        "source 'a' has a share of 50.00% among those that stayed, and had 66.67%",
        "source 'b' has a share of 50.00% among those that stayed, and had 33.33%",
    ]


KNOWING = MixRules(CircuitBreaker(), LearningProgress(), {"a": Ladder(field="level", min_groups=2), "b": Pools()})


def resume_knowing(
    rules: MixRules, others: Mapping[str, SourceTasks], *, lacks: str | None = None
) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """What is said on resume with other sources, the state before, and the one after; the checkpoint lacks a field."""
    state = json.loads(json.dumps(play(KNOWING, 12, lambda *_: 1.0)[1].state()))
    for source in state["sources"]:
        source.pop(lacks, None)
    changed = planner_of(rules, SHARES, **others)
    told = changed.restore(state, batch=12)
    after = changed.state()
    assert SIZE == len(changed.plan(12).source_index)
    return told, state, after


@pytest.mark.parametrize(
    ("reward_range", "declared"), [((0.0, 10.0), "the range from 0 to 10"), (None, "no range")], ids=["wider", "none"]
)
def test_a_source_with_another_range_of_rewards_begins_anew(
    reward_range: tuple[float, float] | None, declared: str
) -> None:
    """Its rewards of before were fractions of another range, or another reward: between sources it is as if new."""
    rules = MixRules(None, LearningProgress(), {"b": Pools()})
    told, before, after = resume_knowing(rules, {"c": replace(tasks_of("c"), reward_range=reward_range)})

    assert told[0] == (
        f"source 'c' declares {declared} for its rewards, and declared the range from 0 to 1, so what curricula knew "
        f"of it is forgotten"
    )
    known, kept = (state["curriculum"]["sources"] for state in (before, after))
    assert {"fast": None, "slow": None, "range": None} == kept["c"] != known["c"]
    assert known["a"] == kept["a"]


def test_thresholds_of_another_range_begin_anew() -> None:
    """What a ladder has reached, and what pools hold, was measured by the range of before."""
    wide = {name: replace(tasks_of(name), reward_range=(0.0, 10.0)) for name in "ab"}
    told, before, after = resume_knowing(KNOWING, wide)

    assert 2 == len(told)
    assert 2 == before["sources"][0]["tasks"]["state"]["level"]
    assert 0 == after["sources"][0]["tasks"]["state"]["level"]
    assert before["sources"][1]["tasks"]["state"]["queues"] != [[]] * 4
    assert [[]] * 4 == after["sources"][1]["tasks"]["state"]["queues"]


def test_ranges_of_rewards_that_nobody_remembers_are_not_compared() -> None:
    """Nor those of a checkpoint that does not hold them."""
    wide = replace(tasks_of("c"), reward_range=(0.0, 10.0))
    state = play(MixRules(CircuitBreaker()), 8)[1].state()

    assert [] == planner_of(MixRules(CircuitBreaker()), c=wide).restore(state, batch=8)
    assert [] == resume_knowing(KNOWING, {"c": wide}, lacks="reward_range")[0]


def test_other_tasks_of_the_same_number_are_said() -> None:
    """Pools begin anew, because they know tasks by position; a ladder keeps its level, and a walk goes on."""
    found = {name: replace(tasks_of(name), digest=("twelve", "others")) for name in NAMES}
    told, before, after = resume_knowing(KNOWING, found)

    assert told == [
        *(f"source {name!r} has as many tasks as before, and others" for name in NAMES),
        "the task curriculum of source 'b' begins anew among its other tasks",
    ]
    assert before["sources"][0]["tasks"]["state"]["level"] == after["sources"][0]["tasks"]["state"]["level"] == 2
    assert [[]] * 4 == after["sources"][1]["tasks"]["state"]["queues"]
    assert before["sources"][2]["draws"] <= after["sources"][2]["draws"]


@pytest.mark.parametrize("digest", [None, ("twelve", None)], ids=["nothing", "only their number"])
def test_tasks_of_which_nothing_is_known_are_not_compared(digest: tuple[str, None] | None) -> None:
    """Nor those of a checkpoint that says nothing of them."""
    assert [] == resume_knowing(KNOWING, {"c": replace(tasks_of("c"), digest=digest)})[0]
    assert [] == resume_knowing(KNOWING, {}, lacks="task_digest")[0]


def test_other_indices_are_other_tasks() -> None:
    """Also where specifications were not fetched."""
    told = resume_knowing(KNOWING, {"c": replace(tasks_of("c"), digest=("others", None))})[0]

    assert ["source 'c' has as many tasks as before, and others"] == told


@pytest.mark.parametrize(
    ("ladder", "level"),
    [
        (Ladder(field="level", min_groups=2, up=0.8), 2),
        (Ladder(field="other", min_groups=2), 0),
        (Ladder(field="level", min_groups=2, highest_first=True), 0),
        (Ladder(field="level", min_groups=2, num_levels=3), 0),
        (Ladder(field="level", min_groups=2, order=(0, 1, 2)), 0),
    ],
    ids=["threshold", "field", "direction", "number", "order"],
)
def test_a_ladder_of_other_levels_begins_anew(ladder: Ladder, level: int) -> None:
    """The number of its level would mean another difficulty; other thresholds leave it what it is."""
    specs = [json.dumps({"level": position % LEVELS, "other": position // 4}) for position in range(12)]
    rules = replace(KNOWING, task_curricula={"a": ladder, "b": Pools()})
    told, _, after = resume_knowing(rules, {"a": replace(tasks_of("a"), specs=specs)})

    what = "and goes on with what it knows" if level else "with which it begins anew"
    assert [f"the task curriculum of source 'a' has other settings, {what}"] == told
    assert level == after["sources"][0]["tasks"]["state"]["level"]


@pytest.mark.parametrize(
    ("before", "now", "goes_on"),
    [
        (("easy", "medium"), ("easy", "medium", "hard"), True),
        (("easy", "medium"), ("medium", "easy"), False),
        (("easy", "medium"), None, False),
    ],
)
def test_harder_levels_may_come_to_a_ladder(
    before: tuple[str, ...], now: tuple[str, ...] | None, goes_on: bool
) -> None:
    """Those that it had keep their numbers."""
    settings = read_settings(Ladder(field="level", order=before))

    assert goes_on == Ladder(field="level", order=now).can_continue(settings, has_other_tasks=False)
    assert Ladder(field="level", order=now).can_continue(None, has_other_tasks=False)


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.01, 0.2, 1.0]), min_size=4, max_size=4).filter(any), max_size=40),
    st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4),
    st.sampled_from([1, 3, 8]),
)
def test_what_changing_shares_leave_owed_is_repaid_once_they_stay(
    changing: list[list[float]], constant: list[float], size: int
) -> None:
    """Rule 9: batches stay exact, a source without a share draws nothing, and debts end below one slot."""
    residual = np.zeros(4, dtype=np.int64)
    for parts in changing:
        shares = [part / sum(parts) for part in parts]
        counts, residual = apportion_some(shares, size, residual)

        assert size == counts.sum()
        assert [0] == sorted({int(count) for count, share in zip(counts, shares, strict=True) if not share} | {0})
        assert 0 == residual.sum()

    shares = [part / sum(constant) for part in constant]
    for _ in range(600):
        counts, residual = apportion_some(shares, size, residual)

    assert max(abs(residual)) < SHARE_UNITS
