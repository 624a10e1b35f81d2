"""One environment class with the tools of all sources: which tool to call is part of the task.

Both generators of puzzles have a tool `answer`, so each gets its source's name in front. A call to a tool of another
source than the task's is refused, and reaches no server.

    multiors serve quickstart reasoning-gym --dataset chain_sum --dataset gcd
    python examples/union_tools.py --model Qwen/Qwen3-4B
"""

import argparse

from trl import GRPOConfig, TrlParser

from multiors import ConcurrentGRPOTrainer, MultiOpenRewardSpec, ORSSource


def parse_flags():
    """Every flag, and those fields of `GRPOConfig` among them that are not as TRL leaves them."""
    parser = TrlParser(GRPOConfig, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    untouched = vars(parser.parse_args([]))
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    parser.set_defaults(num_generations=8, per_device_train_batch_size=8, gradient_accumulation_steps=4, max_steps=200)
    parser.set_defaults(output_dir="union-tools", logging_steps=1, report_to="none")
    flags = vars(parser.parse_args())
    return flags, {name: value for name, value in flags.items() if value != untouched.get(name, value)}


def main() -> None:
    flags, fields = parse_flags()
    sources = {name: ORSSource(flags["url"], env_name=name) for name in ("recycling", "chain_sum", "gcd")}

    with MultiOpenRewardSpec(sources, tools="union") as spec:
        trainer = ConcurrentGRPOTrainer(
            model=flags["model"],
            args=GRPOConfig(**spec.training_arguments(**fields)),
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
            callbacks=spec.callbacks,
        )
        tools = [name for name in vars(type(spec.environment_factory())) if name[0] != "_" and name != "reset"]
        print(f"every prompt shows {sorted(tools)}")
        trainer.train()
        print(spec.summary())


if __name__ == "__main__":
    main()
