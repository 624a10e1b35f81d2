"""How many episodes a second does the runner play, and what does one cost, beside doing it by hand?

Episodes of one environment on one local server that adds 20 ms to each request: a session is opened, the policy calls
one tool, which scores and finishes, and the session is closed. The policy is a script that answers at once, so what is
measured is the runner. `whole` is one evaluation of 10,000 episodes: `rss_mb` is the client's resident memory when so
many had been kept, `max_active` the most sessions that the server had open at once.

The others run in turns, in rounds: `runner` is `evaluate`, with records, folder and all; `threads` plays the
environments that a trainer gets in a pool of as many threads as the runner plays episodes at once, and keeps the reward
alone; `sequential` plays them one after another. `http` is the limit on this machine: the same requests, as many
episodes at once, by a bare `aiohttp` client that looks at no answer. `latency_bound_per_s` is the one that no client
can pass, since an episode's requests wait for each other. `ratios` are medians over the rounds. Each turn has a client
process and a server process of its own, so that processor time and memory are what it itself took. Times begin when
tasks and tools were fetched and everything is imported, and end when every session is closed. Anything but one scored
record per episode, or a session that stays open, ends the benchmark.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import psutil

from benchmarks._http import connect
from benchmarks._report import parse_arguments, summarize, write_report
from tests.servers.launch import configured, serve

__all__ = ["main"]

_NUM_EPISODES = 10_000
_NUM_BY_SIDE = {"http": 1_000, "runner": 1_000, "threads": 1_000, "sequential": 100}
_NUM_ROUNDS = 3
_EPISODES_PER_TASK = 4
_AT_ONCE = 256
_LATENCY_S = 0.02
_NUM_REQUESTS = 6
"""Of an episode: a session and an environment made, the prompt, a call, both deleted."""

_UNITS = {"rate": "per_s", "cpu": "ms_per_episode"}
_DEADLINE_S = 120.0


@dataclass(frozen=True)
class _Load:
    """What a process is to do."""

    url: str
    num_episodes: int
    at_once: int

    @property
    def num_tasks(self) -> int:
        return max(1, self.num_episodes // _EPISODES_PER_TASK)


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    at_once = 8 if arguments.quick else _AT_ONCE
    sizes = dict.fromkeys(_NUM_BY_SIDE, 16) if arguments.quick else _NUM_BY_SIDE
    num_rounds = 1 if arguments.quick else _NUM_ROUNDS
    whole = _run("runner", 16 if arguments.quick else _NUM_EPISODES, at_once=at_once)
    whole = {f"{key}_{_UNITS[key]}" if key in _UNITS else key: value for key, value in whole.items()}
    rounds = [{name: _run(name, size, at_once=at_once) for name, size in sizes.items()} for _ in range(num_rounds)]
    bound_per_s = at_once / (_NUM_REQUESTS * _LATENCY_S)
    sides = {
        name: {key: summarize([each[name][key] for each in rounds], unit) for key, unit in _UNITS.items()}
        for name in sizes
    }
    results = {"whole": whole, **sides, "latency_bound_per_s": round(bound_per_s, 1), "ratios": _compare(rounds)}
    settings = {
        "num_episodes": sizes,
        "num_rounds": num_rounds,
        "episodes_per_task": _EPISODES_PER_TASK,
        "at_once": at_once,
        "latency_s": _LATENCY_S,
        "requests_per_episode": _NUM_REQUESTS,
    }
    write_report(arguments.json, results, settings=settings)


def _run(name: str, num_episodes: int, *, at_once: int) -> dict[str, Any]:
    """Play one side in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    environment = configured("Brittle", NUM_TASKS=max(1, num_episodes // _EPISODES_PER_TASK))

    with serve(environment, latency_s=_LATENCY_S) as server:
        process = context.Process(target=_play, args=(name, _Load(server.url, num_episodes, at_once), sender))
        process.start()
        sender.close()

        try:
            found: dict[str, Any] = receiver.recv()
        except EOFError:
            raise SystemExit(f"{name}: the process failed; it said why") from None

        process.join()
        counts = server.wait_until(lambda counts: not counts.active, deadline_s=_DEADLINE_S)

    seen = (counts.opened["brittle"], counts.deleted["brittle"], counts.tool_calls["brittle"]["press"])

    if seen != (num_episodes,) * 3:
        raise SystemExit(f"{name}: {num_episodes} sessions were to be opened, closed and called once, not {seen}")

    found["max_active"] = counts.max_active
    print(f"{name}: {found}", file=sys.stderr)
    return found


def _compare(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """The runner's numbers over those of each other side, in the same round."""
    others = [name for name in rounds[0] if name != "runner"]
    return {
        f"{short}_to_{name}": round(median(each["runner"][key] / each[name][key] for each in rounds), 3)
        for key, short in (("rate", "per_s"), ("cpu", "cpu"))
        for name in others
    }


# -- in the process of one side


def _play(name: str, load: _Load, sender: Connection) -> None:
    play: Callable[[_Load], dict[str, Any]] = {
        "runner": _play_runner,
        "threads": _play_threads,
        "sequential": _play_sequential,
        "http": _play_http,
    }[name]
    sender.send(play(load))


class _Clock:
    """Measures the process from where it is made to where it is read."""

    def __init__(self) -> None:
        self._started_s, self._cpu_s = time.perf_counter(), time.process_time()

    def read(self, num_episodes: int) -> dict[str, float]:
        wall_s, cpu_s = time.perf_counter() - self._started_s, time.process_time() - self._cpu_s
        return {
            "rate": round(num_episodes / wall_s, 1),
            "cpu": round(1000 * cpu_s / num_episodes, 3),
        }


class _Presser:
    """A policy that presses the button, at once."""

    name = "presser"
    sees_images = False
    secrets: Sequence[str] = ()

    def __init__(self, at_once: int) -> None:
        self.max_concurrent_replies = at_once

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "presser"}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def start(self, start: Any) -> _Presser:
        return self

    async def reply(self, messages: Sequence[Any]) -> Any:
        from multiors.evaluation.policies import Reply

        call = {"type": "function", "function": {"name": "press", "arguments": {}}}
        return Reply({"role": "assistant", "content": "", "tool_calls": [call]})

    async def end(self) -> None:
        pass


class _Watch:
    """Times the episodes, from when it is known which are played, and notes the process's memory on the way."""

    def __init__(self, num_episodes: int) -> None:
        self.rss_mb: dict[str, float] = {}
        self.clock = _Clock()
        self._at = {num_episodes // 10, num_episodes // 2, num_episodes}
        self._num_kept = 0
        self._process = psutil.Process()

    def begin(self, run: Any, left: Sequence[Any]) -> None:
        self.clock = _Clock()

    def add(self, record: Any) -> None:
        self._num_kept += 1

        if self._num_kept in self._at:
            self.rss_mb[str(self._num_kept)] = round(self._process.memory_info().rss / 1024**2, 1)


def _play_runner(load: _Load) -> dict[str, Any]:
    from multiors import ORSSource
    from multiors.evaluation import evaluate

    watch = _Watch(load.num_episodes)
    source = ORSSource(load.url, discover_task_tools=False)

    with tempfile.TemporaryDirectory() as folder:
        run = evaluate(
            {"brittle": source},
            _Presser(load.at_once),
            folder,
            episodes_per_task=_EPISODES_PER_TASK,
            max_concurrent_episodes=load.at_once,
            watcher=watch,
        )
        found = watch.clock.read(load.num_episodes)
        num_scored = sum(record.reward == 1.0 for record in run.episodes())

    if num_scored != load.num_episodes:
        raise SystemExit(f"{load.num_episodes} episodes were to be scored, not {num_scored}")

    return {**found, "rss_mb": watch.rss_mb}


def _play_threads(load: _Load) -> dict[str, Any]:
    with ThreadPoolExecutor(load.at_once) as pool:
        return _play_by_hand(load, lambda play, indices: list(pool.map(play, indices)))


def _play_sequential(load: _Load) -> dict[str, Any]:
    return _play_by_hand(load, lambda play, indices: [play(index) for index in indices])


def _play_by_hand(load: _Load, each: Callable[[Callable[[int], Any], Sequence[int]], list[Any]]) -> dict[str, Any]:
    from multiors import ORSSource
    from multiors.ors.sessions.runtime import get_runtime

    factory = ORSSource(load.url, discover_task_tools=False).environment_factory

    def play(episode: int) -> Any:
        environment: Any = factory()
        environment.reset(task_index=episode % load.num_tasks)
        environment.press()
        environment._release()
        return environment.reward

    clock = _Clock()
    rewards = each(play, range(load.num_episodes))
    get_runtime().close_now([])

    if rewards != [1.0] * load.num_episodes:
        raise SystemExit(f"{load.num_episodes} episodes were to be scored, not {rewards.count(1.0)}")

    return clock.read(load.num_episodes)


def _play_http(load: _Load) -> dict[str, Any]:
    return asyncio.run(_play_bare(load))


async def _play_bare(load: _Load) -> dict[str, Any]:
    episodes = iter(range(load.num_episodes))

    async with connect(load.url, "brittle") as client:

        async def work() -> None:
            for episode in episodes:
                session = await client.open(episode % load.num_tasks)
                await client.call(session, "press", {})
                await client.close(session)

        clock = _Clock()

        async with asyncio.TaskGroup() as group:
            for _ in range(load.at_once):
                group.create_task(work())

        return clock.read(load.num_episodes)


if __name__ == "__main__":
    main()
