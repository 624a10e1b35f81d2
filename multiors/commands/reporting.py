"""The command `multiors report`: the shares and rewards of a run, or the scores of an evaluation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from multiors.commands.options import print_json, say_written
from multiors.errors import ConfigError

__all__ = ["add_report"]

_ACCEPTED = "a trainer's output_dir or one of its checkpoints, a rollout log, or the folder of an evaluation"

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


def add_report(commands: Any) -> None:
    """Add `report` to the command line."""
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


def _run_report(options: argparse.Namespace) -> int:
    from multiors.evaluation.folder import is_evaluation

    if not options.path.exists():
        raise ConfigError(f"there is nothing at {str(options.path)!r}. Pass {_ACCEPTED}.")

    return _report_evaluation(options) if is_evaluation(options.path) else _report_training(options)


def _report_training(options: argparse.Namespace) -> int:
    from multiors.pictures import draw_run
    from multiors.rollout_log import find_files
    from multiors.series import is_rollout_log, read_run

    try:
        series = read_run(options.path)
    except ConfigError as error:
        if options.path.is_dir() and not find_files(options.path):
            near = "".join(f" There is one at {str(path)!r}." for path in _find_near(options.path))
            raise ConfigError(
                f"{error} Nor does it hold a checkpoint or an evaluation.{near} Pass {_ACCEPTED}."
            ) from None
        raise

    if options.picture is not None:
        draw_run(series, options.picture)

    if options.html is not None:
        from multiors.evaluation.comparison import to_training_html, write_page

        is_log = options.rollouts is None and is_rollout_log(options.path)
        write_page(to_training_html(series, options.path if is_log else options.rollouts), options.html)

    say_written(options.html, options.picture)

    if options.json:
        print_json(series.to_json())
    else:
        print(series)

    return 0


def _find_near(folder: Path) -> Iterator[Path]:
    """What can be shown of a folder that cannot: evaluations in it, and the rollout log of the run that left it."""
    from multiors.config import load_run_file
    from multiors.evaluation.folder import is_evaluation
    from multiors.launch import RUN_FILE

    yield from (path for path in sorted(folder.iterdir()) if is_evaluation(path))

    if (folder / RUN_FILE).is_file():
        with suppress(ConfigError):
            log = load_run_file(folder / RUN_FILE).rollout_log
            if log is not None and Path(log.folder).is_dir():
                yield Path(log.folder)


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

    say_written(options.html, options.picture)

    if options.json:
        print_json(result.to_json())
    elif sys.stdout.isatty():
        print_result(result, Console(highlight=False))
    else:
        print(to_text(result))

    return 0
