"""One run file in one process, and in several under `accelerate launch` with the configurations of the examples."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from multiors import RolloutRecord, read_rollouts
from tests.commands import Said
from tests.servers.launch import ServerHandle, serve
from tests.warm import Warm

ROOT = Path(__file__).parents[1]
DEADLINE_S = 400.0
STEPS = 2
SLOTS = 4

# Each process imports TRL, and some DeepSpeed, first.
pytestmark = pytest.mark.timeout(500)


def write_run_file(folder: Path, policy: Path, mixed: ServerHandle, echo: ServerHandle) -> None:
    """Three environments, four prompts a batch; in two of them a policy that calls no tool is rewarded too."""
    reward = "{parts: [{function: 'lettering:count', scores_alone: true}]}"
    (folder / "lettering.py").write_text(
        "def count(environments, completion_ids, **_):\n    return [float(sum(ids) % 7) for ids in completion_ids]\n"
    )
    (folder / "run.yaml").write_text(
        f"model: {policy}\n"
        "training:\n"
        f"  {{output_dir: out, max_steps: {STEPS}, num_generations: 2, per_device_train_batch_size: {2 * SLOTS},\n"
        "  max_completion_length: 8, save_steps: 2, learning_rate: 1e-3, logging_steps: 1, report_to: none,\n"
        "  disable_tqdm: true}\n"
        "rollout_log: rollouts\n"
        "sources:\n"
        f"  sort: {{target: '{mixed.url}', env_name: sorting, weight: 2, reward: {reward}}}\n"
        f"  heat: {{target: '{mixed.url}', env_name: thermostat, weight: 1, reward: {reward}}}\n"
        f"  echo: {{target: '{echo.url}', weight: 1, discover_task_tools: false, retries: 0}}\n"
    )


@contextmanager
def training(
    folder: Path, num_processes: int, *arguments: object, engine: str | None = None, module: str = "multiors"
) -> Iterator[subprocess.Popen[str]]:
    """The run file is trained in so many processes with the same global batch, by an engine of the examples."""
    options = ("--num_processes", str(num_processes), "--mixed_precision", "no")
    config_file = ("--config_file", str(ROOT / f"examples/accelerate/{engine}.yaml"))
    launcher = () if engine is None else ("-m", "accelerate.commands.launch", *config_file, *options)
    size = ("--per-device-train-batch-size", str(2 * SLOTS // num_processes))
    command = [sys.executable, *launcher, "-m", module, "train", "run.yaml", *size, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    popen = Warm if engine is None else subprocess.Popen
    process = popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment)
    try:
        yield process
    finally:
        process.kill()


def finish(process: subprocess.Popen[str]) -> Said:
    """What a process said until it ended."""
    out, err = process.communicate(timeout=DEADLINE_S)
    return Said(process.returncode, out, err)


class Run(NamedTuple):
    """What a run left."""

    folder: Path
    said: Said

    def records(self) -> list[RolloutRecord]:
        return list(read_rollouts(self.folder / "rollouts"))

    def drawn(self) -> Counter[tuple[int | None, str, int | None]]:
        """How often each slot's task was played."""
        return Counter((record.slot, record.source, record.task_index) for record in self.records())

    def log(self) -> list[dict[str, Any]]:
        """What was logged of each step."""
        state = json.loads((self.folder / f"out/checkpoint-{STEPS}/trainer_state.json").read_text())
        return [entry for entry in state["log_history"] if "grad_norm" in entry]


@pytest.fixture(scope="module")
def alone(
    tiny_policy: Path, mixed_server: ServerHandle, echo_server: ServerHandle, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """The run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    write_run_file(folder, tiny_policy, mixed_server, echo_server)
    with training(folder, 1) as process:
        return Run(folder, finish(process))


@pytest.fixture
def folder(tiny_policy: Path, mixed_server: ServerHandle, echo_server: ServerHandle, tmp_path: Path) -> Path:
    """A folder with the run file."""
    write_run_file(tmp_path, tiny_policy, mixed_server, echo_server)
    return tmp_path


def test_four_processes_draw_what_one_draws_while_a_server_dies(
    alone: Run, folder: Path, mixed_server: ServerHandle
) -> None:
    """Only the process that had its rollouts is concerned, and all go on: they are unscored, and the slots the same."""
    with serve("tests.servers.waiting:Fading") as server:
        override = ("--set", f"sources.echo.target={server.url}")
        with training(folder, 4, *override, engine="ddp") as process:
            server.wait_until(lambda counts: counts.requests.get("POST /create", 0) > 2, deadline_s=DEADLINE_S)
            server.kill()
            run = Run(folder, finish(process))

    ranks = {path.stem.rpartition("-")[2] for path in (folder / "rollouts").iterdir()}
    reasons = {step: {str(r.reason) for r in run.records() if r.source == "echo" and r.step == step} for step in (1, 2)}
    others = [record.reward for record in run.records() if record.source != "echo"]

    assert (0, 0) == (alone.said.exit_code, run.said.exit_code), alone.said.err + run.said.err
    assert {"rank0", "rank1", "rank2", "rank3"} == ranks
    assert alone.drawn() == run.drawn()
    assert {2} == set(run.drawn().values())
    assert set() == reasons[1] & {"unreachable", "session_lost"}
    assert {"unreachable", "session_lost"} >= reasons[2]
    assert None not in others
    assert [(0.0, 1.0)] * STEPS == [(entry["env/echo/scored"], entry["env/sort/scored"]) for entry in run.log()]
    assert [0.25] * STEPS == [entry["env/echo/share"] for entry in run.log()]
    assert 1 == run.said.out.count(f"trained     {STEPS} steps; the model is in out")
    assert {} == mixed_server.counts().active


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_trains_on_the_slots_of_one_process(
    alone: Run, folder: Path, tiny_policy: Path, mixed_server: ServerHandle, stage: int
) -> None:
    """Two processes with a part of the optimizer, or of the model too, take real steps, and save the whole model."""
    from safetensors.torch import load_file

    with training(folder, 2, engine=f"deepspeed_zero{stage}", module="tests.uncompiled") as process:
        run = Run(folder, finish(process))

    assert 0 == run.said.exit_code, run.said.err
    before, after = (load_file(path / "model.safetensors") for path in (tiny_policy, folder / "out"))
    steps = run.log()

    assert alone.drawn() == run.drawn()
    assert STEPS == len(steps)
    assert all(math.isfinite(entry["loss"]) and 0.0 < entry["grad_norm"] < math.inf for entry in steps)
    assert [1.0] * STEPS == [entry["env/sort/scored"] for entry in steps]
    assert (folder / f"out/checkpoint-{STEPS}/global_step{STEPS}").is_dir()
    assert {name: value.shape for name, value in before.items()} == {name: after[name].shape for name in before}
    assert all(bool(value.isfinite().all()) for value in after.values())
    assert any(bool((value != after[name]).any()) for name, value in before.items())
    assert {} == mixed_server.counts().active
