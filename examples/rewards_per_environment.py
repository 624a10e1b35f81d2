"""What a rollout is worth, for each environment: scale, reduction, giving up, weight, and functions of your own.

Serve the environments, and train on them:

    multiors serve quickstart
    python examples/rewards_per_environment.py --model Qwen/Qwen3-4B

Every rollout, with its parts, is written to rewards-per-environment/rollouts.
"""

import argparse
from pathlib import Path

from trl import GRPOConfig, TrlParser

from multiors import ConcurrentGRPOTrainer, MultiOpenRewardSpec, ORSSource, RewardPart, SourceReward


def is_brief(environments, **_):
    """1 for one or two tool calls."""
    return [float(1 <= len(environment.rewards) <= 2) for environment in environments]


async def names_both_words(completions, tasks, **_):
    """1 for an answer that takes up each word of the label. It may as well ask a judge, and wait."""
    return [
        float(all(word in completion[-1]["content"] for word in task["label"].split()))
        for completion, task in zip(completions, tasks, strict=True)
    ]


REWARDS = {
    # 0 or 1 for the one call. A policy that calls nothing has failed; without `unscored` it would have no score.
    "recycling": SourceReward(range=(0, 1), unscored=0.0),
    # Step rewards up to 1: the best of them counts, and a little for being brief.
    "teahouse": SourceReward(range=(0, 1), reduction="max", unscored=0.0, parts=[RewardPart(is_brief, weight=0.2)]),
    # 0 to 10 becomes 0 to 1. Under clouds no one can judge: such a rollout ends without a score, and is left out.
    "observatory": SourceReward(range=(0, 10), scale=0.1, unfinished=0.0),
    # Its advantages count twice as much as those of the others.
    "museum": SourceReward(range=(0, 1), weight=2.0, parts=[RewardPart(names_both_words, weight=0.5)]),
}


def parse_flags():
    """Every flag, and those fields of `GRPOConfig` among them that are not as TRL leaves them."""
    parser = TrlParser(GRPOConfig, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    untouched = vars(parser.parse_args([]))
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    parser.set_defaults(num_generations=8, per_device_train_batch_size=8, gradient_accumulation_steps=4, max_steps=200)
    parser.set_defaults(output_dir="rewards-per-environment", logging_steps=1, report_to="none")
    flags = vars(parser.parse_args())
    return flags, {name: value for name, value in flags.items() if value != untouched.get(name, value)}


def main() -> None:
    flags, fields = parse_flags()
    sources = {name: ORSSource(flags["url"], env_name=name, reward=reward) for name, reward in REWARDS.items()}

    with MultiOpenRewardSpec(sources, rollout_log=Path(flags["output_dir"]) / "rollouts") as spec:
        args = GRPOConfig(**spec.training_arguments(**fields))
        print(f"reward weights {args.reward_weights}, {args.multi_objective_aggregation}")
        trainer = ConcurrentGRPOTrainer(
            model=flags["model"],
            args=args,
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
            callbacks=spec.callbacks,
        )
        trainer.train()
        print(spec.summary())


if __name__ == "__main__":
    main()
