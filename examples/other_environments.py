"""An environment class of your own beside an ORS environment.

The class is written as for TRL's `environment_factory`, as those of OpenEnv are: `reset` gets the row's columns, public
methods are tools, and a reward function reads what is left on the object. An object that has TRL's three slots already,
such as `HarborSpec`, is `TRLSource(spec)`.

    multiors serve quickstart
    python examples/other_environments.py --model Qwen/Qwen3-4B
"""

import argparse

from datasets import Dataset
from trl import GRPOConfig, TrlParser

from multiors import ConcurrentGRPOTrainer, MultiOpenRewardSpec, ORSSource, TRLSource

PROMPT = [{"role": "user", "content": "I think of a number from 1 to 16. Guess it in at most five tries."}]


class HigherLower:
    """Guess a number."""

    def reset(self, number, **_):
        self.number, self.tries, self.reward = number, 0, None

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: Your guess, from 1 to 16.

        Returns:
            Whether the number is higher, lower, or found.
        """
        if self.reward == 1.0 or self.tries == 5:
            raise ValueError("The game is over.")
        self.tries += 1
        self.reward = float(number == self.number)
        return "Found." if self.reward else "Higher." if number < self.number else "Lower."


def won(environments, **_):
    """1 or 0; None, which is not 0, where nothing was guessed."""
    return [environment.reward for environment in environments]


GAME = TRLSource(
    train_dataset=Dataset.from_dict({"prompt": [PROMPT] * 16, "number": list(range(1, 17))}),
    environment_factory=HigherLower,
    reward_funcs=won,
    weight=2.0,
)


def parse_flags():
    """Every flag, and those fields of `GRPOConfig` among them that are not as TRL leaves them."""
    parser = TrlParser(GRPOConfig, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    untouched = vars(parser.parse_args([]))
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    parser.set_defaults(num_generations=8, per_device_train_batch_size=8, gradient_accumulation_steps=4, max_steps=200)
    parser.set_defaults(output_dir="other-environments", logging_steps=1, report_to="none")
    flags = vars(parser.parse_args())
    return flags, {name: value for name, value in flags.items() if value != untouched.get(name, value)}


def main() -> None:
    flags, fields = parse_flags()
    sources = {"recycling": ORSSource(flags["url"], env_name="recycling", weight=1.0), "game": GAME}

    with MultiOpenRewardSpec(sources) as spec:
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
