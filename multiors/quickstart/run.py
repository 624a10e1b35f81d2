"""The quickstart command: where results go, what is said, and that nothing is left behind.

Results go to standard output, talk to standard error. Exit codes: 0 done, 1 it failed, 130 interrupted by Ctrl-C, 143
by a polite kill. Sessions close first, then the servers stop, whatever happens in between; a second Ctrl-C while that
is going on cuts it short, and the servers still end with this process.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiors import ConfigError, MultiORSError
from multiors.quickstart.options import Effort
from multiors.quickstart.report import RolloutJournal, draw_curves, format_table
from multiors.quickstart.servers import run_servers
from multiors.quickstart.talk import Talk
from multiors.shell import write_command
from multiors.signals import find_exit_code, signals_as_interrupts

if TYPE_CHECKING:
    from multiors.quickstart.train import RunResult

__all__ = ["run_quickstart"]

_PACKAGES = ("multiors", "trl", "openreward", "transformers", "torch", "datasets")


def run_quickstart(options: argparse.Namespace, *, effort: Effort | None = None) -> int:
    """Run the quickstart and print what it brought.

    Args:
        options: As `multiors.quickstart.options.add_arguments` parses them.
        effort: How much is done besides the training. None: all of it.

    Returns:
        The exit code.
    """
    talk = Talk()
    started = time.monotonic()
    output_dir: Path | None = None
    try:
        with signals_as_interrupts(), contextlib.redirect_stdout(sys.stderr):
            _check_extras()
            output_dir = _make_output_dir(options.output_dir)
            talk.say(f"Results go to {output_dir}")
            summary, table = _run(options, effort or Effort(), output_dir=output_dir, talk=talk, started=started)
    except MultiORSError as error:
        talk.say(f"multiors quickstart: {error}")
        return 1
    except KeyboardInterrupt as interrupt:
        kept = "" if output_dir is None else f" What there is so far is in {output_dir}."
        talk.say(f"Interrupted; the servers have stopped.{kept}")
        return find_exit_code(interrupt)
    if options.json:
        talk.say(table)
    print(json.dumps(summary, indent=2) if options.json else table)
    return 0


def _run(
    options: argparse.Namespace, effort: Effort, *, output_dir: Path, talk: Talk, started: float
) -> tuple[dict[str, Any], str]:
    """The summary, and the table, of a run whose files are written."""
    with talk.phase("imports", "Loaded torch, transformers and TRL"), _quiet():
        from multiors.quickstart.train import SERVER_GROUPS, make_mix, run

    journal = RolloutJournal(output_dir / "rollouts.jsonl")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        with talk.phase("servers", "Started two server processes for four environments"):
            urls = stack.enter_context(run_servers(SERVER_GROUPS, output_dir))
        spec = stack.enter_context(make_mix(urls, seed=options.seed, journal=journal))
        result = run(
            spec,
            seed=options.seed,
            steps=options.steps,
            effort=effort,
            output_dir=output_dir,
            journal=journal,
            talk=talk,
        )
    draw_curves(output_dir / "curves.png", journal, result.environments)
    talk.seconds_by_phase["total"] = time.monotonic() - started
    summary = _summarize(options, result, output_dir=output_dir, talk=talk)
    (output_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    table = format_table(result.environments)
    talk.say(f"\nCurves, rollouts, policies and episodes are in {output_dir}. Is the policy better, and where?")
    compare = write_command("compare", output_dir / "before", output_dir / "after", "--html", "report.html")
    talk.say(f"  {compare}\n")
    return summary, table


def _summarize(options: argparse.Namespace, result: RunResult, *, output_dir: Path, talk: Talk) -> dict[str, Any]:
    return {
        "seed": options.seed,
        "steps": options.steps,
        "output_dir": str(output_dir),
        "files": ["after", "before", "curves.png", "policy-after", "policy-before", "rollouts.jsonl", "summary.json"],
        "environments": {name: environment.to_json() for name, environment in result.environments.items()},
        "scripts": {name: measurement.to_json() for name, measurement in result.scripts.items()},
        "num_parameters": result.num_parameters,
        "seconds": {name: round(seconds, 1) for name, seconds in talk.seconds_by_phase.items()},
        "versions": {name: version(name) for name in _PACKAGES},
    }


def _check_extras() -> None:
    missing = [name for name in ("matplotlib", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the quickstart needs {' and '.join(missing)}. Install them: pip install 'multiors[quickstart]'"
        )


def _make_output_dir(asked: Path | None) -> Path:
    """Create the directory for results, which holds nothing yet.

    Raises:
        ConfigError: The one that was asked for holds something, or cannot be made.
    """
    now = datetime.datetime.now(tz=datetime.UTC).astimezone()
    path = asked or Path(f"multiors-quickstart-{now:%Y%m%d-%H%M%S}")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output directory {str(path)!r} cannot be made: {error}. Pass another --output-dir."
        ) from error
    if any(path.iterdir()):
        raise ConfigError(
            f"output directory {str(path)!r} is not empty, and nothing is overwritten. Pass another --output-dir."
        )
    return path


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what TRL and transformers say about things the quickstart means to do.

    TRL warns of every batch in which a group has no reward, which is what the observatory is there for.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # of saving a policy, which takes no time
    logger = logging.getLogger("trl.trainer.grpo_trainer")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", message=".*experimental feature", category=UserWarning)
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
