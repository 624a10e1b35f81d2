"""Curricula that follow what is observed, in TRL's trainer: alike in every process and after every kill.

What the runs observe is written in their tasks (`tests.curriculum_run`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from multiors import CircuitBreaker, MultiOpenRewardSpec, ORSSource, RolloutRecord, SourceReward
from multiors.mixing import BatchPlanner, MixRules
from multiors.mixing.curricula import (
    Gates,
    Ladder,
    LearningProgress,
    Pools,
    ScoreBandit,
    SourceTasks,
)
from tests.curriculum_run import SLOTS, TASKS, find_metric, played, read_log, run_whole, source_of, told
from tests.scripted import make_arguments, train
from tests.scripted_tasks import Planned, groups_of, plan_again
from tests.servers.launch import ServerHandle, configured, serve
from tests.small_run import Options, answer, run_processes
from tests.test_training_breaker import SAVED, SHAPE, Run, read_state, resume, run_in_pieces

# Each process imports TRL first, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(300)

STEPS = 11
BREAKER: dict[str, Any] = {"window_rollouts": 4, "probe_after_batches": 1}
PROGRESS: dict[str, Any] = {"fast": 0.5, "slow": 0.1}
LADDER: dict[str, Any] = {"field": "level", "min_groups": 1}
BY_LEVEL = Ladder(**LADDER)
WEIGHTS = {"drift": 1.0, "weak": 2.0, "stairs": 1.0}
RANGE = (0.0, 1.0)

MakeMix = Callable[..., MultiOpenRewardSpec]
"""Makes a spec with options."""


@pytest.fixture(scope="module")
def make_mix(scripted_server: ServerHandle) -> MakeMix:
    """Three sources with learning progress between them, a ladder inside one, and a circuit breaker."""

    def make(*, ladder: Any = BY_LEVEL, names: Sequence[str] = tuple(WEIGHTS), **options: Any) -> MultiOpenRewardSpec:
        ranges = {"stairs": SourceReward(range=RANGE)}
        return MultiOpenRewardSpec(
            {
                name: source_of(
                    scripted_server,
                    name if name in TASKS else "drift",
                    weight=WEIGHTS.get(name, 1.0),
                    reward=ranges.get(name),
                    task_curriculum=ladder if name == "stairs" else None,
                )
                for name in names
            },
            **{
                "curriculum": LearningProgress(**PROGRESS),
                "circuit_breaker": CircuitBreaker(**BREAKER),
                **options,
            },
        )

    return make


def plan_run(
    weights: Mapping[str, float],
    records: Sequence[RolloutRecord],
    *,
    rules: MixRules,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> list[Planned]:
    """What a planner of its own makes of a run's records."""
    planner = BatchPlanner(
        {name: weight / sum(weights.values()) for name, weight in weights.items()},
        [
            SourceTasks(name, len(TASKS[name]), (ranges or {}).get(name), [json.dumps(task) for task in TASKS[name]])
            for name in weights
        ],
        prompts_per_batch=SLOTS,
        seed=0,
        lag=2,
        rules=rules,
    )
    return list(plan_again(planner, records))


# -- shares follow what was observed


def test_shares_follow_what_was_observed(scripted_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """What gets better is drawn more and more, up to the box; every batch is full, and holds what its planner says."""

    def make(**options: Any) -> MultiOpenRewardSpec:
        sources = {name: source_of(scripted_server, name) for name in ("drift", "steady")}
        return MultiOpenRewardSpec(sources, curriculum=LearningProgress(**PROGRESS), **options)

    run = run_whole(make, tiny_policy, tmp_path, steps=12)

    shares = find_metric(run.log, "env/drift/planned_share")
    rules = MixRules(None, LearningProgress(**PROGRESS))
    planned = plan_run({"drift": 1.0, "steady": 1.0}, run.records, rules=rules)
    drawn = played(run.records)
    assert [0.5] * 3 == shares[:3]
    assert all(0.5 <= share <= 0.875 + 1e-9 for share in shares)
    assert 0.875 == pytest.approx(shares[-1])
    assert [8] * 12 == [sum(record.step == step for record in run.records) for step in range(1, 13)]
    assert [batch.slots for batch in planned] == drawn
    assert [pytest.approx(batch.metrics) for batch in planned] == [
        {name: value for name, value in entry.items() if name in planned[-1].metrics} for entry in told(run.log)
    ]


# -- one run with everything, uninterrupted, in pieces, and on two processes


@pytest.fixture(scope="module")
def whole(make_mix: MakeMix, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that is never interrupted, with a checkpoint after each step."""
    return run_whole(make_mix, tiny_policy, tmp_path_factory.mktemp("whole"), steps=STEPS, **SAVED)


def test_breaker_shares_and_levels_act_together(whole: Run) -> None:
    """A source that fails is left out, probed and let back in; shares move around what is left, and levels rise."""
    weak = [sum(name == "weak" for name, _ in batch) for batch in played(whole.records)]
    levels = [
        {TASKS[name][index]["level"] for name, index in batch if name == "stairs" and index is not None}
        for batch in played(whole.records)
    ]
    shares = find_metric(whole.log, "env/drift/planned_share")

    assert [2, 2, 0, 1, 0, 0, 0, 1, 0] == weak[:9]
    assert 0 < weak[9]
    assert [SLOTS] * STEPS == [len(batch) for batch in played(whole.records)]
    assert {0} == levels[0] | levels[1]
    assert {0, 1, 2} == set().union(*levels)
    assert 4 <= len({round(share, 6) for share in shares})


def test_what_is_logged_of_a_mix_follows_from_its_records(whole: Run) -> None:
    """Shares, slots owed, scores, levels and who is left out: a planner that reads the records alone says the same."""
    rules = MixRules(CircuitBreaker(**BREAKER), LearningProgress(**PROGRESS), {"stairs": BY_LEVEL})
    planned = plan_run(WEIGHTS, whole.records, rules=rules, ranges={"stairs": RANGE})
    logged = told(whole.log)

    assert {"env/drift/curriculum/score", "env/stairs/curriculum/level"} <= set(planned[-1].metrics)
    assert [batch.slots for batch in planned] == played(whole.records)
    for batch, entry in zip(planned, logged, strict=True):
        assert batch.metrics == pytest.approx({name: entry[name] for name in batch.metrics})


def test_owed_slots_are_what_was_promised_and_not_drawn(whole: Run) -> None:
    """Of all batches that are planned, the next one included: the log says how far each source is behind."""
    owed = {name: find_metric(whole.log, f"env/{name}/owed_slots") for name in WEIGHTS}

    assert [pytest.approx(0.0, abs=1e-6)] * STEPS == [sum(each) for each in zip(*owed.values(), strict=True)]
    assert all(-1 < value < 1 for values in owed.values() for value in values)


def check_rollout_metrics(run: Run) -> None:
    """Groups with a gradient and tokens are those of the records, and nothing is said of a source without rollouts."""
    steps = sorted({record.step for record in run.records})
    names = {record.source for record in run.records}
    expected = []
    for step in steps:
        groups = groups_of([record for record in run.records if record.step == step])
        found: dict[str, float] = {}
        for name in names:
            own = [[record.reward for record in group] for group in groups if group[0].source == name]
            tokens = [record.num_tokens or 0 for group in groups for record in group if record.source == name]
            if own:
                spread = [len(set(rewards) - {None}) > 1 for rewards in own]
                found[f"env/{name}/with_gradient"] = sum(spread) / len(spread)
                found[f"env/{name}/tokens"] = sum(tokens) / len(tokens)
        expected.append(pytest.approx(found))

    assert expected == [
        {name: value for name, value in entry.items() if name.endswith(("/with_gradient", "/tokens"))}
        for entry in told(run.log)
    ]


def test_without_callbacks_the_same_is_drawn(whole: Run, make_mix: MakeMix, tiny_policy: Path, tmp_path: Path) -> None:
    """Only the planner knows the batches then."""
    records: list[RolloutRecord] = []
    spec = make_mix(on_rollouts=records.extend)
    train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=4, **SHAPE), script=answer, callbacks=[])

    assert played(whole.records)[:4] == played(records)


def test_groups_with_a_gradient_and_tokens_are_logged(whole: Run) -> None:
    """A group whose rollouts all have the same reward, or none, teaches nothing: the log says how many are left."""
    check_rollout_metrics(whole)

    assert {0.0, 1.0} <= set(find_metric(whole.log, "env/drift/with_gradient"))
    assert 0.0 in find_metric(whole.log, "env/weak/with_gradient")


def test_a_run_that_is_killed_at_every_batch_decides_what_the_whole_run_does(
    whole: Run, make_mix: MakeMix, tiny_policy: Path, tmp_path: Path
) -> None:
    """The checkpoint holds all that the next batches follow from: slots, log and final state are the same."""
    parts = run_in_pieces(make_mix, tiny_policy, tmp_path, steps=STEPS, fields=SHAPE)

    assert played(whole.records) == played(parts.records)
    assert read_log(whole.folder, STEPS) == read_log(tmp_path, STEPS)
    assert whole.state(STEPS) == parts.state(STEPS)


def test_two_processes_decide_what_one_does(
    whole: Run, scripted_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Observations are put together over the processes: slots, log and final state are those of a single one."""
    options = Options(
        policy=str(tiny_policy),
        folder=str(tmp_path),
        runs=[{name: [scripted_server.url, None, weight] for name, weight in WEIGHTS.items()}],
        fields={"max_steps": STEPS, **SHAPE, "per_device_train_batch_size": 4, **SAVED, "save_steps": STEPS},
        breaker=BREAKER,
        progress=PROGRESS,
        ladders={"stairs": LADDER},
        ranges={"stairs": RANGE},
        limits={name: {"split": name} for name in WEIGHTS},
        concurrent=True,
    )
    ranks = run_processes(options, 2)

    drawn = {(r["slot"], r["source"], r["task_index"]) for rank in ranks for r in rank["records"]}
    log = [{name: pytest.approx(value, abs=1e-6) for name, value in entry.items()} for entry in told(whole.log)]
    assert whole.drawn() == sorted(drawn, key=str)
    assert log == told(ranks[0]["log"])
    assert whole.state(STEPS) == read_state(tmp_path, STEPS)
    assert 2 == ranks[0]["world_size"]


# -- checkpoints of another mix


def resume_changed(spec: MultiOpenRewardSpec, policy: Path, folder: Path, checkpoint: Path, *, step: int = 4) -> Any:
    """What the planner knows one step after a checkpoint."""
    resume(spec, policy, folder, checkpoint, step=step, **SAVED)
    return read_state(folder, step + 1)


def by_name(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a planner's state holds of each source."""
    return {source["name"]: source for source in state["sources"]}


def test_sources_that_stay_keep_what_is_known_of_them(
    whole: Run, make_mix: MakeMix, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One is gone, one is new, one was renamed: all is told, and those that are still there go on."""
    records: list[RolloutRecord] = []
    spec = make_mix(names=["stairs", "climb", "weak", "steady"], on_rollouts=records.extend)
    before = whole.state(4)

    after = resume_changed(spec, tiny_policy, tmp_path, whole.folder / "checkpoint-4")

    assert (
        "another mix: source 'drift' is no longer in the mix; source 'climb' is new and begins with its first tasks; "
        "source 'steady' is new and begins with its first tasks."
    ) in caplog.text
    fresh = {"fast": None, "slow": None, "range": None}
    kept = before["curriculum"]["sources"]
    assert {"stairs": kept["stairs"], "climb": fresh, "weak": kept["weak"], "steady": fresh} == after["curriculum"][
        "sources"
    ]
    assert by_name(before)["stairs"]["tasks"]["state"]["level"] == by_name(after)["stairs"]["tasks"]["state"]["level"]
    assert 0 < by_name(after)["stairs"]["tasks"]["state"]["level"]
    assert {"probing"} == {by_name(state)["weak"]["breaker"]["status"] for state in (before, after)}
    assert 8 == len(records)


def test_another_curriculum_begins_anew_and_says_so(
    whole: Run, make_mix: MakeMix, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What one curriculum knows is nothing to another, between sources and inside one."""
    after = resume_changed(
        make_mix(curriculum=ScoreBandit(), ladder=Pools()), tiny_policy, tmp_path, whole.folder / "checkpoint-4"
    )

    assert (
        "the curriculum is ScoreBandit, and was LearningProgress; what that one knew is forgotten; source 'stairs' has "
        "another task curriculum than before, so it begins anew in its tasks."
    ) in caplog.text
    assert "ScoreBandit" == after["curriculum"]["curriculum"]
    assert "PoolDraws" == by_name(after)["stairs"]["tasks"]["draws"]


def test_other_settings_go_on_with_what_is_known_and_say_so(
    whole: Run, make_mix: MakeMix, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same kinds of curricula with other settings keep their states."""
    after = resume_changed(
        make_mix(curriculum=LearningProgress(**PROGRESS, highest=1.5), ladder=Ladder(**LADDER, rehearsal=0.2)),
        tiny_policy,
        tmp_path,
        whole.folder / "checkpoint-4",
    )

    assert "the curriculum LearningProgress has other settings, and goes on with what it knows" in caplog.text
    assert "the task curriculum of source 'stairs' has other settings, and goes on with what it knows" in caplog.text
    assert whole.state(5)["curriculum"]["sources"] == after["curriculum"]["sources"]
    levels = [by_name(state)["stairs"]["tasks"]["state"]["level"] for state in (whole.state(5), after)]
    assert 0 < levels[0] == levels[1]


def test_curricula_can_be_switched_off_and_on_between_runs(
    whole: Run, make_mix: MakeMix, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a breaker, alone, and back again: each resume says what is off or begins anew, and goes on."""
    off = make_mix(curriculum=None, ladder=None)
    after = resume_changed(off, tiny_policy, tmp_path / "off", whole.folder / "checkpoint-4")

    assert "the checkpoint was made with the curriculum LearningProgress, now off" in caplog.text
    assert "source 'stairs' has no task curriculum any more, so it begins anew in its tasks" in caplog.text
    assert after["curriculum"] is None
    caplog.clear()

    resume_changed(make_mix(), tiny_policy, tmp_path / "on", tmp_path / "off" / "checkpoint-5", step=5)

    assert "the checkpoint was made without a curriculum, so it knows nothing yet" in caplog.text


def test_a_mix_without_any_rule_and_one_with_them_resume_each_other(
    whole: Run, make_mix: MakeMix, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without rules the schedule is laid out before training, and groups with a gradient are logged; both are told."""
    records: list[RolloutRecord] = []
    plain = make_mix(curriculum=None, ladder=None, circuit_breaker=None, on_rollouts=records.extend)
    resume(plain, tiny_policy, tmp_path, whole.folder / "checkpoint-4", step=4, **SAVED)

    assert "it was made with a circuit breaker or a curriculum, which is now off" in caplog.text
    assert {"drift": 2, "weak": 4, "stairs": 2} == Counter(record.source for record in records)
    log = read_log(tmp_path, 5)[-1:]
    check_rollout_metrics(Run(records, tmp_path, log, []))
    assert not [name for name in log[0] if name.endswith(("left_out", "owed_slots")) or "curriculum" in name]
    assert [0.25, 0.5, 0.25] == [log[0][f"env/{name}/planned_share"] for name in WEIGHTS]
    caplog.clear()

    after = resume_changed(make_mix(), tiny_policy, tmp_path, tmp_path / "checkpoint-5", step=5)

    assert (
        "it holds no state of a circuit breaker or a curriculum or a task curriculum of source 'stairs', so these "
        "begin anew"
    ) in caplog.text
    assert 6 == after["next_batch"] - 1


# -- gates


def test_gates_open_and_close_as_they_say(scripted_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """What is locked is never drawn; that it opens, and that another source graduates and regresses, is told."""
    gates = Gates(after={"hard": {"easy": 0.7}}, graduate_at={"easy": 0.8}, window_groups=4)

    def make(**options: Any) -> MultiOpenRewardSpec:
        sources = {
            "easy": source_of(scripted_server, "learned", reward=SourceReward(range=RANGE)),
            "hard": source_of(scripted_server, "drift"),
        }
        return MultiOpenRewardSpec(sources, curriculum=[gates, LearningProgress(**PROGRESS)], **options)

    run = run_whole(make, tiny_policy, tmp_path, steps=8)

    hard = [sum(name == "hard" for name, _ in batch) for batch in played(run.records)]
    said = [message for message in run.messages if message.startswith("from batch ")]
    shares = find_metric(run.log, "env/hard/planned_share")
    locked = find_metric(run.log, "env/hard/curriculum/locked")
    graduated = find_metric(run.log, "env/easy/curriculum/graduated")
    assert [0, 0, 0] == hard[:3]
    assert 0 < min(hard[3:])
    assert [0.0, 0.0, 0.0] == shares[:3]
    assert [1.0, 1.0, *[0.0] * 6] == locked
    assert [
        "from batch 3 on: source 'easy' has graduated with a mean reward of 1.00 of its range, and gets 0.25 of its "
        "share.",
        "from batch 3 on: source 'hard' is open: reached was 'easy' 0.7.",
    ] == said[:2]
    assert [
        "from batch 7 on: source 'easy' has regressed: its mean reward fell to 0.00 of its range, it had graduated at "
        "0.8. It gets its whole share again."
    ] == said[2:]
    assert [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0] == graduated


# -- sources without a signal


@pytest.fixture(scope="module")
def huge_server() -> Iterator[ServerHandle]:
    """A million tasks."""
    with serve(configured("Large", NUM_TASKS=1_000_000)) as handle:
        yield handle


def refuse(constant: str) -> Any:
    """A number that JSON does not know is none."""
    raise ValueError(f"{constant} is no number")


def test_sources_without_a_signal_starve_nobody(
    scripted_server: ServerHandle, huge_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Never scored, always or never solved, one task, a million: shares stay in the box, and nothing is NaN."""
    names = ("mute", "single", "mastered", "hopeless", "huge")

    def make(**options: Any) -> MultiOpenRewardSpec:
        ranged: dict[str, Any] = {"reward": SourceReward(range=RANGE), "task_curriculum": Pools()}
        sources = {
            "mute": source_of(scripted_server, "mute"),
            "single": source_of(scripted_server, "single", **ranged),
            "mastered": source_of(scripted_server, "mastered"),
            "hopeless": source_of(scripted_server, "hopeless"),
            "huge": ORSSource(huge_server.url, include_metadata=False, **ranged),
        }
        return MultiOpenRewardSpec(sources, curriculum=LearningProgress(**PROGRESS), **options)

    fields = {"per_device_train_batch_size": 10, **SAVED, "save_steps": 5}
    run = run_whole(make, tiny_policy, tmp_path, steps=5, **fields)

    state = (tmp_path / "checkpoint-5" / "trainer_state.json").read_text(encoding="utf-8")
    saved = json.loads(state, parse_constant=refuse)
    shares = {name: find_metric(run.log, f"env/{name}/planned_share") for name in names}
    drawn = Counter(record.source for record in run.records)
    json.loads(saved["stateful_callbacks"]["multiors"]["planner"], parse_constant=refuse)
    json.dumps(run.log, allow_nan=False)
    assert set(names) == set(drawn)
    assert 5 * 10 == drawn.total()
    assert all(0.05 - 1e-9 <= share <= 0.6 + 1e-9 for values in shares.values() for share in values)
    assert [pytest.approx(1.0)] * 5 == [sum(values) for values in zip(*shares.values(), strict=True)]
    assert {None} == {record.reward for record in run.records if record.source == "mute"}
    assert {0.0} == set(find_metric(run.log, "env/mute/with_gradient"))
    assert [] == find_metric(run.log, "env/mute/curriculum/score")
