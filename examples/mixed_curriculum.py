"""A schedule of shares, a gate between sources and a ladder inside one of them, in one run.

The run begins with sorting waste. The teahouse opens when that goes well, and sums get longer as they are solved. What
the curricula did is drawn in mixed-curriculum/curriculum.png.

    multiors serve quickstart reasoning-gym --dataset chain_sum
    python examples/mixed_curriculum.py --model Qwen/Qwen3-4B
"""

import argparse

from trl import GRPOConfig, TrlParser

from multiors import ConcurrentGRPOTrainer, MultiOpenRewardSpec, ORSSource, SourceReward
from multiors.mixing.curricula import Gates, Ladder, ShareSchedule

# Weights at the beginning and from the middle of the run on, with a straight change over a fifth of it.
SHARES = ShareSchedule.stages(
    [
        (0.0, {"recycling": 2, "teahouse": 1, "chain_sum": 1}),
        (0.5, {"recycling": 1, "teahouse": 2, "chain_sum": 2}),
    ],
    warm_up=0.2,
    unit="fraction",
)

# The teahouse waits until three quarters of the waste is sorted; what is mastered gets a quarter of its share.
GATES = Gates(after={"teahouse": {"recycling": 0.75}}, graduate_at={"recycling": 0.95}, patience_batches=100)

# The next level opens when the present one is mostly solved.
LADDER = Ladder(field="level", window=2, up=0.7)


def parse_flags():
    """Every flag, and those fields of `GRPOConfig` among them that are not as TRL leaves them."""
    parser = TrlParser(GRPOConfig, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    untouched = vars(parser.parse_args([]))
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    parser.set_defaults(num_generations=8, per_device_train_batch_size=8, gradient_accumulation_steps=4, max_steps=200)
    parser.set_defaults(output_dir="mixed-curriculum", logging_steps=1, report_to="none")
    flags = vars(parser.parse_args())
    return flags, {name: value for name, value in flags.items() if value != untouched.get(name, value)}


def main() -> None:
    flags, fields = parse_flags()
    judged = SourceReward(range=(0.0, 1.0), unscored=0.0)  # thresholds are parts of a declared range
    sources = {
        "recycling": ORSSource(flags["url"], env_name="recycling", reward=judged),
        "teahouse": ORSSource(flags["url"], env_name="teahouse", reward=judged),
        "chain_sum": ORSSource(flags["url"], env_name="chain_sum", reward=judged, task_curriculum=LADDER),
    }

    with MultiOpenRewardSpec(sources, curriculum=[SHARES, GATES]) as spec:
        trainer = ConcurrentGRPOTrainer(
            model=flags["model"],
            args=GRPOConfig(**spec.training_arguments(**fields)),
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
            callbacks=spec.callbacks,
        )
        trainer.train()
        print(spec.summary())


if __name__ == "__main__":
    main()
