"""Options that several commands have, and what their values must look like."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiors.config import RunConfig

__all__ = [
    "add_run_file",
    "count",
    "index",
    "loading",
    "number",
    "print_json",
    "read_run_file",
    "read_training",
    "say_written",
    "seconds",
]


def add_run_file(parser: argparse.ArgumentParser) -> None:
    """Add the run file, and overrides of what stands in it."""
    parser.add_argument("run_file", type=Path, help="the YAML run file")
    parser.add_argument(
        "--set",
        type=_override,
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY.PATH=VALUE",
        help="put a YAML value in the place of what stands in the run file, as in sources.sort.weight=2; may be "
        "repeated",
    )


def read_run_file(options: argparse.Namespace) -> RunConfig:
    """The run file with its overrides.

    Raises:
        ConfigError: It has mistakes.
    """
    from multiors.config import load_run_file

    return load_run_file(options.run_file, options.overrides)


def read_training(options: argparse.Namespace, config: RunConfig) -> dict[str, Any] | None:
    """The fields of `GRPOConfig`: those of `--training FILE`, or else of the run file. None: there are none.

    Raises:
        ConfigError: The file cannot be read.
    """
    from multiors.config import load_training_file

    return load_training_file(options.training) if options.training is not None else config.training or None


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Say on a terminal, in the first process, that something is loaded that takes seconds."""
    from rich.console import Console

    from multiors.rollout_log import find_rank

    with Console(stderr=True, quiet=find_rank() > 0).status(f"loading {what}"):
        yield


def say_written(*paths: Path | None) -> None:
    """Say on standard error where pages and pictures are. None: that one was not asked for."""
    for path in paths:
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)


def print_json(value: Any) -> None:
    """Print a value for machines."""
    print(json.dumps(value, indent=2))


def count(text: str) -> int:
    """A whole number from 1."""
    return _whole_number(text, least=1)


def index(text: str) -> int:
    """A whole number from 0."""
    return _whole_number(text, least=0)


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan

    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number")

    return value


def seconds(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan

    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")

    return value


def _override(text: str) -> Any:
    from multiors.config import parse_override
    from multiors.errors import ConfigError

    try:
        return parse_override(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole_number(text: str, *, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} upwards")

    return int(text)
