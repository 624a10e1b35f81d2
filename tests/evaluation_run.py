"""An evaluation in a process of its own, which goes on after every interruption.

Run as `python -m tests.evaluation_run '<options as JSON>'`. Says a word a line, and waits for a line after each
interruption, so that a test can look at the servers in between.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from multiors import ORSSource
from tests.evaluated import ScriptedPolicy, calls, play

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """What is played."""

    url: str
    """A server with `Slow`."""

    folder: str
    episodes_per_task: int


def tell(word: str) -> None:
    """Say a word to who started this process."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(options: Options) -> None:
    """Play until nothing is left."""
    policy = ScriptedPolicy(lambda *_: calls(("work", {})))

    while True:
        try:
            tell("begins")
            source = ORSSource(options.url, discover_task_tools=False, max_sessions=8)
            play({"slow": source}, policy, options.folder, episodes_per_task=options.episodes_per_task)
        except KeyboardInterrupt:
            tell("interrupted")
            sys.stdin.readline()
        else:
            tell("ended")
            return


if __name__ == "__main__":
    main(Options(**json.loads(sys.argv[1])))
