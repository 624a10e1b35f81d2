"""A curriculum of your own: more of whatever was solved least in its last batch.

Serve the environments, and train on them:

    multiors serve quickstart
    python examples/custom_curriculum.py --model Qwen/Qwen3-4B
"""

import argparse

from trl import GRPOConfig, TrlParser

from multiors import ConcurrentGRPOTrainer, MultiOpenRewardSpec, ORSSource
from multiors.mixing.curricula import Curriculum, fit_box


class LeastSolved(Curriculum):
    """The first batches are drawn evenly; what was never scored counts as solved least."""

    def begin(self, sources):
        return {source.name: None for source in sources}

    def update(self, states, seen):
        return {**states, **{name: found.mean_reward for name, found in seen.items() if found.num_scored}}

    def shares(self, states, reference, *, batch, num_batches):
        least = {name: -mean for name, mean in states.items() if mean is not None}
        lowest, highest = min(least.values(), default=0.0), max(least.values(), default=0.0)
        preferences = {name: share * (1.0 + least.get(name, highest) - lowest) for name, share in reference.items()}
        return fit_box(preferences, reference, lowest=0.5, highest=2.0)


def parse_flags():
    """Every flag, and those fields of `GRPOConfig` among them that are not as TRL leaves them."""
    parser = TrlParser(GRPOConfig, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    untouched = vars(parser.parse_args([]))
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    parser.set_defaults(num_generations=8, per_device_train_batch_size=8, gradient_accumulation_steps=4, max_steps=200)
    parser.set_defaults(output_dir="least-solved", logging_steps=1, report_to="none")
    flags = vars(parser.parse_args())
    return flags, {name: value for name, value in flags.items() if value != untouched.get(name, value)}


def main() -> None:
    flags, fields = parse_flags()
    sources = {name: ORSSource(flags["url"], env_name=name) for name in ("recycling", "teahouse")}

    with MultiOpenRewardSpec(sources, curriculum=LeastSolved()) as spec:
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
