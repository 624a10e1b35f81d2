"""The command `multiors train`: its options, and what it says before and after."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiors.commands.options import add_run_file, loading, print_json, read_run_file
from multiors.commands.training_flags import expand_flags
from multiors.rollout_log import find_rank
from multiors.shell import write_command

if TYPE_CHECKING:
    from multiors.config import RunConfig
    from multiors.launch import Trained
    from multiors.mixing import Plan
    from multiors.rewards import RunSummary

__all__ = ["add_train", "expand_training_flags"]

_EXAMPLES = """examples:
  multiors train run.yaml
  multiors train run.yaml --max-steps 500 --learning-rate 2e-6
                                         any field of TRL's GRPOConfig
  multiors train run.yaml --bf16 --no-log-completions --report-to "[trackio, wandb]"
                                         switches, and values in YAML
  multiors train run.yaml --set model=Qwen/Qwen3-4B --set sources.sort.weight=3
                                         anything in the run file
  multiors train run.yaml --resume       go on from the last checkpoint
  multiors train run.yaml --resume auto  the same, or begin: for jobs that are started again
  multiors train output/run.yaml --output-dir again
                                         repeat a run
  torchrun --nproc-per-node 8 -m multiors train run.yaml
  accelerate launch --config_file fsdp2.yaml -m multiors train run.yaml
                                         the same run on many devices

The run file says what is trained, on what, and how:
  model: Qwen/Qwen3-4B
  training: {max_steps: 200, num_generations: 8, per_device_train_batch_size: 8, output_dir: output}
  sources:
    sort: {target: "http://127.0.0.1:8001", env_name: sorting}

Each field of GRPOConfig that may stand under `training:` is an option, with dashes or underscores, and wins over what
stands there: --learning-rate 2e-6 is --set training.learning_rate=2e-6. A switch stands alone (--bf16), has a value
(--bf16 false) or is turned off (--no-bf16). `multiors schema` lists the fields with what TRL says of each, and shell
completion (`multiors completion`) knows them.

`multiors init` writes a run file. Where there is no accelerator, it trains on the CPU.
"""


def add_train(commands: Any) -> argparse.ArgumentParser:
    """Add `train` to the command line; its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="train what a run file describes",
        description="Train the model of a run file on its environments with TRL, in this process or under torchrun or "
        "accelerate. Each field of GRPOConfig is an option too.",
        usage="multiors train [-h] [--set KEY.PATH=VALUE] [--resume [CHECKPOINT]] [--check] [--json]\n"
        "                      [--GRPO-CONFIG-FIELD VALUE ...] run_file",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_run_file(parser)
    parser.add_argument(
        "--resume",
        nargs="?",
        const="last",
        metavar="CHECKPOINT",
        help="go on from a checkpoint; without a value, from the last one in the output folder; 'auto' begins where "
        "there is none",
    )
    parser.add_argument(
        "--check", action="store_true", help="look at servers and settings first, as `multiors check`; stop on errors"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run_train)
    return parser


def expand_training_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """The arguments behind `train`, where fields of `GRPOConfig` are overrides of the run file."""

    def list_fields() -> Any:
        from multiors.config import list_fields

        return list_fields()

    def describe_unknown(name: str) -> str:
        from multiors.config import describe_unknown_field

        return describe_unknown_field(name)

    own = [option for action in parser._actions for option in action.option_strings]

    try:
        return expand_flags(arguments, own, list_fields, describe_unknown)
    except ValueError as error:
        parser.error(str(error))


def _run_train(options: argparse.Namespace) -> int:
    _quiet()

    # Trainers, trackers and progress bars print; the result is what is left.
    with redirect_stdout(sys.stderr):
        config = read_run_file(options)

        with loading("PyTorch and TRL"):
            import_module("trl.trainer.grpo_trainer")  # what takes the time, and all that follows needs it

            from multiors.launch import train_run

        if options.check and not _is_sound(config):
            return 1

        resume = Path(options.resume) if options.resume not in (None, "last", "auto") else options.resume

        try:
            trained = train_run(config, resume=resume, on_begin=_show_plan, on_interrupt=_show_rollouts)
        except KeyboardInterrupt:
            _say_how_to_go_on(config)
            raise

    if trained.is_first:
        _print_result(config, trained, as_json=options.json)

    return 0


def _quiet() -> None:
    """Leave out what TRL and transformers say in every step of things that are as they should be."""
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*trl.experimental", category=UserWarning)
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_is_worth_saying)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    # It shows what policies wrote as they wrote it, and the table at the end has what is unscored, and why.
    return "All reward functions returned None" not in str(record.msg)


def _is_sound(config: RunConfig) -> bool:
    """Whether a check finds no error. Only the first process looks; if it stops, its launcher stops the others."""
    from multiors.checks import check
    from multiors.config import build_spec

    if find_rank() > 0:
        return True

    with build_spec(config) as spec:
        report = check(spec, training=config.training or None)

    print(report, file=sys.stderr)
    return report.ok


def _show_plan(plan: Plan) -> None:
    print(f"{plan}\n", file=sys.stderr)


def _show_rollouts(summary: RunSummary) -> None:
    from multiors.training.processes import is_distributed

    if any(source.num_rollouts for source in summary.sources.values()):
        whose = "of the first process " if is_distributed() else ""
        print(f"\n\nrollouts {whose}until here:\n{summary}", file=sys.stderr)  # a progress bar may stand there


def _say_how_to_go_on(config: RunConfig) -> None:
    from multiors.launch import RUN_FILE, find_checkpoint, find_output
    from multiors.training.processes import is_distributed

    if find_rank() > 0:
        return

    output = find_output(config)
    checkpoint = find_checkpoint(output)
    print(file=sys.stderr)  # a progress bar may stand there

    if checkpoint is None:
        print("nothing was saved before the first checkpoint; the same command begins anew", file=sys.stderr)
    else:
        command = write_command("train", output / RUN_FILE, "--resume")
        how = " (in as many processes as before)" if is_distributed() else ""
        print(f"{checkpoint} is kept; to go on from it{how}: {command}", file=sys.stderr)


def _print_result(config: RunConfig, trained: Trained, *, as_json: bool) -> None:
    from multiors.launch import RUN_FILE

    run_file = trained.output / RUN_FILE

    if as_json:
        print_json(
            {
                "model": str(trained.output),
                "checkpoint": None if trained.checkpoint is None else str(trained.checkpoint),
                "run_file": str(run_file),
                "evaluations": None if trained.evaluations is None else str(trained.evaluations),
                "steps": trained.num_steps,
                "sources": trained.summary.to_json(),
            }
        )
        return

    if trained.resumed_from is not None:
        print(f"rollouts since {trained.resumed_from.name}:")
    print(f"{trained.summary}\n")
    print(f"trained     {trained.num_steps:,} steps; the model is in {trained.output}")
    if trained.checkpoint is not None:
        print(f"checkpoint  {trained.checkpoint}")
    if trained.evaluations is not None:
        print(f"evaluated   {trained.evaluations}")
    print(f"run file    {run_file}\n")
    print("Is it better than before, and where?")
    for command in _next_commands(config, trained, run_file):
        print(f"  {write_command(*command)}")


def _next_commands(config: RunConfig, trained: Trained, run_file: Path) -> list[list[object]]:
    """What to type next."""
    model = "" if config.model is None else config.model.name
    before, after = trained.output / "before", trained.output / "after"

    if after.exists():  # of the policy as it was then
        after = trained.output / f"after-{trained.num_steps}"

    evaluate = ["evaluate", run_file, "--policy"]
    return [
        [*evaluate, model, "--output", before],
        [*evaluate, trained.output, "--output", after],
        ["compare", before, after],
    ]
