"""The quickstart's command, from servers to report.

A script as a user would write it, in phases that each show their progress: serve, play scripted episodes, warm-start,
measure, train with TRL's own `GRPOTrainer` through `MultiOpenRewardSpec`, measure again, report. Talk goes to stderr.
Whatever ends it, also Ctrl-C and SIGTERM, the sessions are closed and the servers stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from multiors import ConfigError, MultiOpenRewardSpec, ORSSource, RolloutRecord, SourceReward
from multiors.quickstart.measure import Measurement, measure_policy, summarize
from multiors.quickstart.policy import build_model, build_tokenizer
from multiors.quickstart.report import (
    Summary,
    as_json,
    draw_curves,
    make_table,
    summarize_environment,
    write_summary,
)
from multiors.quickstart.servers import run_servers
from multiors.quickstart.warmstart import Episode, fit, play, tools_of

__all__ = ["run_quickstart"]

# Two environments share the first server; the third has one of its own.
_SERVERS = (("recycling", "teahouse"), ("observatory",))
_MAX_REWARD = {"recycling": 1.0, "teahouse": 1.0, "observatory": 10.0}
_WEIGHTS = {"recycling": 3.0, "teahouse": 3.0, "observatory": 2.0}
# Giving up counts as failing. A plate of an overcast night is finished and unjudged, and stays unscored.
_REWARD = SourceReward(unfinished=0.0)
_NUM_EPISODES = 120  # scripted, per environment
_WARM_START_STEPS = 250
_EPISODES_PER_TASK = 4  # in each measurement


def run_quickstart(options: argparse.Namespace) -> int:
    """Run the whole command; the exit code.

    Raises:
        ConfigError: The output directory holds something.
        SourceError: A server did not start.
    """
    console = Console(stderr=True)
    output_dir = _make_output_dir(options.output_dir)
    records: list[RolloutRecord] = []

    with _ending_on_sigterm(), _quiet_libraries():
        summary = _run(options.seed, options.steps, output_dir, records, console)

    write_summary(summary, output_dir / "summary.json")
    draw_curves(summary, records, output_dir / "curves.png")
    (console if options.json else Console()).print(make_table(summary))
    console.print(_explain(summary), highlight=False)

    if options.json:
        print(json.dumps(as_json(summary), indent=2))

    return 0


def _run(seed: int, steps: int, output_dir: Path, records: list[RolloutRecord], console: Console) -> Summary:
    torch.set_num_threads(1)  # matrices this small are slower on several threads
    torch.set_flush_denormal(True)
    rng = random.Random(seed)
    clock = _Clock(console)

    with ExitStack() as stack:
        log = stack.enter_context((output_dir / "rollouts.jsonl").open("w", encoding="utf-8"))

        def keep(batch: list[RolloutRecord]) -> None:
            trained_on = [record for record in batch if record.slot is not None]
            records.extend(trained_on)
            log.writelines(json.dumps(record.to_json()) + "\n" for record in trained_on)

        with clock.phase("serve", "Starting two servers"):
            url_by_name = stack.enter_context(run_servers(_SERVERS, output_dir))
            spec = stack.enter_context(_make_spec(url_by_name, seed, keep))
            args = GRPOConfig(**spec.training_arguments(**_make_fields(seed, steps, output_dir)))
            plan = spec.plan()

        console.print(f"\n{plan}\n", highlight=False)
        tasks = {name: range(each.num_tasks) for name, each in zip(url_by_name, plan.sources, strict=True)}
        environments = {name: source.environment_factory() for name, source in spec.sources.items()}
        tools = {name: tools_of(environment) for name, environment in environments.items()}

        episodes = _play_episodes(environments, tasks, rng, clock)
        tokenizer = build_tokenizer([episode.messages for episode in episodes], tools.values())
        model = build_model(tokenizer, seed=seed)

        _warm_start(model, tokenizer, episodes, tools, rng, clock)
        before = _measure(model, tokenizer, spec, tasks, seed, clock, "before")
        _train(model, tokenizer, spec, args, clock)
        after = _measure(model, tokenizer, spec, tasks, seed + 1, clock, "after")

    return Summary(
        seed=seed,
        steps=steps,
        environments=tuple(
            summarize_environment(
                each.name,
                records,
                steps=steps,
                max_reward=_MAX_REWARD[each.name],
                planned_share=each.share,
                before=before[each.name],
                after=after[each.name],
            )
            for each in plan.sources
        ),
        warm_start_right=_judge_episodes(episodes),
        seconds_by_phase=clock.seconds_by_phase,
        versions={name: version(name) for name in ("multiors", "trl", "transformers", "torch", "openreward")},
        output_dir=str(output_dir),
    )


def _judge_episodes(episodes: Sequence[Episode]) -> dict[str, float | None]:
    names = dict.fromkeys(episode.environment for episode in episodes)
    return {name: summarize([each.reward for each in episodes if each.environment == name]).reward for name in names}


def _make_spec(
    url_by_name: Mapping[str, str], seed: int, keep: Callable[[list[RolloutRecord]], None]
) -> MultiOpenRewardSpec:
    return MultiOpenRewardSpec(
        {
            name: ORSSource(url, env_name=name, weight=_WEIGHTS[name], reward=_REWARD)
            for name, url in url_by_name.items()
        },
        seed=seed,
        on_rollouts=keep,
    )


def _make_fields(seed: int, steps: int, output_dir: Path) -> dict[str, Any]:
    """The fields of `GRPOConfig` that this policy learns under."""
    return {
        "output_dir": str(output_dir / "trainer"),
        "seed": seed,
        "max_steps": steps,
        "per_device_train_batch_size": 64,
        "num_generations": 8,
        "num_iterations": 2,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "max_completion_length": 96,
        "max_tool_calling_iterations": 3,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
    }


def _play_episodes(
    environments: Mapping[str, Any], tasks: Mapping[str, range], rng: random.Random, clock: _Clock
) -> list[Episode]:
    episodes = []

    with clock.phase("episodes", "Scripted episodes", total=_NUM_EPISODES * len(tasks)) as advance:
        for name, indices in tasks.items():
            for number in range(_NUM_EPISODES):
                index = indices[number % len(indices)]
                episodes.append(play(name, environments[name], task_index=index, rng=rng))
                advance()
            environments[name]._release()

    return episodes


def _warm_start(
    model: Any,
    tokenizer: Any,
    episodes: Sequence[Episode],
    tools: Mapping[str, Sequence[Any]],
    rng: random.Random,
    clock: _Clock,
) -> None:
    with clock.phase("warm start", "Warm start", total=_WARM_START_STEPS) as advance:
        fit(
            model,
            tokenizer,
            episodes,
            tools_by_environment=tools,
            steps=_WARM_START_STEPS,
            rng=rng,
            on_step=lambda _loss: advance(),
        )


def _measure(
    model: Any,
    tokenizer: Any,
    spec: MultiOpenRewardSpec,
    tasks: Mapping[str, range],
    seed: int,
    clock: _Clock,
    when: str,
) -> dict[str, Measurement]:
    score = spec.reward_funcs
    chosen = [(name, index) for name, indices in tasks.items() for index in indices for _ in range(_EPISODES_PER_TASK)]

    with clock.phase(f"measure {when}", f"Measuring {when} GRPO", total=len(chosen)) as advance:
        return measure_policy(
            model,
            tokenizer,
            {name: source.environment_factory for name, source in spec.sources.items()},
            tasks=chosen,
            reward=lambda environment: score(environments=[environment])[0],
            seed=seed,
            on_episode=advance,
        )


def _train(model: Any, tokenizer: Any, spec: MultiOpenRewardSpec, args: GRPOConfig, clock: _Clock) -> None:
    with clock.phase("train", "GRPO on all three", total=args.max_steps) as advance:
        trainer = GRPOTrainer(
            model=model,
            args=args,
            processing_class=tokenizer,
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
            callbacks=[*spec.callbacks, _Progress(advance)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


class _Progress(TrainerCallback):
    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._advance()


class _Clock:
    """Shows a bar for each phase, and keeps how long it took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.seconds_by_phase: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str, title: str, *, total: int | None = None) -> Iterator[Callable[[], None]]:
        columns = (
            TextColumn("{task.description:<24}"),
            BarColumn(),
            *([MofNCompleteColumn()] if total else []),
            TimeElapsedColumn(),
        )
        started = time.monotonic()

        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(title, total=total)
            yield lambda: progress.advance(task)
            if total is None:
                progress.update(task, total=1, completed=1)

        self.seconds_by_phase[name] = round(time.monotonic() - started, 1)


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that everything is closed on the way out."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)

    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Keep what a newcomer can do nothing about out of the way: notes on experimental features, unscored batches."""
    loggers = [logging.getLogger(name) for name in ("trl", "transformers", "accelerate")]
    levels = [logger.level for logger in loggers]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*experimental.*")

        for logger in loggers:
            logger.setLevel(logging.ERROR)

        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _make_output_dir(chosen: Path | None) -> Path:
    path = chosen if chosen is not None else Path(f"multiors-quickstart-{time.strftime('%Y%m%d-%H%M%S')}")

    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"--output-dir {str(path)!r} exists and is not an empty directory. Choose another.")

    path.mkdir(parents=True, exist_ok=True)
    return path


def _explain(summary: Summary) -> str:
    given = ", ".join(
        f"{name} {'n/a' if value is None else f'{value:.2f}'}" for name, value in summary.warm_start_right.items()
    )
    total = sum(summary.seconds_by_phase.values())
    return (
        f"Before and after are means over scored episodes of every task. The warm start copied transcripts that were "
        f"worth {given}: it taught how to write a call, and GRPO which call to write. "
        f"{total:.0f} s in all.\n"
        f"In {summary.output_dir}: curves.png, rollouts.jsonl (every rollout of the training), summary.json."
    )
