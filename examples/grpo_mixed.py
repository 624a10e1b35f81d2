r"""GRPO on a mix of ORS environments: TRL's `examples/scripts/openreward/seta.py`, with several targets and weights.

Its flags mean the same here, and every other field of `GRPOConfig` is a flag too. A target is `NAME=TARGET`, where
TARGET is a name of the openreward.ai catalog (needs `OPENREWARD_API_KEY`) or the URL of a server. A URL that ends with
`#` and a name means that environment of the server.

Colocated vLLM, one node:

    accelerate launch --config_file examples/accelerate/deepspeed_zero2.yaml --num_processes 4 examples/grpo_mixed.py \
        --target seta=Eigent/SETA sort=http://127.0.0.1:8001 --weights 2 1 --vllm-mode colocate

vLLM on two of four GPUs, training on the other two:

    CUDA_VISIBLE_DEVICES=2,3 trl vllm-serve --model Qwen/Qwen3-4B --tensor-parallel-size 2 --port 8000
    CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file examples/accelerate/deepspeed_zero2.yaml \
        --num_processes 2 examples/grpo_mixed.py --target seta=Eigent/SETA sort=http://127.0.0.1:8001 --weights 2 1 \
        --vllm-mode server --vllm-server-base-url http://localhost:8000

A laptop without GPU, account and download (see README.md):

    python examples/grpo_mixed.py --target bins=http://127.0.0.1:8000#recycling tea=http://127.0.0.1:8000#teahouse \
        --weights 1 3 --model qs/policy-before --use-vllm False --use-cpu --bf16 False --max-completion-length 96
"""

import argparse

from trl import GRPOConfig, TrlParser

from multiors import ConcurrentGRPOTrainer, MultiOpenRewardSpec, ORSSource


def read_target(text):
    name, found, address = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TARGET")
    address, _, environment = address.partition("#")
    return name, address, environment or None


def parse_flags():
    """Every flag, and those fields of `GRPOConfig` among them that are not as TRL leaves them."""
    parser = TrlParser(GRPOConfig, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    untouched = vars(parser.parse_args([]))
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--target", nargs="+", type=read_target, required=True, metavar="NAME=TARGET")
    parser.add_argument("--weights", nargs="+", type=float, metavar="WEIGHT", help="one for each target; else equal")
    parser.add_argument("--split", default="train")
    parser.add_argument("--num-tasks", type=int, default=64, help="of each target, at most")
    parser.set_defaults(
        learning_rate=5e-7,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=4,
        max_completion_length=2048,
        max_steps=100,
        max_tool_calling_iterations=20,
        chat_template_kwargs={"enable_thinking": False},
        log_completions=True,
        logging_steps=1,
        use_vllm=True,
        vllm_gpu_memory_utilization=0.3,
        report_to="none",
    )
    flags = vars(parser.parse_args())
    num_names = len({name for name, _, _ in flags["target"]})
    if num_names != len(flags["target"]) or len(flags["weights"] or flags["target"]) != num_names:
        parser.error("--target needs different names, and --weights one weight for each of them")
    return flags, {name: value for name, value in flags.items() if value != untouched.get(name, value)}


def main() -> None:
    flags, fields = parse_flags()
    sources = {
        name: ORSSource(address, env_name=environment, split=flags["split"], num_tasks=flags["num_tasks"])
        for name, address, environment in flags["target"]
    }
    weights = dict(zip(sources, flags["weights"], strict=True)) if flags["weights"] else None

    with MultiOpenRewardSpec(sources, weights=weights) as spec:
        trainer = ConcurrentGRPOTrainer(
            model=flags["model"],
            args=GRPOConfig(**spec.training_arguments(**fields)),
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
            callbacks=spec.callbacks,
        )
        if trainer.accelerator.is_main_process:
            print(spec.plan())
        trainer.train()


if __name__ == "__main__":
    main()
