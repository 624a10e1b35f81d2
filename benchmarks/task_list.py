"""How long does it take to have the task list of one source?

Ours (`ORSSource`, with everything it asks a server before it believes the list), TRL's `OpenRewardSpec`, the openreward
SDK's bare `get_task_range`, and one plain HTTP request, which is the least that any client can do. One local server
with 5,000 small tasks and no latency; the client's connections are open. Goal: at most 1.2 times the SDK's range.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks._report import parse_arguments, summarize, write_report
from tests.servers.launch import ServerHandle, serve

__all__ = ["main"]

_NUM_TASKS = (100, 1_000, 5_000)
_REPEATS = 15
# TRL asks for each task on its own, four requests each: minutes for 5,000 tasks.
_TRL_REPEATS = {100: 5, 1_000: 5, 5_000: 1}

Fetch = Callable[[int], object]


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    sizes = (20, 50) if arguments.quick else _NUM_TASKS
    repeats = 2 if arguments.quick else _REPEATS
    trl_repeats = dict.fromkeys(sizes, 1) if arguments.quick else _TRL_REPEATS

    with serve("Many") as server:
        _point_trl_at(server)
        results = {str(size): _compare(server, size, repeats, trl_repeats[size]) for size in sizes}

    settings = {"num_tasks": sizes, "repeats": repeats, "repeats_trl": list(trl_repeats.values())}
    write_report(arguments.json, {"by_num_tasks": results}, settings=settings)


def _point_trl_at(server: ServerHandle) -> None:
    """TRL's spec finds a server of one's own only through variables of the whole process."""
    os.environ["OPENREWARD_API_URL"] = os.environ["OPENREWARD_SESSION_URL"] = server.url
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"


def _make_fetches(server: ServerHandle, connection: http.client.HTTPConnection) -> Mapping[str, Fetch]:
    """What is compared: each takes the number of tasks. A new source or spec each time, because they cache."""
    from openreward import EnvironmentsAPI
    from trl.experimental.openreward import OpenRewardSpec

    from multiors import ORSSource

    environment = EnvironmentsAPI(server.url, None).get("env", variant="many")

    def source(size: int, **options: Any) -> ORSSource:
        return ORSSource(server.url, env_name="many", num_tasks=size, **options)

    return {
        "http_range": lambda size: _request_range(connection, size),
        "sdk_range": lambda size: environment.get_task_range("train", 0, size),
        "multiors": lambda size: source(size).task_list,
        "multiors_dataset": lambda size: source(size).train_dataset,
        "multiors_number_only": lambda size: source(size, include_metadata=False).task_list,
        "trl_dataset": lambda size: OpenRewardSpec(server.url, num_tasks=size).train_dataset,
    }


def _request_range(connection: http.client.HTTPConnection, size: int) -> Any:
    body = json.dumps({"split": "train", "start": 0, "stop": size})
    connection.request("POST", "/many/task_range", body=body, headers={"Content-Type": "application/json"})

    return json.loads(connection.getresponse().read())["tasks"]


def _compare(server: ServerHandle, size: int, repeats: int, trl_repeats: int) -> dict[str, Any]:
    """Time the quick ones in turns, so that what disturbs the machine disturbs all of them, then TRL."""
    # A new one for each size: the server closes what is idle for some seconds, and TRL's turn takes longer.
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    fetches = _make_fetches(server, connection)
    quick = {name: fetch for name, fetch in fetches.items() if name != "trl_dataset"}
    seconds: dict[str, list[float]] = {name: [] for name in fetches}
    requests = {name: _count_requests(server, fetch, size) for name, fetch in quick.items()}

    for _ in range(repeats):
        for name, fetch in quick.items():
            seconds[name].append(_time(fetch, size))

    connection.close()

    if trl_repeats > 1:
        _time(fetches["trl_dataset"], size)

    for repeat in range(trl_repeats):
        print(f"TRL, {size} tasks, repeat {repeat + 1} of {trl_repeats}", file=sys.stderr)
        server.reset_counts()
        seconds["trl_dataset"].append(_time(fetches["trl_dataset"], size))
        requests["trl_dataset"] = sum(server.counts().requests.values())

    return _report(seconds, requests)


def _count_requests(server: ServerHandle, fetch: Fetch, size: int) -> int:
    """HTTP requests of one call, which is the warm-up too."""
    server.reset_counts()
    fetch(size)

    return sum(server.counts().requests.values())


def _time(fetch: Fetch, size: int) -> float:
    started = time.perf_counter()
    fetch(size)

    return time.perf_counter() - started


def _report(seconds: Mapping[str, Sequence[float]], requests: Mapping[str, int]) -> dict[str, Any]:
    median = {name: statistics.median(values) for name, values in seconds.items()}

    return {
        **{name: {**summarize(values), "http_requests": requests[name]} for name, values in seconds.items()},
        "ratios": {
            "multiors_to_sdk_range": round(median["multiors"] / median["sdk_range"], 3),
            "multiors_dataset_to_sdk_range": round(median["multiors_dataset"] / median["sdk_range"], 3),
            "multiors_to_http_range": round(median["multiors"] / median["http_range"], 3),
            "trl_dataset_to_multiors_dataset": round(median["trl_dataset"] / median["multiors_dataset"], 1),
        },
    }


if __name__ == "__main__":
    main()
