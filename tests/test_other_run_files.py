"""Environments that are not ORS in a run file, and the commands that read it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, TRLSource, read_rollouts
from multiors.config import build_spec, dump_run_file, load_run_file
from multiors.errors import ConfigError
from multiors.launch import _choose_evaluated
from tests.commands import Run
from tests.others import Guess, Judge, guess_rows, reward_of
from tests.servers.launch import ServerHandle

SLOTS = SimpleNamespace(train_dataset=guess_rows("oak"), environment_factory=Judge)
NESTED = TRLSource(SLOTS)
NOWHERE = ORSSource("http://127.0.0.1:9")


class Slots:
    """A spec as a class; `make` is one as a function, and `SLOTS` one as it is."""

    train_dataset = guess_rows("oak", "elm")
    environment_factory = Guess
    reward_funcs = staticmethod(reward_of)


def make() -> Any:
    """A spec."""
    return SLOTS


def fail() -> Any:
    """No spec."""
    raise OSError("no such machine")


def load(folder: Path, text: str) -> Any:
    """The run file of a text."""
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run_file(path)


@pytest.mark.parametrize(("name", "num_tasks"), [("make", 1), ("SLOTS", 1), ("Slots", 2)])
def test_a_spec_is_named_as_functions_are(tmp_path: Path, name: str, num_tasks: int) -> None:
    """A function or class is called, anything else is taken as it is; the other keys are settings beside it."""
    settings = "weight: 2, reward: {scale: 0.5}, max_failing_rollouts: 3"
    config = load(tmp_path, f"sources: {{a: {{spec: 'tests.test_other_run_files:{name}', {settings}}}}}")
    (source,) = build_spec(config).sources.values()

    assert isinstance(source, TRLSource)
    assert num_tasks == len(source.task_indices)
    assert (2.0, 0.5, 3) == (source.weight, source.reward.scale, source.max_failing_rollouts)
    assert config == load(tmp_path, dump_run_file(config))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            "spec: 'm:f'\n    env_name: x",
            r"line 4: sources\.a\.env_name: there is no such key here; the keys are spec, weight, task_curriculum, rew",
        ),
        ("spec: 'm:f'\n    target: x", r"line 4: sources\.a\.target: there is no such key here; the keys are spec, "),
        ("spec: nothing", r"line 3: sources\.a\.spec: String should match pattern"),
        (
            "spec: 'm:f'\n    reward: {reduction: sum}",
            r"line 4: sources\.a\.reward: reduction and group_score are for ORS environments",
        ),
        ("spec: 'm:f'\n    reward: {part: 1}", r"line 4: sources\.a\.reward\.part: .*did you mean 'parts'\?"),
        ("spec: 'm:f'\n    weight: -1", r"line 4: sources\.a\.weight: Input should be greater than 0 \(got -1\)"),
    ],
)
def test_keys_that_do_not_apply_have_their_lines(tmp_path: Path, keys: str, message: str) -> None:
    """An environment that is no server has no address, no session and no tools with rewards."""
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, f"sources:\n  a:\n    {keys}\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:make", "cannot be imported: ModuleNotFoundError"),
        ("tests.test_other_run_files:fail", "makes no spec: OSError: no such machine"),
        ("tests.test_other_run_files:NESTED", "is a TRLSource, whose settings stand in a run file"),
        ("tests.test_other_run_files:NOWHERE", "is a ORSSource, .* an ORS environment under target"),
        ("tests.others:guess_rows", r"is no source: it has no \['environment_factory'\]|is no source: it has no"),
    ],
)
def test_what_is_no_spec_is_named_with_its_key(tmp_path: Path, name: str, message: str) -> None:
    """Whatever the user's module does, the message begins with the key and says what is wrong."""
    config = load(tmp_path, f"sources: {{a: {{spec: '{name}'}}}}")

    with pytest.raises(ConfigError, match=f"^sources.a.*{message}"):
        build_spec(config)


def test_evaluations_in_training_leave_them_out() -> None:
    """That is said; where nothing is left to evaluate, it is an error."""
    with pytest.warns(UserWarning, match=r"the sources \['a'\] are no ORS environments, .*they are left out"):
        chosen = _choose_evaluated(MultiOpenRewardSpec({"a": SLOTS, "b": NOWHERE}))

    assert ["b"] == list(chosen)
    with pytest.raises(ConfigError, match="no source of the run file is an ORS environment"):
        _choose_evaluated(MultiOpenRewardSpec({"a": SLOTS}))


def test_the_commands_take_such_a_run_file(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """They preview, check and train it, and an evaluation names the source that it cannot play before it begins."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(
        f"model: {tiny_policy}\n"
        "training:\n"
        "  {output_dir: out, max_steps: 1, num_generations: 2, per_device_train_batch_size: 4, disable_tqdm: true,\n"
        "  max_completion_length: 8, report_to: none, save_strategy: 'no'}\n"
        "rollout_log: rollouts\n"
        "sources:\n"
        "  guess: {spec: 'tests.test_other_run_files:Slots'}\n"
        f"  echo: {{target: '{echo_server.url}'}}\n"
    )
    preview = json.loads(run("preview", "run.yaml", "--tools", "--json").out)
    check = json.loads(run("check", "run.yaml", "--json").out)
    trained = run("train", "run.yaml", "--json")
    evaluated = run("evaluate", "run.yaml", "--policy", "silent", "--output", "evaluated")
    others = run(
        "evaluate", "run.yaml", "--policy", "silent", "--output", "others", "--source", "echo", "--episodes", "1"
    )

    assert {"guess": 2, "echo": 8} == {source["name"]: source["num_tasks"] for source in preview["plan"]["sources"]}
    assert "guess  word: 'str'" in preview["tools"]["guess"]
    assert check["ok"]
    assert (0, 1) == (trained.exit_code, json.loads(trained.out)["steps"])
    assert {"guess": 2, "echo": 2} == Counter(record.source for record in read_rollouts("rollouts"))
    assert evaluated.exit_code != 0
    assert "source 'guess' is no ORS environment" in evaluated.err
    assert "--source" in evaluated.err
    assert not Path("evaluated").exists()
    assert 0 == others.exit_code
