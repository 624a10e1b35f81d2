"""A curriculum of your own: more of whatever was solved least in its last batch.

python custom_curriculum.py --model Qwen/Qwen3-4B --source sort=http://127.0.0.1:8001 --source echo=http://127.0.0.1:8002
"""

import argparse

from trl import GRPOConfig, GRPOTrainer

from multiors import MultiOpenRewardSpec, ORSSource
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--source", required=True, action="append", metavar="NAME=URL")
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    urls = dict(each.split("=", 1) for each in options.source)
    with MultiOpenRewardSpec({name: ORSSource(url) for name, url in urls.items()}, curriculum=LeastSolved()) as spec:
        fields = {"max_steps": options.max_steps, "per_device_train_batch_size": options.batch, "num_generations": 4}
        fields |= {"output_dir": "least-solved", "report_to": "none", "logging_steps": 1}
        fields |= {"use_cpu": True, "bf16": False} if options.cpu else {}
        trainer = GRPOTrainer(
            model=options.model,
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
