"""How long until `import multiors` is done, and until `multiors --help` has answered?

Whole processes, from start to end, beside a bare interpreter, in turns; nothing is subtracted. Goals: 0.2 s for the
import, 0.5 s for the help, and no trainer, tensor library or ORS client loaded by either.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._report import parse_arguments, summarize, write_report

__all__ = ["main"]

_REPEATS = 9
# Each takes a second or more to import.
_HEAVY = ("datasets", "openreward", "pyarrow", "torch", "transformers", "trl")
_LIST_MODULES = "import sys, json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
_HELP = "import contextlib, multiors.cli\nwith contextlib.suppress(SystemExit): multiors.cli.main(['--help'])\n"


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    repeats = 2 if arguments.quick else _REPEATS
    script = Path(sysconfig.get_path("scripts")) / "multiors"
    commands = {
        "bare_python": [sys.executable, "-c", "pass"],
        "import_multiors": [sys.executable, "-c", "import multiors"],
        "multiors_help": [str(script)] if script.exists() else [sys.executable, "-m", "multiors.cli"],
    }
    commands["multiors_help"].append("--help")
    modules = {
        "bare_python": _list_modules(""),
        "import_multiors": _list_modules("import multiors\n"),
        "multiors_help": _list_modules(_HELP),
    }
    seconds = _time_in_turns(commands, repeats)
    results = {name: {**summarize(seconds[name]), **_describe(modules[name])} for name in commands}
    write_report(arguments.json, results, settings={"repeats": repeats})


def _time_in_turns(commands: dict[str, list[str]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each command's processes; the first of each only fills the caches."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}

    for repeat in range(repeats + 1):
        for name, command in commands.items():
            started = time.perf_counter()
            _run(command)
            if repeat > 0:
                seconds[name].append(time.perf_counter() - started)

    return seconds


def _list_modules(code: str) -> list[str]:
    """Names of the modules that are loaded once `code` has run."""
    names: list[str] = json.loads(_run([sys.executable, "-c", code + _LIST_MODULES]).splitlines()[-1])
    return names


def _run(command: Sequence[str]) -> str:
    """What the command wrote to stderr."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def _describe(modules: Sequence[str]) -> dict[str, Any]:
    return {
        "num_modules": len(modules),
        "own_modules": [name for name in modules if name.partition(".")[0] == "multiors"],
        "heavy_modules": [name for name in modules if name in _HEAVY],
    }


if __name__ == "__main__":
    main()
