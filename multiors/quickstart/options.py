"""What the user of the quickstart can choose, and how much work it does. Imports nothing, so that `--help` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Effort", "add_arguments"]

DEFAULT_STEPS = 140


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done besides the training itself. Not for users: less is only good for tests."""

    scripted_episodes: int = 100
    """Scripted episodes per environment."""

    warm_start_steps: int = 300
    """Optimizer steps on them."""

    episodes_per_task: int = 6
    """Episodes of every task in each of the two measurements."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the quickstart's options to a parser."""
    parser.add_argument(
        "--seed", type=_whole_number_from(0), default=0, metavar="N", help="decides everything random (default: 0)"
    )
    parser.add_argument(
        "--steps",
        type=_whole_number_from(1),
        default=DEFAULT_STEPS,
        metavar="N",
        help=f"optimizer steps of GRPO (default: {DEFAULT_STEPS})",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=None,
        metavar="DIR",
        help="where results go: a new or empty directory (default: multiors-quickstart-<date>-<time>)",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON on stdout, talk on stderr")


def _whole_number_from(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} upwards")

        return int(text)

    return parse
