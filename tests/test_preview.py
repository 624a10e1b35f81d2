"""Seeing a curriculum before a run and after it: `preview`, `report`, `spec.simulate`, and the end of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multiors import MultiOpenRewardSpec, ORSSource, SourceReward, draw_run
from multiors.errors import ConfigError
from multiors.mixing import LearningCurve
from multiors.mixing.curricula import LearningProgress, ShareSchedule
from multiors.preview import read_assumptions
from multiors.series import read_run
from tests.commands import Run
from tests.sample_comparison import write_evaluation
from tests.scripted import make_arguments, train
from tests.servers.launch import ServerHandle

TRAINING = "max_steps: 12\nper_device_train_batch_size: 8\nnum_generations: 2\nreport_to: none\n"


@pytest.fixture
def folder(mixed_server: ServerHandle, tmp_path: Path) -> Path:
    """A folder with run files for two environments of one server, and a training file."""
    sources = (
        "sources:\n"
        f"  sort: {{target: '{mixed_server.url}', env_name: sorting, reward: {{range: [0, 10]}}}}\n"
        f"  heat: {{target: '{mixed_server.url}', env_name: thermostat, reward: {{range: [0, 1]}}}}\n"
    )
    stages = "curriculum: {name: share_stages, stages: [[0, {sort: 1, heat: 0}], [6, {sort: 1, heat: 3}]]}\n"
    (tmp_path / "plain.yaml").write_text(sources)
    (tmp_path / "progress.yaml").write_text("curriculum: learning_progress\n" + sources)
    (tmp_path / "stages.yaml").write_text(stages + sources)
    (tmp_path / "training.yaml").write_text(TRAINING)
    return tmp_path


def mix(server: ServerHandle, **options: Any) -> MultiOpenRewardSpec:
    """Two environments of one server at equal shares."""
    return MultiOpenRewardSpec(
        {
            "sort": ORSSource(server.url, env_name="sorting", reward=SourceReward(range=(0, 10))),
            "heat": ORSSource(server.url, env_name="thermostat", reward=SourceReward(range=(0, 1))),
        },
        **options,
    )


# -- preview


def test_preview_lays_a_run_out_for_its_trainer(run: Run, folder: Path) -> None:
    """With a training file the plan has the run's batches."""
    told = run("preview", folder / "plain.yaml", "--training", folder / "training.yaml")

    assert 0 == told.exit_code
    assert "48 slots in 12 batches of 4 (seed 0, max_slots)" == told.out.splitlines()[0]
    assert "simulation" not in told.out


def test_preview_shows_a_schedule_of_shares(run: Run, folder: Path) -> None:
    """The shares at several batches of the run, from its first to its last."""
    told = run("preview", folder / "stages.yaml", "--training", folder / "training.yaml")
    lines = told.out.splitlines()
    at = lines.index("share in batch        0        2        4       7       9      11")

    assert ["sort", "100.00%", "100.00%", "100.00%", "25.00%", "25.00%", "25.00%"] == lines[at + 2].split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("stages.yaml",), "the batches of the trainer are not known. Call spec.training_arguments(...)"),
        (("stages.yaml", "--simulate"), "on the command line, pass --training."),
        (("progress.yaml", "--simulate"), "a simulation needs the batches of the trainer"),
        (("progress.yaml", "--training", "none.yaml"), "training file 'none.yaml' cannot be read"),
        (("progress.yaml", "--training", "training.yaml", "--assume", "x=noise"), "source 'x': a curve is assumed"),
        (("progress.yaml", "--assume", "sort=1:2"), "--assume 'sort=1:2' is no learning curve. Write SOURCE=START:END"),
        (("progress.yaml", "--assume", "sort=a:b:c"), "or one of impossible, noise, solved behind the equals sign."),
        (("progress.yaml", "--assume", "sort=2:1:9"), "--assume 'sort=2:1:9': LearningCurve: start=2.0 is no number"),
        (
            ("progress.yaml", "--assume", "sort=noise", "--assume", "sort=solved"),
            "--assume 'sort=solved': something else was assumed of source 'sort'",
        ),
        (
            ("plain.yaml", "--training", "training.yaml", "--picture", "run.pdf"),
            "a picture 'run.pdf' cannot be drawn: its name must end with",
        ),
    ],
)
def test_what_cannot_be_previewed_is_one_message(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    """With its remedy, and nothing on stdout."""
    monkeypatch.chdir(folder)

    told = run("preview", *arguments)

    assert (1, "") == (told.exit_code, told.out)
    assert told.err.startswith("multiors preview: ")
    assert message in told.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_steps: 4\nno_such_field: 1\n", "training: GRPOConfig refuses these fields: TypeError: "),
        ("max_steps: 4\nshuffle_dataset: true\n", "shuffle_dataset=True"),
    ],
)
def test_a_training_file_that_does_not_fit_is_one_message(run: Run, folder: Path, text: str, message: str) -> None:
    """Whether the trainer or the mix refuses it."""
    (folder / "training.yaml").write_text(text)

    told = run("preview", folder / "plain.yaml", "--training", folder / "training.yaml")

    assert (1, "") == (told.exit_code, told.out)
    assert message in told.err


def test_an_assumption_without_a_source_is_wrong_usage(run: Run) -> None:
    """What cannot be understood exits with 2."""
    told = run("preview", "run.yaml", "--assume", "0.1:0.9:64")

    assert (2, "") == (told.exit_code, told.out)
    assert "'0.1:0.9:64' is not SOURCE=START:END:HALF_SLOTS" in told.err


def test_preview_simulates_what_is_assumed(run: Run, folder: Path) -> None:
    """Shares and rewards behind the plan, and in plain words what they rest on."""
    assumed = ("--assume", "sort=0.1:0.8:16", "--assume", "heat=impossible")

    told = run("preview", folder / "progress.yaml", "--training", folder / "training.yaml", "--simulate", *assumed)

    assert 0 == told.exit_code
    assert told.out.index("48 slots in 12 batches") < told.out.index("simulation of 12 batches of 4 slots")
    assert "Rewards follow curves that are assumed, not measured; a real run will go otherwise:" in told.out
    assert "sort: 0.1 to 0.8, half of the way in 16 slots\nheat: 0 all the time\n" in told.out


def test_preview_as_json_holds_the_simulation(run: Run, folder: Path) -> None:
    """Batch by batch, with what was assumed of each source."""
    options = ("--training", folder / "training.yaml", "--assume", "heat=noise", "--json")

    read = json.loads(run("preview", folder / "progress.yaml", *options).out)

    assert {"plan", "simulation"} == set(read)
    assert {"start": 0.5, "end": 0.5, "half_slots": 64} == read["simulation"]["sources"]["heat"]["assumed"]
    assert {"start": 0.2, "end": 0.9, "half_slots": 64} == read["simulation"]["sources"]["sort"]["assumed"]
    assert 48 == sum(sum(source["slots"]) for source in read["simulation"]["sources"].values())


def test_preview_draws_the_simulation(run: Run, folder: Path) -> None:
    """A picture that was asked for beside the text."""
    options = ("--training", folder / "training.yaml", "--picture", folder / "simulation.png")

    told = run("preview", folder / "progress.yaml", *options)

    assert (0, True) == (told.exit_code, "simulation of 12 batches" in told.out)
    assert b"\x89PNG" == (folder / "simulation.png").read_bytes()[:4]


@pytest.mark.parametrize(("command", "said"), [("preview", "A simulation is no forecast."), ("report", "--picture")])
def test_help_teaches_by_examples(run: Run, command: str, said: str) -> None:
    """Each command has some."""
    told = run(command, "--help")

    assert 0 == told.exit_code
    assert f"examples:\n  multiors {command} " in told.out
    assert said in told.out


def test_assumptions_are_read_by_source() -> None:
    """Numbers and presets; an equals sign belongs to no name."""
    expected = {"a": LearningCurve(0.1, 0.8, 100), "b": LearningCurve(1, 1)}

    assert expected == read_assumptions(["a=0.1:0.8:1e2", "b=solved"])


# -- in Python


def test_a_spec_simulates_its_run(mixed_server: ServerHandle, tmp_path: Path) -> None:
    """With the trainer's batches and generations, its own seed, and one curve for all or one by source."""
    spec = mix(mixed_server, curriculum=LearningProgress(), seed=3)
    make_arguments(spec, tmp_path, max_steps=6, per_device_train_batch_size=8, num_generations=2)

    found = spec.simulate({"heat": LearningCurve(0, 0)})
    same, other = spec.simulate({"heat": LearningCurve(0, 0)}, seed=0), spec.simulate(LearningCurve(1, 1), seed=1)

    assert (6, 4, 2) == (found.num_batches, found.prompts_per_batch, found.num_generations)
    assert found == same
    assert {(1.0, 1.0)} == set(other.rewards_BS)
    spec.close()


def test_a_simulation_is_asked_for_after_the_trainers_arguments(mixed_server: ServerHandle) -> None:
    """And says so before any request."""
    mixed_server.reset_counts()
    with pytest.raises(ConfigError, match=r"Call spec\.training_arguments\(\.\.\.\) before spec\.simulate\(\.\.\.\)"):
        mix(mixed_server, curriculum=LearningProgress()).simulate()

    assert {} == mixed_server.counts().requests


def test_a_schedule_of_shares_is_simulated_as_it_is_planned(mixed_server: ServerHandle, tmp_path: Path) -> None:
    """As many slots for each source as its plan says."""
    spec = mix(
        mixed_server, curriculum=ShareSchedule.stages([(0, {"sort": 1, "heat": 0}), (3, {"sort": 1, "heat": 3})])
    )
    make_arguments(spec, tmp_path, max_steps=6, per_device_train_batch_size=8, num_generations=2)

    drawn = [sum(column) for column in zip(*spec.simulate().drawn_BS, strict=True)]

    assert [source.slots for source in spec.plan().sources] == drawn
    spec.close()


# -- after a training


def test_a_run_with_a_curriculum_can_be_seen(
    run: Run, mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Its picture lies beside its checkpoints; log, checkpoint and rollout log tell the same."""
    spec = mix(mixed_server, curriculum=LearningProgress(), rollout_log=tmp_path / "rollouts")
    saving = {"save_strategy": "steps", "save_steps": 4, "save_only_model": True}
    shape = {"max_steps": 4, "per_device_train_batch_size": 8, "num_generations": 2}
    args = make_arguments(spec, tmp_path / "out", **shape, **saving)

    trainer = train(spec, tiny_policy, args)

    logged, logs = read_run(trainer.state.log_history), read_run(tmp_path / "rollouts")
    assert b"\x89PNG" == (tmp_path / "out" / "curriculum.png").read_bytes()[:4]
    assert (("heat", "sort"), 4) == (logged.names, len(logged.positions))
    assert {"sort", "heat"} == set(logged.planned)
    assert logged == read_run(tmp_path / "out")
    assert [logged.drawn[name] for name in logged.names] == [logs.drawn[name] for name in logged.names]
    assert [*logged.rewards["sort"], *logged.rewards["heat"]] == pytest.approx(
        [*logs.rewards["sort"], *logs.rewards["heat"]]
    )

    draw_run(trainer.state.log_history, tmp_path / "again.svg")
    run("--version")  # what the trainer printed is read with this
    told = run("report", tmp_path / "out", "--picture", tmp_path / "report.png")
    assert (0, f"{logged}\n", f"wrote {tmp_path / 'report.png'}\n") == told
    assert all((tmp_path / name).is_file() for name in ("again.svg", "report.png"))
    read = json.loads(run("report", tmp_path / "rollouts", "--json").out)
    assert json.loads(json.dumps(logs.to_json())) == read


def test_a_run_without_a_curriculum_is_not_drawn(mixed_server: ServerHandle, tiny_policy: Path, tmp_path: Path) -> None:
    """Nothing is written that nobody asked for."""
    spec = mix(mixed_server)

    train(spec, tiny_policy, make_arguments(spec, tmp_path / "out", max_steps=1, per_device_train_batch_size=8))

    assert not (tmp_path / "out" / "curriculum.png").exists()


def test_report_says_what_is_missing(run: Run, tmp_path: Path) -> None:
    """A folder that holds no run is one message."""
    told = run("report", tmp_path)

    assert (1, "") == (told.exit_code, told.out)
    assert told.err.startswith(f"multiors report: the folder '{tmp_path}' holds no rollout log")


def test_a_folder_that_cannot_be_shown_points_to_what_can(run: Run, tmp_path: Path) -> None:
    """The evaluations in it, and the rollout log of a run that was stopped before its first checkpoint."""
    write_evaluation(tmp_path / "out/before", "a")
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "out/run.yaml").write_text(f"sources: {{a: {{target: x}}}}\nrollout_log: {tmp_path / 'rollouts'}\n")
    told = run("report", tmp_path / "out")
    near = [f"There is one at '{tmp_path / name}'." for name in ("out/before", "rollouts")]

    assert (1, "") == (told.exit_code, told.out)
    assert f"Nor does it hold a checkpoint or an evaluation. {' '.join(near)} Pass" in told.err


def test_the_picture_of_the_page_is_small() -> None:
    """It is in the repository, and drawn by the command that the page names."""
    folder = Path(__file__).parents[1] / "docs"

    assert "--picture simulation.png" in (folder / "curricula.md").read_text(encoding="utf-8")
    assert b"\x89PNG" == (folder / "simulation.png").read_bytes()[:4]
    assert (folder / "simulation.png").stat().st_size < 60_000
