"""What does a rollout cost on top of the bare SDK, of TRL's own adapter, and of the HTTP requests alone?

The same rollout (open a session, read the prompt, call a tool three times, close), one at a time, in turns, against one
local server without latency: through the openreward SDK's own synchronous session (`sdk`), through TRL's
`OpenRewardSpec` (`trl`), through the environment that a trainer gets here (`multiors`), and as bare requests of one
`aiohttp` client in the thread that waits for them (`http`), which is the limit. The CPU time is that of this process
with all its threads; the server runs in another. Goals: under 1 ms more than the SDK, and no more than TRL's adapter.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks._http import BareClient, connect
from benchmarks._report import parse_arguments, summarize, write_report
from tests.servers.launch import ServerHandle, serve

__all__ = ["main"]

_NUM_ROUNDS = 300
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
    num_rounds = 4 if arguments.quick else _NUM_ROUNDS

    with serve("Echo") as server, ExitStack() as stack:
        rollouts = {
            "http": _make_bare_rollout(server, stack),
            "sdk": _make_sdk_rollout(server),
            "trl": _make_trl_rollout(server, stack),
            "multiors": _make_own_rollout(server),
        }
        num_requests = {name: _count_requests(server, rollout) for name, rollout in rollouts.items()}
        times = _run_in_turns(rollouts, num_rounds)

    results = {
        **{name: {**_summarize(times[name]), "http_requests": num_requests[name]} for name in rollouts},
        "difference": _compare(times["sdk"], times["multiors"]),
        "difference_to_trl": _compare(times["trl"], times["multiors"]),
        "difference_to_http": _compare(times["http"], times["multiors"]),
    }
    settings = {"num_rounds": num_rounds, "num_calls": _NUM_CALLS, "text_characters": len(_TEXT)}
    write_report(arguments.json, results, settings=settings)


def _make_bare_rollout(server: ServerHandle, stack: ExitStack) -> Rollout:
    runner = stack.enter_context(asyncio.Runner())
    connection = connect(server.url, "echo")
    client: BareClient = runner.run(connection.__aenter__())
    stack.callback(lambda: runner.run(connection.__aexit__(None, None, None)))

    def roll_out(task_index: int, times: _Times) -> None:
        with _stopwatch(times.open_ms):
            session = runner.run(client.open(task_index))
        with _stopwatch(times.calls_ms):
            for _ in range(_NUM_CALLS):
                runner.run(client.call(session, "echo", {"text": _TEXT}))
        with _stopwatch(times.close_ms):
            runner.run(client.close(session))

    return roll_out


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


def _make_trl_rollout(server: ServerHandle, stack: ExitStack) -> Rollout:
    # TRL's spec finds a server of one's own only through variables of the whole process.
    os.environ["OPENREWARD_API_URL"] = os.environ["OPENREWARD_SESSION_URL"] = server.url
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

    from trl.experimental.openreward import OpenRewardSpec

    spec = OpenRewardSpec(server.url, env_name="echo")
    stack.callback(lambda: spec._sdk_client.close())

    return _make_environment_rollout(spec.environment_factory())


def _make_own_rollout(server: ServerHandle) -> Rollout:
    from multiors import ORSSource

    return _make_environment_rollout(ORSSource(server.url, env_name="echo").environment_factory())


def _make_environment_rollout(environment: Any) -> Rollout:
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


def _run_in_turns(rollouts: Mapping[str, Rollout], num_rounds: int) -> dict[str, _Times]:
    """Run one of each, `num_rounds` times, each first every so often."""
    times = {name: _Times() for name in rollouts}
    names = list(rollouts)
    gc.collect()
    gc.freeze()

    for turn in range(num_rounds):
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            cpu_started = time.process_time()
            with _stopwatch(times[name].wall_ms):
                rollouts[name](turn % _NUM_TASKS, times[name])
            times[name].cpu_ms.append((time.process_time() - cpu_started) * 1e3)

    return times


def _summarize(times: _Times) -> dict[str, Any]:
    return {
        "wall": summarize(times.wall_ms, "ms"),
        "cpu": summarize(times.cpu_ms, "ms"),
        "open": summarize(times.open_ms, "ms"),
        "calls": summarize(times.calls_ms, "ms"),
        "close": summarize(times.close_ms, "ms"),
    }


def _compare(other: _Times, own: _Times) -> dict[str, Any]:
    return {
        "wall": _compare_times(other.wall_ms, own.wall_ms),
        "cpu": _compare_times(other.cpu_ms, own.cpu_ms),
    }


def _compare_times(other_ms: Sequence[float], own_ms: Sequence[float]) -> dict[str, Any]:
    """Ours against another's: of the medians, and of each pair, which ran within a fraction of a second."""
    pairs = [own - other for own, other in zip(own_ms, other_ms, strict=True)]
    other, own = statistics.median(other_ms), statistics.median(own_ms)

    return {"of_medians_ms": round(own - other, 4), "ratio": round(own / other, 4), "of_pairs": summarize(pairs, "ms")}


if __name__ == "__main__":
    main()
