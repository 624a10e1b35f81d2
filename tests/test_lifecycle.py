"""What servers see of a run that ends or fails: each session ends, and none outlives its step.

Looks at the servers' own counts. `test_lifecycle_servers.py` is about servers that fail, `test_lifecycle_process.py`
about processes that are interrupted or killed.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from multiors import MultiOpenRewardSpec, ORSSource, RolloutRecord
from multiors.errors import RoutingError
from tests.scripted import ConcurrentScriptedTrainer, ScriptedTrainer, make_arguments, play_well, train
from tests.servers.launch import Counts, ServerHandle

SHAPE = {"per_device_train_batch_size": 8, "num_generations": 2}
DEADLINE_S = 60.0

both_trainers = pytest.mark.parametrize("trainer_class", [ScriptedTrainer, ConcurrentScriptedTrainer])


def mix_of_two(mixed: ServerHandle, echo: ServerHandle, **options: Any) -> MultiOpenRewardSpec:
    """One environment of each server, in equal shares; the counts begin here."""
    spec = MultiOpenRewardSpec(
        {"sort": ORSSource(mixed.url, env_name="sorting"), "echo": ORSSource(echo.url, **options)}
    )
    _ = spec.environment_factory  # looks at the tools in sessions of its own

    for server in (mixed, echo):
        server.reset_counts()

    return spec


def has_none_open(counts: Counts) -> bool:
    """Whether a server has no open session."""
    return not counts.active


def has_deleted_all(counts: Counts) -> bool:
    """Whether a server has deleted what was opened."""
    return counts.opened == counts.deleted


@both_trainers
def test_training_ends_without_a_session(
    trainer_class: type[ScriptedTrainer],
    mixed_server: ServerHandle,
    echo_server: ServerHandle,
    tiny_policy: Path,
    tmp_path: Path,
) -> None:
    """When `train()` returns, each server has deleted what was opened on it: one session per rollout, no more."""
    spec = mix_of_two(mixed_server, echo_server)

    train(spec, tiny_policy, make_arguments(spec, tmp_path, max_steps=2, **SHAPE), trainer_class=trainer_class)

    mixed, echo = mixed_server.counts(), echo_server.counts()
    assert ({}, {}) == (mixed.active, echo.active)
    assert {"sorting": 8} == mixed.opened == mixed.deleted
    assert {"echo": 8} == echo.opened == echo.deleted


@both_trainers
def test_a_failing_reward_function_ends_the_sessions_of_its_batch(
    trainer_class: type[ScriptedTrainer],
    mixed_server: ServerHandle,
    echo_server: ServerHandle,
    tiny_policy: Path,
    tmp_path: Path,
) -> None:
    """The sessions of all sources are closed in the background at once: without callbacks, `close()`, or an exit."""

    def broken(**_: Any) -> list[float]:
        raise KeyError("foo")

    spec = mix_of_two(mixed_server, echo_server, reward=broken)
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)

    with pytest.raises(KeyError, match="foo") as caught:
        train(spec, tiny_policy, args, trainer_class=trainer_class, callbacks=[])

    mixed, echo = (server.wait_until(has_deleted_all, deadline_s=DEADLINE_S) for server in (mixed_server, echo_server))
    assert "train" in {entry.name for entry in caught.traceback}  # so the environments are no garbage yet
    assert {"sorting": 4} == mixed.opened == mixed.deleted
    assert {"echo": 4} == echo.opened == echo.deleted


@both_trainers
def test_closing_the_spec_ends_the_sessions_of_a_batch_that_failed(
    trainer_class: type[ScriptedTrainer],
    mixed_server: ServerHandle,
    echo_server: ServerHandle,
    tiny_policy: Path,
    tmp_path: Path,
) -> None:
    """After an exception between the turns of an episode, no session is left when `with spec:` has ended."""

    def broken(conversation: str, row: int) -> str:
        if "<tool_response>" in conversation:
            raise RuntimeError("the policy broke")
        return play_well(conversation, row)

    with mix_of_two(mixed_server, echo_server) as spec:
        args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)

        with pytest.raises(RuntimeError, match="the policy broke") as caught:
            train(spec, tiny_policy, args, trainer_class=trainer_class, script=broken)

    mixed, echo = mixed_server.counts(), echo_server.counts()
    assert "train" in {entry.name for entry in caught.traceback}  # so the environments are no garbage yet
    assert ({}, {}) == (mixed.active, echo.active)
    assert {"sorting": 4} == mixed.opened == mixed.deleted
    assert {"echo": 4} == echo.opened == echo.deleted


def test_a_session_opened_ahead_that_no_rollout_takes_is_closed(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """If a reset fails, the sessions of the rollouts after it end at once, and those before it with the spec."""
    spec = MultiOpenRewardSpec({"echo": ORSSource(echo_server.url)})
    args = make_arguments(spec, tmp_path, max_steps=1, **SHAPE)
    rows = spec.train_dataset
    indices = [None if slot == 2 else index for slot, index in enumerate(rows["task_index"])]
    rows = rows.remove_columns("task_index").add_column("task_index", indices)
    echo_server.reset_counts()
    concurrent: Any = {"trainer_class": ConcurrentScriptedTrainer, "callbacks": []}

    with spec:
        with pytest.raises(RoutingError, match="a row has task_index=None") as caught:
            train(spec, tiny_policy, args, train_dataset=rows, **concurrent)

        discarded = echo_server.wait_until(lambda counts: counts.deleted == {"echo": 2}, deadline_s=DEADLINE_S)

    counts = echo_server.counts()
    assert "train" in {entry.name for entry in caught.traceback}  # so the environments are no garbage yet
    assert {"echo": 6} == discarded.opened
    assert {"echo": 4} == discarded.active
    assert {} == counts.active
    assert {"echo": 6} == counts.opened == counts.deleted


class Unlearning(ConcurrentScriptedTrainer):
    """Plays and scores as any trainer, and learns nothing: learning from a thousand rollouts would take a minute."""

    def compute_loss(self, model: Any, *_: Any, **__: Any) -> Any:
        return 0.0 * next(model.parameters()).sum()


class WaitingAfterEachStep(TrainerCallback):
    """Goes on only once a server has no session open."""

    def __init__(self, server: ServerHandle) -> None:
        self._server = server
        self.num_steps = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._server.wait_until(has_none_open, deadline_s=DEADLINE_S)
        self.num_steps += 1


def test_a_thousand_rollouts_of_three_sources_open_and_close_a_thousand_sessions(
    mixed_server: ServerHandle, echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Never more sessions than two batches have rollouts; a source that is rarely drawn has none between its steps."""
    records: list[RolloutRecord] = []
    spec = MultiOpenRewardSpec(
        {
            "sort": ORSSource(mixed_server.url, env_name="sorting", weight=66.0),
            "heat": ORSSource(mixed_server.url, env_name="thermostat", weight=33.0),
            "rare": ORSSource(echo_server.url, weight=1.0, discover_task_tools=False),
        },
        on_rollouts=records.extend,
    )
    args = make_arguments(spec, tmp_path, max_steps=8, per_device_train_batch_size=125, num_generations=5)
    _ = spec.environment_factory
    for server in (mixed_server, echo_server):
        server.reset_counts()
    waiting = WaitingAfterEachStep(echo_server)

    train(spec, tiny_policy, args, trainer_class=Unlearning, callbacks=[*spec.callbacks, waiting])

    mixed, echo = mixed_server.counts(), echo_server.counts()
    drawn = Counter(record.source for record in records)
    num_rare = [sum(r.source == "rare" and r.step == step for r in records) for step in range(1, 9)]
    assert 1000 == drawn.total()
    assert {"sorting": drawn["sort"], "thermostat": drawn["heat"]} == mixed.opened == mixed.deleted
    assert {"echo": drawn["rare"]} == echo.opened == echo.deleted
    assert ({}, {}) == (mixed.active, echo.active)
    assert mixed.max_active <= max(2 * 125 - left - right for left, right in pairwise(num_rare))
    assert max(num_rare) == echo.max_active
    assert (8, 0) == (waiting.num_steps, min(num_rare))
