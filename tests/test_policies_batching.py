"""Requests answered together: who is in which batch, and what happens to them when one goes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from multiors.evaluation.policies import PolicyError
from multiors.evaluation.policies.batching import Batcher


class Doubler:
    """Answers with twice the number, and remembers the batches; waits where it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.fails_at: int | None = None

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.begun.set()
        assert self.may_go_on.wait(30)

        if self.fails_at in numbers:
            raise MemoryError("all gone")
        return [2 * number for number in numbers]


async def ask_all(batcher: Batcher[int, int], numbers: Sequence[int]) -> dict[int, int]:
    """The answers to all of them, asked for at once."""
    answers: dict[int, int] = {}

    async def ask(number: int) -> None:
        answers[number] = await batcher.ask(number)

    async with anyio.create_task_group() as group:
        for number in numbers:
            group.start_soon(ask, number)
    return answers


@pytest.mark.anyio
async def test_what_is_asked_at_once_is_answered_at_once() -> None:
    """In one batch, each with its own answer."""
    doubler = Doubler()
    answers = await ask_all(Batcher(doubler, max_size=100), range(50))

    assert {number: 2 * number for number in range(50)} == answers
    assert [list(range(50))] == doubler.batches


@pytest.mark.anyio
async def test_a_batch_is_no_larger_than_allowed() -> None:
    """The others wait, first come, first served."""
    doubler = Doubler()
    await ask_all(Batcher(doubler, max_size=4), range(10))

    assert [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == doubler.batches


@pytest.mark.anyio
async def test_what_is_asked_while_a_batch_runs_is_the_next_batch() -> None:
    """Nothing waits for a clock."""
    doubler = Doubler()
    doubler.may_go_on.clear()
    batcher = Batcher(doubler, max_size=100)

    async with anyio.create_task_group() as group:
        group.start_soon(batcher.ask, 1)
        await anyio.to_thread.run_sync(doubler.begun.wait)
        for number in (2, 3, 4):
            group.start_soon(batcher.ask, number)
        await anyio.wait_all_tasks_blocked()
        doubler.may_go_on.set()

    assert [[1], [2, 3, 4]] == doubler.batches


@pytest.mark.anyio
async def test_a_failure_reaches_everyone_in_the_batch_and_no_one_else() -> None:
    """The next batch is answered."""
    doubler = Doubler()
    doubler.fails_at = 1
    batcher = Batcher(doubler, max_size=3)
    outcomes: dict[int, Any] = {}

    async def ask(number: int) -> None:
        try:
            outcomes[number] = await batcher.ask(number)
        except (MemoryError, PolicyError) as error:
            outcomes[number] = type(error)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(ask, number)

    assert {0: MemoryError, 1: PolicyError, 2: PolicyError, 3: 6, 4: 8} == outcomes


@pytest.mark.anyio
@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_who_is_cancelled_while_a_batch_runs_takes_nothing_from_the_others(cancelled: int) -> None:
    """Neither the one whose task runs the batch (0), nor one in it (1), nor one who waits for the next (2)."""
    doubler = Doubler()
    doubler.may_go_on.clear()
    batcher = Batcher(doubler, max_size=2)
    answers: dict[int, int] = {}
    scopes = [anyio.CancelScope() for _ in range(4)]

    async def ask(number: int) -> None:
        with scopes[number]:
            answers[number] = await batcher.ask(number)

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(ask, number)
        await anyio.to_thread.run_sync(doubler.begun.wait)
        scopes[cancelled].cancel()
        doubler.may_go_on.set()

    others = {number: 2 * number for number in range(4) if number != cancelled}
    assert others == {number: answer for number, answer in answers.items() if number != cancelled}


@pytest.mark.anyio
async def test_who_is_cancelled_before_the_batch_begins_hands_it_over() -> None:
    """The first of the others leads it."""
    doubler = Doubler()
    batcher = Batcher(doubler, max_size=10)
    scope = anyio.CancelScope()
    answers: list[int] = []

    async def ask_and_go() -> None:
        with scope:
            await batcher.ask(0)

    async def ask_and_cancel() -> None:
        scope.cancel()
        answers.append(await batcher.ask(1))

    async with anyio.create_task_group() as group:
        group.start_soon(ask_and_go)
        group.start_soon(ask_and_cancel)

    assert [2] == answers
    assert [[1]] == doubler.batches
    assert 6 == await batcher.ask(3)
