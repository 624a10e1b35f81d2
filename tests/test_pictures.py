"""A run as curves and as a picture: what is read from where, and that the picture shows it."""

from __future__ import annotations

import json
import logging
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors import RolloutRecord, draw_run
from multiors.errors import ConfigError
from multiors.mixing import LearningCurve, MixRules, Simulation, simulate
from multiors.mixing.curricula import Ladder, LearningProgress, SourceTasks
from multiors.pictures import draw_at_end, prepare_panels
from multiors.rollout_log import RolloutLog
from multiors.series import RunSeries, read_run
from tests.commands import run_python

HOSTILE = ("_first", "a_b^c", "-", "__", "x" * 60)
"""Names that markup, or matplotlib's habits, would change."""


def simulation(names: Sequence[str] = ("a", "b"), *, num_batches: int = 8) -> Simulation:
    """A run in which the first source has a ladder."""
    specs = ['{"level": 0}', '{"level": 1}']
    tasks = [SourceTasks(name, 2, (0.0, 1.0), specs) for name in names]
    rules = MixRules(None, LearningProgress(), {names[0]: Ladder(field="level", min_groups=1)})
    return simulate(
        dict.fromkeys(names, 1 / len(names)),
        tasks,
        rules,
        num_batches=num_batches,
        prompts_per_batch=2,
        num_generations=2,
        lag=2,
        curves=LearningCurve(0.5, 1.0, 4),
    )


def history() -> list[dict[str, Any]]:
    """What a trainer logs of two sources, one of them not scored at first, with an evaluation and the run's end."""
    return [
        {
            "step": 1,
            "loss": 0.1,
            "env/a/share": 0.5,
            "env/b/share": 0.5,
            "env/a/reward": 0.25,
            "env/a/with_gradient": 1,
        },
        {"step": 1, "eval_env/a/share": 0.9, "eval_loss": 0.1},
        {
            "step": 2,
            "env/a/share": 0.25,
            "env/b/share": 0.75,
            "env/a/reward": float("nan"),
            "env/b/reward": 0.75,
            "env/a/planned_share": 0.3,
            "env/b/planned_share": 0.7,
            "env/b/curriculum/level": 3.0,
            "env/unmatched_calls": 1.0,
        },
        {"step": 2, "train_runtime": 12.0},
    ]


HISTORY = RunSeries(
    "step",
    (1, 2),
    planned={"a": (None, 0.3), "b": (None, 0.7)},
    drawn={"a": (0.5, 0.25), "b": (0.5, 0.75)},
    rewards={"a": (0.25, None), "b": (None, 0.75)},
    levels={"b": (None, 3.0)},
)


def record(source: str, step: int, reward: float | None, *, slot: int | None = 0) -> RolloutRecord:
    """One rollout."""
    return RolloutRecord(source, 0, slot, step, reward, reward, {}, None, None, finished=True, steps=())


def write_log(folder: Path, records: list[RolloutRecord]) -> Path:
    """A rollout log."""
    log = RolloutLog(folder)
    log.start(["a", "b"])
    log.write(records)
    log.close()
    return folder


# -- reading


def test_a_simulation_is_a_run() -> None:
    """Batch by batch, with the levels of its ladder."""
    run = simulation()

    series = read_run(run)

    assert ("batch", tuple(range(8))) == (series.axis, series.positions)
    assert run.shares_BS == tuple(zip(*series.planned.values(), strict=True))
    assert [[slots / 2 for slots in drawn] for drawn in run.drawn_BS] == [
        list(drawn) for drawn in zip(*series.drawn.values(), strict=True)
    ]
    assert run.rewards_BS == tuple(zip(*series.rewards.values(), strict=True))
    assert {"a": tuple(measured["a"]["level"] for measured in run.measures_B)} == series.levels


def test_a_trainers_log_is_a_run() -> None:
    """Step by step; what is missing or no number is a gap, and evaluations and the run's end are left out."""
    assert HISTORY == read_run(history())


def test_sources_of_a_log_stand_by_name() -> None:
    """A checkpoint sorts what was logged, so no other order would be the same everywhere."""
    assert ("a", "b", "c") == read_run([{f"env/{name}/share": 0.25 for name in "cab"}]).names


def test_a_checkpoint_is_a_run(tmp_path: Path) -> None:
    """A state, its checkpoint, and the folder of checkpoints, whose last one counts."""
    for step, rows in ((9, history()[:1]), (10, history())):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))

    for path in (tmp_path, tmp_path / "checkpoint-10", tmp_path / "checkpoint-10" / "trainer_state.json"):
        assert HISTORY == read_run(path) == read_run(str(path))
    assert (1,) == read_run(tmp_path / "checkpoint-9").positions


def test_a_rollout_log_is_a_run(tmp_path: Path) -> None:
    """By step: parts of the rollouts, and means over those that were scored; evaluations are no part of it."""
    rows = [record("b", 1, 1.0), record("a", 0, 1.0), record("a", 0, None), record("a", 0, 0.0), record("b", 0, None)]
    folder = write_log(tmp_path / "log", [*rows, record("b", 0, 1.0, slot=None)])

    series = read_run(folder)

    assert ("step", (0, 1), {}) == (series.axis, series.positions, series.planned)
    assert {"a": (0.75, 0.0), "b": (0.25, 1.0)} == series.drawn
    assert {"a": (0.5, None), "b": (None, 1.0)} == series.rewards
    assert series == read_run(next(folder.iterdir()))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none", None, "there is no rollout log at"),
        ("state.json", "{", r"is no trainer_state\.json: it has no log_history"),
        ("state.json", "[]", r"is no trainer_state\.json"),
        ("state.json", '{"log_history": [1]}', r"is no trainer_state\.json"),
        ("state.json", '{"log_history": [{"loss": 1}]}', "holds no 'env/<source>/share'"),
        ("none.json", None, "cannot be read: No such file"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    """A path that leads elsewhere is told from an empty run."""
    if content is not None:
        (tmp_path / name).write_text(content)

    with pytest.raises(ConfigError, match=message):
        read_run(tmp_path / name)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    """Neither checkpoint nor rollout log."""
    with pytest.raises(ConfigError, match="holds no rollout log"):
        read_run(tmp_path)


def test_a_log_of_evaluations_alone_is_refused(tmp_path: Path) -> None:
    """Its rollouts have no place in a schedule."""
    with pytest.raises(ConfigError, match="holds no rollout of a training"):
        read_run(write_log(tmp_path, [record("a", 0, 1.0, slot=None)]))


def test_a_run_prints_thirds() -> None:
    """Shares over all steps of a third, rewards over those of its steps that have one; nothing scored is a dash."""
    nothing = (None,) * 6
    series = RunSeries(
        "step",
        tuple(range(6)),
        planned={},
        drawn={"a": (1.0, 0.5, 0.0, 1.0, 0.25, 0.75), "b": (0.0, 0.5, 1.0, 0.0, 0.75, 0.25)},
        rewards={"a": (0.0, 1.0, None, 1.0, 0.0, 1.0), "b": nothing},
        levels={},
    )

    expected = """\
share  first third  middle third  last third
-----  -----------  ------------  ----------
a            75.0%         50.0%       50.0%
b            25.0%         50.0%       50.0%

mean reward  first third  middle third  last third
-----------  -----------  ------------  ----------
a                   0.50          1.00        0.50
b                      –             –           –"""
    assert expected == str(series)


@pytest.mark.parametrize(("length", "header"), [(1, ["whole run"]), (2, ["first half", "last half"])])
def test_a_short_run_has_fewer_parts(length: int, header: list[str]) -> None:
    """No part is empty."""
    series = RunSeries("step", (0, 1)[:length], {}, {"a": (1.0, 1.0)[:length]}, {"a": (1.0, 0.0)[:length]}, {})

    assert f"share  {'  '.join(header)}" == str(series).splitlines()[0]


def test_a_run_as_json_keeps_its_gaps() -> None:
    """None stays None."""
    read = json.loads(json.dumps(HISTORY.to_json()))

    assert HISTORY.to_json() == read
    assert [None, 0.75] == read["rewards"]["b"]


# -- panels


def test_panels_hold_what_was_given() -> None:
    """Shares drawn and planned, rewards, and levels; in this order, and gap for gap."""
    shares, rewards, levels = prepare_panels(HISTORY)

    assert [("a", "thin"), ("b", "thin"), ("a", "line"), ("b", "line")] == [line[:2] for line in shares.lines]
    assert [*HISTORY.drawn.values(), *HISTORY.planned.values()] == [line.values for line in shares.lines]
    assert 2 * [*HISTORY.rewards.values()] == [line.values for line in rewards.lines]
    assert [("b", "steps", (None, 3.0))] == list(levels.lines)


def test_what_is_not_known_has_no_panel_and_no_line() -> None:
    """Without levels there are two panels, without planned shares the drawn ones alone."""
    series = RunSeries("step", (0,), planned={}, drawn={"a": (1.0,)}, rewards={"a": (None,)}, levels={})

    shares, rewards = prepare_panels(series)

    assert ("share of the step (drawn)", 1) == (shares.label, len(shares.lines))
    assert "mean reward" == rewards.label


@given(st.lists(st.none() | st.floats(-10, 10), min_size=1, max_size=200))
def test_smoothing_keeps_every_gap_and_stays_in_range(values: list[float | None]) -> None:
    """The thick line has a value exactly where the thin one has, between the smallest and the largest."""
    series = RunSeries("step", tuple(range(len(values))), {}, {"a": (1.0,) * len(values)}, {"a": tuple(values)}, {})

    thin, thick = prepare_panels(series)[1].lines

    known = [value for value in values if value is not None]
    assert tuple(values) == thin.values
    assert [value is None for value in values] == [value is None for value in thick.values]
    assert all(min(known) - 1e-9 <= value <= max(known) + 1e-9 for value in thick.values if value is not None)


# -- pictures


def read_size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its header."""
    content = path.read_bytes()
    assert b"\x89PNG\r\n\x1a\n" == content[:8]
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def read_texts(path: Path) -> list[str]:
    """Every text of an SVG."""
    root = ElementTree.parse(path).getroot()
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_png_is_a_picture(tmp_path: Path) -> None:
    """Of three panels where there are levels, and of two where there are none; its folder is made."""
    draw_run(simulation(), tmp_path / "new" / "run.png")
    draw_run(history()[:1], tmp_path / "new" / "run.PNG")

    assert (720, 592) == read_size(tmp_path / "new" / "run.png")
    assert (720, 480) == read_size(tmp_path / "new" / "run.PNG")


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """No name is taken for markup, and none is hidden."""
    draw_run(simulation(HOSTILE), tmp_path / "run.svg")

    texts = read_texts(tmp_path / "run.svg")

    assert list(HOSTILE) == [text for text in texts if text in HOSTILE]
    assert "simulated: rewards follow assumed learning curves" in texts
    assert {"batch", "level of the ladder"} <= set(texts)


def test_titles_are_shown_as_they_are(tmp_path: Path) -> None:
    """A dollar sign begins no formula."""
    series = RunSeries("step", (0,), {}, {"$a$": (1.0,)}, {"$a$": (1.0,)}, {}, about=r"from $\frac{1}{0$ and <b>")
    draw_run(series, tmp_path / "run.svg")

    assert {"$a$", r"from $\frac{1}{0$ and <b>"} <= set(read_texts(tmp_path / "run.svg"))


def test_many_sources_have_colours_and_names(tmp_path: Path) -> None:
    """Beyond the ten basic colours they lie on a scale."""
    names = [f"source-{number:03}" for number in range(60)]
    draw_run(simulation(names, num_batches=2), tmp_path / "run.svg")

    assert names == [text for text in read_texts(tmp_path / "run.svg") if text in names]


def test_a_run_of_nothing_but_gaps_can_be_drawn(tmp_path: Path) -> None:
    """Nothing was scored, which is no error."""
    draw_run([{"step": 1, "env/a/share": 1.0}], tmp_path / "run.png")

    assert (720, 480) == read_size(tmp_path / "run.png")


@pytest.mark.parametrize("name", ["run.pdf", "run", "png"])
def test_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError, match=r"must end with one of \['\.png', '\.svg'\]"):
        draw_run(tmp_path / "none", tmp_path / name)


def test_a_picture_that_cannot_be_written_is_a_known_error(tmp_path: Path) -> None:
    """With the reason of the disk."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"run\.png' cannot be written: (Not a directory|File exists)"):
        draw_run(history(), tmp_path / "file" / "run.png")


NO_MATPLOTLIB = "import sys; sys.modules['matplotlib'] = None\n"


def test_without_matplotlib_the_remedy_is_said(tmp_path: Path) -> None:
    """It is an extra of the package."""
    code = f"{NO_MATPLOTLIB}from multiors import draw_run\ndraw_run([{{'step': 1, 'env/a/share': 1.0}}], 'run.png')"

    assert "a picture needs matplotlib. Install it: pip install 'multiors[plots]'." in run_python(code).stderr


# -- at the end of a training


def test_the_picture_at_the_end_lies_in_the_output_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And is told."""
    with caplog.at_level(logging.INFO, logger="multiors.pictures"):
        draw_at_end(history(), tmp_path)

    assert (720, 592) == read_size(tmp_path / "curriculum.png")
    assert [f"the shares and rewards of the run are drawn in {tmp_path / 'curriculum.png'}."] == caplog.messages


@pytest.mark.parametrize(
    ("rows", "level", "said"),
    [
        ([], "INFO", "holds no 'env/<source>/share'"),
        ([{"env/a/share": 1.0, "step": object()}], "WARNING", "was not drawn: TypeError"),
    ],
)
def test_a_picture_that_fails_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: list[dict[str, Any]], level: str, said: str
) -> None:
    """Whatever happens to it is told, and nothing is raised."""
    with caplog.at_level(logging.INFO, logger="multiors.pictures"):
        draw_at_end(rows, tmp_path)

    assert [level] == [entry.levelname for entry in caplog.records]
    assert said in caplog.text
    assert [] == list(tmp_path.iterdir())


def test_a_missing_matplotlib_ends_no_training(tmp_path: Path) -> None:
    """How to have the picture is said."""
    code = (
        f"{NO_MATPLOTLIB}import logging\nlogging.basicConfig(level=logging.INFO)\n"
        f"from multiors.pictures import draw_at_end\ndraw_at_end([{{'step': 1, 'env/a/share': 1.0}}], sys.argv[1])"
    )

    told = run_python(code, str(tmp_path))

    assert 0 == told.returncode
    assert "Install it: pip install 'multiors[plots]'." in told.stderr
