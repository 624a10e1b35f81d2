"""`python -m multiors.quickstart`: the command `multiors quickstart` without the others."""

from __future__ import annotations

import argparse
import sys

from multiors.quickstart.options import add_arguments
from multiors.quickstart.run import run_quickstart

__all__: list[str] = []

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m multiors.quickstart")
    add_arguments(parser)
    sys.exit(run_quickstart(parser.parse_args()))
