"""The command `multiors serve`: its options. The server itself is `multiors.serving`, a process of its own.

Python's hashes have to be fixed before it starts, or some generators make other tasks each time; so the command
replaces its process by one that begins with that, and signals reach the server as they are.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from functools import partial
from typing import Any

from multiors.serving import DEFAULT_NUM_TASKS, MAX_NUM_TASKS, MAX_SEED, ServePlan

__all__ = ["add_serve"]

_EXAMPLES = """examples:
  multiors serve quickstart                                       the four environments of the quickstart
  multiors serve my_environments:Sorting my_environments:Heat     your own, from the current folder
  multiors serve reasoning-gym --dataset chain_sum --dataset maze
                                                                  puzzles with levels, made by reasoning-gym
  multiors serve reasoning-gym --dataset gcd --port 0 --json      any free port; where it is, for machines

Then, in another terminal, with the run file that is printed:
  multiors check run.yaml --probe
"""

_OWN = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def add_serve(commands: Any) -> None:
    """Add `serve` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="serve environments: your own, the quickstart's, or reasoning-gym's puzzles",
        description="Serve environments over ORS from this machine until Ctrl-C: your own classes, the quickstart's "
        "four, or generators of reasoning-gym with their levels of difficulty. Needs no account.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "environments",
        nargs="+",
        metavar="ENVIRONMENT",
        help="'quickstart', 'reasoning-gym', or 'module:Class' of your own; several share the server",
    )
    puzzles = parser.add_argument_group("reasoning-gym")
    puzzles.add_argument("--dataset", action="append", metavar="NAME", help="a generator; may be repeated")
    puzzles.add_argument(
        "--num-tasks",
        type=partial(_whole_number, low=1, high=MAX_NUM_TASKS),
        metavar="N",
        help=f"tasks of each split, train and test (default: {DEFAULT_NUM_TASKS})",
    )
    puzzles.add_argument(
        "--seed",
        type=partial(_whole_number, low=0, high=MAX_SEED),
        metavar="N",
        help="decides the tasks (default: 0)",
    )
    puzzles.add_argument(
        "--levels",
        type=partial(_whole_number, low=1, high=None),
        metavar="N",
        help="only so many levels, from the easiest (default: all)",
    )
    puzzles.add_argument(
        "--answer",
        choices=("tool", "message"),
        help="how a task is answered: by a call of the tool 'answer' (default), or by the last message",
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address that is served (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=partial(_whole_number, low=0, high=65535),
        default=8000,
        metavar="N",
        help="(default: 8000; 0: any free one)",
    )
    parser.add_argument("--json", action="store_true", help="say in one line of JSON what is served, once it answers")
    parser.set_defaults(run=partial(_run_serve, parser))


def _run_serve(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    _check_usage(parser, options)
    plan = ServePlan(
        environments=tuple(options.environments),
        datasets=tuple(dict.fromkeys(options.dataset or ())),
        num_tasks=options.num_tasks or DEFAULT_NUM_TASKS,
        seed=options.seed or 0,
        num_levels=options.levels,
        answers=options.answer or "tool",
        host=options.host,
        port=options.port,
        as_json=options.json,
    )
    variables = {
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
        "OPENREWARD_LOG_LEVEL": "WARNING",  # else two lines a session
        **os.environ,
        "PYTHONHASHSEED": "0",
    }
    os.execve(sys.executable, [sys.executable, "-m", "multiors.serving", plan.to_json()], variables)


def _check_usage(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    has_puzzles = "reasoning-gym" in options.environments
    for name in options.environments:
        if name not in ("quickstart", "reasoning-gym") and not _OWN.fullmatch(name):
            parser.error(f"{name!r} is neither 'quickstart' nor 'reasoning-gym' nor 'module:Class'")
    if has_puzzles and not options.dataset:
        parser.error("reasoning-gym has many generators: name one or more, as in --dataset chain_sum")
    settings = {
        "--dataset": options.dataset,
        "--num-tasks": options.num_tasks,
        "--seed": options.seed,
        "--levels": options.levels,
        "--answer": options.answer,
    }
    given = [name for name, value in settings.items() if value is not None]
    if given and not has_puzzles:
        parser.error(f"{', '.join(given)}: only for 'reasoning-gym', which is not among what is served")


def _whole_number(text: str, *, low: int, high: int | None) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < low or (high is not None and int(text) > high):
        bounds = f"from {low} upwards" if high is None else f"from {low} to {high}"
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number {bounds}")
    return int(text)
