"""Every example runs, in its small form: on a CPU, with a policy of 0.1 million parameters, against a real server.

One runs under a launcher, and the notebook in a kernel. The others run in this process, where TRL is loaded already.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from multiors import RolloutRecord, read_rollouts
from multiors.evaluation import compare, read_evaluation
from multiors.evaluation.comparison import to_text
from tests.served import serve_command
from tests.warm_policy import build_warm_policy

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOK = EXAMPLES / "mixing.ipynb"
SMALL = (
    *("--use-cpu", "--bf16", "False", "--gradient-checkpointing", "False", "--disable-tqdm", "True"),
    *("--save-strategy", "no", "--max-completion-length", "48", "--max-tool-calling-iterations", "3"),
    *("--max-steps", "2", "--num-generations", "4", "--per-device-train-batch-size", "8"),
    *("--gradient-accumulation-steps", "2"),
)
"""A run of two batches of four prompts."""

Log = list[dict[str, float | None]]
RunExample = Callable[..., str]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serves what the examples train on, as their reader would."""
    names = ("quickstart", "reasoning-gym", "--dataset", "chain_sum", "--dataset", "gcd", "--num-tasks", 40)
    with serve_command(*names, folder=tmp_path_factory.mktemp("server")) as served:
        yield served.url


@pytest.fixture(scope="module")
def policy(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a policy that calls the quickstart's tools, more or less."""
    return build_warm_policy(tmp_path_factory.mktemp("policy"), url)


@pytest.fixture
def run_example(
    url: str, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunExample:
    """Runs an example of the served environments in an empty folder; what it printed."""

    def run(name: str, *flags: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, "--model", str(policy), "--url", url, *SMALL, *flags])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def read_log(out: str) -> Log:
    """What the trainer printed of each step."""
    entries = [ast.literal_eval(line) for line in out.splitlines() if line.startswith("{'loss'")]
    return [{name: None if value is None else float(value) for name, value in each.items()} for each in entries]


def list_values(log: Log, metric: str) -> dict[str, list[float | None]]:
    """The values of `env/<source>/<metric>`, rounded, by source; None in a step that has none."""
    names = [key.split("/")[1] for key in log[0] if re.fullmatch("env/[^/]+/share", key)]
    values = {name: [entry.get(f"env/{name}/{metric}") for entry in log] for name in names}
    return {name: [None if each is None else round(each, 3) for each in found] for name, found in values.items()}


def find_lost(log: Log) -> list[str]:
    """Sources and steps in which a rollout is neither scored nor has one reason, or a mean is of nothing."""
    lost = []

    for step, entry in enumerate(log):
        for name, values in list_values(log, "scored").items():
            scored = values[step]
            reasons = math.fsum(value or 0.0 for key, value in entry.items() if key.startswith(f"env/{name}/unscored/"))
            is_whole = scored is None or math.isclose(scored + reasons, 1.0, abs_tol=0.01)
            has_mean = entry.get(f"rewards/{name}/mean") is not None
            if not is_whole or has_mean != bool(scored) or has_mean != (f"env/{name}/reward" in entry):
                lost.append(f"{name} in step {step}")

    return lost


# -- the scripts


def test_a_mix_is_trained_under_a_launcher_in_the_shares_of_its_weights(url: str, policy: Path, tmp_path: Path) -> None:
    """Two processes share batches of four prompts, one of the first target and three of the second."""
    targets = (f"bins={url}#recycling", f"tea={url}#teahouse")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
            *(str(EXAMPLES / "grpo_mixed.py"), "--target", *targets, "--weights", "1", "3", "--model", str(policy)),
            *("--use-vllm", "False", "--log-completions", "False", *SMALL, "--per-device-train-batch-size", "4"),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
    )

    assert 0 == done.returncode, done.stderr
    assert ["8 slots in 2 batches of 4 (seed 0, max_slots)"] == re.findall(r"^\d+ slots.*$", done.stdout, re.MULTILINE)
    assert {"bins": [0.25, 0.25], "tea": [0.75, 0.75]} == list_values(read_log(done.stdout), "share")
    assert [] == find_lost(read_log(done.stdout))


def test_the_flags_of_trls_script_are_flags_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line of `seta.py` has only to name its target; what it says reaches `GRPOConfig`."""
    flags = {
        "learning_rate": 2e-6,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "num_generations": 6,
        "max_completion_length": 1024,
        "max_steps": 7,
        "max_tool_calling_iterations": 5,
        "vllm_mode": "server",
        "vllm_server_base_url": "http://localhost:8009",
        "vllm_gpu_memory_utilization": 0.5,
        "output_dir": "out",
        "report_to": "trackio",
    }
    written = [text for name, value in flags.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    own = ["--model", "a/b", "--target", "seta=Eigent/SETA", "--split", "test", "--num-tasks", "9"]
    monkeypatch.setattr(sys, "argv", ["grpo_mixed.py", *own, *written])
    found, fields = runpy.run_path(str(EXAMPLES / "grpo_mixed.py"))["parse_flags"]()

    always = {"use_vllm": True, "log_completions": True, "logging_steps": 1}
    assert {**flags, **always, "chat_template_kwargs": {"enable_thinking": False}} == fields
    assert ["a/b", [("seta", "Eigent/SETA", None)], "test", 9] == [
        found[name] for name in ("model", "target", "split", "num_tasks")
    ]


@pytest.mark.parametrize(
    "wrong",
    [["Eigent/SETA"], ["a=u/a", "a=u/b"], ["a=u/a", "--weights", "1", "2"]],
    ids=["unnamed", "twice", "weights"],
)
def test_targets_that_cannot_be_told_apart_are_refused(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A target without a name, a name given twice and a weight too many end the script with its usage."""
    monkeypatch.setattr(sys, "argv", ["grpo_mixed.py", "--target", *wrong])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(EXAMPLES / "grpo_mixed.py"))["parse_flags"]()

    assert "error: " in capsys.readouterr().err


def test_a_schedule_a_gate_and_a_ladder_decide_what_is_drawn(run_example: RunExample) -> None:
    """While its gate is closed the teahouse gets nothing, and the others its share; the ladder is on a level."""
    log = read_log(run_example("mixed_curriculum.py"))

    # The second batch lies behind the middle of the run: weights 1 and 2 beside 2 and 1 before.
    shares = {"recycling": [0.667, 0.333], "teahouse": [0.0, 0.0], "chain_sum": [0.333, 0.667]}
    assert shares == list_values(log, "planned_share")
    assert [0.0, 0.0] == list_values(log, "curriculum/level")["chain_sum"]
    assert Path("mixed-curriculum/curriculum.png").read_bytes().startswith(b"\x89PNG")
    assert [] == find_lost(log)


def test_an_example_trains_under_a_curriculum_of_its_own(run_example: RunExample) -> None:
    """The class decides, inside its box, and the summary counts the rollouts of both sources."""
    out = run_example("custom_curriculum.py")

    planned = list_values(read_log(out), "planned_share")
    assert [0.5, 0.5] == [values[0] for values in planned.values()]
    assert all(0.25 <= (value or 0.0) <= 0.75 for values in planned.values() for value in values)
    assert 32 == sum(int(line.split()[1]) for line in out.splitlines() if re.match("(recycling|teahouse) ", line))


PARTS = {"teahouse": ("is_brief", 0.2), "museum": ("names_both_words", 0.5)}


def compose(record: RolloutRecord) -> float | None:
    """The reward that `rewards_per_environment.py` means, of what the environment and the functions said."""
    if record.source == "observatory" and not record.finished:
        return 0.0
    if record.outcome is None or record.source not in PARTS:
        return record.outcome

    name, weight = PARTS[record.source]
    return record.outcome + weight * (record.parts[name] or 0.0)


def test_each_environment_is_rewarded_by_its_own_rules(run_example: RunExample) -> None:
    """What was written of each rollout is what its source's rule gives, and clouds stay None."""
    out = run_example("rewards_per_environment.py", "--max-steps", "4")
    records = list(read_rollouts("rewards-per-environment/rollouts"))

    assert "reward weights [1.0, 1.0, 1.0, 2.0], normalize_then_sum" == out.splitlines()[0]
    assert [16] * 4 == [
        sum(each.source == name for each in records) for name in dict.fromkeys(r.source for r in records)
    ]
    assert [compose(each) for each in records] == [pytest.approx(each.reward) for each in records]
    assert {None} >= {each.reward for each in records if each.finished and each.outcome is None}
    assert [] == find_lost(read_log(out))


def test_one_class_shows_the_tools_of_all_sources(run_example: RunExample) -> None:
    """Names that two sources have get the source's in front, and shares hold as without."""
    out = run_example("union_tools.py")

    assert "every prompt shows ['chain_sum__answer', 'drop', 'gcd__answer']" in out.splitlines()
    assert 32 == sum(int(line.split()[1]) for line in out.splitlines() if re.match("(recycling|chain_sum|gcd) ", line))
    assert [] == find_lost(read_log(out))


def test_an_object_with_three_slots_is_trained_beside_an_environment(run_example: RunExample) -> None:
    """One prompt in three is the environment's, and what the game did not judge is unscored."""
    out = run_example("other_environments.py", "--per-device-train-batch-size", "12")
    log = read_log(out)

    assert {"recycling": [0.333, 0.333], "game": [0.667, 0.667]} == list_values(log, "share")
    assert [] == find_lost(log)


def test_the_game_of_the_example_can_be_won_and_left_alone() -> None:
    """A right guess is worth 1, wrong ones 0, and none at all None."""
    example = runpy.run_path(str(EXAMPLES / "other_environments.py"))
    won, lost, silent = (example["HigherLower"]() for _ in range(3))
    for environment in (won, lost, silent):
        environment.reset(number=7, environment="game")

    assert ["Higher.", "Lower.", "Found."] == [won.guess(number) for number in (3, 12, 7)]
    assert ["Lower."] * 5 == [lost.guess(16) for _ in range(5)]
    assert [1.0, 0.0, None] == example["won"](environments=[won, lost, silent])


def test_a_policy_is_compared_with_what_it_was(run_example: RunExample) -> None:
    """What is printed is the comparison of the two evaluations it leaves, which are of every task."""
    out = run_example("evaluate_and_compare.py", "--episodes-per-task", "1", "--learning-rate", "3e-3")
    folder = Path("evaluate-and-compare")
    found = compare(folder / "before", folder / "after")

    assert out.endswith(f"{to_text(found)}\n")
    assert {"recycling": 8, "teahouse": 16, "museum": 9} == {
        name: each.num_pairs for name, each in found.sources.items() if name != "observatory"
    }
    assert {"better", "worse", "undecided"} >= {each.verdict for each in found.sources.values()}
    assert 53 == len(list(read_evaluation(folder / "after").episodes()))
    assert "<!doctype html>" == (folder / "comparison.html").read_text(encoding="utf-8")[:15].lower()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_examples_are_short_and_say_how_they_are_run(script: Path) -> None:
    """At most a hundred lines, of which the first ones have a command with the file's name."""
    text = script.read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(text)) or ""

    assert 100 >= len(text.splitlines())
    assert f"examples/{script.name}" in said


def test_every_example_is_in_the_table() -> None:
    """README.md names each script and the notebook once, and nothing that is not there."""
    named = re.findall(
        r"^\| \[`[^`]+`\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )

    assert sorted(path.name for path in (*SCRIPTS, NOTEBOOK)) == sorted(named)


def test_no_folder_beside_the_scripts_is_taken_for_a_package() -> None:
    """Python looks there first, and TRL would take a folder named vllm for an installed vLLM."""
    folders = [each.name for each in EXAMPLES.iterdir() if each.is_dir() and each.name.isidentifier()]
    specs = [PathFinder.find_spec(name, [str(EXAMPLES), *sys.path]) for name in folders if name != "__pycache__"]

    assert [] == [spec.name for spec in specs if spec is not None and spec.origin is None]


# -- the notebook


def read_notebook() -> dict[str, Any]:
    """The notebook as it is kept."""
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return notebook


def test_the_notebook_is_kept_without_outputs() -> None:
    """No cell has an output, a count or metadata of whoever ran it."""
    cells = [each for each in read_notebook()["cells"] if each["cell_type"] == "code"]

    assert [([], None)] * len(cells) == [(each["outputs"], each["execution_count"]) for each in cells]
    assert [{"tags": ["parameters"]}] == [each["metadata"] for each in cells if each["metadata"]]
    assert {"kernelspec", "language_info"} == set(read_notebook()["metadata"])


def play_notebook(folder: Path, values: Mapping[str, Any]) -> list[str]:
    """The texts that the cells show, with other values of the parameters."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    at = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ()))
    lines = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(lines))
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    return [
        "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_the_notebook_runs_from_beginning_to_end(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel, whose event loop is running: it scores by hand, trains in the planned shares and compares."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shown = "\n".join(play_notebook(tmp_path, {"MODEL": str(policy), "STEPS": 2, "EPISODES_PER_TASK": 1}))
    found = compare(tmp_path / "mixing/before", tmp_path / "mixing/after")

    assert "[6.0, None]" in shown
    assert "16 slots in 2 batches of 8 (seed 0, max_slots)" in shown
    assert to_text(found) in shown
    assert [53, 53] == [
        len(list(read_evaluation(tmp_path / "mixing" / name).episodes())) for name in ("before", "after")
    ]
    assert (tmp_path / "mixing/run.png").read_bytes().startswith(b"\x89PNG")
