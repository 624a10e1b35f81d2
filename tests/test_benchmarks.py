"""The benchmarks run, and their reports hold what `benchmarks/README.md` says. What they measure is not tested here."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.warm import run_warm

report = pytest.importorskip("benchmarks._report", reason="the benchmarks are not part of the package")

_ROOT = Path(__file__).parents[1]
_SCRIPTS = sorted((_ROOT / "benchmarks").glob("[!_]*.py"))
_TIMES = {"median_s", "min_s", "max_s", "repeats"}
_TIMES_MS = {"median_ms", "min_ms", "max_ms", "repeats"}

_FETCHING = {_ROOT / "benchmarks" / "language_model.py"}  # a model of 93 MB, which tests do without

each_script = pytest.mark.parametrize("script", _SCRIPTS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def run_quickly(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that runs a benchmark in its tiny form, once, and returns its report."""
    reports: dict[str, dict[str, Any]] = {}

    def run(name: str) -> dict[str, Any]:
        if name not in reports:
            path = tmp_path_factory.mktemp("reports") / "new-folder" / f"{name}.json"
            command = [sys.executable, f"benchmarks/{name}.py", "--quick", "--json", str(path)]
            ended = run_warm(command, timeout=300, cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)})
            assert 0 == ended.returncode, ended.stderr
            reports[name] = json.loads(path.read_text(encoding="utf-8"))
        return reports[name]

    return run


@pytest.mark.parametrize("script", [each for each in _SCRIPTS if each not in _FETCHING], ids=lambda path: path.stem)
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


def test_reasoning_gym_mix_tells_levels_and_policies_apart(run_quickly: Any) -> None:
    """Right answers earn 1 on every level, those of other tasks less."""
    found = run_quickly("reasoning_gym_mix")["results"]
    policies = ("oracle", "shuffled", "random")

    assert {"start_s", "num_levels", *policies} == set(found)
    assert all(found[name]["scored"] == found[name]["episodes"] == 48 for name in policies)
    assert {1.0} == {value for levels in found["oracle"]["mean_by_level"].values() for value in levels.values()}
    assert all(found["shuffled"]["mean"][name] < 1 for name in found["num_levels"])


def test_the_requests_for_a_task_list_do_not_grow_with_it(run_quickly: Any) -> None:
    """Ours asks for a range, so a longer list costs no more requests; TRL asks for each task."""
    shorter, longer = run_quickly("task_list")["results"]["by_num_tasks"].values()

    assert shorter["multiors"]["http_requests"] == longer["multiors"]["http_requests"]
    assert shorter["trl_dataset"]["http_requests"] < longer["trl_dataset"]["http_requests"]


def test_rollout_overhead_compares_ours_with_the_sdk_and_trl(run_quickly: Any) -> None:
    """Every side has times of the whole and its parts; the differences to ours are of medians and of pairs."""
    results = run_quickly("rollout_overhead")["results"]
    sides, parts = ("http", "sdk", "trl", "multiors"), ("wall", "cpu", "open", "calls", "close")
    differences = ("difference", "difference_to_trl", "difference_to_http")

    assert {*sides, *differences} == set(results)
    assert all(_TIMES_MS <= set(results[side][part]) for side in sides for part in parts)
    assert all({"wall", "cpu"} == set(results[difference]) for difference in differences)
    assert {"of_medians_ms", "ratio", "of_pairs"} == set(results["difference"]["wall"])


def test_a_rollout_costs_no_more_requests_than_it_must(run_quickly: Any) -> None:
    """Opening, three calls and closing are the SDK's own requests, and no others; TRL's adapter makes no fewer."""
    results = run_quickly("rollout_overhead")["results"]
    num_requests = results["http"]["http_requests"]

    assert num_requests == results["sdk"]["http_requests"]
    assert num_requests == results["multiors"]["http_requests"]
    assert num_requests <= results["trl"]["http_requests"]


def test_evaluation_runner_compares_the_runner_with_doing_it_by_hand(run_quickly: Any) -> None:
    """Every side has rates and processor times, the whole its memory, and no more is open at once than was allowed."""
    found = run_quickly("evaluation_runner")
    results, sides = found["results"], ("http", "runner", "threads", "sequential")
    whole = results["whole"]

    assert {"whole", "latency_bound_per_s", "ratios", *sides} == set(results)
    assert all({"rate", "cpu"} == set(results[side]) for side in sides)
    assert {f"{key}_to_{side}" for key in ("per_s", "cpu") for side in sides if side != "runner"} == set(
        results["ratios"]
    )
    assert {"1", "8", "16"} == set(whole["rss_mb"])
    assert 1 < whole["max_active"] <= found["settings"]["at_once"]


def test_environment_time_compares_the_trainers_with_the_limits(run_quickly: Any) -> None:
    """Each number of rollouts and latency has both trainers' times, by phase, and both limits'."""
    results = run_quickly("environment_time")["results"]
    cells = [cell for by_latency in results.values() for cell in by_latency.values()]
    sides = {"http_floor", "concurrent", "stock"}

    assert all(key.endswith("_rollouts") for key in results)
    assert {"0_ms", "20_ms"} == set(results["4_rollouts"])
    assert all({*sides, "latency_floor_s", "ratios"} == set(cell) for cell in cells)
    assert all(_TIMES | {"opening_s", "calls_s"} <= set(cell[side]) for cell in cells for side in sides)


def test_no_trainer_is_faster_than_the_sleep_of_its_environments(run_quickly: Any) -> None:
    """The concurrent trainer waits for one setup and one call a turn, the stock one for those of every rollout."""
    cell = run_quickly("environment_time")["results"]["4_rollouts"]["20_ms"]

    assert 3 * 0.02 == pytest.approx(cell["latency_floor_s"])
    assert cell["latency_floor_s"] <= cell["http_floor"]["min_s"]
    assert cell["latency_floor_s"] <= cell["concurrent"]["min_s"]
    assert 4 * cell["latency_floor_s"] <= cell["stock"]["min_s"]


def test_open_sessions_compares_ours_with_the_sdk(run_quickly: Any) -> None:
    """Each side has rates, memory, files, and what the idle time took."""
    found = run_quickly("open_sessions")["results"]["16_sessions"]
    measured = {"opened_per_s", "called_per_s", "closed_per_s", "memory_per_session_kb", "server_memory_per_session_kb"}

    assert {"http", "sdk", "multiors", "ratios"} == set(found)
    assert all(measured | {"max_open_files"} <= set(found[side]) for side in ("http", "sdk", "multiors"))
    assert all({"cpu_cores", "pings"} == set(found[side]["idle"]) for side in ("http", "sdk", "multiors"))
    assert 16 == found["http"]["idle"]["pings"]


def test_rollout_log_compares_the_step_with_the_writing(run_quickly: Any) -> None:
    """Handing over, writing, both alone, and a computation beside it are measured, for records of a real size."""
    results = run_quickly("rollout_log")["results"]
    timed = {"step_thread", "longest_wait", "render_alone", "write_alone"}

    assert all({"median_us", "min_us", "max_us", "repeats"} <= set(results[name]) for name in timed)
    assert {"median_mb_per_s", "median_records_per_s"} <= {*results["whole"], *results["read"]}
    assert {"without_log", "with_log"} == set(results["beside_computing"])
    assert 20_000 < results["record_bytes"] < 30_000


def test_schema_fidelity_compares_ours_with_trls_binder(run_quickly: Any) -> None:
    """Each corpus has, for both binders, the facts that survived by kind, and the tools that were lost."""
    results = run_quickly("schema_fidelity")["results"]
    sides = [found[binder] for found in results.values() for binder in ("multiors", "trl")]

    assert {"ordinary", "odd", "all"} == set(results)
    assert all(side["facts"]["num_facts"] > 0 for side in sides)
    assert all(side["num_tools_crashed"] + side["num_tools_left_out"] == len(side["lost_tools"]) for side in sides)


_FACTS_SPEC = {
    "name": "act",
    "description": "Act.",
    "input_schema": {
        "properties": {
            "a": {"type": ["string", "null"], "default": "x", "description": "What."},
            "b": {"type": "array", "items": {"$ref": "#/$defs/B"}, "minItems": 2},
            "c": {"enum": ["d", "e"]},
        },
        "required": ["b"],
        "$defs": {"B": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}},
    },
}
_FACTS_KINDS = dict(
    zip(
        ["tool", "parameter", "type", "enum", "items", "nesting", "required", "default", "description", "bounds"],
        [1, 3, 3, 1, 1, 1, 4, 1, 2, 2],
        strict=True,
    )
)


def test_a_schema_is_taken_apart_into_facts() -> None:
    """Types, items, nested properties, bounds and texts are one fact each."""
    facts = pytest.importorskip("benchmarks._facts")
    counts = Counter(fact.kind for fact in facts.list_facts(_FACTS_SPEC))

    assert _FACTS_KINDS == dict(counts)
    assert set(facts.KINDS) == set(_FACTS_KINDS)


def test_a_fact_survives_only_where_it_is_told() -> None:
    """Of a tool shown with bare names all is lost but its names and what must be given; of none, everything."""
    facts = pytest.importorskip("benchmarks._facts")
    properties = {name: {"description": name.upper()} for name in "abc"}
    shown = {"description": "Do.", "parameters": {"properties": properties, "required": ["b"]}}
    found = [(fact.kind, facts.find_survival(fact, shown, {})) for fact in facts.list_facts(_FACTS_SPEC)]
    of_none = {facts.find_survival(fact, None, {}) for fact in facts.list_facts(_FACTS_SPEC)}

    assert {"tool", "parameter", "required"} == {kind for kind, survival in found if survival != "lost"}
    assert 3 == sum(kind == "required" and survival == "typed" for kind, survival in found)
    assert {"lost"} == of_none


def test_curriculum_simulation_compares_strategies_with_their_goals(run_quickly: Any) -> None:
    """Every strategy has its result in every world, each goal stands beside what was measured, planning has times."""
    results = run_quickly("curriculum_simulation")["results"]
    strategies, goals = results["strategies"], results["goals"]
    worlds = [set(found) for found in strategies.values()]

    assert {"uniform", "learning_progress", "uniform + ladder", "learning_progress + ladder"} <= set(strategies)
    assert [{"clean", "with_impossible", "with_noise", "with_both"}] * len(worlds) == worlds
    assert all({"goal", "mean", "is_met"} == set(each) for each in goals["learning_progress + ladder"].values())
    assert {"goal", "loss", "of"} == set(goals["largest_loss_to_uniform"])
    assert all(_TIMES_MS <= set(times) for found in results["planning"].values() for times in found.values())


def test_curriculum_training_compares_arms_with_equal_shares(run_quickly: Any) -> None:
    """Each arm has scores with intervals, each difference a test and its power, and no run is left out."""
    found = run_quickly("curriculum_training")
    results, seeds = found["results"], {f"seed_{seed}" for seed in found["settings"]["seeds"]}
    differences = results["differences_to_uniform"]
    sources = {"parrot", "dictionary", "semaphore"}
    estimates = [arm[when] for arm in results["arms"].values() for when in ("end", "half_time")]

    assert {"uniform", *differences} == set(results["arms"])
    assert {"warm", *results["arms"]} == set(results["runs"])
    assert all(seeds == set(runs) for runs in results["runs"].values())
    assert all({"num_runs", "mean", "low", "high"} == set(each["macro"]) for each in estimates)
    assert all(
        {"low", "high", "p", "p_holm", "minimum_detectable"} < set(each["macro"]) for each in differences.values()
    )
    assert all(sources == set(each["sources"]) for each in [*estimates, *differences.values()])
    assert all({*sources, "casino"} == set(arm["training"]) for arm in results["arms"].values())


def test_interval_coverage_compares_ours_with_the_usual(run_quickly: Any) -> None:
    """Each interval has its coverage and width, each test its size and power, and the goals name what is outside."""
    results = run_quickly("interval_coverage")["results"]
    mix, runs = results["mix"], results["runs"]
    intervals = [
        mix["scores"],
        *(each["intervals"] for each in mix["differences"].values()),
        *(cell["score"] for tasks in results["single"].values() for each in tasks.values() for cell in each.values()),
        *(found[of] for found in runs.values() for of in ("scores", "differences")),
    ]

    assert {f"{moves}{gain}" for moves in ("", "opposite moves, ") for gain in ("equal", "gain_0.03")} == set(
        mix["differences"]
    )
    assert all(
        {"coverage", "mean_width", "given_fraction"} == set(each) for named in intervals for each in named.values()
    )
    assert all("sign flips (ours)" in each["macro_difference_found"] for each in mix["differences"].values())
    assert all(
        {f"{kind}_{of}" for kind in ("paired", "unpaired") for of in ("size", "power")} == set(found["found"])
        for found in runs.values()
    )
    assert {"coverage", "few", "size"} == set(results["goals"])
    assert all(name.endswith((", ours", ", Satterthwaite's t")) for name in results["few"])


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
