"""The quickstart's run: warm start, evaluation, GRPO on four environments at once, evaluation.

This is the part to read as an example: `make_mix` and `train` use the library as any script would. The policy and the
numbers below are chosen so that everything fits into a few minutes on two cores.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig

from multiors import ConcurrentGRPOTrainer, MultiOpenRewardSpec, ORSSource, RolloutRecord, SourceReward
from multiors.evaluation import EvaluationRun, Limits, LocalPolicy, Sampling, evaluate, summarize
from multiors.quickstart.options import Effort
from multiors.quickstart.policy import Policy, build_model, build_tokenizer
from multiors.quickstart.report import EnvironmentResult, Measurement, RolloutJournal, measure
from multiors.quickstart.talk import Talk
from multiors.quickstart.warmstart import Episode, Score, fit, play, tools_of

__all__ = [
    "BEST_REWARD",
    "JUDGES_LAST_MESSAGE",
    "NUM_GENERATIONS",
    "NUM_ITERATIONS",
    "SERVER_GROUPS",
    "RunResult",
    "make_arguments",
    "make_mix",
    "run",
    "train",
]

NUM_GENERATIONS = 8
"""Rollouts of a prompt."""

NUM_ITERATIONS = 2
"""Steps that are trained on a batch."""

SERVER_GROUPS = (("recycling", "teahouse"), ("observatory", "museum"))
"""Which environments share a server process."""

_MAX_TURNS = 3
_MAX_NEW_TOKENS = 48  # the longest turn of a scripted episode has about 30

BEST_REWARD = {"recycling": 1.0, "teahouse": 1.0, "observatory": 10.0, "museum": 1.0}
"""The highest reward of each environment."""

JUDGES_LAST_MESSAGE = frozenset({"museum"})
"""The environments that judge what the policy says last, rather than its calls."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a whole run brought."""

    environments: Mapping[str, EnvironmentResult]
    scripts: Mapping[str, Measurement]
    """Rewards of the scripted episodes."""

    num_parameters: int


def make_mix(url_by_environment: Mapping[str, str], *, seed: int, journal: RolloutJournal) -> MultiOpenRewardSpec:
    """The four environments as one mix.

    The weights say how much of the rollouts each gets; some have more to learn than others. Giving up is a failure, so
    it is scored as one. Where each finished episode is judged, `unscored` does that. At the observatory `unfinished`
    does, because an episode that was finished under clouds has no reward through no fault of the policy, and stays
    unscored. Each declares its range, so that an evaluation can average over sources that pay on different scales.
    """
    gives_up: dict[str, dict[str, Any]] = {name: {"unscored": 0.0} for name in ("recycling", "teahouse", "museum")}
    gives_up["observatory"] = {"unfinished": 0.0}
    weights = {"recycling": 0.25, "teahouse": 0.2, "observatory": 0.28, "museum": 0.27}
    sources = {
        name: ORSSource(
            url,
            env_name=name,
            weight=weights[name],
            reward=SourceReward(range=(0.0, BEST_REWARD[name]), **gives_up[name]),
        )
        for name, url in url_by_environment.items()
    }
    return MultiOpenRewardSpec(sources, seed=seed, on_rollouts=journal.add)


def train(spec: MultiOpenRewardSpec, args: GRPOConfig, policy: Policy, *, on_step: Callable[[], None]) -> None:
    """Train the policy on the mix with TRL's trainer, its environments at once."""
    trainer = ConcurrentGRPOTrainer(
        model=policy.model,
        args=args,
        processing_class=policy.tokenizer,
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=spec.reward_funcs,
        callbacks=[*spec.callbacks, _StepCallback(on_step)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def make_arguments(
    spec: MultiOpenRewardSpec,
    *,
    seed: int,
    steps: int,
    output_dir: Path,
    rollouts_per_batch: int = 64,
    max_completion_length: int = 96,
    max_tool_calling_iterations: int = 3,
) -> GRPOConfig:
    """The trainer's arguments, completed by the mix: two steps a batch, eight rollouts a prompt."""
    fields = spec.training_arguments(
        output_dir=str(output_dir),
        seed=seed,
        max_steps=steps,
        per_device_train_batch_size=rollouts_per_batch,
        num_generations=NUM_GENERATIONS,
        num_iterations=NUM_ITERATIONS,
        learning_rate=1.5e-3,
        lr_scheduler_type="linear",
        warmup_steps=min(10, steps),
        adam_beta2=0.98,
        beta=0.0,
        temperature=1.0,
        max_completion_length=max_completion_length,
        max_tool_calling_iterations=max_tool_calling_iterations,
        use_cpu=True,
        bf16=False,  # TRL turns both on by default; on a CPU they only cost time
        gradient_checkpointing=False,
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
    )
    return GRPOConfig(**fields)


def run(
    spec: MultiOpenRewardSpec,
    *,
    seed: int,
    steps: int,
    effort: Effort,
    output_dir: Path,
    journal: RolloutJournal,
    talk: Talk,
) -> RunResult:
    """Everything between the servers' start and their end.

    Args:
        spec: The mix, as `make_mix` makes it.
        journal: The one that `spec` reports its rollouts to.
    """
    torch.set_num_threads(1)  # matrices this small are slower on many threads
    torch.set_flush_denormal(True)
    rng = random.Random(seed)
    with talk.phase("sources", "Asked both servers for tasks and tools"):
        args = make_arguments(spec, seed=seed, steps=steps, output_dir=output_dir)
        plan = spec.plan()
        factories = _factories(spec)
    talk.say(f"\n{plan}\n")
    num_tasks = {source.name: source.num_tasks for source in plan.sources}
    environments = {name: factory() for name, factory in factories.items()}
    score = _make_score(spec)
    episodes = _play_scripts(environments, num_tasks, score, num_episodes=effort.scripted_episodes, rng=rng, talk=talk)
    tools = {name: tools_of(environment) for name, environment in environments.items()}
    policy = _warm_up(episodes, tools, seed=seed, steps=effort.warm_start_steps, talk=talk)
    before = _evaluate(policy, spec, output_dir / "before", episodes_per_task=effort.episodes_per_task, talk=talk)
    with talk.phase("grpo", f"GRPO, {steps} steps, environments at once", total=steps) as advance, journal.recording():
        train(spec, args, policy, on_step=advance)
    after = _evaluate(policy, spec, output_dir / "after", episodes_per_task=effort.episodes_per_task, talk=talk)
    return RunResult(
        environments={
            source.name: EnvironmentResult(
                best=BEST_REWARD[source.name],
                num_tasks=source.num_tasks,
                judges_last_message=source.name in JUDGES_LAST_MESSAGE,
                before=before[source.name],
                after=after[source.name],
                first_third=journal.measure(source.name, end_step=1 + steps / 3),
                last_third=journal.measure(source.name, first_step=1 + 2 * steps / 3),
                training=journal.measure(source.name),
                planned_share=source.share,
                realised_share=journal.share(source.name),
            )
            for source in plan.sources
        },
        scripts={name: measure([each.reward for each in episodes if each.environment == name]) for name in num_tasks},
        num_parameters=sum(parameter.numel() for parameter in policy.model.parameters()),
    )


def _factories(spec: MultiOpenRewardSpec) -> Mapping[str, Callable[[], Any]]:
    factories = spec.environment_factory
    if not isinstance(factories, Mapping):
        raise TypeError("the quickstart's mix has one factory per environment.")
    return factories


def _make_score(spec: MultiOpenRewardSpec) -> Score:
    """Scores episodes outside training as the trainer's are: by the columns, which are told what the policy said."""
    columns = spec.reward_funcs
    return lambda environments, completions: columns(environments=environments, completions=completions)


def _play_scripts(
    environments: Mapping[str, Any],
    num_tasks: Mapping[str, int],
    score: Score,
    *,
    num_episodes: int,
    rng: random.Random,
    talk: Talk,
) -> list[Episode]:
    episodes = []
    total = num_episodes * len(environments)
    text = f"Played {total} scripted episodes, right about two times in five"
    with talk.phase("scripts", text, total=total) as advance:
        for name, environment in environments.items():
            for i in range(num_episodes):
                episodes.append(play(name, environment, task_index=i % num_tasks[name], rng=rng, score=score))
                advance()
            environment._close()
    return episodes


def _warm_up(
    episodes: Sequence[Episode], tools: Mapping[str, Sequence[Any]], *, seed: int, steps: int, talk: Talk
) -> Policy:
    tokenizer = build_tokenizer([episode.messages for episode in episodes], list(tools.values()))
    policy = Policy(build_model(tokenizer, seed=seed), tokenizer)
    with talk.phase("warm_start", "Warm start on these transcripts", total=steps) as advance:
        fit(
            policy,
            episodes,
            tools_by_environment=tools,
            steps=steps,
            rng=random.Random(seed),
            on_step=lambda loss: advance(),
        )
    return policy


def _evaluate(
    policy: Policy, spec: MultiOpenRewardSpec, folder: Path, *, episodes_per_task: int, talk: Talk
) -> dict[str, Measurement]:
    """Play every task of every environment, and keep the episodes, and the policy itself, in a folder.

    Both evaluations have the same seed, so that an episode of one has the luck of the same episode of the other.
    """
    total = episodes_per_task * sum(source.num_tasks for source in spec.plan().sources)
    policy.save(folder.with_name(f"policy-{folder.name}"))

    with talk.phase(folder.name, f"Played {total} episodes {folder.name} GRPO", total=total) as advance:
        run = evaluate(
            spec,
            LocalPolicy(
                policy.model,
                tokenizer=policy.tokenizer,
                sampling=Sampling(max_tokens=_MAX_NEW_TOKENS),
                name=folder.name,
            ),
            folder,
            episodes_per_task=episodes_per_task,
            limits=Limits(max_turns=_MAX_TURNS),
            watcher=_Advance(advance),
        )

    results = summarize(run).sources
    return {
        name: Measurement(result.num_episodes, result.num_scored, result.score.value)
        for name, result in results.items()
    }


class _Advance:
    """Moves the bar after each episode."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def begin(self, run: EvaluationRun, left: Sequence[Any]) -> None:
        pass

    def add(self, record: RolloutRecord) -> None:
        self._advance()


class _StepCallback(TrainerCallback):
    """Says after each step that it is done."""

    def __init__(self, on_step: Callable[[], None]) -> None:
        self._on_step = on_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._on_step()
