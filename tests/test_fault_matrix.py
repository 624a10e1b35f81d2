"""Every fault of an environment and its server, and what becomes of a rollout: unscored, retried or stopped, no number.

`docs/failures.md` shows this table. Each line is played through a real server and a real reward column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from multiors import GroupScore, MultiOpenRewardSpec, ORSSource, RolloutRecord, SourceReward
from multiors.errors import SourceError
from tests.playing import factories, play, score
from tests.servers.launch import ServerHandle, serve
from tests.servers.raw import serve_raw

PAGE = Path(__file__).parent.parent / "docs/failures.md"
RETRIED = "retried"
STOPPED = "stopped with an error"


@dataclass(frozen=True)
class Fault:
    """One line of the table."""

    name: str
    """As the page has it."""

    verdict: str
    """A reason, RETRIED or STOPPED."""

    serve: Callable[[], AbstractContextManager[ServerHandle]]
    source: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = (("act", {}),)
    says: str = "done"
    """The policy's last message."""

    is_killed: bool = False
    """Whether the server dies when the session is open."""

    reward: float | None = None
    """What the rollout is worth all the same: after a retry, or for a score from before the fault."""


def raw(**fields: Any) -> Callable[[], AbstractContextManager[ServerHandle]]:
    """A server of the scenario."""
    return lambda: serve_raw(**fields)


def real(name: str) -> Callable[[], AbstractContextManager[ServerHandle]]:
    """The SDK's server of an environment."""
    return lambda: serve(name)


@contextmanager
def nobody() -> Iterator[ServerHandle]:
    """A server that was there before training and is not any more."""
    with serve("Echo") as server:
        yield server


STARTING = {"statuses": {"/call": [429, 429]}}

FAULTS = [
    # before training
    Fault("no server at the address", STOPPED, raw(hangs_on=("/list_environments",)), {"open_timeout_s": 0.3}),
    Fault("another environment answers", STOPPED, raw(answers_as="other")),
    Fault("the split does not exist", STOPPED, raw(), {"split": "dev"}),
    Fault("the split is empty", STOPPED, raw(tasks=())),
    Fault("a task index out of range", STOPPED, raw(), {"indices": [99]}),
    Fault("an answer that is not ORS", STOPPED, raw(answers={"/tools": {"tools": 7}})),
    Fault("the server redirects to another host", STOPPED, raw(redirect_to="http://127.0.0.2:9")),
    # opening
    Fault("the server died before the session opened", "unreachable", nobody, {"open_timeout_s": 0.5}, is_killed=True),
    Fault("the prompt never comes", "unreachable", raw(hangs_on=("/prompt",)), {"open_timeout_s": 0.5}),
    Fault("HTTP 500 once, while opening", RETRIED, raw(statuses={"/create": [500]}), reward=1.0),
    Fault("HTTP 500 at every attempt to open", "unreachable", raw(statuses={"/create": [500] * 3})),
    Fault("still starting, while opening", RETRIED, raw(statuses={"/create": [429, 429]}), reward=1.0),
    Fault("HTTP 401 while opening", "unreachable", raw(statuses={"/prompt": [401]})),
    Fault("the environment's `__init__` raises", "unreachable", real("Flaky"), {"split": "init"}),
    Fault("the environment's `setup` raises", "unreachable", real("Flaky"), {"split": "setup"}),
    Fault("the environment's `get_prompt` raises", "unreachable", real("Flaky"), {"split": "prompt"}),
    Fault("a prompt that is not ORS", "unreachable", raw(answers={"/prompt": {"text": "no list"}})),
    Fault(
        "an image in the prompt that cannot be read",
        "unreachable",
        real("Pictures"),
        {"split": "broken", "images": "show"},
        (("look", {}),),
    ),
    # calling
    Fault("the server dies in the episode", "session_lost", raw(), is_killed=True),
    Fault("a call is never answered", "session_lost", raw(hangs_on=("/call",)), {"call_timeout_s": 0.5}),
    Fault("the session expired", "session_lost", raw(lost_after=0)),
    Fault("the session expired after a score", "session_lost", raw(lost_after=1), calls=(("act", {}),) * 2, reward=1.0),
    Fault("cut before the server took the call", "session_lost", raw(cut="no_response")),
    Fault("cut before the call got its number", "session_lost", raw(cut="before_events")),
    Fault("cut after the call got its number", RETRIED, raw(cut="after_task_id"), reward=1.0),
    Fault("cut in the middle of the result", RETRIED, raw(cut="mid_chunk"), reward=1.0),
    Fault("the server forgot a call that was cut", "session_lost", raw(cut="after_task_id", forgets_tasks=True)),
    Fault("too many requests", RETRIED, raw(**STARTING), reward=1.0),
    Fault("HTTP 502 for a call", "session_lost", raw(statuses={"/call": [502]})),
    Fault("a result that is not ORS", "session_lost", raw(result="[[[")),
    Fault("a result nested a thousand times", "session_lost", raw(result="[" * 5000)),
    Fault("the tool raises", "tool_error", real("Flaky"), {"split": "tool"}),
    Fault("the tool returns something else", "tool_error", real("Flaky"), {"split": "tool_type"}),
    Fault(
        "the tool raises after a score", "tool_error", real("ScriptedRewards"), calls=(("step", {}),) * 3, reward=1.0
    ),
    Fault(
        "an image that cannot be read",
        "tool_error",
        real("Pictures"),
        {"split": "tool", "images": "show"},
        (("squint", {}),),
    ),
    # judging
    Fault("the reward is NaN", "bad_reward", raw(rewards=("NaN",))),
    Fault("the reward is infinite", "bad_reward", raw(rewards=("1e400",))),
    Fault("the reward is text", "bad_reward", raw(rewards=('"high"',))),
    Fault("NaN after a score", "bad_reward", raw(rewards=("0.5", "NaN")), calls=(("act", {}),) * 2, reward=0.5),
    Fault(
        "a reward outside the declared range",
        "bad_reward",
        raw(rewards=("7.0",)),
        {"reward": SourceReward(range=(0.0, 1.0))},
    ),
    Fault(
        "the comparison of a group has no score for the rollout",
        "bad_reward",
        real("Judged"),
        {"split": "one_nan", "reward": SourceReward(parts=(GroupScore(),))},
        (("mark", {}),),
    ),
    Fault(
        "the comparison of a group raises",
        "tool_error",
        real("Judged"),
        {"split": "raises", "reward": SourceReward(parts=(GroupScore(),))},
        (("draft", {"text": "x"}),),
    ),
    Fault("the terminal tool raises", "tool_error", real("FlakyGrader"), calls=()),
]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_is_no_number(fault: Fault) -> None:
    """A rollout that a fault meets has the reason of the table, or a score that nobody doubts, and never another."""
    records: list[RolloutRecord] = []

    with fault.serve() as server:
        source = ORSSource(server.url, discover_task_tools=False, **fault.source)
        spec = MultiOpenRewardSpec({"faulty": source}, on_rollouts=records.extend)

        if fault.verdict == STOPPED:
            with pytest.raises(SourceError, match=r"^source 'faulty': "):
                spec.train_dataset  # noqa: B018  # reading it asks the server
            return

        make = factories(spec)["faulty"]
        if fault.is_killed and fault.serve is nobody:
            server.kill()
        environment = play(make) if fault.is_killed else play(make, *fault.calls)
        if fault.is_killed:
            server.kill()
            play_on(environment, fault)
        rows = {"completions": [[{"role": "assistant", "content": fault.says}]], "slot": [0]}
        rewards = score(spec.reward_funcs, [("faulty", environment)], **rows).rewards["faulty"]

    (record,) = records
    failures = {step.failure.value for step in record.steps if step.failure is not None}

    assert [fault.reward] == rewards
    if fault.verdict == RETRIED:
        assert (None, set()) == (record.error, failures)
    elif fault.reward is None:
        assert (fault.verdict, True) == (record.reason, record.error is not None)
    else:
        assert {fault.verdict} == failures


def play_on(environment: Any, fault: Fault) -> None:
    """Make the fault's calls in an environment that is reset already."""
    for tool, arguments in fault.calls:
        with pytest.raises(RuntimeError):
            getattr(environment, tool if hasattr(environment, tool) else "echo")(**arguments)


def test_the_page_shows_this_table() -> None:
    """docs/failures.md lists every fault with what becomes of it, and nothing else."""
    section = PAGE.read_text(encoding="utf-8").partition("## Every fault")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| (.+?) \| (.+?) \|", section, re.MULTILINE)[1:]
    expected = [(fault.name, _in_words(fault)) for fault in FAULTS]

    assert expected == shown


def _in_words(fault: Fault) -> str:
    if fault.verdict in (RETRIED, STOPPED):
        return fault.verdict
    return f"unscored: `{fault.verdict}`" if fault.reward is None else f"keeps its score; `{fault.verdict}` is recorded"
