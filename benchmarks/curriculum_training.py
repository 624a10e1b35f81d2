"""Do curricula help a policy that really learns: real ORS servers, real GRPO, a model of 0.1 million parameters?

Three sources that can be learned, from nearly solved to hard, with levels that contain one another, and one whose
rewards are coin flips (`_curriculum_environments.py`). Five arms decide what is drawn: equal shares (`uniform`), twice
the weight for the hard source (`static`; chosen before anything was measured), `LearningProgress`, and a `Ladder` in
each source under equal shares and under learning progress; all settings are the defaults. Two more arms, with a ladder
that goes up earlier, were added after the results of these five were seen. Each arm trains from the same warm start for
each of five seeds, on as many rollouts. A run counts as one number: the mean over the three sources of the reward over
all tasks of all levels. Arms are compared with `uniform` by a paired t test over seeds, with Holm's adjustment for all
comparisons.

What it can show: whether differences of the size of `minimum_detectable` are there, in this world, at this length.
What it cannot: anything about smaller differences, about large models, about sources that help or disturb each other
in other ways than these, or about runs of thousands of steps. Averages that move slowly and ladders of many levels have
little time here. The world was made learnable for `uniform` with the seeds 1 and 2; then `uniform` and `static` ran
with 1 to 3, after which it was not changed. No curriculum was looked at for that, and none of these seeds is reported.
Runs are not repeatable to the bit, because coins are tossed in the order in which calls arrive.

`--work FOLDER` keeps each finished run, and goes on where an interrupted benchmark stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks._curriculum_arms import ARMS, LEARNABLE, WARM, Effort, get_path
from benchmarks._report import make_parser, write_report
from multiors.evaluation.statistics.means import adjust_holm
from multiors.evaluation.statistics.runs import compare_values, estimate_values

__all__ = ["main"]

_SEEDS = (31, 32, 33, 34, 35)
_TUNING_SEEDS = (1, 2, 3)
_REFERENCE = "uniform"
_QUICK_ARMS = ("uniform", "learning_progress + ladder")
_QUICK = Effort(scripted_episodes=12, warm_start_steps=5, batches=2, prompts_per_batch=4, episodes_per_task=1)

Runs = Mapping[str, Sequence[dict[str, Any]]]
"""What the runs of each arm brought, in the order of the seeds."""


def main() -> None:
    """Run every arm for every seed, in worker processes, and compare."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that train (default: 2)")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where finished runs are kept (default: nowhere)")
    options = parser.parse_args()
    seeds, arms, effort = (_SEEDS[:2], _QUICK_ARMS, _QUICK) if options.quick else (_SEEDS, tuple(ARMS), Effort())
    with contextlib.ExitStack() as stack:
        folder: Path = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        _run_all(folder.resolve(), arms, seeds=seeds, effort=effort, num_workers=options.workers)
        runs = {arm: [_read(folder, arm, seed) for seed in seeds] for arm in (WARM, *arms)}
    settings = {
        "seeds": list(seeds),
        "tuning_seeds": list(_TUNING_SEEDS),
        "workers": options.workers,
        "effort": asdict(effort),
    }
    write_report(options.json, _compare(runs, seeds=seeds), settings=settings)


# -- running


class _Worker:
    """A process that does jobs, one at a time."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._log = folder / f"worker-{number}.log"
        environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks._curriculum_run", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | environment,
                text=True,
                start_new_session=True,  # the terminal's Ctrl-C goes to us alone
            )

    def do(self, job: str, seed: int, *, effort: Effort) -> None:
        """Do a job, and return when it is done.

        Raises:
            RuntimeError: The process ended instead.
        """
        asked = {"job": job, "seed": seed, "effort": asdict(effort)}
        with contextlib.suppress(BrokenPipeError):  # it ended, which the missing answer says
            print(json.dumps(asked), file=self._process.stdin, flush=True)
        if self._process.stdout is None or not self._process.stdout.readline():
            log = self._log.read_text(encoding="utf-8")
            raise RuntimeError(f"{job}, seed {seed}: the worker ended before it was done. It wrote:\n{log[-2000:]}")

    def stop(self) -> None:
        """End the process; its server ends with it."""
        self._process.terminate()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _run_all(folder: Path, arms: Sequence[str], *, seeds: Sequence[int], effort: Effort, num_workers: int) -> None:
    """Do what is not done yet: first the warm starts, then the arms, seed by seed."""
    phases = [[(WARM, seed) for seed in seeds], [(arm, seed) for seed in seeds for arm in arms]]
    left = [[job for job in jobs if not _is_done(folder, *job, effort=effort)] for jobs in phases]
    num_jobs, num_left = sum(map(len, phases)), sum(map(len, left))
    if not num_left:
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar, _start_workers(folder, num_workers) as idle:
        shown = bar.add_task("Warm starts and runs", total=num_jobs, completed=num_jobs - num_left)
        for jobs in left:
            for _ in _do_jobs(jobs, idle, num_workers=num_workers, effort=effort):
                bar.advance(shown)


@contextlib.contextmanager
def _start_workers(folder: Path, num_workers: int) -> Iterator[queue.SimpleQueue[_Worker]]:
    """Workers that wait for jobs; they end with the block."""
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        for number in range(num_workers):
            worker = _Worker(folder, number)
            stack.callback(worker.stop)
            idle.put(worker)
        yield idle


def _do_jobs(
    jobs: Sequence[tuple[str, int]], idle: queue.SimpleQueue[_Worker], *, num_workers: int, effort: Effort
) -> Iterator[None]:
    """Do jobs on whatever worker is idle; yields after each."""

    def do(job: tuple[str, int]) -> None:
        worker = idle.get()
        worker.do(*job, effort=effort)
        idle.put(worker)

    threads = ThreadPoolExecutor(num_workers)
    try:
        for done in as_completed([threads.submit(do, job) for job in jobs]):
            done.result()
            yield
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _is_done(folder: Path, job: str, seed: int, *, effort: Effort) -> bool:
    path = get_path(folder, job, seed)
    return path.exists() and _read(folder, job, seed)["effort"] == asdict(effort)


def _read(folder: Path, job: str, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get_path(folder, job, seed).read_text(encoding="utf-8"))
    return found


# -- comparing


def _compare(runs: Runs, *, seeds: Sequence[int]) -> dict[str, Any]:
    """The results: each arm alone, each beside the reference, and every run."""
    others = [arm for arm in runs if arm not in (WARM, _REFERENCE)]
    differences = {arm: _describe_difference(runs[arm], runs[_REFERENCE]) for arm in others}
    adjusted = adjust_holm({arm: found["macro"]["p"] for arm, found in differences.items()})
    for arm, p in adjusted.items():
        differences[arm]["macro"]["p_holm"] = p
    return {
        "warm_start": _describe_scores(runs[WARM], "scores"),
        "arms": {arm: _describe_arm(found) for arm, found in runs.items() if arm != WARM},
        f"differences_to_{_REFERENCE}": differences,
        "runs": {
            arm: {
                f"seed_{seed}": {key: value for key, value in run.items() if key != "effort"}
                for seed, run in zip(seeds, found, strict=True)
            }
            for arm, found in runs.items()
        },
    }


def _describe_arm(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "end": _describe_scores(runs, "scores"),
        "half_time": _describe_scores(runs, "half_time_scores"),
        "training": {
            name: {key: _find_mean([run["training"][name][key] for run in runs]) for key in found}
            for name, found in runs[0]["training"].items()
        },
        "median_wall_s": statistics.median(run["wall_s"] for run in runs),
    }


def _describe_scores(runs: Sequence[dict[str, Any]], key: str) -> dict[str, Any]:
    return {
        "macro": _describe_mean(_find_macros(runs, key)),
        "sources": {name: _describe_mean([run[key][name] for run in runs]) for name in LEARNABLE},
    }


def _describe_difference(runs: Sequence[dict[str, Any]], reference: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of run scores at the end, which is what is tested; and beside it at half time, and of each source."""
    return {
        "macro": _describe_paired(_find_macros(runs, "scores"), _find_macros(reference, "scores")),
        "macro_at_half_time": _describe_paired(
            _find_macros(runs, "half_time_scores"), _find_macros(reference, "half_time_scores")
        ),
        "sources": {
            name: _describe_paired([run["scores"][name] for run in runs], [run["scores"][name] for run in reference])
            for name in LEARNABLE
        },
    }


def _describe_mean(values: Sequence[float]) -> dict[str, Any]:
    found = estimate_values(values)
    return {"num_runs": found.num_units, **_round(mean=found.value, low=found.low, high=found.high)}


def _describe_paired(values: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    found = compare_values(reference, values, is_paired=True)
    numbers = _round(
        mean=found.value, low=found.low, high=found.high, p=found.p, minimum_detectable=found.minimum_detectable
    )
    return {"num_pairs": found.num_pairs, **numbers}


def _round(**values: float | None) -> dict[str, float | None]:
    return {name: value if value is None else float(f"{value:.4g}") for name, value in values.items()}


def _find_macros(runs: Sequence[dict[str, Any]], key: str) -> list[float]:
    """The score of each run: the mean over the sources that can be learned."""
    return [statistics.fmean(run[key][name] for name in LEARNABLE) for run in runs]


def _find_mean(values: Sequence[float | None]) -> float | None:
    """None: in some run there was none."""
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known), 4) if known and len(known) == len(values) else None


if __name__ == "__main__":
    main()
