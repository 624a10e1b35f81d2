"""The plan: what a schedule will do, printed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from multiors.mixing import MixRules, Plan, build_schedule, make_plan
from multiors.mixing.curricula import Gates, Ladder


def plan_of(
    num_tasks: list[int],
    shares: list[float],
    *,
    num_slots: int,
    prompts_per_batch: int | None,
    requested_slots: int | None = None,
    changed_by: Sequence[str] = (),
) -> Plan:
    """A plan of sources called a, b, c, and so on."""
    schedule = build_schedule(shares, num_tasks, num_slots=num_slots, prompts_per_batch=prompts_per_batch, seed=5)
    return make_plan(
        list("abcdef")[: len(shares)],
        schedule,
        shares=shares,
        num_tasks=num_tasks,
        seed=5,
        stopping_strategy="max_slots",
        requested_slots=requested_slots,
        changed_by=changed_by,
    )


def test_a_plan_prints_a_table_and_what_is_worth_knowing() -> None:
    """The text names tasks, shares, slots, passes and mean slots a batch, repeats, and sources absent from batches."""
    plan = plan_of([1200, 5, 1, 9], [0.7, 0.2, 0.05, 0.05], num_slots=40, prompts_per_batch=8, requested_slots=33)

    expected = """\
40 slots in 5 batches of 8 (seed 5, max_slots)

source  tasks   share  slots  passes  per batch
------  -----  ------  -----  ------  ---------
a       1,200  70.00%     28    0.02       5.60
b           5  20.00%      8    1.60       1.60
c           1   5.00%      2    2.00       0.40
d           9   5.00%      2    0.22       0.40

num_slots=33 was asked for; whole batches make 40.
source 'a' draws 28 of its 1,200 tasks, none twice.
source 'b' repeats its 5 tasks: each is drawn 1 or 2 times.
source 'c' repeats its 1 task: each is drawn 2 times.
source 'c' is not in every batch: one slot in 2.5 batches.
source 'd' draws 2 of its 9 tasks, none twice.
source 'd' is not in every batch: one slot in 2.5 batches."""
    assert expected == str(plan)


def test_a_plan_without_batches_has_no_column_for_them() -> None:
    """Without a batch size nothing is said about batches, and a plan with nothing to remark on ends with its table."""
    plan = plan_of([2, 2], [0.5, 0.5], num_slots=4, prompts_per_batch=None, requested_slots=4)

    expected = """\
4 slots (seed 5, max_slots)

source  tasks   share  slots  passes
------  -----  ------  -----  ------
a           2  50.00%      2    1.00
b           2  50.00%      2    1.00"""
    assert expected == str(plan)


def test_a_source_that_is_never_drawn_is_named() -> None:
    """A schedule too short for a share says so instead of showing a source with nothing."""
    plan = plan_of([1, 1], [0.99, 0.01], num_slots=1, prompts_per_batch=1)

    assert "1 slot in 1 batch of 1 (seed 5, max_slots)" == str(plan).splitlines()[0]
    assert "source 'b' is not drawn: the schedule is too short for its share." == str(plan).splitlines()[-1]


def test_a_plan_that_curricula_change_says_so() -> None:
    """It is that of the mix without them: a gate is closed, and a ladder at its foot, from the first batch on."""
    rules = MixRules(curriculum=Gates(after={"b": {"a": 0.5}}), task_curricula={"b": Ladder(field="level")})

    plan = plan_of([4, 4], [0.5, 0.5], num_slots=8, prompts_per_batch=8, changed_by=rules.learning)

    remark = "this is the mix without Gates and Ladder in source 'b', which will change it."
    assert [(None, remark)] == plan.remarks


def test_a_plan_adds_up() -> None:
    """Slots sum to the schedule's, and passes and slots a batch follow from them."""
    plan = plan_of([7, 30], [0.25, 0.75], num_slots=64, prompts_per_batch=16)

    assert 64 == sum(source.slots for source in plan.sources)
    assert [(16, 16 / 7, 4.0), (48, 48 / 30, 12.0)] == [
        (source.slots, source.passes, source.slots_per_batch) for source in plan.sources
    ]


def test_a_plan_survives_json() -> None:
    """The JSON form holds every field, and None stays None."""
    plan = plan_of([2], [1.0], num_slots=4, prompts_per_batch=None)

    content = json.loads(json.dumps(plan.to_json()))
    assert {
        "sources": [{"name": "a", "num_tasks": 2, "share": 1.0, "slots": 4, "passes": 2.0, "slots_per_batch": None}],
        "num_slots": 4,
        "prompts_per_batch": None,
        "num_batches": None,
        "seed": 5,
        "stopping_strategy": "max_slots",
        "requested_slots": None,
        "changed_by": [],
        "share_points": [],
    } == content


def test_a_schedule_of_shares_is_shown_at_some_of_its_batches() -> None:
    """Six batches at equal distances, the first and the last among them, in the table and as JSON."""
    shares = [[1 - batch / 20, batch / 20] for batch in range(11)]
    schedule = build_schedule([0.5, 0.5], [4, 4], num_slots=88, prompts_per_batch=8, seed=0, shares_by_batch=shares)
    plan = make_plan(
        ["a", "b"],
        schedule,
        shares=[0.75, 0.25],
        num_tasks=[4, 4],
        seed=0,
        stopping_strategy="max_slots",
        shares_by_batch=shares,
    )

    expected = """\
share in batch        0       2       4       6       8      10
--------------  -------  ------  ------  ------  ------  ------
a               100.00%  90.00%  80.00%  70.00%  60.00%  50.00%
b                 0.00%  10.00%  20.00%  30.00%  40.00%  50.00%

source"""
    points = json.loads(json.dumps(plan.to_json()))["share_points"]
    assert expected in str(plan)
    assert [{"batch": 0, "shares": [1.0, 0.0]}, {"batch": 10, "shares": [0.5, 0.5]}] == [points[0], points[-1]]


def test_a_run_with_fewer_batches_than_points_shows_each_once() -> None:
    """No batch is shown twice."""
    shares = [[1.0], [1.0]]
    schedule = build_schedule([1.0], [4], num_slots=2, prompts_per_batch=1, seed=0, shares_by_batch=shares)
    plan = make_plan(
        ["a"],
        schedule,
        shares=[1.0],
        num_tasks=[4],
        seed=0,
        stopping_strategy="max_slots",
        shares_by_batch=shares,
    )

    assert [0, 1] == [point.batch for point in plan.share_points]
