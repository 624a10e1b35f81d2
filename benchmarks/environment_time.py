"""How long does a step stand still for its environments, in TRL's trainer and in the concurrent one?

One step of 8 to 128 rollouts; each opens a session, calls a tool in each of two turns, and is scored. The environment
sleeps equally long in its `setup` and in its tool, from 0 to 1,000 ms. `stock` is `GRPOTrainer` and `concurrent` is the
same with `ConcurrentRollouts`, with the same spec, policy and environments, in turns; what the policy says is scripted,
and it learns nothing. Counted is the time in which the trainer's thread is in an environment's `reset` or tool, or in
what the concurrent trainer adds around TRL's methods. Not counted is what TRL does itself, which is the same in both,
and the closing of sessions, which happens in the background in both.

There are two limits. `latency_floor_s` is the sleeping alone: one setup and one tool call a turn. `http_floor` is the
least that any client needs on this machine: one `aiohttp` client sends the same requests, those of all sessions at
once, all openings before the first turn and each turn before the next; the server's work on the same cores is in it.
Goals at 64 rollouts: at most 1.25 times the `http_floor`, and 13 times less than `stock`, at 200 ms; 25 times less at
1,000 ms.

Steps of TRL's trainer that take more than a few seconds are measured once. Those of more than 20 s run first, all at
the same time, each in a process and with a server of its own: nearly all they do is sleep.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from openreward.environments import ToolOutput, tool

from benchmarks._http import connect
from benchmarks._report import parse_arguments, summarize, write_report
from tests.servers.environments import say
from tests.servers.launch import ServerHandle, configured, serve
from tests.servers.misbehaving import Slow

__all__ = ["TwoTurns", "main"]

_NUM_ROLLOUTS = (8, 32, 64, 128)
_NUM_ROUNDS_BY_LATENCY_MS = {0: 5, 50: 5, 200: 5, 1000: 3}
_NUM_TURNS = 2
# How long a stock step sleeps if it is measured once only, and if it runs beside others.
_ONCE_FROM_S = 4.0
_ASIDE_FROM_S = 20.0
_SIDES = ("stock", "http_floor", "concurrent")


class TwoTurns(Slow):
    """`Slow`, whose episode ends with the second call."""

    num_calls = 0

    @tool
    async def work(self) -> ToolOutput:
        """Work for a while."""
        await self._take("tool_s")
        self.num_calls += 1
        is_last = self.num_calls == _NUM_TURNS
        return say("done", reward=1.0 if is_last else None, finished=is_last)


class _Cell(NamedTuple):
    """One entry of the table."""

    num_rollouts: int
    latency_ms: int

    @property
    def latency_floor_s(self) -> float:
        return (1 + _NUM_TURNS) * self.latency_ms / 1e3

    @property
    def stock_sleep_s(self) -> float:
        return self.num_rollouts * self.latency_floor_s


Seconds = Mapping[str, float]
"""Of one step, by phase: opening, calls."""

Step = Callable[[], Seconds]


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    num_rounds = dict.fromkeys((0, 20), 1) if arguments.quick else _NUM_ROUNDS_BY_LATENCY_MS
    cells = [
        _Cell(num_rollouts, latency_ms)
        for num_rollouts in ((4,) if arguments.quick else _NUM_ROLLOUTS)
        for latency_ms in num_rounds
    ]
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = os.environ["HF_HUB_OFFLINE"] = "1"

    with tempfile.TemporaryDirectory() as folder:
        policy = _build_policy(Path(folder))
        aside = _measure_aside([cell for cell in cells if cell.stock_sleep_s > _ASIDE_FROM_S], policy)
        if not arguments.quick:
            _warm_up(policy, _SIDES)
        steps = {
            cell: _measure(cell, policy, num_rounds=num_rounds[cell.latency_ms], without=aside.get(cell, {}))
            for cell in cells
        }

    results: dict[str, dict[str, Any]] = {}

    for cell, its_steps in steps.items():
        by_latency = results.setdefault(f"{cell.num_rollouts}_rollouts", {})
        by_latency[f"{cell.latency_ms}_ms"] = _summarize(cell, {**its_steps, **aside.get(cell, {})})

    settings = {"num_turns": _NUM_TURNS, "num_rounds_by_latency_ms": num_rounds}
    write_report(arguments.json, results, settings=settings)


def _build_policy(folder: Path) -> Path:
    from tests.tiny_policy import build_tiny_policy

    return build_tiny_policy(folder / "policy")


def _warm_up(policy: Path, sides: Sequence[str]) -> None:
    """The first step of a process pays for what is made once."""
    _measure(_Cell(2, 0), policy, num_rounds=1, sides=sides)


def _measure_aside(cells: Sequence[_Cell], policy: Path) -> dict[_Cell, dict[str, list[Seconds]]]:
    """One step of the stock trainer in each cell, all at once."""
    if not cells:
        return {}

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(cells), mp_context=context) as pool:
        return dict(zip(cells, pool.map(_measure_stock_alone, cells, [policy] * len(cells)), strict=True))


def _measure_stock_alone(cell: _Cell, policy: Path) -> dict[str, list[Seconds]]:
    _warm_up(policy, ["stock"])
    return _measure(cell, policy, num_rounds=1, sides=["stock"])


def _measure(
    cell: _Cell,
    policy: Path,
    *,
    num_rounds: int,
    sides: Collection[str] = _SIDES,
    without: Collection[str] = (),
) -> dict[str, list[Seconds]]:
    """Steps of each side, in turns."""
    latency_s = cell.latency_ms / 1e3
    environment = configured("benchmarks.environment_time:TwoTurns", SETUP_S=latency_s, TOOL_S=latency_s)
    chosen = [side for side in sides if side not in without]
    seconds: dict[str, list[Seconds]] = {side: [] for side in chosen}

    with serve(environment) as server, tempfile.TemporaryDirectory() as folder:
        steps = _make_steps(cell, policy, server, Path(folder))
        gc.collect()
        gc.freeze()

        for turn in range(num_rounds):
            for side in chosen if turn % 2 == 0 else reversed(chosen):
                if side != "stock" or turn == 0 or cell.stock_sleep_s < _ONCE_FROM_S:
                    server.reset_counts()
                    seconds[side].append(steps[side]())
                    _check(cell, server)
                    _say(cell, side, seconds[side][-1])

    return seconds


def _make_steps(cell: _Cell, policy: Path, server: ServerHandle, folder: Path) -> dict[str, Step]:
    """What runs one step of each side and says how long it took."""
    from benchmarks._timed_trainers import ConcurrentTrainer, StockTrainer, build_trainer
    from multiors import MultiOpenRewardSpec, ORSSource

    spec = MultiOpenRewardSpec({"slow": ORSSource(server.url, env_name="twoturns")})

    def prepare(trainer_class: type[StockTrainer | ConcurrentTrainer]) -> Step:
        trainer = build_trainer(
            trainer_class, spec, policy, num_rollouts=cell.num_rollouts, num_turns=_NUM_TURNS, output_dir=folder
        )

        def step() -> Seconds:
            trainer.clock.restart()
            trainer.train()

            if trainer.state.log_history[0].get("env/unmatched_calls", 0) != 0:
                raise SystemExit(f"{cell}: calls were started that TRL did not make")

            return trainer.clock.read()

        return step

    return {
        "stock": prepare(StockTrainer),
        "http_floor": lambda: asyncio.run(_play_bare(server.url, cell.num_rollouts)),
        "concurrent": prepare(ConcurrentTrainer),
    }


async def _play_bare(url: str, num_rollouts: int) -> Seconds:
    """The requests of a step, as many at once as there can be."""
    async with connect(url, "twoturns") as client:
        started = time.perf_counter()

        async with asyncio.TaskGroup() as group:
            openings = [group.create_task(client.open(0)) for _ in range(num_rollouts)]

        opened = time.perf_counter()
        sessions = [opening.result() for opening in openings]

        for _ in range(_NUM_TURNS):
            async with asyncio.TaskGroup() as group:
                for session in sessions:
                    group.create_task(client.call(session, "work", {}))

        ended = time.perf_counter()

        async with asyncio.TaskGroup() as group:
            for session in sessions:
                group.create_task(client.close(session))

    return {"opening": opened - started, "calls": ended - opened}


def _check(cell: _Cell, server: ServerHandle) -> None:
    """Every rollout opened one session, made its calls, and left nothing behind."""
    counts = server.wait_until(lambda counts: not counts.active, deadline_s=60.0)
    expected = (cell.num_rollouts, _NUM_TURNS * cell.num_rollouts)
    seen = (counts.opened["twoturns"], counts.tool_calls["twoturns"]["work"])

    if expected != seen:
        raise SystemExit(f"{cell}: {expected} sessions and calls were due, and the server saw {seen}")


def _summarize(cell: _Cell, steps: Mapping[str, Sequence[Seconds]]) -> dict[str, Any]:
    medians = {side: statistics.median(map(_total, steps[side])) for side in _SIDES}
    concurrent, floor_s = medians["concurrent"], cell.latency_floor_s

    return {
        "latency_floor_s": floor_s,
        **{side: _summarize_side(steps[side]) for side in ("http_floor", "concurrent", "stock")},
        "ratios": {
            "concurrent_to_http_floor": round(concurrent / medians["http_floor"], 2),
            "concurrent_to_latency_floor": round(concurrent / floor_s, 2) if floor_s else None,
            "stock_to_concurrent": round(medians["stock"] / concurrent, 1),
        },
    }


def _summarize_side(steps: Sequence[Seconds]) -> dict[str, Any]:
    phases = {f"{phase}_s": float(f"{statistics.median(step[phase] for step in steps):.4g}") for phase in steps[0]}
    return {**summarize(map(_total, steps)), **phases}


def _total(seconds: Seconds) -> float:
    return sum(seconds.values())


def _say(cell: _Cell, side: str, seconds: Seconds) -> None:
    phases = ", ".join(f"{phase} {value:.3f} s" for phase, value in seconds.items())
    print(f"{cell.num_rollouts} rollouts, {cell.latency_ms} ms, {side}: {phases}", file=sys.stderr)


if __name__ == "__main__":
    main()
