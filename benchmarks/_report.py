"""What the benchmarks share: their command line, repeated measurements, and the file that results go to.

Knows no benchmark. A benchmark gives times in seconds or milliseconds and says so in the key (`_s`, `_ms`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["make_parser", "measure", "parse_arguments", "summarize", "write_report"]

_PACKAGES = ("multiors", "openreward", "trl", "datasets", "numpy", "pyarrow", "aiohttp")


def parse_arguments(description: str) -> argparse.Namespace:
    """The options of every benchmark, parsed."""
    return make_parser(description).parse_args()


def make_parser(description: str) -> argparse.ArgumentParser:
    """The options of every benchmark: `json` (where the results go, or None) and `quick`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--quick", action="store_true", help="few small repeats: shows that it runs, measures nothing")

    return parser


def measure(function: Callable[[], object], repeats: int = 5, *, warmup: int = 1) -> list[float]:
    """Seconds that each of `repeats` calls took, after `warmup` calls that are not counted."""
    for _ in range(warmup):
        function()

    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)

    return seconds


def summarize(values: Iterable[float], unit: str = "s") -> dict[str, float | int]:
    """Median, extremes and quartiles of measured values, with the unit in each key.

    The quartiles of fewer than four values are left out.
    """
    ordered = sorted(values)
    quartiles = statistics.quantiles(ordered, n=4) if len(ordered) >= 4 else None
    spread = {} if quartiles is None else {f"p25_{unit}": quartiles[0], f"p75_{unit}": quartiles[2]}
    summary = {
        f"median_{unit}": statistics.median(ordered),
        f"min_{unit}": ordered[0],
        f"max_{unit}": ordered[-1],
        **spread,
    }

    return {**{key: float(f"{value:.6g}") for key, value in summary.items()}, "repeats": len(ordered)}


def write_report(path: Path | None, results: Mapping[str, Any], *, settings: Mapping[str, Any] | None = None) -> None:
    """Print the results, and write them to `path` with what is needed to judge them.

    Args:
        path: The file. None: results are only printed.
        results: What was measured.
        settings: What was asked for: sizes, repeats, seeds.
    """
    print(json.dumps(results, indent=2))

    if path is None:
        return

    report = {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _describe_machine(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "settings": dict(settings or {}),
        "results": dict(results),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _describe_machine() -> dict[str, Any]:
    return {
        "cpu": _find_cpu_model(Path("/proc/cpuinfo")),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        # Above `num_cores`, other programs competed with the last minute of the measurement.
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def _find_cpu_model(path: Path) -> str:
    lines: Sequence[str] = path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]

    return models[0] if models else platform.processor()
