"""Training in two and in four processes, and what is left when a process ends: of sessions, nothing.

The runs are `tests/small_run.py`, in processes of their own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from multiors import read_rollouts
from tests.servers.launch import Counts, ServerHandle, configured, serve
from tests.small_run import Options, get_command, run, run_processes
from tests.warm import Warm

# Each process imports TRL first, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(300)
DEADLINE_S = 120.0
STEPS = 3


# -- two and four processes


class Runs(NamedTuple):
    """What one run with several processes saw, and one with a single process."""

    ranks: list[dict[str, Any]]
    single: dict[str, Any]
    counts: list[Counts]
    """Of the two servers, after the run with several processes."""

    log: Path
    """Folder of the rollout log of the run with several processes."""


@pytest.fixture(scope="module")
def sources(mixed_server: ServerHandle, echo_server: ServerHandle) -> dict[str, list[Any]]:
    """Three environments on two servers."""
    return {
        "sort": [mixed_server.url, "sorting", 2.0],
        "heat": [mixed_server.url, "thermostat", 1.0],
        "echo": [echo_server.url, "echo", 1.0],
    }


def make_options(policy: Path, folder: Path, sources: dict[str, list[Any]], num_processes: int) -> Options:
    """A run with a global batch of four prompts, on so many processes."""
    return Options(
        policy=str(policy),
        folder=str(folder),
        runs=[sources],
        fields={"max_steps": STEPS, "num_generations": 2, "per_device_train_batch_size": 8 // num_processes},
        rollout_log=str(folder / "rollouts"),
    )


@pytest.fixture(scope="module")
def single(
    sources: dict[str, list[Any]], tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What a single process sees."""
    return run(make_options(tiny_policy, tmp_path_factory.mktemp("one"), sources, 1), sources)


@pytest.fixture(scope="module", params=[2, 4], ids=["two", "four"])
def runs(
    request: pytest.FixtureRequest,
    sources: dict[str, list[Any]],
    single: dict[str, Any],
    mixed_server: ServerHandle,
    echo_server: ServerHandle,
    tiny_policy: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Runs:
    """The same global batch in several processes: each has one or two of the four prompts."""
    num_processes: int = request.param
    options = make_options(tiny_policy, tmp_path_factory.mktemp("several"), sources, num_processes)
    ranks = run_processes(options, num_processes)
    counts = [server.counts() for server in (mixed_server, echo_server)]
    return Runs(ranks, single, counts, Path(options.folder, "rollouts"))


def test_the_processes_form_one_group(runs: Runs) -> None:
    """The run really was several processes that exchange over gloo."""
    size = len(runs.ranks)

    assert [(size, "gloo", size)] * size == [(r["world_size"], r["backend"], r["num_processes"]) for r in runs.ranks]
    assert (1, None, 1) == (runs.single["world_size"], runs.single["backend"], runs.single["num_processes"])


def drawn(*seen: dict[str, Any]) -> Counter[tuple[int, str, int]]:
    """How often each slot's task was played."""
    return Counter((r["slot"], r["source"], r["task_index"]) for one in seen for r in one["records"])


def test_several_processes_draw_what_one_draws(runs: Runs) -> None:
    """Each slot is played by one group on one process, and which task it is does not depend on their number."""
    slots = [slot for rank in runs.ranks for slot in sorted({r["slot"] for r in rank["records"]})]

    assert drawn(runs.single) == drawn(*runs.ranks)
    assert {2} == set(drawn(*runs.ranks).values())
    assert list(range(4 * STEPS)) == sorted(slots)


def test_shares_are_exact_over_the_processes(runs: Runs) -> None:
    """Every batch has two prompts of `sort` and one of each other source, wherever they are played."""
    per_step = [
        Counter(r["source"] for rank in runs.ranks for r in rank["records"] if r["step"] == n) for n in (1, 2, 3)
    ]

    assert [{"sort": 4, "heat": 2, "echo": 2}] * STEPS == per_step


def test_a_source_on_one_process_only_is_no_deadlock(runs: Runs) -> None:
    """In each batch `echo` is on one process alone, and all steps were taken."""
    ranks_by_step = defaultdict(set)

    for rank, seen in enumerate(runs.ranks):
        for record in seen["records"]:
            if record["source"] == "echo":
                ranks_by_step[record["step"]].add(rank)

    assert [1] * STEPS == [len(ranks) for ranks in ranks_by_step.values()]
    assert STEPS == len([entry for entry in runs.ranks[0]["log"] if "reward" in entry])


def test_metrics_are_exact_over_the_processes(runs: Runs) -> None:
    """What the first process logs of each source is what a single process would have logged."""

    def told(seen: dict[str, Any]) -> list[dict[str, float | None]]:
        entries = [entry for entry in seen["log"] if "reward" in entry]
        names = [name for name in entries[0] if name.startswith(("env/", "rewards/", "reward"))]
        return [{name: None if entry[name] is None else round(entry[name], 5) for name in names} for entry in entries]

    several, alone = told(runs.ranks[0]), told(runs.single)

    assert {"env/sort/scored", "env/echo/share", "env/heat/unscored/no_tool_call", "reward_std"} <= set(several[0])
    assert STEPS == len(several)
    assert alone == several


def test_several_processes_leave_no_session(runs: Runs) -> None:
    """Each process closes what it opened."""
    assert [{}, {}] == [counts.active for counts in runs.counts]


def test_each_process_logs_its_own_rollouts(runs: Runs) -> None:
    """The log has a file for each process, with exactly the rollouts that were played there."""
    paths = [runs.log / f"rollouts-000001-rank{rank}.jsonl" for rank in range(len(runs.ranks))]
    written = [[json.loads(json.dumps(record.to_json())) for record in read_rollouts(path)] for path in paths]

    assert set(paths) == set(runs.log.iterdir())
    assert [rank["records"] for rank in runs.ranks] == written


def test_a_group_over_two_processes_has_one_prompt(tiny_policy: Path, tmp_path: Path) -> None:
    """Where a group is spread over processes and sessions do not open, all its rollouts still have the same prompt."""
    with serve("tests.servers.waiting:Unlucky") as server:
        options = Options(
            policy=str(tiny_policy),
            folder=str(tmp_path),
            runs=[{"luck": [server.url, "unlucky", 1.0]}],
            fields={"max_steps": STEPS, "num_generations": 4, "per_device_train_batch_size": 2},
            concurrent=True,
            limits={"luck": {"retries": 0}},
        )
        ranks = run_processes(options, 2)
        counts = server.counts()

    groups = [
        [turn for rank in ranks for turn in rank["first_turns"][2 * step : 2 * step + 2]] for step in range(STEPS)
    ]
    reasons = Counter(record["reason"] for rank in ranks for record in rank["records"])
    unmatched = [entry["env/unmatched_calls"] for entry in ranks[0]["log"] if "env/unmatched_calls" in entry]
    assert [4] * STEPS == [len(group) for group in groups]
    assert [1] * STEPS == [len(set(group)) for group in groups]
    assert 4 * STEPS == reasons.total()
    assert 0 < reasons["unreachable"] < 4 * STEPS
    assert [0.0] * STEPS == unmatched
    assert ({}, counts.opened) == (counts.active, counts.deleted)


# -- a group in two processes


def test_a_group_that_is_spread_over_processes_is_compared_as_one(
    echo_server: ServerHandle, tiny_policy: Path, tmp_path: Path
) -> None:
    """Two processes with three rollouts each hold three groups of two: the middle one is compared once, as a whole."""
    with serve("Judged") as server:
        sources: dict[str, list[Any]] = {
            "judged": [server.url, "judged", 2.0],
            "echo": [echo_server.url, "echo", 1.0],
        }
        options = Options(
            policy=str(tiny_policy),
            folder=str(tmp_path),
            runs=[sources],
            fields={"max_steps": STEPS, "num_generations": 2, "per_device_train_batch_size": 3},
            compared=["judged"],
        )
        ranks = [seen["records"] for seen in run_processes(options, 2)]
        counts = server.counts()

    judged = [record for records in ranks for record in records if record["source"] == "judged"]
    slots = [{record["slot"] for record in records if record["source"] == "judged"} for records in ranks]

    assert 2 * 2 * STEPS == len(judged)
    assert slots[0] & slots[1]
    assert all(len(record["messages"][-1]["content"]) == record["parts"]["group_score"] for record in judged)
    assert len(slots[0] | slots[1]) == counts.requests["POST /{env}/score_group"]
    assert {} == counts.active


# -- how a process ends


def was_asked(request: str) -> Callable[[Counts], bool]:
    """Whether a server got a request."""
    return lambda counts: request in counts.requests


@pytest.fixture
def slow_servers() -> Iterator[list[ServerHandle]]:
    """One that takes minutes for a reset, one that takes them for a tool, and one that is quick."""
    with (
        serve(configured("Slow", SETUP_S=300.0)) as reset,
        serve(configured("Slow", TOOL_S=300.0)) as tool,
        serve("Echo") as quick,
    ):
        yield [reset, tool, quick]


def test_ctrl_c_leaves_no_session(slow_servers: list[ServerHandle], tiny_policy: Path, tmp_path: Path) -> None:
    """Interrupted in a reset, in a tool call and while the policy writes, without callbacks: every session is gone."""
    reset, tool, _ = slow_servers
    options = Options(
        policy=str(tiny_policy),
        folder=str(tmp_path),
        runs=[{"only": [server.url, None, None]} for server in slow_servers],
        fields={"max_steps": 1, "num_generations": 2, "per_device_train_batch_size": 4},
        interrupted=True,
    )

    with Warm(get_command(options), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            for server, request in ((reset, "POST /create"), (tool, "POST /{env}/call")):
                server.wait_until(was_asked(request), deadline_s=DEADLINE_S)
                process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()

    counts = [server.counts() for server in slow_servers]
    assert -signal.SIGINT == process.returncode, stderr
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    assert [1, 4, 4] == [seen.requests["POST /create"] for seen in counts]
    assert [{}, {}, {}] == [seen.active for seen in counts]


_LEAVE = """
import sys
from multiors import MultiOpenRewardSpec, ORSSource
spec = MultiOpenRewardSpec({name: ORSSource(sys.argv[1]) for name in ("one", "two")})
kept = [factory() for factory in spec.environment_factory.values() for _ in range(2)]
print([environment.reset(task_index=0) for environment in kept])
"""


@pytest.mark.parametrize(
    ("last_line", "exit_code", "said"), [("", 0, ""), ("raise RuntimeError('it broke')", 1, "RuntimeError: it broke")]
)
def test_a_process_that_ends_leaves_no_session(
    echo_server: ServerHandle, last_line: str, exit_code: int, said: str
) -> None:
    """Without callbacks and without `close()`, sessions end with their process, in good order or not."""
    echo_server.reset_counts()
    command = [sys.executable, "-c", _LEAVE + last_line, echo_server.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    counts = echo_server.counts()

    assert (exit_code, 4) == (ended.returncode, ended.stdout.count("Say oak."))
    assert said in ended.stderr
    assert {} == counts.active
    assert counts.opened == counts.deleted
