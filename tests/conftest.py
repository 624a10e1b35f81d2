"""Fixtures that many tests share: server processes, a tiny policy, and an environment without surprises."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

from multiors.cli import main
from tests.commands import Run, Said
from tests.servers.launch import ServerHandle, configured, serve

# The profile is chosen once, for the whole run: FAST=1 while writing code, CI where machines are slow and shared.
settings.register_profile("default", max_examples=50, deadline=None)
settings.register_profile("fast", max_examples=10, deadline=None)
settings.register_profile(
    "ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fast" if os.environ.get("FAST") else "ci" if os.environ.get("CI") else "default")

# Before torch is loaded, here and in the processes that tests start: tiny matrices are slower on many threads, which
# moreover keep the other processes of the tests from working.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **os.environ}

# A process that was started in the background of a script ignores Ctrl-C, and so would every process of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "WANDB_MODE": "disabled",
}


@pytest.fixture(scope="session", autouse=True)
def clean_environment() -> Iterator[None]:
    """No key, address or setting of the person who runs the tests reaches them, and nothing asks the internet."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("OPENREWARD_"):
                patch.delenv(name)
        for name, value in _QUIET.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop() -> Iterator[None]:
    """A blocking call made from our own code while an event loop runs is an error."""
    with blockbuster_ctx("multiors"):
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


# -- servers, one process each, shared by all tests: look at differences of counts, or reset them first


@pytest.fixture(scope="session")
def echo_server() -> Iterator[ServerHandle]:
    """`Echo` alone."""
    with serve("Echo") as server:
        yield server


@pytest.fixture(scope="session")
def mixed_server() -> Iterator[ServerHandle]:
    """`Sorting` (the default environment) and `Thermostat`, both with a tool called submit."""
    with serve("Sorting", "Thermostat") as server:
        yield server


@pytest.fixture(scope="session")
def zoo_server() -> Iterator[ServerHandle]:
    """Every environment of `environments.py` and `shapes.py` but `AnyTools`; the default one is `NeverScores`."""
    names = (
        "NeverScores Echo Sorting Thermostat Splits EmptySplit Large Many AnyTasks Arguments Counting Essay"
        " OnlyTerminal PerTaskTools ImagePrompt MixedPrompt RandomPrompt Conversation"
    )
    with serve(*names.split()) as server:
        yield server


@pytest.fixture(scope="session")
def tools_server() -> Iterator[ServerHandle]:
    """`AnyTools` alone."""
    with serve("AnyTools") as server:
        yield server


@pytest.fixture(scope="session")
def flaky_server() -> Iterator[ServerHandle]:
    """The environments of `tests/servers/misbehaving.py`; the default one is `Flaky`."""
    with serve("Flaky", "FlakyTasks", "LongOutput", "ScriptedRewards", "Slow") as server:
        yield server


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[ServerHandle]:
    """`ScriptedRewards`, with a split for each source of `tests.curriculum_run`."""
    from tests.curriculum_run import TASKS

    with serve(configured("ScriptedRewards", TASKS=TASKS)) as server:
        yield server


# -- a policy


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model and its tokenizer."""
    from tests.tiny_policy import build_tiny_policy

    return build_tiny_policy(tmp_path_factory.mktemp("tiny-policy"))


@pytest.fixture(scope="session")
def tiny_vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model that takes images, and its processor."""
    from tests.tiny_vlm import build_tiny_vlm

    return build_tiny_vlm(tmp_path_factory.mktemp("tiny-vlm"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command of the command line in this process."""

    def run_command(*arguments: object) -> Said:
        try:
            exit_code: Any = main([str(argument) for argument in arguments])
        except SystemExit as error:
            exit_code = error.code
        out, err = capsys.readouterr()
        return Said(exit_code, out, err)

    return run_command
