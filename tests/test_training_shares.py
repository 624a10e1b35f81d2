"""Shares that are written down are laid out before training; a user's own curriculum is asked while it lasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from multiors import CircuitBreaker, MultiOpenRewardSpec, ORSSource, RewardPart, RolloutRecord, SourceReward
from multiors.errors import ConfigError
from multiors.mixing.curricula import (
    Curriculum,
    Ladder,
    LearningProgress,
    MixSource,
    ShareSchedule,
    SourceObservation,
    fit_box,
)
from tests.curriculum_run import SLOTS, find_metric, played, run_whole, source_of
from tests.scripted import make_arguments, make_trainer, train
from tests.scripted_tasks import groups_of
from tests.servers.launch import ServerHandle
from tests.small_run import answer
from tests.test_training_breaker import SAVED, SHAPE, Run, read_state

# The first test imports TRL, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(300)

STEPS = 4
NOWHERE = "http://127.0.0.1:9"
STAGES = ShareSchedule.stages([(0, {"drift": 1, "steady": 0}), (2, {"drift": 1, "steady": 3})])
TURNED = ShareSchedule.stages([(0, {"drift": 1, "steady": 3}), (2, {"drift": 1, "steady": 0})])
LINE = ShareSchedule([(0, {"drift": 1, "steady": 0}), (1, {"drift": 1, "steady": 3})], unit="fraction")

MakeMix = Callable[..., MultiOpenRewardSpec]
"""Makes a spec with options."""


@pytest.fixture(scope="module")
def make_mix(scripted_server: ServerHandle) -> MakeMix:
    """Makes a mix of two sources with options."""

    def make(**options: Any) -> MultiOpenRewardSpec:
        return MultiOpenRewardSpec({name: source_of(scripted_server, name) for name in ("drift", "steady")}, **options)

    return make


def count(records: Sequence[RolloutRecord], name: str) -> list[int]:
    """How many slots of each batch a source had."""
    return [sum(source == name for source, _ in batch) for batch in played(records)]


# -- shares that are written down


@pytest.mark.parametrize(
    ("curriculum", "expected"), [(STAGES, [0, 0, 3, 3]), (LINE, [0, 1, 2, 3])], ids=["stages", "fraction"]
)
def test_a_schedule_of_shares_is_laid_out_before_training(
    make_mix: MakeMix, tmp_path: Path, curriculum: ShareSchedule, expected: list[int]
) -> None:
    """Every row is there from the start, in a plain dataset; the plan tells the shares of the whole run."""
    spec = make_mix(curriculum=curriculum)
    make_arguments(spec, tmp_path, max_steps=STEPS, **SHAPE)
    dataset = spec.train_dataset

    sources = list(dataset["environment"])
    assert [sources[SLOTS * batch : SLOTS * (batch + 1)].count("steady") for batch in range(STEPS)] == expected
    assert dataset.format["type"] is None
    assert [0.625, 0.375] == [source.share for source in spec.plan().sources]
    assert () == spec.plan().changed_by


@pytest.fixture(scope="module")
def scheduled(make_mix: MakeMix, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in stages, whose rows are read by another process."""

    def make(**options: Any) -> MultiOpenRewardSpec:
        return make_mix(curriculum=STAGES, **options)

    folder = tmp_path_factory.mktemp("scheduled")
    return run_whole(make, tiny_policy, folder, steps=STEPS, dataloader_num_workers=1, **SAVED)


def test_scheduled_shares_can_be_read_by_other_processes(scheduled: Run) -> None:
    """Nothing is planned while training, so dataloader workers may read ahead."""
    assert [0, 0, 3, 3] == count(scheduled.records, "steady")
    assert [SLOTS] * STEPS == [len(batch) for batch in played(scheduled.records)]
    assert [0.0, 0.0, 0.75, 0.75] == find_metric(scheduled.log, "env/steady/planned_share")
    assert [] == find_metric(scheduled.log, "env/steady/owed_slots")
    assert [0.0, 0.0] == find_metric(scheduled.log, "env/steady/with_gradient")


def go_on(spec: MultiOpenRewardSpec, policy: Path, folder: Path, checkpoint: Path, *, steps: int) -> None:
    """Train from a checkpoint to the end."""
    args = make_arguments(spec, folder, max_steps=steps, **SHAPE, **SAVED)
    train(spec, policy, args, script=answer, resume_from_checkpoint=str(checkpoint))


@pytest.mark.parametrize("step", [1, 3])
def test_scheduled_shares_are_resumed_exactly(
    scheduled: Run,
    make_mix: MakeMix,
    tiny_policy: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    step: int,
) -> None:
    """A resumed run goes on in the schedule where it was, and has nothing to tell."""
    records: list[RolloutRecord] = []
    spec = make_mix(curriculum=STAGES, on_rollouts=records.extend)

    go_on(spec, tiny_policy, tmp_path, scheduled.folder / f"checkpoint-{step}", steps=STEPS)

    assert played(scheduled.records)[step:] == played(records)
    assert "another mix" not in caplog.text


@pytest.mark.parametrize(
    ("curriculum", "said"),
    [
        (
            TURNED,
            "ShareSchedule has other settings than before; ShareSchedule gives batches that are already drawn other "
            "shares than they had",
        ),
        (None, "shares follow their weights, and followed ShareSchedule"),
    ],
    ids=["turned", "none"],
)
def test_another_schedule_of_shares_is_told_on_resume(
    scheduled: Run,
    make_mix: MakeMix,
    tiny_policy: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    curriculum: ShareSchedule | None,
    said: str,
) -> None:
    """Also where the shares of the whole run are what they were."""
    weights = {"drift": 0.625, "steady": 0.375} if curriculum is None else None
    spec = make_mix(curriculum=curriculum, weights=weights)

    go_on(spec, tiny_policy, tmp_path, scheduled.folder / "checkpoint-3", steps=STEPS)

    assert f"resuming from a checkpoint of another mix: {said}." in caplog.text


def test_a_schedule_and_a_breaker_are_planned_as_they_are_trained(
    make_mix: MakeMix, tiny_policy: Path, tmp_path: Path
) -> None:
    """With something beside it that reacts, the schedule decides what the rest of the mix is drawn at."""

    def make(**options: Any) -> MultiOpenRewardSpec:
        return make_mix(curriculum=STAGES, circuit_breaker=CircuitBreaker(), **options)

    run = run_whole(make, tiny_policy, tmp_path, steps=STEPS)

    assert [0, 0, 3, 3] == count(run.records, "steady")
    assert [0.0, 0.0, 0.75, 0.75] == find_metric(run.log, "env/steady/planned_share")


# -- what is refused


@pytest.mark.parametrize("curriculum", [STAGES, LearningProgress()], ids=["scheduled", "adaptive"])
def test_a_curriculum_needs_the_trainers_batches(make_mix: MakeMix, curriculum: Curriculum) -> None:
    """Without `training_arguments` nobody knows what a batch is."""
    spec = make_mix(curriculum=curriculum, num_slots=16)

    with pytest.raises(ConfigError, match=r"batches of the trainer are not known\. Call spec\.training_arguments"):
        _ = spec.train_dataset


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"dataloader_num_workers": 1},
            r"because it has a curriculum:\n- dataloader_num_workers=1: .* Set dataloader_num_workers=0\.",
        ),
        (
            {"accelerator_config": {"dispatch_batches": True}},
            r"dispatch_batches=True: only one process would plan\. Leave it out\.",
        ),
    ],
)
def test_settings_that_plan_elsewhere_are_refused(
    make_mix: MakeMix, tiny_policy: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    """Rows are planned in the process that learns what becomes of them, or not at all."""
    spec = make_mix(curriculum=LearningProgress())
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE, **fields)

    with pytest.raises(ConfigError, match=message):
        make_trainer(spec, tiny_policy, args)


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: dataset.shuffle(seed=0),
        lambda dataset: dataset.with_format(None).to_iterable_dataset(),
        lambda dataset: dataset.select(range(8)),
    ],
    ids=["shuffled", "streamed", "cut"],
)
@pytest.mark.parametrize("curriculum", [STAGES, LearningProgress()], ids=["scheduled", "adaptive"])
def test_a_changed_dataset_is_refused(
    make_mix: MakeMix, tiny_policy: Path, tmp_path: Path, change: Callable[[Any], Any], curriculum: Curriculum
) -> None:
    """Its rows are the slots of the run in order; in another order, cut, or streamed, they are none."""
    spec = make_mix(curriculum=curriculum)
    args = make_arguments(spec, tmp_path, max_steps=STEPS, **SHAPE)

    with pytest.raises(ConfigError, match=r"the trainer's dataset .* Give it spec\.train_dataset"):
        train(spec, tiny_policy, args, train_dataset=change(spec.train_dataset), script=answer)


# -- the asynchronous trainer


@pytest.mark.parametrize(
    ("options", "source", "what"),
    [
        ({"curriculum": LearningProgress()}, {}, "a curriculum"),
        ({"curriculum": [STAGES, LearningProgress()]}, {}, "a curriculum"),
        ({}, {"task_curriculum": Ladder(field="level")}, "a task curriculum of source 'a'"),
    ],
)
def test_the_asynchronous_trainer_is_refused(options: dict[str, Any], source: dict[str, Any], what: str) -> None:
    """Its rollouts are scored in another process, which tells nobody."""
    spec = MultiOpenRewardSpec({"a": ORSSource(NOWHERE, **source)}, **options)

    with pytest.raises(ConfigError, match=rf"AsyncGRPOTrainer cannot train this mix: it has {what}\. Use GRPOTrainer"):
        spec.for_async()


def test_a_schedule_of_shares_is_laid_out_for_the_asynchronous_trainer_too(make_mix: MakeMix, tmp_path: Path) -> None:
    """Shares that are written down need nobody who tells what happened."""
    spec = make_mix(curriculum=STAGES)
    make_arguments(spec, tmp_path, max_steps=STEPS, **SHAPE)

    sources = list(spec.for_async().train_dataset["environment"])

    assert [0, 0, 3, 3] == [sources[SLOTS * batch : SLOTS * (batch + 1)].count("steady") for batch in range(STEPS)]


# -- the user's own


@dataclass(frozen=True)
class LeastSolved(Curriculum):
    """More of what had the lowest mean reward in its last batch."""

    highest: float = 1.8

    def begin(self, sources: Sequence[MixSource]) -> dict[str, Any]:
        return {source.name: None for source in sources}

    def update(self, states: Mapping[str, Any], seen: Mapping[str, SourceObservation]) -> dict[str, Any]:
        return {**states, **{name: found.mean_reward for name, found in seen.items() if found.num_scored}}

    def shares(
        self, states: Mapping[str, Any], reference: Mapping[str, float], *, batch: int, num_batches: int | None
    ) -> dict[str, float]:
        preferences = {name: share * (1.05 - (states[name] or 0.0)) for name, share in reference.items()}
        return fit_box(preferences, reference, lowest=0.2, highest=self.highest)

    def measure(self, states: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        return {name: {"last": state} for name, state in states.items() if state is not None}

    def describe_changes(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
        return [f"{name} was scored" for name in after if before[name] is None and after[name] is not None]


def test_a_users_own_curriculum_decides_and_survives_a_resume(
    make_mix: MakeMix, tiny_policy: Path, tmp_path: Path
) -> None:
    """Three methods are enough: what it knows lies in the checkpoint, what it measures and describes is told."""
    records: list[RolloutRecord] = []

    def make(**options: Any) -> MultiOpenRewardSpec:
        return make_mix(curriculum=LeastSolved(), **options)

    whole = run_whole(make, tiny_policy, tmp_path / "whole", steps=6, **SAVED)
    resumed = make(on_rollouts=records.extend)
    go_on(resumed, tiny_policy, tmp_path / "resumed", whole.folder / "checkpoint-3", steps=6)

    state = whole.state(6)
    assert played(whole.records)[3:] == played(records)
    assert state == read_state(tmp_path / "resumed", 6)
    assert {"curriculum": "LeastSolved", "settings": {"highest": 1.8}} == {
        name: value for name, value in state["curriculum"].items() if name != "sources"
    }
    assert {None} != set(state["curriculum"]["sources"].values())
    assert 1 < len(set(find_metric(whole.log, "env/drift/planned_share")))
    assert 0.5 in find_metric(whole.log, "env/steady/curriculum/last")
    assert ["from batch 2 on: drift was scored.", "from batch 2 on: steady was scored."] == [
        message for message in whole.messages if message.startswith("from batch")
    ]


class Greedy(LeastSolved):
    """Gives each source all of the batch."""

    def shares(
        self, states: Mapping[str, Any], reference: Mapping[str, float], *, batch: int, num_batches: int | None
    ) -> dict[str, float]:
        return dict.fromkeys(reference, 1.0)


def test_shares_of_a_users_own_that_are_none_are_refused(make_mix: MakeMix, tiny_policy: Path, tmp_path: Path) -> None:
    """The error names the curriculum, the batch, what is wrong, and the remedy."""
    spec = make_mix(curriculum=Greedy())
    args = make_arguments(spec, tmp_path, max_steps=STEPS, **SHAPE)

    with pytest.raises(
        ConfigError, match=r"curriculum Greedy: the shares of batch 0 sum to 2\.0\. Divide them by their sum\."
    ):
        train(spec, tiny_policy, args, script=answer)


class Recording(LeastSolved):
    """Writes down what it is told."""

    told: list[Mapping[str, SourceObservation]]

    def update(self, states: Mapping[str, Any], seen: Mapping[str, SourceObservation]) -> dict[str, Any]:
        self.told.append(dict(seen))
        return dict(states)


def add_length(completions: Sequence[Any], **_: Any) -> list[float]:
    """A part that has nothing to do with the task."""
    return [4.0] * len(completions)


def test_a_declared_range_is_what_a_curriculum_is_told_in(
    scripted_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Where a range is declared it sees what the environment said, without the user's parts; elsewhere the reward."""
    told: list[Mapping[str, SourceObservation]] = []
    recording = type("Recording", (Recording,), {"told": told})()
    parts = (RewardPart(add_length, weight=0.5),)

    def make(**options: Any) -> MultiOpenRewardSpec:
        sources = {
            "drift": source_of(scripted_server, "drift", reward=SourceReward(range=(0.0, 1.0), parts=parts)),
            "steady": source_of(scripted_server, "steady", reward=SourceReward(parts=parts)),
            "mute": source_of(scripted_server, "mute", reward=SourceReward(range=(0.0, 1.0), parts=parts)),
        }
        return MultiOpenRewardSpec(sources, curriculum=recording, **options)

    run = run_whole(make, tiny_policy, tmp_path, steps=STEPS)

    def read(batch: int, name: str) -> list[list[RolloutRecord]]:
        groups = groups_of([record for record in run.records if record.step == batch + 1])
        return [group for group in groups if group[0].source == name]

    assert 2 == len(told)
    for batch, seen in enumerate(told):
        outcomes = tuple(tuple(record.outcome for record in group) for group in read(batch, "drift"))
        rewards = tuple(tuple(record.reward for record in group) for group in read(batch, "steady"))
        assert {name for name in ("drift", "steady", "mute") if read(batch, name)} == set(seen)
        assert (outcomes, (0.0, 1.0)) == (seen["drift"].groups, seen["drift"].reward_range)
        assert (rewards, None) == (seen["steady"].groups, seen["steady"].reward_range)
        assert {2.5} == {reward for group in rewards for reward in group}
        assert {(None, None)} == set(seen["mute"].groups)
