"""What does a rollout cost on top of the bare SDK?

The same rollout (open a session, read the prompt, call a tool three times, close) through the openreward SDK's own
synchronous session and through the environment that the trainer gets, in turns, against one local server without
latency. The CPU time is that of this process with all its threads; the server runs in another. Goal: under 1 ms.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks._report import parse_arguments, summarize, write_report
from tests.servers.launch import ServerHandle, serve

__all__ = ["main"]

_NUM_PAIRS = 300
_NUM_CALLS = 3
_NUM_TASKS = 8
# What a tool says and hears: a paragraph, and never the answer that would end the episode.
_TEXT = "It is none of these. " * 24


@dataclass(frozen=True)
class _Times:
    """Milliseconds of each rollout of one kind, in order."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    open_ms: list[float] = field(default_factory=list)
    calls_ms: list[float] = field(default_factory=list)
    close_ms: list[float] = field(default_factory=list)


Rollout = Callable[[int, _Times], None]


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    num_pairs = 4 if arguments.quick else _NUM_PAIRS

    with serve("Echo") as server:
        rollouts = (_make_sdk_rollout(server), _make_own_rollout(server))
        num_requests = [_count_requests(server, rollout) for rollout in rollouts]
        sdk, own = _run_in_turns(rollouts, num_pairs)

    results = {
        "sdk": {**_summarize(sdk), "http_requests": num_requests[0]},
        "multiors": {**_summarize(own), "http_requests": num_requests[1]},
        "difference": {
            "wall": _compare(sdk.wall_ms, own.wall_ms),
            "cpu": _compare(sdk.cpu_ms, own.cpu_ms),
        },
    }
    settings = {"num_pairs": num_pairs, "num_calls": _NUM_CALLS, "text_characters": len(_TEXT)}
    write_report(arguments.json, results, settings=settings)


def _make_sdk_rollout(server: ServerHandle) -> Rollout:
    from openreward import EnvironmentsAPI

    environment = EnvironmentsAPI(server.url, None).get("env", variant="echo")

    def roll_out(task_index: int, times: _Times) -> None:
        session = environment.session(split="train", index=task_index)
        with _stopwatch(times.open_ms):
            session.__enter__()
            session.get_prompt()
        with _stopwatch(times.calls_ms):
            for _ in range(_NUM_CALLS):
                session.call_tool("echo", {"text": _TEXT})
        with _stopwatch(times.close_ms):
            session.__exit__(None, None, None)

    return roll_out


def _make_own_rollout(server: ServerHandle) -> Rollout:
    from multiors import ORSSource

    environment: Any = ORSSource(server.url, env_name="echo").environment_factory()

    def roll_out(task_index: int, times: _Times) -> None:
        with _stopwatch(times.open_ms):
            environment.reset(task_index=task_index)
        with _stopwatch(times.calls_ms):
            for _ in range(_NUM_CALLS):
                environment.echo(text=_TEXT)
        with _stopwatch(times.close_ms):
            environment._close()

    return roll_out


@contextmanager
def _stopwatch(times_ms: list[float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    times_ms.append((time.perf_counter() - started) * 1e3)


def _count_requests(server: ServerHandle, rollout: Rollout) -> int:
    """HTTP requests of one rollout after a first one. Pings are left out: they come by the clock."""
    rollout(0, _Times())
    server.reset_counts()
    rollout(0, _Times())

    return sum(count for route, count in server.counts().requests.items() if not route.endswith("/ping"))


def _run_in_turns(rollouts: Sequence[Rollout], num_pairs: int) -> list[_Times]:
    """Run one of each, `num_pairs` times, each first every other time."""
    times = [_Times() for _ in rollouts]
    sides = list(zip(rollouts, times, strict=True))
    gc.collect()
    gc.freeze()

    for pair in range(num_pairs):
        for rollout, its_times in sides if pair % 2 == 0 else reversed(sides):
            cpu_started = time.process_time()
            with _stopwatch(its_times.wall_ms):
                rollout(pair % _NUM_TASKS, its_times)
            its_times.cpu_ms.append((time.process_time() - cpu_started) * 1e3)

    return times


def _summarize(times: _Times) -> dict[str, Any]:
    return {
        "wall": summarize(times.wall_ms, "ms"),
        "cpu": summarize(times.cpu_ms, "ms"),
        "open": summarize(times.open_ms, "ms"),
        "calls": summarize(times.calls_ms, "ms"),
        "close": summarize(times.close_ms, "ms"),
    }


def _compare(sdk_ms: Sequence[float], own_ms: Sequence[float]) -> dict[str, Any]:
    """Ours against the SDK's: of the medians, and of each pair, which ran within a fraction of a second."""
    pairs = [own - sdk for own, sdk in zip(own_ms, sdk_ms, strict=True)]
    sdk, own = statistics.median(sdk_ms), statistics.median(own_ms)

    return {"of_medians_ms": round(own - sdk, 4), "ratio": round(own / sdk, 4), "of_pairs": summarize(pairs, "ms")}


if __name__ == "__main__":
    main()
