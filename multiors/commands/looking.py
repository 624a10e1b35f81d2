"""The commands `multiors preview` and `multiors check`: what can be seen of a mix before it is trained."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiors.commands.options import add_run_file, print_json, read_run_file, read_training, say_written, seconds
from multiors.errors import ConfigError

if TYPE_CHECKING:
    from multiors.config import RunConfig

__all__ = ["add_check", "add_preview", "print_table"]

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")  # one of them is where a tokenizer was saved

_SIMULATION_EXAMPLES = """examples:
  multiors preview run.yaml
  multiors preview run.yaml --set sources.sort.weight=3 --set training.max_steps=50
  multiors preview run.yaml --simulate
  multiors preview run.yaml --assume sort=0.1:0.8:100 --assume heat=impossible
  multiors preview run.yaml --picture simulation.png

the run is laid out for `training:` in the run file, or a training file; the batches are those of one process:
  max_steps: 200
  per_device_train_batch_size: 8
  num_generations: 4

A simulation is no forecast. It plays the run with the planner that training has, and makes up the rewards: the mean
reward of a source with START, END and HALF_SLOTS begins at START, and goes half of the way to END each time that the
source has drawn HALF_SLOTS more slots, as fractions of its range. A ladder's level l begins l * HALF_SLOTS slots later.
"""

_CHECK_EXAMPLES = """examples:
  multiors check run.yaml
  multiors check run.yaml --probe                        also play one episode of each source
  multiors check run.yaml --tokenizer Qwen/Qwen3-4B      also measure prompts in tokens
  multiors check run.yaml --json | jq '.findings[] | select(.level == "error")'
"""

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def add_preview(commands: Any) -> None:
    """Add `preview` to the command line."""
    preview = commands.add_parser(
        "preview",
        help="print what a run file's schedule would hold",
        description="Ask the servers of a run file for their tasks and tools, and print what the schedule would hold: "
        "per source its tasks, share, slots, and how often its tasks are repeated. Nothing is trained.",
        epilog=_SIMULATION_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_file(preview)
    preview.add_argument(
        "--training",
        type=Path,
        metavar="FILE",
        help="a YAML file of GRPOConfig fields in the place of `training:` in the run file, to lay the run out for "
        "their batches; schedules of shares and simulations need one of the two",
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


def add_check(commands: Any) -> None:
    """Add `check` to the command line."""
    check = commands.add_parser(
        "check",
        help="look at everything that can be looked at before training",
        description="Ask all servers of a run file, at once, for everything a run needs of them: addresses, keys, "
        "splits, tasks, tools, prompts; and check the settings of the mix. Nothing is trained. The exit code is 1 if "
        "there is an error.",
        epilog=_CHECK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_file(check)
    check.add_argument(
        "--training",
        type=Path,
        metavar="FILE",
        help="a YAML file of GRPOConfig fields in the place of `training:` in the run file",
    )
    check.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="a folder or Hub name of the policy's tokenizer, to measure prompts in tokens (default: that of the run "
        "file's model, if it is a folder here)",
    )
    check.add_argument("--probe", action="store_true", help="also play one episode of each source, with one tool call")
    check.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="S", help="seconds for each thing that is asked (default: 10)"
    )
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=_run_check)


def _run_preview(options: argparse.Namespace) -> int:
    from rich.console import Console

    from multiors.config import build_spec
    from multiors.pictures import draw_run
    from multiors.preview import make_preview, read_assumptions

    config = read_run_file(options)
    training = read_training(options, config)
    is_simulated = options.simulate or options.assume or options.picture is not None
    curves = read_assumptions(options.assume) if is_simulated else None

    with Console(stderr=True).status("asking the servers for their tasks and tools"), build_spec(config) as spec:
        preview = make_preview(spec, training=training, shows_tools=options.tools, curves=curves)

    if preview.simulation is not None and options.picture is not None:
        draw_run(preview.simulation, options.picture)
        say_written(options.picture)

    if options.json:
        print_json(preview.to_json())
    else:
        print(preview)

    return 0


def _run_check(options: argparse.Namespace) -> int:
    from rich.console import Console

    from multiors.checks import check
    from multiors.config import build_spec

    config = read_run_file(options)
    training = read_training(options, config)
    tokenizer = _find_tokenizer(options.tokenizer, config)

    with Console(stderr=True).status(f"asking {len(config.sources)} sources"), build_spec(config) as spec:
        report = check(spec, training=training, tokenizer=tokenizer, probe=options.probe, timeout_s=options.timeout)

    if options.json:
        print_json(report.to_json())
    elif sys.stdout.isatty():
        print_table(report.rows(), report.summary)
    else:
        print(report)

    return 0 if report.ok else 1


def _find_tokenizer(name: str | None, config: RunConfig) -> Any:
    """The one that is asked for, or that of the run file's model, if it is a folder here. None: neither."""
    if name is not None:
        return _load_tokenizer(name)

    folder = None if config.model is None else Path(config.model.name)
    has_one = folder is not None and any((folder / file).is_file() for file in _TOKENIZERS)
    return _load_tokenizer(str(folder)) if has_one else None


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


def print_table(rows: Sequence[tuple[str, str, str, str]], summary: str) -> None:
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
