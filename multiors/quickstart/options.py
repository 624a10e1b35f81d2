"""The options of the quickstart's command, apart from it so that `multiors --help` imports nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["DEFAULT_STEPS", "add_arguments"]

DEFAULT_STEPS = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the quickstart's options to a command."""
    parser.add_argument("--seed", type=_parse_seed, default=0, help="decides everything random (default: 0)")
    parser.add_argument(
        "--steps",
        type=_parse_steps,
        default=DEFAULT_STEPS,
        help=f"optimizer steps of GRPO (default: {DEFAULT_STEPS}); fewer are quicker and teach less",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=None,
        help="where the table, the curves and the rollouts go; new or empty (default: multiors-quickstart-<time>)",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, and all talk to stderr")


def _parse_seed(text: str) -> int:
    return _parse_count(text, minimum=0)


def _parse_steps(text: str) -> int:
    return _parse_count(text, minimum=1)


def _parse_count(text: str, *, minimum: int) -> int:
    if not text.isdecimal() or int(text) < minimum:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {minimum} upwards")

    return int(text)
