"""Training of an adapter, as `peft:` of a run file asks for it, and what can be done with what is left of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from multiors.config import load_run_file
from multiors.evaluation import read_evaluation
from tests.commands import Run
from tests.servers.launch import ServerHandle

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(tiny_policy: Path, echo_server: ServerHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a run file, in which commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        f"model: {tiny_policy}\n"
        "training:\n"
        "  {output_dir: out, max_steps: 2, num_generations: 2, per_device_train_batch_size: 4, save_steps: 1,\n"
        "   max_completion_length: 8, learning_rate: 1e-2, report_to: none, disable_tqdm: true}\n"
        "peft: {r: 4, lora_alpha: 8, target_modules: all-linear}\n"
        f"sources: {{echo: {{target: '{echo_server.url}', reward: {{unscored: 0.0}}}}}}\n"
        "evaluation: {num_tasks: 1, episodes: 1}\n"
    )
    return tmp_path


def test_an_adapter_is_trained_resumed_and_evaluated(folder: Path, run: Run, tiny_policy: Path) -> None:
    """What is left is the adapter alone, which knows its model; it is evaluated while training and after."""
    begun = run("train", "run.yaml", "--max-steps", 1, "--set", "evaluation.every_steps=1")
    again = run("train", "run.yaml")
    resumed = run("train", "run.yaml", "--resume")
    options = ("--policy", "out", "--output", "after", "--max-tokens", 8, "--max-turns", 1)
    evaluated = run("evaluate", "out/run.yaml", *options)
    files = {path.name for path in Path("out").iterdir()}
    adapter = json.loads(Path("out/adapter_config.json").read_text())

    assert [0, 1, 0, 0] == [said.exit_code for said in (begun, again, resumed, evaluated)], evaluated.err
    assert "holds an earlier run, and nothing is overwritten" in again.err
    assert "trained     2 steps" in resumed.out
    assert {"adapter_model.safetensors", "tokenizer.json", "checkpoint-2"} <= files
    assert "model.safetensors" not in files
    assert (4, 8, "CAUSAL_LM", str(tiny_policy)) == tuple(
        adapter[name] for name in ("r", "lora_alpha", "task_type", "base_model_name_or_path")
    )
    assert ", peft " in Path("out/run.yaml").read_text()
    assert {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} == load_run_file(Path("out/run.yaml")).peft
    assert 1 == len(list(read_evaluation("after").episodes()))
    assert 1 == len(list(Path("out/evaluations").iterdir()))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("peft.rank=4", "- command line: peft.rank: LoraConfig has no field of this name that YAML can hold"),
        ("peft.lora_alfa=4", "did you mean 'lora_alpha'"),
        ("peft.r=four", "- command line: peft.r: Input should be a valid integer (got 'four')"),
        ("peft.inference_mode=true", "peft.inference_mode: this does not stand here: peft sets it itself"),
        ("peft.layers_pattern=x", "peft: LoraConfig refuses these fields: ValueError: "),
        ("peft.r=0", "cannot be trained: ValueError: `r` should be a positive integer"),
        ("peft=true", "- command line: peft: Input should be a valid dictionary (got True)"),
        ("peft.target_modules=none_of_these", "Target modules none_of_these not found in the base model"),
    ],
)
def test_mistakes_are_named(folder: Path, run: Run, override: str, message: str) -> None:
    """With their place, before anything is trained."""
    told = run("train", "run.yaml", "--set", override)

    assert (1, "") == (told.exit_code, told.out)
    assert message in told.err
    assert "Traceback" not in told.err
    assert not Path("out").exists()


def test_without_peft_it_is_said_what_to_install(
    folder: Path, run: Run, tiny_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training and in evaluating; what needs no adapter works."""
    monkeypatch.setitem(sys.modules, "peft", None)  # as Python itself marks what cannot be imported
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text("{}")
    trained = run("train", "run.yaml")
    evaluated = run("evaluate", "run.yaml", "--policy", "adapter", "--output", "after")
    previewed = run("preview", "run.yaml")

    assert [1, 1, 0] == [said.exit_code for said in (trained, evaluated, previewed)]
    assert "peft is not installed. Run pip install 'multiors[peft]'." in trained.err
    assert "'adapter' holds an adapter, and the package peft is not installed." in evaluated.err
