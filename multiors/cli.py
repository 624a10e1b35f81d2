"""The command line: its commands, what they print where, and their exit codes.

Results go to stdout, talk to stderr. Exit codes: 0 done, 1 the mix, a check or a run failed, 2 wrong usage, 130
interrupted, 141 nobody reads the result, 143 politely killed. `docs/command-line.md` lists them.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import TextIO

from multiors.commands.completing import add_completion
from multiors.commands.evaluating import add_compare, add_evaluate
from multiors.commands.looking import add_check, add_preview
from multiors.commands.reporting import add_report
from multiors.commands.serving import add_serve
from multiors.commands.starting import add_init, add_schema
from multiors.commands.training import add_train, expand_training_flags
from multiors.errors import MultiORSError
from multiors.quickstart.options import add_arguments
from multiors.signals import find_exit_code, signals_as_interrupts

__all__ = ["main"]

_EXAMPLES = """examples:
  multiors quickstart                    train a tiny policy on four environments, in a few minutes on a laptop
  multiors init run.yaml                 write a run file to begin with
  multiors check run.yaml --probe        look at every server, and play one episode on each, before training
  multiors preview run.yaml              ask the servers, and print what the schedule would hold
  multiors preview run.yaml --simulate   also simulate what the curricula would draw
  multiors train run.yaml                train
  multiors train run.yaml --max-steps 50 --set sources.sort.weight=3
                                         with other settings than those of the run file
  multiors evaluate run.yaml --policy output/checkpoint-100 --output after
                                         play a policy on every environment, outside training
  multiors compare before after          is it better, and where?
  multiors report output                 shares and rewards of a run, from its checkpoints or rollout log
  multiors serve reasoning-gym --dataset chain_sum
                                         serve environments from this machine

a run file:
  model: Qwen/Qwen3-4B
  training: {max_steps: 200, num_generations: 8, per_device_train_batch_size: 8}
  sources:
    sort: {target: "http://127.0.0.1:8001", env_name: sorting, weight: 2.0}
    heat: {target: "http://127.0.0.1:8001", env_name: thermostat, weight: 1.0}
"""


_QUICKSTART_EXAMPLES = """examples:
  multiors quickstart                          results go to a new folder, multiors-quickstart-<date>-<time>
  multiors quickstart --output-dir qs          to this one
  multiors quickstart --seed 3 --steps 40      another draw, and less training
  multiors compare qs/before qs/after          what it learned, with intervals
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # here, where it can still be said that nobody reads it
    except BrokenPipeError:
        if _is_read(sys.stdout):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed at the exit
        return 128 + signal.SIGPIPE


def _is_read(stream: TextIO) -> bool:
    """Whether somebody is still at the other end, as after `| head` there is not."""
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _run(argv: Sequence[str] | None) -> int:
    parser, train = _build_parser()
    arguments = list(sys.argv[1:] if argv is None else argv)

    if arguments[:1] == ["train"]:
        arguments[1:] = expand_training_flags(train, arguments[1:])

    options = parser.parse_args(arguments)

    if options.command is None:
        parser.print_help(sys.stderr)
        return 2

    warnings.showwarning = _show_warning

    try:
        with signals_as_interrupts():
            exit_code: int = options.run(options)
        return exit_code
    except MultiORSError as error:
        rank = os.environ.get("RANK", "0")
        process = "" if rank == "0" else f" (process {rank})"
        print(f"multiors {options.command}{process}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        return find_exit_code(interrupt)


def _build_parser() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser, and that of `train`."""
    parser = argparse.ArgumentParser(
        prog="multiors",
        description="GRPO training on many ORS environments at once.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"multiors {version('multiors')}")
    commands = parser.add_subparsers(dest="command", metavar="command")

    add_init(commands)
    add_check(commands)
    add_preview(commands)
    train = add_train(commands)
    add_evaluate(commands)
    add_compare(commands)
    add_report(commands)
    add_serve(commands)
    add_schema(commands)
    quickstart = commands.add_parser(
        "quickstart",
        help="train a tiny policy on four small environments",
        description="Start two servers with four small environments, train a tiny policy on all four at once with "
        "TRL's GRPOTrainer, and show what it learned. Needs no GPU, account or internet.",
        epilog=_QUICKSTART_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(quickstart)
    quickstart.set_defaults(run=_run_quickstart)
    add_completion(commands, parser)

    return parser, train


def _run_quickstart(options: argparse.Namespace) -> int:
    from multiors.quickstart.run import run_quickstart

    return run_quickstart(options)


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Warnings of this library as one line; others' as Python shows them."""
    print(f"warning: {message}" if category is UserWarning else f"{category.__name__}: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
