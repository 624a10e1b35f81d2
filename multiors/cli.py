"""The command line: `multiors preview` and `multiors quickstart`.

Results go to stdout, talk to stderr. Exit codes: 0 done, 1 the mix or a run failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from multiors.errors import MultiORSError

__all__ = ["main"]

_EXAMPLES = """examples:
  multiors quickstart                    train a tiny policy on three environments, in a few minutes on a laptop
  multiors preview run.yaml              ask the servers, and print what the schedule would hold
  multiors preview run.yaml --tools      also print each environment's tools as the policy sees them
  multiors preview run.yaml --json       the same for machines

a run file:
  num_slots: 1000
  sources:
    sort: {target: "http://127.0.0.1:8001", env_name: sorting, weight: 2.0}
    heat: {target: "http://127.0.0.1:8001", env_name: thermostat, weight: 1.0}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    parser = _build_parser()
    options = parser.parse_args(argv)

    if options.command is None:
        parser.print_help(sys.stderr)
        return 2

    warnings.showwarning = _show_warning

    try:
        exit_code: int = options.run(options)
        return exit_code
    except MultiORSError as error:
        print(f"multiors {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _build_parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="multiors",
        description="GRPO training on many ORS environments at once.",
        epilog=_EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("--version", action="version", version=f"multiors {version('multiors')}")
    commands = parser.add_subparsers(dest="command", metavar="command")

    preview = commands.add_parser(
        "preview",
        help="print what a run file's schedule would hold",
        description="Ask the servers of a run file for their tasks and tools, and print what the schedule would hold: "
        "per source its tasks, share, slots, and how often its tasks are repeated. Nothing is trained.",
    )
    preview.add_argument("run_file", type=Path, help="the YAML run file")
    preview.add_argument("--tools", action="store_true", help="also print each environment's tools")
    preview.add_argument("--json", action="store_true", help="print JSON")
    preview.set_defaults(run=_run_preview)

    from multiors.quickstart.options import add_arguments

    quickstart = commands.add_parser(
        "quickstart",
        help="train a tiny policy on three small environments",
        description="Start two servers with three small environments, train a tiny policy on all three at once with "
        "TRL's GRPOTrainer, and show what it learned. Needs no GPU, account or internet.",
    )
    add_arguments(quickstart)
    quickstart.set_defaults(run=_run_quickstart)

    return parser


def _run_preview(options: argparse.Namespace) -> int:
    from rich.console import Console

    from multiors.config import build_spec, load_run_file

    config = load_run_file(options.run_file)

    with Console(stderr=True).status("asking the servers for their tasks and tools"), build_spec(config) as spec:
        plan = spec.plan()
        tools_by_source = spec.describe_tools() if options.tools else {}

    if options.json:
        print(json.dumps({"plan": plan.to_json(), **({"tools": tools_by_source} if options.tools else {})}, indent=2))
        return 0

    print(plan)

    for name, table in tools_by_source.items():
        print(f"\n{name}\n{table}")

    return 0


def _run_quickstart(options: argparse.Namespace) -> int:
    from multiors.quickstart.run import run_quickstart

    return run_quickstart(options)


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Warnings of this library as one line; others' as Python shows them."""
    print(f"warning: {message}" if category is UserWarning else f"{category.__name__}: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
