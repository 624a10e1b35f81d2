"""Rows that are decided when they are read, and what is learned once a batch is scored."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerState

from multiors import RolloutRecord, UnscoredReason
from multiors.errors import ConfigError, RoutingError, SessionError
from multiors.mixing import (
    BatchPlanner,
    CircuitBreaker,
    Layout,
    MixRules,
    PlannedBatch,
    SourceRows,
)
from multiors.mixing import lay_out as lay_out_mix
from multiors.mixing.curricula import LearningProgress, ShareSchedule
from multiors.training import BatchShape, RunState
from multiors.training.limits import FailureLimit, FailureLimits
from multiors.training.planned import check_planned_rows, check_planning, count_lag, lay_out_planned
from multiors.training.watch import RunWatch
from tests.planners import planner_of, tasks_of

NAMES = ["a", "b"]
NO_RULES = MixRules()
BREAKER = MixRules(CircuitBreaker())
STAGES = ShareSchedule.stages([(0, {"a": 1, "b": 3}), (3, {"a": 1, "b": 1})])
LONGER = ShareSchedule.stages([(0, {"a": 1, "b": 3}), (3, {"a": 1, "b": 1}), (9, {"a": 1, "b": 0})])
TURNED = ShareSchedule.stages([(0, {"a": 1, "b": 1}), (3, {"a": 1, "b": 3})])
LINE = ShareSchedule([(0, {"a": 1, "b": 3}), (1, {"a": 1, "b": 1})], unit="fraction")
SHAPE = BatchShape(
    prompts_per_batch=4,
    num_generations=2,
    rollouts_per_process=8,
    gradient_accumulation_steps=1,
    micro_batches_per_generation=1,
)


def watch_of(**limits: FailureLimit) -> RunWatch:
    """A watch of the sources `a` and `b`."""
    return RunWatch(NAMES, FailureLimits({name: limits.get(name, FailureLimit()) for name in NAMES}))


def lay_out(watch: RunWatch, *, num_batches: int = 4) -> Any:
    """A dataset of `a` with three tasks and `b` with five, at equal shares."""
    rows = [SourceRows("a", [10, 11, 12]), SourceRows("b", range(5), tasks=[f'{{"n": {n}}}' for n in range(5)])]
    return lay_out_planned(
        watch,
        rows,
        BREAKER,
        tasks=tasks_of({"a": 3, "b": 5}),
        shares={"a": 0.5, "b": 0.5},
        shape=SHAPE,
        num_slots=4 * num_batches,
        seed=0,
    )


def record(
    source: str, slot: int, reward: float | None = 1.0, *, reason: UnscoredReason | None = None
) -> RolloutRecord:
    """One rollout."""
    error = None if reason is None else "it broke"
    return RolloutRecord(source, 0, slot, 0, reward, reward, {}, reason, error, finished=True, steps=())


def layout_of(
    *,
    size: int = 4,
    seed: int = 0,
    num_batches: int = 4,
    rules: MixRules = NO_RULES,
    weight: float = 1.0,
    digest: str = "these",
    **num_tasks: int,
) -> Layout:
    """What a mix of these sources draws, of which the first one has a weight and the others have 1."""
    total = weight + len(num_tasks) - 1
    return lay_out_mix(
        {name: (1.0 if index else weight) / total for index, name in enumerate(num_tasks)},
        [replace(source, digest=(digest,)) for source in tasks_of(num_tasks)],
        rules,
        run_slots=num_batches * size,
        num_slots=None,
        stopping_strategy="first_exhausted",
        prompts_per_batch=size,
        seed=seed,
    )


# -- rows


def test_rows_are_those_of_the_schedule() -> None:
    """Each slot gets its source's name, its task's index and its specification, and the empty prompt."""
    dataset = lay_out(watch_of())

    rows = [dataset[slot] for slot in (0, 0, 1, 2, 3)]

    assert {"a": 2, "b": 2} == Counter(row["environment"] for row in rows[1:])
    assert [0, 0, 1, 2, 3] == [row["slot"] for row in rows]
    assert rows[0] == rows[1]
    for row in rows:
        assert [{"role": "user", "content": ""}] == row["prompt"]
        assert (row["task_index"] in (10, 11, 12)) == (row["environment"] == "a")
        assert (None if row["environment"] == "a" else f'{{"n": {row["task_index"]}}}') == row["task"]


def test_a_dataset_can_be_copied_and_cut_without_planning_twice() -> None:
    """`datasets` copies formats; all copies ask the one planner."""
    watch = watch_of()
    dataset = lay_out(watch)

    copied, cut = copy.deepcopy(dataset), dataset.select(range(2))

    assert dataset[1] == copied[1] == cut[1]
    check_planned_rows(copied, dataset)
    with pytest.raises(ConfigError, match="does not hold the slots of the mix in order"):
        check_planned_rows(cut, dataset)


def test_a_stream_is_refused() -> None:
    """Nobody can tell whether its rows are the slots in order."""
    dataset = lay_out(watch_of())

    with pytest.raises(ConfigError, match=r"dataset is a stream.* Give it spec\.train_dataset of this spec as it is"):
        check_planned_rows(dataset.with_format(None).to_iterable_dataset(), dataset)


def test_another_mixs_dataset_is_refused() -> None:
    """It looks alike, and would be planned by another planner."""
    with pytest.raises(ConfigError, match=r"Give it spec\.train_dataset of this spec as it is"):
        check_planned_rows(lay_out(watch_of()), lay_out(watch_of()))


def test_a_dataset_that_was_sent_to_another_process_says_so() -> None:
    """There is one planner, in the process that trains."""
    sent = pickle.loads(pickle.dumps(lay_out(watch_of())))

    with pytest.raises(RoutingError, match=r"was sent to another\. Set dataloader_num_workers=0"):
        _ = sent[0]


def test_a_watch_without_a_planner_plans_nothing() -> None:
    """A mix without a breaker has its schedule already."""
    with pytest.raises(ConfigError, match="its schedule was laid out before"):
        watch_of().plan(0)


# -- how far a trainer reads ahead


def read_ahead(accumulation: int, micro_batches: int, kills: set[int], *, num_batches: int = 12) -> list[PlannedBatch]:
    """Read and score as transformers, accelerate and TRL do it, killed after some steps and resumed."""
    shape = BatchShape(1, 2, 2, accumulation, micro_batches)
    total = num_batches * micro_batches
    seen: dict[int, PlannedBatch] = {}

    def make() -> BatchPlanner:
        return planner_of({"a": 1.0}, [5], prompts_per_batch=1, seed=0, lag=count_lag(shape), breaker=CircuitBreaker())

    planner, num_trained = make(), 0
    for step in range(-(-total // accumulation)):
        first, last = step * accumulation, min((step + 1) * accumulation, total)
        for micro_batch in range(first, min(last + 1, total)):
            seen.setdefault(micro_batch // micro_batches, planner.plan(micro_batch // micro_batches))
        for micro_batch in range(first, last):
            if num_trained % micro_batches == 0:
                planner.observe(micro_batch // micro_batches, [])
            num_trained += 1
        if step in kills and last < total:
            state, planner, num_trained = planner.state(), make(), 0
            planner.restore(state, batch=last // micro_batches)

    return list(seen.values())


@given(st.integers(1, 6), st.integers(1, 6), st.sets(st.integers(0, 20)))
def test_what_a_batch_follows_from_is_known_when_it_is_read(
    accumulation: int, micro_batches: int, kills: set[int]
) -> None:
    """Whatever the accumulation, and wherever a run is killed and resumed, no batch is read too early."""
    assert 12 == len(read_ahead(accumulation, micro_batches, kills))


@pytest.mark.parametrize(("accumulation", "micro_batches", "lag"), [(1, 1, 2), (2, 2, 2), (1, 4, 2), (4, 1, 5)])
def test_a_trainer_that_accumulates_over_batches_reads_further_ahead(
    accumulation: int, micro_batches: int, lag: int
) -> None:
    """Two batches are the rule."""
    assert lag == count_lag(BatchShape(4, 2, 8, accumulation, micro_batches))


def test_a_mix_that_knows_no_batches_is_refused(tmp_path: Path) -> None:
    """The trainer's own arguments come too late."""
    from trl import GRPOConfig

    args = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")

    with pytest.raises(ConfigError, match=r"the batches of the trainer are not known\. Call spec\.training_arguments"):
        check_planning(args, SHAPE, None, BREAKER)


# -- the end of a batch


def end(run: RunState, source: str, records: list[RolloutRecord], **arguments: Any) -> None:
    """A column has scored its rollouts."""
    given = {"slot": [0], "trainer_state": TrainerState(), **arguments}
    run.end_column(source, records, given, sources=NAMES)


@pytest.mark.parametrize("order", list(permutations(NAMES)))
def test_a_batch_ends_with_its_last_column_in_any_order(order: tuple[str, ...]) -> None:
    """Columns with async functions end when they like; the batch is observed once, in slot order."""
    watch = watch_of()
    lay_out(watch)
    run = RunState(watch=watch)
    names = [NAMES[source] for source in watch.plan(0).source_index]
    logged: list[tuple[str, float]] = []

    for source in order:
        own = [record(name, slot) for slot, name in enumerate(names) for _ in range(2) if name == source]
        end(run, source, own, log_metric=lambda name, value: logged.append((name, value)))

    assert watch.planner is not None
    observed = watch.planner._observed[0]
    assert [0, 1, 2, 3] == [observation.slot for observation in observed]
    assert names == [NAMES[observation.source] for observation in observed]
    assert {(1.0, 1.0)} == {observation.rewards for observation in observed}
    assert ("env/a/planned_share", 0.5) in logged
    metrics = ("planned_share", "left_out", "owed_slots", "with_gradient")
    assert {f"env/{name}/{metric}" for name in NAMES for metric in metrics} == dict(logged).keys()


def test_a_batch_whose_scoring_failed_is_forgotten() -> None:
    """Training again begins with a new batch, not with the rest of the one that broke off."""
    watch = watch_of()
    run = RunState(watch=watch)

    end(run, "a", [record("a", 0)])
    end(run, "a", [record("a", 0)])
    end(run, "b", [])

    assert 1 == watch.summary.sources["a"].num_rollouts


@pytest.mark.parametrize("arguments", [{"slot": [None]}, {"slot": None}, {"trainer_state": None}])
def test_only_rollouts_of_the_schedule_count(arguments: dict[str, Any]) -> None:
    """What is scored elsewhere (evaluation rows, by hand) is no part of the run."""
    watch = watch_of()
    run = RunState(watch=watch)

    for source in NAMES:
        end(run, source, [record(source, 0)], **arguments)

    assert 0 == watch.summary.sources["a"].num_rollouts


def test_without_a_watch_nobody_is_told() -> None:
    """Columns can be used without a spec."""
    run = RunState()

    end(run, "a", [record("a", 0)])

    assert set() == run._ended


# -- resuming


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (layout_of(a=3, b=5), None),
        (layout_of(a=3, c=5), "source 'b' is no longer in the mix; source 'c' is new and begins with its first tasks"),
        (layout_of(a=3, b=6), "source 'b' has 6 tasks, and had 5"),
        (
            layout_of(a=3, b=5, digest="others"),
            "source 'a' has as many tasks as before, and others; source 'b' has as many tasks as before, and others",
        ),
        (layout_of(b=5, a=3), "the sources stand in another order"),
        (layout_of(a=3, b=5, size=8), "prompts_per_batch is 8, and was 4"),
        (layout_of(a=3, b=5, seed=1), "seed is 1, and was 0"),
    ],
)
def test_a_mix_that_has_changed_since_the_checkpoint_is_reported(
    changed: Layout, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Also without a breaker: a resumed run goes on with another schedule, and says so."""
    state = TrainerState()
    watch_of().begin(state, SHAPE, layout_of(a=3, b=5), NO_RULES)
    state.global_step = 2

    watch_of().begin(state, SHAPE, changed, NO_RULES)

    messages = [] if said is None else [f"resuming from a checkpoint of another mix: {said}."]
    assert messages == [record.getMessage() for record in caplog.records]


DRAWN = "ShareSchedule gives batches that are already drawn other shares than they had"


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (STAGES, STAGES, []),
        (STAGES, LONGER, ["ShareSchedule has other settings than before"]),
        (STAGES, TURNED, ["ShareSchedule has other settings than before", DRAWN]),
        (STAGES, None, ["shares follow their weights, and followed ShareSchedule"]),
        (None, STAGES, ["shares follow ShareSchedule, and followed their weights"]),
    ],
    ids=["same", "longer", "turned", "none", "new"],
)
def test_another_schedule_of_shares_is_reported(
    before: ShareSchedule | None, now: ShareSchedule | None, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it is another one, and whether it says something else of what was drawn: two facts, each of its own."""
    assert said == go_on(MixRules(curriculum=before), MixRules(curriculum=now), caplog)


@pytest.mark.parametrize(("schedule", "said"), [(STAGES, []), (LINE, [DRAWN])], ids=["batch", "fraction"])
def test_the_length_of_a_run_matters_where_its_schedule_counts_fractions_of_it(
    schedule: ShareSchedule, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In a longer run the same batches are another part of it; a schedule by batch number says what it said."""
    rules = MixRules(curriculum=schedule)

    assert said == go_on(rules, rules, caplog, num_batches=8)
    assert [] == go_on(rules, rules, caplog)


def test_weights_that_a_schedule_replaces_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """No slot follows from them."""
    assert [] == go_on(MixRules(curriculum=STAGES), MixRules(curriculum=STAGES), caplog, weight=3.0)
    assert go_on(NO_RULES, NO_RULES, caplog, weight=3.0) == [
        "source 'a' has a share of 75.00%, and had 50.00%",
        "source 'b' has a share of 25.00%, and had 50.00%",
    ]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (
            MixRules(curriculum=STAGES),
            MixRules(CircuitBreaker(), STAGES),
            ["it holds no state of a circuit breaker, so it begins anew"],
        ),
        (
            MixRules(CircuitBreaker(), STAGES),
            MixRules(curriculum=STAGES),
            ["it was made with a circuit breaker or a task curriculum, which is now off"],
        ),
        (
            MixRules(curriculum=STAGES),
            MixRules(CircuitBreaker(), LearningProgress()),
            [
                "shares follow LearningProgress, and followed ShareSchedule",
                "it holds no state of a circuit breaker or a curriculum, so these begin anew",
            ],
        ),
        (
            MixRules(CircuitBreaker(), LearningProgress()),
            MixRules(curriculum=STAGES),
            [
                "it was made with a circuit breaker or a curriculum, which is now off",
                "shares follow ShareSchedule, and followed LearningProgress",
            ],
        ),
    ],
    ids=["breaker on", "breaker off", "progress on", "progress off"],
)
def test_what_is_switched_beside_a_schedule_is_reported_and_nothing_else(
    before: MixRules, now: MixRules, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The shares of a schedule are its own, with a circuit breaker beside it and without."""
    assert said == go_on(before, now, caplog)


@pytest.mark.parametrize(
    ("before", "now"), [(NO_RULES, BREAKER), (BREAKER, NO_RULES)], ids=["breaker on", "breaker off"]
)
def test_a_schedule_that_counts_fractions_is_compared_across_a_breaker(
    before: MixRules, now: MixRules, caplog: pytest.LogCaptureFixture
) -> None:
    """What was drawn lies in every checkpoint of a schedule."""
    rules = [MixRules(each.breaker, LINE) for each in (before, now)]

    assert DRAWN in go_on(rules[0], rules[1], caplog, num_batches=8)
    assert DRAWN not in go_on(rules[0], rules[1], caplog)


def test_a_checkpoint_that_does_not_say_what_was_drawn_is_resumed_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """As older ones were written: with the mean share of each source over the run, which another length changes."""
    rules = MixRules(curriculum=STAGES)

    def age(entry: dict[str, str]) -> None:
        del entry["drawn"]
        mix = json.loads(entry["mix"])
        for source, share in zip(mix["sources"], [0.3125, 0.6875], strict=True):
            source["share"] = share
        entry["mix"] = json.dumps(mix)

    assert [] == go_on(rules, rules, caplog, num_batches=8, change=age)


def go_on(
    before: MixRules,
    now: MixRules,
    caplog: pytest.LogCaptureFixture,
    *,
    change: Callable[[dict[str, str]], None] = lambda entry: None,
    **options: Any,
) -> list[str]:
    """What is said of a mix with other rules, resumed after two of four batches."""
    state = TrainerState()
    for rules, more in ((before, {}), (now, options)):
        watch = watch_of()
        layout = layout_of(a=3, b=5, rules=rules, **more)
        if rules.react:
            watch.planner = BatchPlanner(
                {"a": 0.5, "b": 0.5},
                tasks_of({"a": 3, "b": 5}),
                prompts_per_batch=4,
                seed=0,
                lag=2,
                rules=rules,
                num_batches=layout.schedule.num_batches,
            )
        caplog.clear()
        watch.begin(state, SHAPE, layout, rules)
        state.global_step = 2
        watch.save(state)
        change(state.stateful_callbacks["multiors"])

    said = [record.getMessage() for record in caplog.records]
    return (
        said[0].removeprefix("resuming from a checkpoint of another mix: ").removesuffix(".").split("; ")
        if said
        else []
    )


# -- limits


def fail(run: RunState, slot: int, *, num_failed: int = 1) -> None:
    """A batch in which rollouts of `a` fail and one of `b` is scored."""
    end(run, "a", [record("a", slot, None, reason=UnscoredReason.SESSION_LOST)] * num_failed)
    end(run, "b", [record("b", slot + 1)])


def test_stop_ends_the_training_at_the_first_failure() -> None:
    """The error names source, task, reason, what was said, and both remedies."""
    run = RunState(watch=watch_of(a=FailureLimit("stop")))
    told = r"source 'a': .*on_failure='stop'.*task 0 \(session_lost: it broke\)\. .*resume .*on_failure='unscored'"

    with pytest.raises(SessionError, match=told):
        fail(run, 0)


def test_as_many_failures_as_allowed_are_borne() -> None:
    """One more ends the training."""
    run = RunState(watch=watch_of(a=FailureLimit(max_failing_rollouts=3)))
    fail(run, 0, num_failed=2)
    fail(run, 4)

    with pytest.raises(SessionError, match=r"4 rollouts failed since the training began.*max_failing_rollouts=3"):
        fail(run, 8)


def test_another_sources_failures_do_not_count() -> None:
    """Each source has its own limit."""
    watch = watch_of(b=FailureLimit("stop"))
    run = RunState(watch=watch)

    fail(run, 0)

    assert 1 == watch.summary.sources["a"].unscored_by_reason[UnscoredReason.SESSION_LOST]


def test_the_policys_failures_do_not_count() -> None:
    """A limit is on what the environment does."""
    watch = watch_of(a=FailureLimit("stop"))
    run = RunState(watch=watch)

    end(run, "a", [record("a", 0, None, reason=UnscoredReason.BAD_CALL)])
    end(run, "b", [])

    assert 1 == watch.summary.sources["a"].num_rollouts


def test_a_new_run_counts_anew() -> None:
    """Who repaired an environment and resumes is not stopped for what was."""
    watch = watch_of(a=FailureLimit(max_failing_rollouts=1))
    run = RunState(watch=watch)
    fail(run, 0)

    watch.begin(TrainerState(global_step=3), SHAPE, layout_of(a=3, b=5), NO_RULES)
    fail(run, 4)

    assert 1 == watch.summary.sources["a"].num_rollouts
