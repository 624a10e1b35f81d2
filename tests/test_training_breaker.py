"""A source whose environment fails is left out, probed and let back in, alike in every process and after every kill.

One environment fails in the first five tasks that its source draws, so it fails in the batches 0 and 1 and in its first
probe, whoever plays them.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from transformers import TrainerCallback

from multiors import CircuitBreaker, MultiOpenRewardSpec, ORSSource, RolloutRecord
from multiors.errors import ConfigError, RoutingError, SourceError
from multiors.mixing.walk import TaskWalk
from tests.scripted import make_arguments, make_trainer, small_fields, train
from tests.servers.launch import ServerHandle, configured, serve
from tests.small_run import Options, answer, run_processes

# Each process imports TRL first, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(300)

STEPS = 11
BREAKER = {"window_rollouts": 4, "probe_after_batches": 1}
SHAPE = {"per_device_train_batch_size": 8, "num_generations": 2}
SAVED = {"save_strategy": "steps", "save_steps": 1}

MakeMix = Callable[..., MultiOpenRewardSpec]
"""Makes a spec with options."""

# Slots of (echo, weak, sort) in each batch: it fails in 0 and 1, is probed in 3 and 7, and is back from 9 on.
WEAK_SLOTS = [2, 2, 0, 1, 0, 0, 0, 1, 0, 2, 2]


@pytest.fixture(scope="module")
def brittle_server() -> Iterator[ServerHandle]:
    """`Brittle`, broken in the tasks that the second source of a mix draws first."""
    broken = TaskWalk(32, seed=0, source=1).draw(0, 5).tolist()
    with serve(configured("Brittle", BROKEN=broken)) as server:
        yield server


@pytest.fixture(scope="module")
def make_mix(brittle_server: ServerHandle, mixed_server: ServerHandle, echo_server: ServerHandle) -> MakeMix:
    """The failing source has half of the slots, the others a quarter each."""

    def make(**options: Any) -> MultiOpenRewardSpec:
        return MultiOpenRewardSpec(
            {
                "echo": ORSSource(echo_server.url, weight=1.0, discover_task_tools=False),
                "weak": ORSSource(brittle_server.url, weight=2.0, discover_task_tools=False),
                "sort": ORSSource(mixed_server.url, env_name="sorting", weight=1.0, discover_task_tools=False),
            },
            **{"circuit_breaker": CircuitBreaker(**BREAKER), **options},
        )

    return make


class StopAt(TrainerCallback):
    """Ends the training after a step, as a kill would once its checkpoint is written."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


class Run(NamedTuple):
    """What a run saw, and where its checkpoints are."""

    records: list[RolloutRecord]
    folder: Path
    log: list[dict[str, Any]]
    messages: list[str]

    def drawn(self) -> list[tuple[int | None, str, int | None]]:
        """The source and task of each slot."""
        return sorted({(record.slot, record.source, record.task_index) for record in self.records}, key=str)

    def state(self, step: int) -> Any:
        """What the checkpoint of a step says of the mix."""
        return read_state(self.folder, step)


def read_state(folder: Path, step: int) -> Any:
    """What a checkpoint says of the mix."""
    text = (folder / f"checkpoint-{step}" / "trainer_state.json").read_text(encoding="utf-8")
    return json.loads(json.loads(text)["stateful_callbacks"]["multiors"]["planner"])


class Listener(logging.Handler):
    """Collects what the library says."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(scope="module")
def whole(make_mix: MakeMix, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that is never interrupted, with a checkpoint after each step."""
    records: list[RolloutRecord] = []
    folder, listener = tmp_path_factory.mktemp("whole"), Listener()
    logger = logging.getLogger("multiors.training")
    spec = make_mix(on_rollouts=records.extend)
    args = make_arguments(spec, folder, max_steps=STEPS, **SHAPE, **SAVED)
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)

    try:
        trainer = train(spec, tiny_policy, args, script=answer)
    finally:
        logger.removeHandler(listener)
        logger.setLevel(logging.NOTSET)

    return Run(records, folder, trainer.state.log_history, listener.messages)


def test_a_failing_source_is_left_out_probed_and_let_back_in(whole: Run) -> None:
    """Its slots go to the others, each probe is one slot, and a probe that works ends it."""
    batches = [Counter(r.source for r in whole.records if r.step == step) for step in range(1, STEPS + 1)]

    assert [2 * slots for slots in WEAK_SLOTS] == [batch["weak"] for batch in batches]
    assert {8} == {batch.total() for batch in batches}
    assert [{"echo": 4, "sort": 4}] * 5 == [batches[step] for step in (2, 4, 5, 6, 8)]


def test_the_decisions_are_told_with_rate_error_and_next_probe(whole: Run) -> None:
    """Left out, still failing, back again: three warnings, each with what a person needs."""
    told = [message for message in whole.messages if message.startswith("source 'weak' ")]

    assert 3 == len([message for message in told if "task" not in message.partition(":")[0]])
    assert "is left out from batch 2 on: 4 of 4 rollouts failed; the first: task " in told[0]
    assert "is stuck" in told[0]
    assert told[0].endswith("It is tried again with one slot in batch 3.")
    assert "still fails and stays left out: 2 of 2 rollouts failed" in told[1]
    assert told[1].endswith("It is tried again with one slot in batch 7.")
    assert "source 'weak' works again, and is drawn from as before from batch 9 on." == told[2]


def test_planned_shares_are_logged(whole: Run) -> None:
    """The metrics show what each source was meant to get, and which is left out."""
    shares = [entry["env/weak/planned_share"] for entry in whole.log if "env/weak/planned_share" in entry]
    others = [entry["env/echo/planned_share"] for entry in whole.log if "env/echo/planned_share" in entry]

    assert [slots / 4 for slots in WEAK_SLOTS] == shares
    assert [0.25, 0.25, 0.5, 0.375, 0.5] == others[:5]
    assert {0.0, 1.0} == {entry["env/weak/left_out"] for entry in whole.log if "env/weak/left_out" in entry}


def test_the_table_of_the_run_names_what_failed(whole: Run) -> None:
    """At the end of a run one table shows each source's rollouts, reasons, failing tools and first error."""
    tables = [message for message in whole.messages if message.startswith("rollouts of the run:")]

    assert 1 == len(tables)
    assert "source 'weak': unscored: 10 tool_error." in tables[0]
    assert "source 'weak': failed calls: press 10." in tables[0]
    assert "source 'weak': the first error, in step 1, task " in tables[0]


def run_in_pieces(make_mix: MakeMix, policy: Path, folder: Path, *, steps: int, fields: dict[str, Any]) -> Run:
    """The same run, killed after every step and resumed by a spec that knows nothing but the checkpoint."""
    records: list[RolloutRecord] = []

    for step in range(1, steps + 1):
        spec = make_mix(on_rollouts=records.extend)
        args = make_arguments(spec, folder, max_steps=steps, **SAVED, **fields)
        resumed = None if step == 1 else str(folder / f"checkpoint-{step - 1}")
        callbacks = [*spec.callbacks, StopAt(step)]
        train(spec, policy, args, script=answer, callbacks=callbacks, resume_from_checkpoint=resumed)

    return Run(records, folder, [], [])


def test_a_run_that_is_killed_at_every_batch_draws_what_the_whole_run_does(
    whole: Run, make_mix: MakeMix, tiny_policy: Path, tmp_path: Path
) -> None:
    """The checkpoint holds all that the next batches follow from."""
    parts = run_in_pieces(make_mix, tiny_policy, tmp_path, steps=STEPS, fields=SHAPE)

    assert 4 * STEPS == len(whole.drawn())
    assert whole.drawn() == parts.drawn()
    assert whole.state(STEPS) == parts.state(STEPS)


def test_a_run_that_is_killed_inside_batches_draws_the_same(
    make_mix: MakeMix, tiny_policy: Path, tmp_path: Path
) -> None:
    """Where a generation batch serves two steps, TRL generates it again; what it showed first is what counts."""
    fields = {"per_device_train_batch_size": 4, "num_generations": 2, "steps_per_generation": 2}
    records: list[RolloutRecord] = []
    spec = make_mix(on_rollouts=records.extend)
    args = make_arguments(spec, tmp_path / "whole", max_steps=6, **fields)
    train(spec, tiny_policy, args, script=answer)
    parts = run_in_pieces(make_mix, tiny_policy, tmp_path / "parts", steps=6, fields=fields)

    drawn = Run(records, tmp_path, [], []).drawn()
    assert [4, 4, 0] == [
        sum(record.source == "weak" for record in records if (record.slot or 0) // 4 == batch) for batch in range(3)
    ]
    assert drawn == parts.drawn()


def test_two_processes_draw_and_decide_what_one_does(
    whole: Run,
    brittle_server: ServerHandle,
    mixed_server: ServerHandle,
    echo_server: ServerHandle,
    tiny_policy: Path,
    tmp_path: Path,
) -> None:
    """Observations are put together over the processes, so every process plans the same; whichever trainer plays."""
    options = Options(
        policy=str(tiny_policy),
        folder=str(tmp_path),
        runs=[
            {
                "echo": [echo_server.url, "echo", 1.0],
                "weak": [brittle_server.url, None, 2.0],
                "sort": [mixed_server.url, "sorting", 1.0],
            }
        ],
        fields={
            "max_steps": STEPS,
            "per_device_train_batch_size": 4,
            "num_generations": 2,
            "save_strategy": "steps",
            "save_steps": STEPS,
        },
        breaker=BREAKER,
        concurrent=True,
    )
    ranks = run_processes(options, 2)

    drawn = {(r["slot"], r["source"], r["task_index"]) for rank in ranks for r in rank["records"]}
    assert whole.drawn() == sorted(drawn, key=str)
    assert whole.state(STEPS) == read_state(tmp_path, STEPS)
    assert ranks[0]["summary"] == ranks[1]["summary"]
    assert 10 == ranks[0]["summary"]["weak"]["unscored_by_reason"]["tool_error"]


# -- checkpoints of another mix


def resume(
    spec: MultiOpenRewardSpec, policy: Path, folder: Path, checkpoint: Path, *, step: int, **fields: Any
) -> None:
    """One more step from a checkpoint."""
    args = make_arguments(spec, folder, max_steps=STEPS, **{**SHAPE, **fields})
    callbacks = [*spec.callbacks, StopAt(step + 1)]
    train(spec, policy, args, script=answer, callbacks=callbacks, resume_from_checkpoint=str(checkpoint))


def test_a_checkpoint_of_another_mix_is_resumed_with_what_fits(
    whole: Run,
    mixed_server: ServerHandle,
    echo_server: ServerHandle,
    tiny_policy: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A source that is gone is named, and the others go on."""
    records: list[RolloutRecord] = []
    spec = MultiOpenRewardSpec(
        {
            "echo": ORSSource(echo_server.url, discover_task_tools=False),
            "sort": ORSSource(mixed_server.url, env_name="sorting", discover_task_tools=False),
        },
        circuit_breaker=CircuitBreaker(),
        on_rollouts=records.extend,
    )

    resume(spec, tiny_policy, tmp_path, whole.folder / "checkpoint-4", step=4)

    assert {(5, "echo"), (5, "sort")} == {(record.step, record.source) for record in records}
    assert "a checkpoint of another mix: source 'weak' is no longer in the mix." in caplog.text


def test_a_breaker_can_be_switched_off_and_on_between_runs(
    whole: Run, make_mix: MakeMix, tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without one the static schedule goes on; with one again nothing is left out yet. Both are said."""
    plain, careful = [], []  # type: list[RolloutRecord], list[RolloutRecord]
    off = make_mix(circuit_breaker=None, on_rollouts=plain.extend)
    on = make_mix(on_rollouts=careful.extend)

    resume(off, tiny_policy, tmp_path, whole.folder / "checkpoint-4", step=4, **SAVED)
    state = json.loads((tmp_path / "checkpoint-5" / "trainer_state.json").read_text())
    del state["stateful_callbacks"]["multiors"]
    (tmp_path / "checkpoint-5" / "trainer_state.json").write_text(json.dumps(state))
    resume(on, tiny_policy, tmp_path, tmp_path / "checkpoint-5", step=5)

    assert "it was made with a circuit breaker or a curriculum, which is now off" in caplog.text
    assert "it holds no state of a circuit breaker, so it begins anew" in caplog.text
    assert {"echo": 2, "weak": 4, "sort": 2} == Counter(r.source for r in plain)
    assert {"echo": 2, "weak": 4, "sort": 2} == Counter(r.source for r in careful)


# -- the end of all sources


def test_a_mix_of_failing_sources_stops_and_can_be_resumed_when_it_is_repaired(
    tiny_policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the source and its first error; the checkpoint tries it again."""
    records: list[RolloutRecord] = []
    caplog.set_level(logging.INFO, "multiors.training")

    def make(server: ServerHandle) -> MultiOpenRewardSpec:
        source = ORSSource(server.url, discover_task_tools=False)
        breaker = CircuitBreaker(**BREAKER)
        return MultiOpenRewardSpec({"weak": source}, circuit_breaker=breaker, on_rollouts=records.extend)

    with serve(configured("Brittle", BROKEN=list(range(32)))) as server:
        spec = make(server)
        args = make_arguments(spec, tmp_path, max_steps=STEPS, **SHAPE, **SAVED)
        with pytest.raises(SourceError, match=r"every source of the mix fails.*\n- source 'weak': 8 of 8 .*is stuck"):
            train(spec, tiny_policy, args, script=answer)

    with serve("Brittle") as server:
        resume(make(server), tiny_policy, tmp_path, tmp_path / "checkpoint-1", step=1)

    assert [1, 2] == sorted({record.step for record in records})
    assert {None} == {record.reward for record in records if record.step == 1}
    assert {1.0} == {record.reward for record in records if record.step == 2}
    assert "source 'weak': unscored: 8 tool_error." in caplog.text


# -- what a mix with a breaker refuses


def test_a_breaker_needs_the_trainers_batches(echo_server: ServerHandle) -> None:
    """Without `training_arguments` nobody knows what a batch is."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)}, circuit_breaker=CircuitBreaker(), num_slots=64)

    with pytest.raises(ConfigError, match=r"batches of the trainer are not known\. Call spec\.training_arguments"):
        _ = spec.train_dataset


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataloader_num_workers": 1}, r"dataloader_num_workers=1: rows would be planned in processes"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches=True: only one process would plan"),
    ],
)
def test_settings_that_plan_elsewhere_are_refused(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    """Rows must be planned in the process that learns what becomes of them."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)}, circuit_breaker=CircuitBreaker())
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE, **fields)

    with pytest.raises(ConfigError, match=message):
        make_trainer(spec, tiny_policy, args)


def test_a_trainer_that_reads_further_ahead_is_refused(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Accumulating over several generation batches reads more of them before the first is scored."""
    from trl import GRPOConfig

    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)}, circuit_breaker=CircuitBreaker())
    fields = spec.training_arguments(**small_fields(tmp_path), **SHAPE, max_steps=4, steps_per_generation=1)
    args = GRPOConfig(**{**fields, "max_steps": 1, "gradient_accumulation_steps": 4})

    with pytest.raises(ConfigError, match="planned 2 batches ahead, and this trainer reads 5 ahead"):
        make_trainer(spec, tiny_policy, args)


def test_rows_cannot_be_read_before_their_time(echo_server: ServerHandle, tmp_path: Path) -> None:
    """Who reads the whole dataset would freeze the mix: the first two batches can be seen, no more."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)}, circuit_breaker=CircuitBreaker())
    make_arguments(spec, tmp_path, max_steps=4, **SHAPE)
    dataset = spec.train_dataset

    first = dataset[0:8]

    assert ["environment", "prompt", "task_index", "slot", "task"] == list(first)
    assert list(range(8)) == first["slot"]
    assert 16 == len(dataset)
    with pytest.raises(RoutingError, match=r"batch 2 is planned from what happened until batch 0"):
        _ = dataset[8]


def test_a_shuffled_dataset_is_refused(echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """Slots in another order would be planned out of order."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)}, circuit_breaker=CircuitBreaker())
    args = make_arguments(spec, tmp_path, max_steps=4, **SHAPE)

    with pytest.raises(ConfigError, match="does not hold the slots of the mix in order"):
        train(spec, tiny_policy, args, train_dataset=spec.train_dataset.shuffle(seed=0), script=answer)


def test_a_limit_of_sessions_must_hold_the_slots_of_all(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """When a source is left out, another may get the whole batch."""
    spec = MultiOpenRewardSpec(
        {
            "echo": ORSSource(echo_server.url, max_sessions=4),
            "sort": ORSSource(mixed_server.url, env_name="sorting"),
        },
        circuit_breaker=CircuitBreaker(),
    )
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)

    with pytest.raises(ConfigError, match="source 'echo': max_sessions=4, and a batch has up to 8"):
        make_trainer(spec, tiny_policy, args)


@pytest.mark.parametrize(
    ("options", "arguments", "what"),
    [
        ({"circuit_breaker": CircuitBreaker()}, {}, "a circuit breaker"),
        ({}, {"on_failure": "stop"}, "limits on failures"),
        ({}, {"max_failing_rollouts": 3}, "limits on failures"),
    ],
)
def test_the_asynchronous_trainer_is_refused(options: dict[str, Any], arguments: dict[str, Any], what: str) -> None:
    """Its rollouts are scored in another process, which tells nobody."""
    spec = MultiOpenRewardSpec({"echo": ORSSource("http://127.0.0.1:9", **arguments)}, **options)

    with pytest.raises(ConfigError, match=f"cannot train this mix: it has {what}"):
        spec.for_async()


def test_a_breaker_is_settings_or_nothing() -> None:
    """Anything else is refused when the spec is built."""
    wrong: Any = True

    with pytest.raises(ConfigError, match=r"circuit_breaker=True is none\. Pass CircuitBreaker"):
        MultiOpenRewardSpec({"echo": ORSSource("http://127.0.0.1:9")}, circuit_breaker=wrong)
