"""The command line: `multiors preview`, `check`, `evaluate`, `compare`, `report` and `quickstart`.

Results go to stdout, talk to stderr. Exit codes: 0 done, 1 the mix, a check or a run failed, 2 wrong usage, 130
interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from multiors.errors import ConfigError, MultiORSError
from multiors.evaluation_commands import add_compare, add_evaluate
from multiors.serve_command import add_serve

__all__ = ["main"]

_SIMULATION_EXAMPLES = """examples:
  multiors preview run.yaml --training training.yaml
  multiors preview run.yaml --training training.yaml --simulate
  multiors preview run.yaml --training training.yaml --assume sort=0.1:0.8:100 --assume heat=impossible
  multiors preview run.yaml --training training.yaml --picture simulation.png

a training file holds the GRPOConfig fields of the run, for the batches of one process:
  max_steps: 200
  per_device_train_batch_size: 8
  num_generations: 4

A simulation is no forecast. It plays the run with the planner that training has, and makes up the rewards: the mean
reward of a source with START, END and HALF_SLOTS begins at START, and goes half of the way to END each time that the
source has drawn HALF_SLOTS more slots, as fractions of its range. A ladder's level l begins l * HALF_SLOTS slots later.
"""

_REPORT_EXAMPLES = """examples:
  multiors report output                         the last checkpoint of a trainer's output_dir
  multiors report output/checkpoint-100          one of them, or its trainer_state.json
  multiors report rollouts                       a rollout log; it knows no planned shares
  multiors report output --picture run.png       also draw shares, rewards and levels over the run
  multiors report rollouts --html run.html       also write a page with curves, failures and transcripts
  multiors report output --rollouts rollouts --html run.html
                                                 a page that has planned shares too
  multiors report evaluation --html page.html    the scores of an evaluation, and its episodes
"""

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}

_EXAMPLES = """examples:
  multiors quickstart                    train a tiny policy on four environments, in a few minutes on a laptop
  multiors preview run.yaml              ask the servers, and print what the schedule would hold
  multiors preview run.yaml --tools      also print each environment's tools as the policy sees them
  multiors preview run.yaml --json       the same for machines
  multiors preview run.yaml --training training.yaml --simulate
                                         also simulate what the curricula would draw
  multiors check run.yaml --probe        look at every server, and play one episode on each, before training
  multiors evaluate run.yaml --policy output/checkpoint-100 --output after
                                         play a policy on every environment, outside training
  multiors compare before after          is it better, and where?
  multiors report output                 shares and rewards of a run, from its checkpoints or rollout log
  multiors serve reasoning-gym --dataset chain_sum
                                         serve environments from this machine

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

    _add_preview(commands)
    _add_check(commands)
    add_evaluate(commands)
    add_compare(commands)
    _add_report(commands)
    add_serve(commands)

    from multiors.quickstart.options import add_arguments

    quickstart = commands.add_parser(
        "quickstart",
        help="train a tiny policy on four small environments",
        description="Start two servers with four small environments, train a tiny policy on all four at once with "
        "TRL's GRPOTrainer, and show what it learned. Needs no GPU, account or internet.",
    )
    add_arguments(quickstart)
    quickstart.set_defaults(run=_run_quickstart)

    return parser


def _add_preview(commands: Any) -> None:
    preview = commands.add_parser(
        "preview",
        help="print what a run file's schedule would hold",
        description="Ask the servers of a run file for their tasks and tools, and print what the schedule would hold: "
        "per source its tasks, share, slots, and how often its tasks are repeated. Nothing is trained.",
        epilog=_SIMULATION_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    preview.add_argument("run_file", type=Path, help="the YAML run file")
    preview.add_argument(
        "--training",
        type=Path,
        metavar="FILE",
        help="a YAML file of the GRPOConfig fields that the run will have, to lay it out for their batches; schedules "
        "of shares and simulations need it",
    )
    preview.add_argument("--tools", action="store_true", help="also print each environment's tools")
    preview.add_argument(
        "--simulate",
        action="store_true",
        help="also simulate what the curricula would draw, if sources were learned as assumed",
    )
    preview.add_argument(
        "--assume",
        type=_assumption,
        action="append",
        default=[],
        metavar="SOURCE=START:END:HALF_SLOTS",
        help="how a source is learned in the simulation, or SOURCE=impossible, =noise or =solved; may be repeated "
        "(sources that are not named: 0.2:0.9:64); implies --simulate",
    )
    preview.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw the simulation as .png or .svg; implies --simulate"
    )
    preview.add_argument("--json", action="store_true", help="print JSON")
    preview.set_defaults(run=_run_preview)


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="show the shares and rewards of a run, or the scores of an evaluation",
        description="Read what a run left, and print each source's share of the rollouts and mean reward in the first, "
        "middle and last third of the run. Of an evaluation, print each source's mean, interval and scored fraction.",
        epilog=_REPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument(
        "path", type=Path, help="a checkpoint, a folder of checkpoints, a rollout log, or the folder of an evaluation"
    )
    report.add_argument("--picture", type=Path, metavar="FILE", help="also draw it as .png or .svg")
    report.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a page with curves, failures and transcripts"
    )
    report.add_argument(
        "--rollouts",
        type=Path,
        metavar="PATH",
        help="the rollout log of the run, for the page of a checkpoint: failures and transcripts are in it",
    )
    report.add_argument("--json", action="store_true", help="print JSON: the value of every step")
    report.set_defaults(run=_run_report)


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="look at everything that can be looked at before training",
        description="Ask all servers of a run file, at once, for everything a run needs of them: addresses, keys, "
        "splits, tasks, tools, prompts; and check the settings of the mix. Nothing is trained. The exit code is 1 if "
        "there is an error.",
    )
    check.add_argument("run_file", type=Path, help="the YAML run file")
    check.add_argument(
        "--training", type=Path, metavar="FILE", help="a YAML file of the GRPOConfig fields that the run will have"
    )
    check.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="a folder or Hub name of the policy's tokenizer, to measure prompts in tokens",
    )
    check.add_argument("--probe", action="store_true", help="also play one episode of each source, with one tool call")
    check.add_argument(
        "--timeout", type=_seconds, default=10.0, metavar="S", help="seconds for each thing that is asked (default: 10)"
    )
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=_run_check)


def _run_preview(options: argparse.Namespace) -> int:
    from rich.console import Console

    from multiors.config import build_spec, load_run_file, load_training_file
    from multiors.pictures import draw_run
    from multiors.preview import make_preview, read_assumptions

    config = load_run_file(options.run_file)
    training = None if options.training is None else load_training_file(options.training)
    is_simulated = options.simulate or options.assume or options.picture is not None
    curves = read_assumptions(options.assume) if is_simulated else None

    with Console(stderr=True).status("asking the servers for their tasks and tools"), build_spec(config) as spec:
        preview = make_preview(spec, training=training, shows_tools=options.tools, curves=curves)

    if preview.simulation is not None and options.picture is not None:
        draw_run(preview.simulation, options.picture)

    print(json.dumps(preview.to_json(), indent=2) if options.json else preview)
    return 0


def _run_report(options: argparse.Namespace) -> int:
    from multiors.evaluation.folder import is_evaluation

    return _report_evaluation(options) if is_evaluation(options.path) else _report_training(options)


def _report_training(options: argparse.Namespace) -> int:
    from multiors.pictures import draw_run
    from multiors.series import is_rollout_log, read_run

    series = read_run(options.path)

    if options.picture is not None:
        draw_run(series, options.picture)

    if options.html is not None:
        from multiors.evaluation.comparison import to_training_html, write_page

        is_log = options.rollouts is None and is_rollout_log(options.path)
        write_page(to_training_html(series, options.path if is_log else options.rollouts), options.html)

    print(json.dumps(series.to_json(), indent=2) if options.json else series)
    return 0


def _report_evaluation(options: argparse.Namespace) -> int:
    from rich.console import Console

    from multiors.evaluation import read_evaluation, summarize
    from multiors.evaluation.comparison import draw_result, print_result, to_html, to_text, write_page

    if options.rollouts is not None:
        raise ConfigError(
            f"--rollouts is for trainings, and {str(options.path)!r} is an evaluation. Leave it out: the episodes are "
            f"in the folder."
        )

    run = read_evaluation(options.path)
    result = summarize(run)

    if options.picture is not None:
        draw_result(result, options.picture)

    if options.html is not None:
        write_page(to_html(result, [run]), options.html)

    if options.json:
        print(json.dumps(result.to_json(), indent=2))
    elif sys.stdout.isatty():
        print_result(result, Console(highlight=False))
    else:
        print(to_text(result))

    return 0


def _run_check(options: argparse.Namespace) -> int:
    from rich.console import Console

    from multiors.checks import check
    from multiors.config import build_spec, load_run_file, load_training_file

    config = load_run_file(options.run_file)
    training = None if options.training is None else load_training_file(options.training)
    tokenizer = None if options.tokenizer is None else _load_tokenizer(options.tokenizer)

    with Console(stderr=True).status(f"asking {len(config.sources)} sources"), build_spec(config) as spec:
        report = check(spec, training=training, tokenizer=tokenizer, probe=options.probe, timeout_s=options.timeout)

    if options.json:
        print(json.dumps(report.to_json(), indent=2))
    elif sys.stdout.isatty():
        _print_table(report.rows(), report.summary)
    else:
        print(report)

    return 0 if report.ok else 1


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan

    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")

    return value


def _assumption(text: str) -> str:
    name, _, curve = text.partition("=")

    if not name or not curve:
        raise argparse.ArgumentTypeError(f"{text!r} is not SOURCE=START:END:HALF_SLOTS")

    return text


def _load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"--tokenizer {name!r} cannot be loaded: {reason} Pass a folder or a Hub name.") from error


def _print_table(rows: Sequence[tuple[str, str, str, str]], summary: str) -> None:
    """The table on a terminal: in colour, with messages broken into lines. No text in it is taken for markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("source", "found", "about", "what", box=None, padding=(0, 2, 0, 0))

    for source, level, about, what in rows:
        table.add_row(Text(source), Text(level, style=_STYLES[level]), Text(about), Text(what, overflow="fold"))

    console = Console(highlight=False)
    console.print(table)
    console.print(Text(f"\n{summary}"))


def _run_quickstart(options: argparse.Namespace) -> int:
    from multiors.quickstart.run import run_quickstart

    return run_quickstart(options)


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Warnings of this library as one line; others' as Python shows them."""
    print(f"warning: {message}" if category is UserWarning else f"{category.__name__}: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
