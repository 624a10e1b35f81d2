"""`python -m multiors.quickstart`: the quickstart where the `multiors` command is not on the path."""

from __future__ import annotations

import argparse
import sys

from multiors.quickstart.options import add_arguments
from multiors.quickstart.run import run_quickstart

__all__: list[str] = []

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m multiors.quickstart")
    add_arguments(parser)

    try:
        sys.exit(run_quickstart(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit(130)
