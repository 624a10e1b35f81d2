"""The benchmarks run, and their reports hold what `benchmarks/README.md` says. What they measure is not tested here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

report = pytest.importorskip("benchmarks._report", reason="the benchmarks are not part of the package")

_ROOT = Path(__file__).parents[1]
_SCRIPTS = sorted((_ROOT / "benchmarks").glob("[!_]*.py"))
_TIMES = {"median_s", "min_s", "max_s", "repeats"}
_TIMES_MS = {"median_ms", "min_ms", "max_ms", "repeats"}

each_script = pytest.mark.parametrize("script", _SCRIPTS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def run_quickly(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that runs a benchmark in its tiny form, once, and returns its report."""
    reports: dict[str, dict[str, Any]] = {}

    def run(name: str) -> dict[str, Any]:
        if name not in reports:
            path = tmp_path_factory.mktemp("reports") / "new-folder" / f"{name}.json"
            command = [sys.executable, f"benchmarks/{name}.py", "--quick", "--json", str(path)]
            subprocess.run(
                command, check=True, cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)}, capture_output=True
            )
            reports[name] = json.loads(path.read_text(encoding="utf-8"))
        return reports[name]

    return run


@each_script
def test_a_report_holds_what_is_needed_to_judge_it(run_quickly: Any, script: Path) -> None:
    """Every benchmark writes its results with command, date, machine, versions and settings, in folders it makes."""
    found = run_quickly(script.stem)

    assert {"command", "date", "machine", "versions", "settings", "results"} == set(found)
    assert {"cpu", "num_cores", "system", "load_average_1min"} == set(found["machine"])
    assert {"python", "multiors", "openreward", "trl", "datasets", "numpy"} <= set(found["versions"])


def test_task_list_compares_ours_with_the_sdk_and_trl(run_quickly: Any) -> None:
    """Each number of tasks has times and requests of every way to get them, and the ratios."""
    by_num_tasks = run_quickly("task_list")["results"]["by_num_tasks"]
    ways = {"http_range", "sdk_range", "multiors", "multiors_dataset", "multiors_number_only", "trl_dataset"}

    assert by_num_tasks
    for found in by_num_tasks.values():
        assert ways | {"ratios"} == set(found)
        assert all(_TIMES | {"http_requests"} <= set(found[way]) for way in ways)


def test_the_requests_for_a_task_list_do_not_grow_with_it(run_quickly: Any) -> None:
    """Ours asks for a range, so a longer list costs no more requests; TRL asks for each task."""
    shorter, longer = run_quickly("task_list")["results"]["by_num_tasks"].values()

    assert shorter["multiors"]["http_requests"] == longer["multiors"]["http_requests"]
    assert shorter["trl_dataset"]["http_requests"] < longer["trl_dataset"]["http_requests"]


def test_rollout_overhead_compares_ours_with_the_sdk(run_quickly: Any) -> None:
    """Both sides have times of the whole and its parts; the difference is of medians and of pairs."""
    results = run_quickly("rollout_overhead")["results"]
    parts = ("wall", "cpu", "open", "calls", "close")

    assert {"sdk", "multiors", "difference"} == set(results)
    assert all(_TIMES_MS <= set(results[side][part]) for side in ("sdk", "multiors") for part in parts)
    assert {"wall", "cpu"} == set(results["difference"])
    assert {"of_medians_ms", "ratio", "of_pairs"} == set(results["difference"]["wall"])


def test_a_rollout_costs_no_more_requests_than_the_sdk_makes(run_quickly: Any) -> None:
    """Opening, three calls and closing are the SDK's own requests, and no others."""
    results = run_quickly("rollout_overhead")["results"]

    assert results["sdk"]["http_requests"] == results["multiors"]["http_requests"]


def test_import_time_names_what_was_loaded(run_quickly: Any) -> None:
    """The import and the help have times and modules beside a bare interpreter's, and nothing heavy is among them."""
    results = run_quickly("import_time")["results"]

    assert {"bare_python", "import_multiors", "multiors_help"} == set(results)
    assert all(_TIMES | {"num_modules", "own_modules"} <= set(found) for found in results.values())
    assert [[], [], []] == [found["heavy_modules"] for found in results.values()]


@each_script
def test_results_are_measured_ones(script: Path) -> None:
    """Each benchmark's committed results were measured in full, by the benchmark they are named after."""
    found = json.loads((_ROOT / "benchmarks" / "results" / f"{script.stem}.json").read_text(encoding="utf-8"))

    assert f"benchmarks/{script.stem}.py" in found["command"]
    assert "--quick" not in found["command"]


@each_script
def test_a_benchmark_is_explained(script: Path) -> None:
    """`benchmarks/README.md` gives each benchmark a paragraph and its command."""
    text = (_ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")

    assert f"**`{script.name}`:" in text
    assert f"    python benchmarks/{script.name} --json benchmarks/results/{script.stem}.json" in text


def test_warm_up_is_not_counted() -> None:
    """The first calls fill caches; only those after them are returned."""
    calls: list[None] = []
    seconds = report.measure(lambda: calls.append(None), 3, warmup=2)

    assert 5 == len(calls)
    assert 3 == len(seconds)


def test_a_summary_has_units_in_its_keys() -> None:
    """Median and extremes of few values; quartiles where there are at least four."""
    few = report.summarize([3.0, 1.0, 2.0])
    many = report.summarize([1.0, 2.0, 3.0, 4.0, 5.0], "ms")

    assert {"median_s": 2.0, "min_s": 1.0, "max_s": 3.0, "repeats": 3} == few
    assert {
        "median_ms": 3.0,
        "min_ms": 1.0,
        "max_ms": 5.0,
        "p25_ms": 1.5,
        "p75_ms": 4.5,
        "repeats": 5,
    } == many
