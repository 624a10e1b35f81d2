"""The worker of `curriculum_training.py`: does the warm start of a seed, or the run of an arm, as often as it is told.

`python -m benchmarks._curriculum_run FOLDER` starts one server of all environments, and reads jobs from standard input,
one JSON object a line: `{"job": "warm", "seed": 1, "effort": {...}}`, where a job is `warm` or the name of an arm. Each
leaves `FOLDER/JOB-SEED.json` when all of it is done, and is then answered by a line. Ends with its input.

An arm starts from what the warm start of its seed left in `FOLDER/policy-SEED`, so arms of one seed differ in nothing
but what is drawn, and in the luck that follows from it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import trl
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from trl import GRPOConfig

from benchmarks._curriculum_arms import ARMS, LEARNABLE, WARM, Arm, Effort, get_path
from benchmarks._curriculum_environments import ENVIRONMENTS
from multiors import ConcurrentGRPOTrainer, MultiOpenRewardSpec, ORSSource, RolloutRecord, SessionError, SourceReward
from multiors.evaluation import Limits, LocalPolicy, Sampling, evaluate, summarize
from multiors.quickstart.policy import Policy, build_model, build_tokenizer
from multiors.quickstart.servers import run_servers
from multiors.quickstart.train import NUM_GENERATIONS, NUM_ITERATIONS, make_arguments
from multiors.quickstart.warmstart import Call, Script, fit, play, tools_of

__all__ = ["run_job"]

_KNOWS = {"parrot": 0.8, "dictionary": 0.25, "semaphore": 0.15, "casino": 0.0}
"""How often the script of a source knows the answer to a word; otherwise it draws one."""

_MAX_TURNS = 3
_MAX_NEW_TOKENS = 48


def run_job(folder: Path, job: str, *, seed: int, effort: Effort, urls: Mapping[str, str]) -> dict[str, Any]:
    """Do one job, and return what it brought."""
    started = time.monotonic()
    journal = _Journal()
    policy_dir = folder / f"policy-{seed}"
    with _make_mix(urls, ARMS.get(job, ARMS["uniform"]), seed=seed, journal=journal) as spec:
        args = make_arguments(
            spec,
            seed=seed,
            steps=effort.batches * NUM_ITERATIONS,
            output_dir=folder,
            rollouts_per_batch=effort.prompts_per_batch * NUM_GENERATIONS,
            max_completion_length=64,
            max_tool_calling_iterations=1,
        )
        if job == WARM:
            result = _warm_up(spec, policy_dir, seed=seed, effort=effort)
        else:
            result = _train(spec, args, policy_dir, seed=seed, effort=effort, journal=journal)
    return {**result, "wall_s": round(time.monotonic() - started, 1)}


def _make_mix(urls: Mapping[str, str], arm: Arm, *, seed: int, journal: _Journal) -> MultiOpenRewardSpec:
    of_tasks: dict[str, Any] = {} if arm.tasks is None else {"task_curriculum": arm.tasks}
    of_sources: dict[str, Any] = {} if arm.sources is None else {"curriculum": arm.sources}
    reward = SourceReward(range=(0, 1), unscored=0.0)  # giving up is a failure
    sources = {
        name: ORSSource(url, env_name=name, weight=arm.weights.get(name, 1.0), reward=reward, **of_tasks)
        for name, url in urls.items()
    }
    return MultiOpenRewardSpec(sources, seed=seed, on_rollouts=journal.add, **of_sources)


# -- the warm start


def _make_script(name: str) -> Script:
    """A player who writes calls of the right form, and answers each word rightly now and then."""
    environment = ENVIRONMENTS[name]
    tool = {"parrot": "repeat", "dictionary": "translate", "semaphore": "signal", "casino": "bet"}[name]
    answers = sorted(environment.table.values())

    def answer(prompt: str, rng: random.Random) -> Generator[Call, str, str]:
        words = [
            environment.table[word] if rng.random() < _KNOWS[name] else rng.choice(answers) for word in prompt.split()
        ]
        yield tool, {"words": " ".join(words)}
        return "Done."

    return answer


def _warm_up(spec: MultiOpenRewardSpec, policy_dir: Path, *, seed: int, effort: Effort) -> dict[str, Any]:
    """Teach a new policy the form of the calls, measure it, and leave it in a folder."""
    rng = random.Random(seed)
    factories = spec.environment_factory
    assert isinstance(factories, Mapping)
    environments = {name: factory() for name, factory in factories.items()}
    scripts = {name: _make_script(name) for name in ENVIRONMENTS}
    columns = spec.reward_funcs

    def score(played: Sequence[Any], completions: Sequence[Any]) -> Sequence[float | None]:
        return columns(environments=played, completions=completions)

    episodes = [
        play(name, environment, task_index=rng.randrange(len(ENVIRONMENTS[name].tasks)), rng=rng, score=score,
             scripts=scripts)
        for name, environment in environments.items()
        for _ in range(effort.scripted_episodes)
    ]  # fmt: skip
    for environment in environments.values():
        environment._close()
    tools = {name: tools_of(environment) for name, environment in environments.items()}
    tokenizer = build_tokenizer([episode.messages for episode in episodes], list(tools.values()))
    policy = Policy(build_model(tokenizer, seed=seed), tokenizer)
    fit(policy, episodes, tools_by_environment=tools, steps=effort.warm_start_steps, rng=rng)
    policy.model.save_pretrained(policy_dir)
    policy.tokenizer.save_pretrained(policy_dir)
    return {"scores": _measure(policy, spec, seed=seed, effort=effort)}


def _load(policy_dir: Path) -> Policy:
    tokenizer = trl.add_response_schema(PreTrainedTokenizerFast.from_pretrained(policy_dir))
    return Policy(AutoModelForCausalLM.from_pretrained(policy_dir, dtype=torch.float32), tokenizer)


# -- a run


def _train(
    spec: MultiOpenRewardSpec,
    args: GRPOConfig,
    policy_dir: Path,
    *,
    seed: int,
    effort: Effort,
    journal: _Journal,
) -> dict[str, Any]:
    policy = _load(policy_dir)
    keeper = _HalfTime(args.max_steps // 2)
    trainer = ConcurrentGRPOTrainer(
        model=policy.model,
        args=args,
        processing_class=policy.tokenizer,
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=spec.reward_funcs,
        callbacks=[*spec.callbacks, keeper],
    )
    trainer.remove_callback(PrinterCallback)
    started = time.monotonic()
    journal.is_recording = True
    trainer.train()
    journal.is_recording = False
    training_s = time.monotonic() - started
    scores = _measure(policy, spec, seed=seed, effort=effort)
    policy.model.load_state_dict(keeper.weights)
    return {
        "scores": scores,
        "half_time_scores": _measure(policy, spec, seed=seed, effort=effort),
        "training": journal.summarize(args.max_steps),
        "training_s": round(training_s, 1),
    }


def _measure(policy: Policy, spec: MultiOpenRewardSpec, *, seed: int, effort: Effort) -> dict[str, float]:
    """The mean reward of each source that can be learned, over all of its tasks; the same seed for every arm.

    Raises:
        SessionError: An episode was not scored.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = evaluate(
            {name: spec.sources[name] for name in LEARNABLE},
            LocalPolicy(policy.model, tokenizer=policy.tokenizer, sampling=Sampling(max_tokens=_MAX_NEW_TOKENS)),
            folder,
            episodes_per_task=effort.episodes_per_task,
            seed=seed,
            limits=Limits(max_turns=_MAX_TURNS),
        )
        found = summarize(run).sources
    rewards = {name: each.score.value for name, each in found.items() if each.num_scored == each.num_episodes}
    if len(rewards) < len(found):
        raise SessionError(f"{sorted(set(found) - set(rewards))}: episodes of a measurement were not scored.")
    return {name: reward for name, reward in rewards.items() if reward is not None}


class _HalfTime(TrainerCallback):
    """Keeps the weights after a step."""

    def __init__(self, step: int) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            self.weights = copy.deepcopy(model.state_dict())


class _Journal:
    """What was drawn in training, and what it earned."""

    def __init__(self) -> None:
        self.is_recording = False
        self._rollouts: list[tuple[int, str, int, float | None]] = []

    def add(self, records: Sequence[RolloutRecord]) -> None:
        """Take the records of one batch and source."""
        if not self.is_recording:
            return
        for record in records:
            if record.task_index is None:
                raise ValueError(f"source {record.source!r}: a rollout of training has no task.")
            level = int(ENVIRONMENTS[record.source].tasks[record.task_index]["level"])
            self._rollouts.append((record.step, record.source, level, record.reward))

    def summarize(self, steps: int) -> dict[str, dict[str, float | int | None]]:
        """By source: its share of the rollouts, in all and in the last tenth, and the highest level drawn there."""
        last = [rollout for rollout in self._rollouts if rollout[0] > 0.9 * steps] or self._rollouts
        return {
            name: {
                "share": _find_share(self._rollouts, name),
                "last_share": _find_share(last, name),
                "last_level": max((level for _, source, level, _ in last if source == name), default=None),
                "num_unscored": sum(
                    reward is None for _, source, _, reward in self._rollouts if source == name
                ),
            }
            for name in ENVIRONMENTS
        }  # fmt: skip


def _find_share(rollouts: Sequence[tuple[int, str, int, float | None]], name: str) -> float | None:
    return sum(source == name for _, source, _, _ in rollouts) / len(rollouts) if rollouts else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what TRL and transformers say about things that are meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", message=".*experimental feature", category=UserWarning)
        logging.getLogger("trl.trainer.grpo_trainer").setLevel(logging.ERROR)
        yield


def main() -> None:
    """Do jobs until there are no more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    # Others may print to standard output; what is written there is read as answers.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)  # matrices this small are slower on many threads
    torch.set_flush_denormal(True)
    logs = folder / f"worker-{os.getpid()}"
    logs.mkdir(parents=True, exist_ok=True)
    with _quiet(), run_servers([list(ENVIRONMENTS)], logs, catalogue="benchmarks._curriculum_environments") as urls:
        for line in sys.stdin:
            asked = json.loads(line)
            job, seed, effort = asked["job"], asked["seed"], Effort(**asked["effort"])
            result = run_job(folder, job, seed=seed, effort=effort, urls=urls)
            _write(get_path(folder, job, seed), {"effort": asdict(effort), **result})
            os.write(answers, b"done\n")


def _write(path: Path, result: Mapping[str, Any]) -> None:
    """Whole or not at all: what is there counts as finished."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    main()
