"""`multiors train`: from a run file to a trained model, on one process and on several, and what is left of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from multiors import read_rollouts
from multiors.cli import main
from multiors.config import dump_run_file, load_run_file
from multiors.evaluation import read_evaluation
from multiors.shell import write_command
from tests.commands import Run, Said
from tests.servers.launch import ServerHandle
from tests.warm import Warm, run_ranks

pytestmark = pytest.mark.timeout(300)

DEADLINE_S = 200.0
STEPS = 2
SLOTS = 4
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def write_run_file(folder: Path, policy: Path, mixed: ServerHandle, echo: ServerHandle) -> Path:
    """Three environments on two servers, four prompts a batch, twice."""
    path = folder / "run.yaml"
    path.write_text(
        f"model: {policy}\n"
        "training:\n"
        f"  {{output_dir: out, max_steps: {STEPS}, num_generations: 2, per_device_train_batch_size: {2 * SLOTS},\n"
        "  max_completion_length: 8, save_steps: 1, learning_rate: 1e-4, report_to: none, disable_tqdm: true}\n"
        "rollout_log: rollouts\n"
        "sources:\n"
        f"  sort: {{target: '{mixed.url}', env_name: sorting, weight: 2}}\n"
        f"  heat: {{target: '{mixed.url}', env_name: thermostat, weight: 1}}\n"
        f"  echo: {{target: '{echo.url}', weight: 1}}\n"
        "evaluation: {num_tasks: 1, episodes: 2, seed: 5}\n"
    )
    return path


def run_main(*arguments: object) -> Said:
    """A command in this process."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        exit_code = main([str(argument) for argument in arguments])
    return Said(exit_code, out.getvalue(), err.getvalue())


def start(folder: Path, *arguments: object, launcher: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
    """A command in processes of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **variables}
    command = [sys.executable, *launcher, "-m", "multiors", *map(str, arguments)]
    pipes: Mapping[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    popen = subprocess.Popen if launcher else Warm
    return popen(command, **pipes, text=True, cwd=folder, env=environment)


def finish(process: subprocess.Popen[str]) -> Said:
    """What a process said until it ended."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
        return Said(process.returncode, out, err)
    finally:
        process.kill()


def drawn(folder: Path) -> Counter[tuple[int | None, str, int | None]]:
    """How often each slot's task was played, by the rollout log of a run."""
    return Counter((record.slot, record.source, record.task_index) for record in read_rollouts(folder))


class Trained(NamedTuple):
    """A run, and what it said."""

    folder: Path
    said: Said


@pytest.fixture(scope="module")
def trained(
    tiny_policy: Path, mixed_server: ServerHandle, echo_server: ServerHandle, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    """A whole run of two steps. Nobody changes its folder."""
    folder = tmp_path_factory.mktemp("trained")
    write_run_file(folder, tiny_policy, mixed_server, echo_server)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return Trained(folder, run_main("train", "run.yaml"))


@pytest.fixture
def folder(
    tiny_policy: Path,
    mixed_server: ServerHandle,
    echo_server: ServerHandle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """An empty folder with the run file, in which commands run."""
    monkeypatch.chdir(tmp_path)
    write_run_file(tmp_path, tiny_policy, mixed_server, echo_server)
    return tmp_path


# -- a run


def test_a_run_ends_with_its_table_and_what_to_type_next(trained: Trained) -> None:
    """On stdout; the plan, and what trainers print, is talk."""
    out, err = trained.said.out, trained.said.err

    assert 0 == trained.said.exit_code
    assert ["sort", "heat", "echo"] == [line.split()[0] for line in out.splitlines()[2:5]]
    assert "trained     2 steps; the model is in out\n" in out
    assert "checkpoint  out/checkpoint-2\n" in out
    assert f"  {write_command('evaluate', 'out/run.yaml', '--policy', 'out', '--output', 'out/after')}\n" in out
    assert out.endswith(f"  {write_command('compare', 'out/before', 'out/after')}\n")
    assert "8 slots in 2 batches of 4" in err
    assert "train_runtime" in err
    assert "All reward functions returned None" not in err


def test_a_run_leaves_its_model_and_its_run_file(trained: Trained) -> None:
    """The file is the one that was trained, with the versions that trained it."""
    out = trained.folder / "out"
    text = (out / "run.yaml").read_text()

    assert {"config.json", "model.safetensors", "tokenizer.json", "checkpoint-1"} <= {
        path.name for path in out.iterdir()
    }
    assert load_run_file(trained.folder / "run.yaml") == load_run_file(out / "run.yaml")
    assert re.search(r"^# multiors \S+, trl \S+, .*, Python \S+$", text, re.MULTILINE)


def test_every_slot_is_played_by_a_group(trained: Trained) -> None:
    """Two rollouts each, in the order of the schedule."""
    slots = drawn(trained.folder / "rollouts")

    assert set(range(STEPS * SLOTS)) == {slot for slot, _, _ in slots}
    assert {2} == set(slots.values())


def test_a_run_leaves_no_session(trained: Trained, mixed_server: ServerHandle, echo_server: ServerHandle) -> None:
    """All are closed when the command ends."""
    assert [{}, {}] == [server.wait_until(lambda c: not c.active).active for server in (mixed_server, echo_server)]


def test_what_is_left_can_be_evaluated(trained: Trained, tmp_path: Path, run: Run) -> None:
    """By the commands that were printed; the run file says how much, and options win."""
    run_file, policy = trained.folder / "out/run.yaml", trained.folder / "out"
    short = ("--max-tokens", "8", "--max-turns", "1")
    first = run("evaluate", run_file, "--policy", policy, "--output", tmp_path / "a", *short)
    options = ("--num-tasks", 2, "--episodes", 1, "--seed", 0, "--source", "heat")
    second = run("evaluate", run_file, "--policy", policy, "--output", tmp_path / "b", *short, *options)
    plans = [read_evaluation(tmp_path / name).manifest for name in "ab"]

    assert (0, 0) == (first.exit_code, second.exit_code)
    assert [(5, 2, [1, 1, 1]), (0, 1, [2])] == [
        (plan.seed, plan.episodes_per_task, [len(source.tasks) for source in plan.sources.values()]) for plan in plans
    ]


# -- again


def test_nothing_is_overwritten(trained: Trained, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """A folder that holds a run is left alone."""
    monkeypatch.chdir(trained.folder)
    before = sorted(path.stat().st_mtime_ns for path in Path("out").rglob("*"))
    told = run("train", "out/run.yaml")

    assert (1, "") == (told.exit_code, told.out)
    assert (
        "multiors train: the output folder 'out' holds an earlier run, and nothing is overwritten. Pass --resume to go "
        "on with it, or --output-dir with another folder.\n" == told.err
    )
    assert before == sorted(path.stat().st_mtime_ns for path in Path("out").rglob("*"))


@pytest.mark.filterwarnings("always:the rollout log")
def test_what_an_earlier_run_left_is_not_taken_for_this_ones(trained: Trained, folder: Path, run: Run) -> None:
    """A rollout log that has another run's is warned of, and the commands that are printed name no old evaluation."""
    shutil.copytree(trained.folder / "rollouts", "rollouts")
    Path("out/after").mkdir(parents=True)
    told = run("train", "run.yaml", "--max-steps", "1")

    assert 0 == told.exit_code
    assert "the rollout log 'rollouts' holds rollouts of another run" in told.err
    assert told.out.endswith(f"  {write_command('compare', 'out/before', 'out/after-1')}\n")
    assert "holds rollouts of another run" not in trained.said.err


def test_a_run_is_repeated_from_the_file_that_it_left(trained: Trained, folder: Path, run: Run) -> None:
    """The same slots, and the same rollouts; what is overridden is in the new file."""
    options = ("--output-dir", "again", "--set", "rollout_log=again/rollouts", "--json")
    told = run("train", trained.folder / "out/run.yaml", *options)
    found = json.loads(told.out)
    again = load_run_file(Path("again/run.yaml"))
    texts = [
        sorted(str(record.messages) for record in read_rollouts(log))
        for log in (trained.folder / "rollouts", Path("again/rollouts"))
    ]

    assert ("again", "again/checkpoint-2", 2) == (found["model"], found["checkpoint"], found["steps"])
    assert drawn(trained.folder / "rollouts") == drawn(Path("again/rollouts"))
    assert texts[0] == texts[1]
    assert ("again", "again/rollouts") == (again.training["output_dir"], again.rollout_log and again.rollout_log.folder)


def test_a_run_goes_on_from_its_last_checkpoint(trained: Trained, folder: Path, run: Run) -> None:
    """It draws what the whole run would have drawn, and keeps the file with which it began."""
    begun = run("train", "run.yaml", "--resume", "auto", "--max-steps", "1")
    resumed = run("train", "run.yaml", "--resume")

    assert (0, 0) == (begun.exit_code, resumed.exit_code)
    assert "trained     1 steps" in begun.out
    assert "trained     2 steps" in resumed.out
    assert resumed.out.startswith("rollouts since checkpoint-1:\n")
    assert "since" not in begun.out
    assert drawn(trained.folder / "rollouts") == drawn(folder / "rollouts")
    assert 1 == load_run_file(Path("out/run-until-checkpoint-1.yaml")).training["max_steps"]
    assert 2 == load_run_file(Path("out/run.yaml")).training["max_steps"]
    assert "# Resumed from checkpoint-1.\n" in Path("out/run.yaml").read_text()


def test_another_trainer_and_evaluations_are_asked_for_in_the_file(trained: Trained, folder: Path, run: Run) -> None:
    """TRL's own trainer draws the same, and each step is evaluated."""
    told = run("train", "run.yaml", "--set", "trainer=grpo", "--set", "evaluation.every_steps=1", "--json")
    evaluated = [read_evaluation(path).manifest for path in sorted(Path("out/evaluations").iterdir())]

    assert (0, "out/evaluations") == (told.exit_code, json.loads(told.out)["evaluations"])
    assert [(5, 2), (5, 2)] == [(plan.seed, plan.episodes_per_task) for plan in evaluated]
    assert drawn(trained.folder / "rollouts") == drawn(folder / "rollouts")


# -- processes


def test_two_processes_draw_what_one_draws(trained: Trained, folder: Path) -> None:
    """The same run file under torchrun, with half of the batch on each; one of them speaks."""
    half = ("--per-device-train-batch-size", SLOTS)
    said = finish(start(folder, "train", "run.yaml", *half, launcher=TORCHRUN))

    assert 0 == said.exit_code, said.err
    assert drawn(trained.folder / "rollouts") == drawn(folder / "rollouts")
    assert 1 == said.out.count("trained     2 steps; the model is in out")
    assert 1 == said.err.count("8 slots in 2 batches of 4")
    assert (folder / "out/run.yaml").is_file()


def test_each_process_says_what_it_cannot_use(folder: Path) -> None:
    """In several processes, errors say whose they are, without a traceback."""
    command = [sys.executable, "-m", "multiors", "train", "run.yaml", "--set", "model=null"]
    said = run_ranks(command, 2, timeout=DEADLINE_S, cwd=folder)

    assert (1, "") == (said.exit_code, said.out)
    assert ["multiors train: the run file names no", "multiors train (process 1): the run file names no"] == re.findall(
        "^multiors train.*names no", said.err, re.MULTILINE
    )
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("number", "exit_code", "saves", "how"),
    [
        (signal.SIGINT, 130, "steps", f"to go on from it: {write_command('train', 'out/run.yaml', '--resume')}\n"),
        (signal.SIGTERM, 143, "no", "\nnothing was saved before the first checkpoint; the same command begins anew\n"),
    ],
)
def test_a_run_that_is_stopped_closes_its_sessions(
    folder: Path, echo_server: ServerHandle, number: signal.Signals, exit_code: int, saves: str, how: str
) -> None:
    """Ctrl-C and a polite kill say what became of the rollouts and how to go on, and no session stays open."""
    echo_server.reset_counts()
    process = start(folder, "train", "run.yaml", "--max-steps", "5000", "--save-strategy", saves)
    try:
        echo_server.wait_until(lambda counts: sum(counts.opened.values()) > 8, deadline_s=DEADLINE_S)
        process.send_signal(number)
    finally:
        said = finish(process)

    assert (exit_code, "") == (said.exit_code, said.out)
    assert "interrupted" == said.err.splitlines()[-1]
    assert re.search(r"\nrollouts until here:\nsource +rollouts .*\n-.*\nsort +\d+ ", said.err)
    assert how in said.err
    assert "Traceback" not in said.err
    assert {} == echo_server.wait_until(lambda counts: not counts.active).active


# -- keys


def test_no_key_is_in_what_a_run_leaves(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no line has the value of a variable; the file that is left has its name."""
    monkeypatch.setenv("CANARY_KEY", "canary-A1b2C3d4")
    monkeypatch.setenv("CANARY_SECRET", "canary-E5f6G7h8")
    keys = ("--set", "sources.echo.api_key=${CANARY_KEY}", "--set", "sources.echo.secrets={S: '${CANARY_SECRET}'}")
    told = run("train", "run.yaml", *keys)
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]

    assert 0 == told.exit_code
    assert "${CANARY_KEY}" in Path("out/run.yaml").read_text()
    assert [] == [found for found in [*contents, (told.out + told.err).encode()] if b"canary-" in found]


# -- mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "model=null"), "the run file names no model. Write model: NAME into it, or pass --set model=NAME."),
        (("--set", "model=./none"), "model './none' cannot be trained: there is no such folder."),
        (("--set", "model=out/checkpoint-9"), "model 'out/checkpoint-9' cannot be trained: there is no such folder."),
        (("--resume",), "--resume: there is no checkpoint in 'out'."),
        (("--resume", "none"), "--resume: 'none' is no checkpoint."),
        (("--num-generations", "3"), "(3). A generation batch has per_device_train_batch_size × processes × steps_per"),
        (("--shuffle-dataset",), "shuffle_dataset=True contradicts the mix"),
        (("--max-steps", "many"), "- command line: training.max_steps: Input should be a valid integer (got 'many')"),
        (("--set", "sources.sort.target=http://127.0.0.1:9"), "source 'sort': the server at http://127.0.0.1:9 cannot"),
        (("--set", "sources.echo.api_key=${CANARY_NONE}"), "the environment variable 'CANARY_NONE' is not set"),
        (("--output-dir", "run.yaml/x"), "the output folder 'run.yaml/x' cannot be written: 'run.yaml' is no folder."),
    ],
)
def test_a_known_error_is_one_message(folder: Path, run: Run, arguments: tuple[str, ...], message: str) -> None:
    """Exit code 1, nothing on stdout, no traceback, and nothing is left."""
    told = run("train", "run.yaml", *arguments)

    assert (1, "") == (told.exit_code, told.out)
    assert message in told.err
    assert "Traceback" not in told.err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train",), "the following arguments are required: run_file"),
        (("train", "run.yaml", "--learning-rat", "1"), "GRPOConfig has no field of this name; did you mean 'learning"),
        (("train", "run.yaml", "--resume-from-checkpoint", "x"), "pass --resume to `multiors train`"),
        (("train", "run.yaml", "--max-steps"), "--max-steps has no value"),
        (("train", "run.yaml", "--set", "seed"), "argument --set: 'seed' has no value. Write KEY.PATH=VALUE"),
        (("preview", "run.yaml", "--set", "=1"), "argument --set: '' is no place of a run file"),
        (("check", "run.yaml", "--set", "a=["), "argument --set: the value of 'a' is no YAML"),
        (("preview", "run.yaml", "--max-steps", "3"), "unrecognized arguments: --max-steps 3"),
    ],
)
def test_wrong_usage_is_two(folder: Path, run: Run, arguments: tuple[str, ...], message: str) -> None:
    """As of all commands."""
    told = run(*arguments)

    assert (2, "") == (told.exit_code, told.out)
    assert message in told.err


def test_a_check_before_training_stops_it(folder: Path, run: Run) -> None:
    """Errors are shown with everything else that was found; without any, the run goes on."""
    bad = run("train", "run.yaml", "--check", "--set", "sources.sort.env_name=sort")
    good = run("train", "run.yaml", "--check", "--max-steps", "1")

    assert (1, "", 0) == (bad.exit_code, bad.out, good.exit_code)
    assert "environment 'sort' is not on the server" in bad.err
    assert "3 sources: 0 errors" in good.err


# -- the same file for the other commands


def test_all_commands_take_overrides(folder: Path, run: Run) -> None:
    """And lay the run out for the trainer of the run file."""
    override: Callable[..., tuple[str, ...]] = lambda *texts: tuple(  # noqa: E731  # shorter than a function
        each for text in texts for each in ("--set", text)
    )
    preview = run("preview", "run.yaml", *override("training.max_steps=3", "sources.echo.weight=5"))
    check = run("check", "run.yaml", "--timeout", 60, *override("training.shuffle_dataset=true"))
    only = run("preview", "run.yaml", "--training", "training.yaml")

    assert "12 slots in 3 batches of 4" in preview.out
    assert (1, 1) == (check.exit_code, only.exit_code)
    assert "shuffle_dataset=True contradicts the mix" in check.out
    assert "training file 'training.yaml' cannot be read" in only.err


def test_a_file_that_is_left_is_written_as_it_was_read(trained: Trained) -> None:
    """What stands in it is what would be written of it."""
    path = trained.folder / "out/run.yaml"
    body = "".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("#"))

    assert body == dump_run_file(load_run_file(path))
