"""Trainers that say how long a step stood still for its environments. Needs TRL and torch, so it is imported late.

The clock runs while the trainer's thread is in an environment's `reset` or tool, and in what `ConcurrentRollouts` adds
around TRL's methods: opening ahead, starting calls, cleaning up. It is stopped while TRL's own code runs: tokenizing,
sampling, parsing, scoring. Both trainers carry the same instruments, at the same places.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from transformers import PrinterCallback

from multiors import ConcurrentRollouts, MultiOpenRewardSpec
from tests.scripted import ScriptedTrainer, call, make_arguments

__all__ = ["Clock", "ConcurrentTrainer", "StockTrainer", "build_trainer"]

_NUM_GENERATIONS = 8

_Phase = Literal["opening", "calls"]


class Clock:
    """Adds up seconds by phase, of one thread. What is nested inside another phase belongs to the inner one."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._phase: _Phase | None = None
        self._since_s = 0.0
        self.restart()

    def restart(self) -> None:
        self._seconds = {"opening": 0.0, "calls": 0.0}

    def read(self) -> dict[str, float]:
        """Seconds by phase since the last restart."""
        return {**self._seconds}

    @contextmanager
    def during(self, phase: _Phase | None) -> Iterator[None]:
        """Count the block's time to a phase, or to none."""
        outer = self._switch(phase)
        try:
            yield
        finally:
            self._switch(outer)

    def _switch(self, phase: _Phase | None) -> _Phase | None:
        now_s = time.perf_counter()
        before = self._phase
        if before is not None:
            self._seconds[before] += now_s - self._since_s
        self._phase, self._since_s = phase, now_s
        return before


class _Outside:
    """Starts the clock where a step enters this library's code."""

    def __init__(self, *, clock: Clock, **options: Any) -> None:
        self.clock = clock
        super().__init__(**options)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with self.clock.during("opening"):
            return super()._generate_and_score_completions(inputs)  # type: ignore[misc]  # stands before a trainer

    def _tool_call_loop(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock.during("calls"):
            return super()._tool_call_loop(*args, **kwargs)  # type: ignore[misc]  # stands before a trainer


class _Inside(ScriptedTrainer):
    """Stops the clock where TRL's own code begins. Learns nothing, which would take most of the time."""

    clock: Clock

    def compute_loss(self, model: Any, *_args: Any, **_kwargs: Any) -> Any:
        return 0.0 * next(model.parameters()).sum()

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with self.clock.during(None):
            return super()._generate_and_score_completions(inputs)

    def _tool_call_loop(
        self,
        prompts: Any,
        prompt_ids: Any,
        completion_ids: Any,
        completions: Any,
        logprobs: Any,
        images: Any,
        multimodal_fields: Any,
    ) -> Any:
        with self.clock.during(None):
            return super()._tool_call_loop(
                prompts, prompt_ids, completion_ids, completions, logprobs, images, multimodal_fields
            )


class StockTrainer(_Outside, _Inside):
    """TRL's `GRPOTrainer`."""


class ConcurrentTrainer(_Outside, ConcurrentRollouts, _Inside):
    """The same with concurrent environments: what `ConcurrentGRPOTrainer` is to `GRPOTrainer`."""


class _TimedFactory:
    """A source's factory whose environments start the clock when TRL calls them."""

    def __init__(self, factory: Any, clock: Clock) -> None:
        self._factory = factory
        self._clock = clock

    def __call__(self) -> Any:
        environment = self._factory()
        environment.reset = self._time("opening", environment.reset)
        environment._call = self._time("calls", environment._call)
        return environment

    def open_ahead(self, **row: Any) -> Any:
        return self._factory.open_ahead(**row)

    def _time(self, phase: _Phase, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._clock.during(phase):
                return function(*args, **kwargs)

        return timed


def build_trainer(
    trainer_class: type[StockTrainer | ConcurrentTrainer],
    spec: MultiOpenRewardSpec,
    policy: Path,
    *,
    num_rollouts: int,
    num_turns: int,
    output_dir: Path,
) -> StockTrainer | ConcurrentTrainer:
    """A trainer each of whose runs is one step of `num_rollouts` rollouts, which call `work` in each of their turns."""
    clock = Clock()
    factories: Mapping[str, Any] = spec.environment_factory  # type: ignore[assignment]  # the tools are separate
    trainer = trainer_class(
        clock=clock,
        model=str(policy),
        args=make_arguments(
            spec,
            output_dir,
            max_steps=1,
            per_device_train_batch_size=num_rollouts,
            num_generations=min(_NUM_GENERATIONS, num_rollouts),
        ),
        train_dataset=spec.train_dataset,
        environment_factory={name: _TimedFactory(factory, clock) for name, factory in factories.items()},
        reward_funcs=spec.reward_funcs,
        callbacks=spec.callbacks,
    )
    trainer.script = functools.partial(_work, num_turns)
    trainer.remove_callback(PrinterCallback)  # what is printed are the results

    return trainer


def _work(num_turns: int, conversation: str, _row: int) -> str:
    return call("work") if conversation.count("<tool_response>") < num_turns else "done"
