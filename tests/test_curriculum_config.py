"""Curricula as they stand in a run file: what is wrong with them is said by name, key and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from multiors.config import build_spec, load_run_file
from multiors.errors import ConfigError
from multiors.mixing.curricula import LearningProgress

SOURCE = "sources:\n  a:\n    target: 'http://127.0.0.1:1'\n"
RAISING = "tests.test_curriculum_config:Raising"


class Raising(LearningProgress):
    """A user's curriculum whose settings must be something else."""

    def __init__(self, level: int) -> None:
        raise KeyError(level)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{SOURCE}curriculum: {{name: '{RAISING}', level: 3}}",
            r"^curriculum 'tests\.test_curriculum_config:Raising' cannot be made of \{'level': 3\}: KeyError: 3\.",
        ),
        (
            f"{SOURCE}curriculum: {{name: '{RAISING}', depth: 3}}",
            r"cannot be made of \{'depth': 3\}: TypeError: .*unexpected keyword argument 'depth'\.",
        ),
        (
            f"{SOURCE}    task_curriculum: {RAISING}",
            r"^sources\.a: curriculum 'tests\.test_curriculum_config:Raising' cannot be made of \{\}: TypeError: ",
        ),
    ],
)
def test_a_class_that_cannot_be_made_is_named(tmp_path: Path, text: str, message: str) -> None:
    """Whatever it raises is an error of the run file, with what was raised."""
    path = tmp_path / "run.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        build_spec(load_run_file(path))
