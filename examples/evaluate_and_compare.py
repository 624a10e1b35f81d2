"""Train on a mix; is the policy better than before, and where?

Both evaluations play the same tasks with the same luck, so they are compared task by task. Every episode can be read in
evaluate-and-compare/comparison.html.

    multiors serve quickstart
    python examples/evaluate_and_compare.py --model Qwen/Qwen3-4B
"""

import argparse
from pathlib import Path

from trl import GRPOConfig, TrlParser

from multiors import ConcurrentGRPOTrainer, MultiOpenRewardSpec, ORSSource, SourceReward
from multiors.evaluation import Limits, LocalPolicy, Sampling, compare, evaluate
from multiors.evaluation.comparison import to_html, to_text, write_page

HIGHEST = {"recycling": 1, "teahouse": 1, "observatory": 10, "museum": 1}


def parse_flags():
    """Every flag, and those fields of `GRPOConfig` among them that are not as TRL leaves them."""
    parser = TrlParser(GRPOConfig, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    untouched = vars(parser.parse_args([]))
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    parser.add_argument("--episodes-per-task", type=int, default=4)
    parser.set_defaults(num_generations=8, per_device_train_batch_size=8, gradient_accumulation_steps=4, max_steps=200)
    parser.set_defaults(output_dir="evaluate-and-compare", logging_steps=1, report_to="none")
    flags = vars(parser.parse_args())
    return flags, {name: value for name, value in flags.items() if value != untouched.get(name, value)}


def main() -> None:
    flags, fields = parse_flags()
    folder = Path(flags["output_dir"])
    sources = {
        name: ORSSource(flags["url"], env_name=name, reward=SourceReward(range=(0, highest), unscored=0.0))
        for name, highest in HIGHEST.items()
    }

    with MultiOpenRewardSpec(sources) as spec:
        args = GRPOConfig(**spec.training_arguments(**fields))

        def play(model, name):
            policy = LocalPolicy(model, sampling=Sampling(max_tokens=args.max_completion_length), name=name)
            limits = Limits(max_turns=8, max_completion_tokens=args.max_completion_length)
            return evaluate(spec, policy, folder / name, episodes_per_task=flags["episodes_per_task"], limits=limits)

        before = play(flags["model"], "before")
        trainer = ConcurrentGRPOTrainer(
            model=flags["model"],
            args=args,
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
            callbacks=spec.callbacks,
        )
        trainer.train()
        trainer.save_model(folder / "model")
        after = play(folder / "model", "after")

    comparison = compare(before, after)
    print(to_text(comparison))
    write_page(to_html(comparison, [before], [after]), folder / "comparison.html")


if __name__ == "__main__":
    main()
