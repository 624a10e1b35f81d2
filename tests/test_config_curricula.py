"""Curricula as they stand in a run file: what is wrong with them is said by name, key and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from multiors.config import build_spec, load_run_file
from multiors.errors import ConfigError
from multiors.mixing.curricula import LearningProgress

SOURCE = "sources:\n  a:\n    target: 'http://127.0.0.1:1'\n"
RAISING = "tests.test_config_curricula:Raising"


class Raising(LearningProgress):
    """A user's curriculum whose settings must be something else."""

    def __init__(self, level: int) -> None:
        raise KeyError(level)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{SOURCE}curriculum: {{name: '{RAISING}', level: 3}}",
            r"^curriculum 'tests\.test_config_curricula:Raising' cannot be made of \{'level': 3\}: KeyError: 3\.",
        ),
        (
            f"{SOURCE}curriculum: {{name: '{RAISING}', depth: 3}}",
            r"cannot be made of \{'depth': 3\}: TypeError: .*unexpected keyword argument 'depth'\.",
        ),
        (
            f"{SOURCE}    task_curriculum: {RAISING}",
            r"^sources\.a: curriculum 'tests\.test_config_curricula:Raising' cannot be made of \{\}: TypeError: ",
        ),
    ],
)
def test_a_class_that_cannot_be_made_is_named(tmp_path: Path, text: str, message: str) -> None:
    """Whatever it raises is an error of the run file, with what was raised."""
    path = tmp_path / "run.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        build_spec(load_run_file(path))


BETWEEN = "learning_progress, score_bandit, worst_source, gates, share_schedule, share_stages, or 'module:Class'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{SOURCE}curriculum: sec\n", rf"line 4: curriculum: no curriculum is named so; .* {BETWEEN} \(got 'sec'\)$"),
        (f"{SOURCE}curriculum: {{name: sec}}\n", r"line 4: curriculum: no curriculum is named so; .*\(got 'sec'\)$"),
        (
            f"{SOURCE}curriculum: {{fast: 0.2}}\n",
            rf"line 4: curriculum: a curriculum needs its key 'name'; there are {BETWEEN}$",
        ),
        (
            f"{SOURCE}    task_curriculum: {{field: size}}\n",
            r"line 4: sources\.a\.task_curriculum: a curriculum needs its key 'name'; there are ladder, pools, or 'mod",
        ),
        (
            f"{SOURCE}curriculum: []\n",
            r"line 4: curriculum: the list holds no curriculum; leave the key out \(got \[\]",
        ),
        (f"{SOURCE}curriculum: gates\n", r"line 4: curriculum: Gates: no source waits for another, and none grad"),
        (
            f"{SOURCE}curriculum: [learning_progress, {{name: gates, after: {{b: {{}}}}}}]\n",
            r"line 4: curriculum\.1: Gates: no source waits for another, and none graduates\. Give after=",
        ),
        (
            f"{SOURCE}    task_curriculum: {{name: ladder, field: size, order: [easy, hard, easy]}}\n",
            r"line 4: sources\.a\.task_curriculum: Ladder: order=\['easy', 'hard', 'easy'\] has 'easy' more than once",
        ),
    ],
)
def test_a_mistake_is_named_by_key_path_and_line(tmp_path: Path, text: str, message: str) -> None:
    """Also what is missing, and what would decide nothing."""
    path = tmp_path / "run.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=rf"(?m)run file '.*run\.yaml' has 1 mistake:\n- {message}"):
        load_run_file(path)
