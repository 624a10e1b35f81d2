"""How long does laying out a run take, beside `datasets.interleave_datasets` for the same sources and shares?

Five sources with shares 0.40, 0.25, 0.20, 0.10 and 0.05, batches of 64 prompts, at 1e5, 1e6 and 1e7 slots. Each call is
the first of its size in a fresh process, as in a training script; the methods take turns. Importing, a small call to
load what is loaded at first use, and making the sources are not counted. `interleave_datasets` stops by its sources, so
there each source has as many tasks as it gets slots; ours is measured so too, and with 5,000 tasks each.

`interleave_datasets` decides an order: it returns indices into its sources, whose rows are copied when they are read.
So its time stands beside that of our schedule alone (`schedule_median_s`), and beside that of the schedule with all
rows written out in five columns (`median_s`). Goals at 1e7 slots: at least 10 times faster, and every source less than
one slot from its plan at every batch end.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks._report import summarize, write_report

__all__ = ["main"]

_SHARES = (0.40, 0.25, 0.20, 0.10, 0.05)
_BATCH_SLOTS = 64
_SEED = 0
_SLOTS = (10**5, 10**6, 10**7)
_METHODS = ("multiors", "multiors_repeating", "interleave_datasets")
_REPEATING_TASKS = 5000

SourceIndex = npt.NDArray[np.int32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--quick", action="store_true", help="one small repeat: shows that it runs, measures nothing")
    parser.add_argument("--slots", type=int, nargs="+", help=f"lengths of the run (default: {_SLOTS})")
    parser.add_argument("--method", choices=_METHODS, help="make one call of this one, in this process")
    arguments = parser.parse_args()
    lengths = arguments.slots or ([10**4] if arguments.quick else _SLOTS)

    if arguments.method is not None:
        print(json.dumps(_measure_here(arguments.method, lengths[0])))
        return

    results = {
        f"{length}_slots": _compare(length, 1 if arguments.quick else _count_repeats(length)) for length in lengths
    }
    settings = {
        "shares": _SHARES,
        "prompts_per_batch": _BATCH_SLOTS,
        "repeating_tasks": _REPEATING_TASKS,
        "seed": _SEED,
    }
    write_report(arguments.json, results, settings=settings)


def _count_repeats(length: int) -> int:
    return 3 if length >= 10**7 else 5


def _compare(length: int, repeats: int) -> dict[str, Any]:
    calls: dict[str, list[dict[str, float]]] = {method: [] for method in _METHODS}

    for _ in range(repeats):
        for method in _METHODS:
            calls[method].append(_measure_apart(method, length))

    results: dict[str, Any] = {method: _summarize_calls(calls[method]) for method in _METHODS}
    theirs = results["interleave_datasets"]["median_s"]

    for method in ("multiors", "multiors_repeating"):
        results[method]["times_faster"] = round(theirs / results[method]["median_s"], 1)
        results[method]["times_faster_schedule"] = round(theirs / results[method]["schedule_median_s"], 1)

    return results


def _summarize_calls(calls: list[dict[str, float]]) -> dict[str, Any]:
    return {
        **summarize(call["schedule_s"] + call["rows_s"] for call in calls),
        "schedule_median_s": round(statistics.median(call["schedule_s"] for call in calls), 4),
        "cpu_median_s": round(statistics.median(call["cpu_s"] for call in calls), 4),
        "peak_rss_bytes": max(call["peak_rss_bytes"] for call in calls),
        "peak_rss_before_bytes": max(call["peak_rss_before_bytes"] for call in calls),
        "num_rows": calls[0]["num_rows"],
        "worst_deviation_slots": calls[0]["worst_deviation_slots"],
    }


def _measure_apart(method: str, length: int) -> dict[str, float]:
    """In a process of its own, so that memory is its own, and none is at hand that an earlier call has left."""
    command = [sys.executable, "-m", "benchmarks.schedule_building", "--method", method, "--slots", str(length)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(output.stdout)

    return result


def _measure_here(method: str, length: int) -> dict[str, float]:
    prepare = _prepare_theirs if method == "interleave_datasets" else partial(_prepare_ours, method)
    warmup = prepare(1000)
    warmup.write_rows(warmup.decide_order())
    call = prepare(length)

    rss_before = _peak_rss_bytes()
    cpu_started, started = time.process_time(), time.perf_counter()
    order = call.decide_order()
    decided = time.perf_counter()
    rows = call.write_rows(order)
    written, cpu_s = time.perf_counter(), time.process_time() - cpu_started
    rss_after = _peak_rss_bytes()
    source_index = call.find_sources(order)

    return {
        "schedule_s": decided - started,
        "rows_s": written - decided,
        "cpu_s": cpu_s,
        "num_rows": len(rows),
        "peak_rss_bytes": rss_after,
        "peak_rss_before_bytes": rss_before,
        "worst_deviation_slots": round(_find_worst_deviation(source_index), 3),
    }


@dataclass(frozen=True, slots=True)
class _Call:
    """One method, ready to be timed."""

    decide_order: Callable[[], Any]
    write_rows: Callable[[Any], Sized]
    find_sources: Callable[[Any], SourceIndex]


def _prepare_ours(method: str, length: int) -> _Call:
    import datasets  # noqa: F401  # imported before the clock starts

    from multiors.mixing import SourceRows, build_dataset, build_schedule, count_slots

    is_repeating = method == "multiors_repeating"
    num_tasks = [_REPEATING_TASKS if is_repeating else max(1, round(share * length)) for share in _SHARES]
    rows = [SourceRows(f"source-{index}", np.arange(tasks)) for index, tasks in enumerate(num_tasks)]

    def decide_order() -> Any:
        num_slots = count_slots(
            _SHARES, num_tasks, stopping_strategy="max_slots", num_slots=length, prompts_per_batch=_BATCH_SLOTS
        )
        return build_schedule(_SHARES, num_tasks, num_slots=num_slots, prompts_per_batch=_BATCH_SLOTS, seed=_SEED)

    return _Call(decide_order, lambda schedule: build_dataset(schedule, rows), lambda schedule: schedule.source_index)


def _prepare_theirs(length: int) -> _Call:
    import datasets
    import pyarrow as pa

    sources = []

    for index, share in enumerate(_SHARES):
        tasks = np.arange(max(1, round(share * length)))
        names = pa.array([f"source-{index}"]).take(pa.array(np.zeros_like(tasks)))
        table = pa.table({"environment": names, "task_index": tasks})
        sources.append(datasets.Dataset(table, fingerprint=f"source-{index}"))

    first_row = np.cumsum([0, *(len(source) for source in sources)])

    def decide_order() -> Any:
        return datasets.interleave_datasets(
            sources, probabilities=list(_SHARES), seed=_SEED, stopping_strategy="all_exhausted"
        )

    def find_sources(mixed: Any) -> SourceIndex:
        rows = mixed._indices.column(0).to_numpy()
        found: SourceIndex = (np.searchsorted(first_row, rows, side="right") - 1).astype(np.int32)
        return found

    return _Call(decide_order, lambda mixed: mixed, find_sources)


def _peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _find_worst_deviation(source_index: SourceIndex) -> float:
    """Largest distance of any source from its plan at any batch end, in slots."""
    num_batches = len(source_index) // _BATCH_SLOTS
    batches = source_index[: num_batches * _BATCH_SLOTS].reshape(num_batches, _BATCH_SLOTS)
    slots = np.arange(1, num_batches + 1) * _BATCH_SLOTS
    return max(
        float(np.abs(np.cumsum((batches == index).sum(axis=1)) - share * slots).max())
        for index, share in enumerate(_SHARES)
    )


if __name__ == "__main__":
    main()
