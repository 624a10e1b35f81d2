"""Reads rollout logs back, for who looks at a run later.

Decides what counts as a log, in which order its records come, and what a line is worth that a crash cut off. Knows no
trainer and no server.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from multiors.errors import ConfigError
from multiors.records import RolloutRecord
from multiors.rollout_log.files import find_files
from multiors.rollout_log.lines import is_clipped, parse, parse_header

__all__ = ["read_rollouts"]


def read_rollouts(path: str | os.PathLike[str]) -> Iterator[RolloutRecord]:
    """The records of a rollout log, as they were written; of several files in the order of their names.

    A file whose last line was cut off, because its process was killed or is still writing, is read up to there, with a
    warning.

    Args:
        path: A file, or the folder of a log.

    Raises:
        ConfigError: There is no log, or a file has another format or a line that is no record.
    """
    given = Path(path)

    if given.is_dir():
        files = find_files(given)
    elif given.is_file():
        files = [given]
    else:
        raise ConfigError(f"there is no rollout log at {str(given)!r}. Pass its folder, or one of its files.")

    if not files:
        raise ConfigError(f"the folder {str(given)!r} holds no rollout log: no 'rollouts-<number>-rank<rank>.jsonl'.")

    return _read_files(files)


def _read_files(files: Sequence[Path]) -> Iterator[RolloutRecord]:
    for path in files:
        yield from _read_file(path)


def _read_file(path: Path) -> Iterator[RolloutRecord]:
    num_clipped = 0

    # Lines end with \n alone: texts may hold other characters that Python takes for a line's end.
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                warnings.warn(
                    f"rollout log {str(path)!r}: line {number}, the last, is cut off and left out; its process was "
                    f"killed, or is still writing.",
                    stacklevel=2,
                )
                break

            try:
                if number == 1:
                    parse_header(line)
                    continue

                record = parse(line)
            except ValueError as error:
                raise ConfigError(f"rollout log {str(path)!r}: line {number}: {error}.") from error

            num_clipped += is_clipped(line)
            yield record

    if num_clipped:
        warnings.warn(
            f"rollout log {str(path)!r}: {num_clipped} of its records were too large and lack a part of their texts, "
            f"steps or messages.",
            stacklevel=2,
        )
