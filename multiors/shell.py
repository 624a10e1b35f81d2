"""How this program is started from the shell: for what it tells its users to type next."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["write_command"]


def write_command(*arguments: object) -> str:
    """A command line of `multiors` that works where the running one did, its arguments quoted.

    Args:
        arguments: What stands behind `multiors`.
    """
    return shlex.join([*_find_program(), *map(str, arguments)])


def _find_program() -> list[str]:
    found = shutil.which("multiors")

    # Another virtual environment may have one too.
    if found is not None and Path(found).parent.samefile(Path(sys.executable).parent):
        return ["multiors"]
    if Path(sys.argv[0]).name == "multiors":
        return [sys.argv[0]]

    return [sys.executable, "-m", "multiors"]
