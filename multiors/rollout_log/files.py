"""The files of a rollout log: their names, their sizes, and which is deleted.

Decides that each process has files of its own, that no file is overwritten or grows beyond its limit, that a line is
written whole or not at all, and that the oldest file goes when there are too many. Knows no record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["LogFiles", "find_files", "find_rank"]

_NAME = re.compile(r"rollouts-(\d{6,})-rank(\d+)\.jsonl")


def find_files(folder: Path) -> list[Path]:
    """The files of a log, the oldest first; those of one number in the order of their ranks."""
    found = {path: _parse_name(path) for path in folder.iterdir()}
    ordered = sorted((place, path) for path, place in found.items() if place is not None)
    return [path for _, path in ordered]


def find_rank() -> int:
    """This process's rank among those of a distributed run, as its launcher says; 0 without one."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else 0


def _parse_name(path: Path) -> tuple[int, int] | None:
    """Number and rank of a log's file. None: it is something else."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else None


class LogFiles:
    """Where the lines of one process go. For one thread at a time.

    Args:
        folder: Made when the first file is.
        rank: Of this process.
        max_file_bytes: No file is larger.
        max_files: So many files of this rank are kept, those of earlier runs included.
        make_header: Makes the first line of each file.
        on_dropped: Called with each file that was deleted.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        max_file_bytes: int,
        max_files: int,
        make_header: Callable[[], bytes],
        on_dropped: Callable[[Path], None],
    ) -> None:
        self._folder = folder
        self._rank = rank
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        self._make_header = make_header
        self._on_dropped = on_dropped
        self._descriptor: int | None = None
        self._size_bytes = 0

    def open(self) -> None:
        """Begin a file, unless one is open.

        Raises:
            OSError: The folder or the file cannot be made.
        """
        if self._descriptor is not None:
            return

        self._folder.mkdir(parents=True, exist_ok=True)
        number = self._make_room()

        while True:
            path = self._folder / f"rollouts-{number:06d}-rank{self._rank}.jsonl"
            try:
                # Not to be shared with programs that this one starts, and never one that is there.
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                break
            except FileExistsError:  # another program of the same rank
                number += 1

        self._size_bytes = 0

        try:
            self._write(self._make_header())
        except BaseException:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, line: bytes) -> None:
        """Write a line, in a further file if this one would become too large.

        Raises:
            OSError: It could not be written; nothing of it is in the file.
        """
        if self._descriptor is not None and self._size_bytes + len(line) > self._max_file_bytes:
            self.close()

        self.open()
        self._write(line)

    def close(self) -> None:
        """End the file; the next line begins another."""
        descriptor, self._descriptor = self._descriptor, None

        if descriptor is not None:
            with suppress(OSError):  # on a network disk this may be where a write fails; there is nothing left to undo
                os.close(descriptor)

    def _make_room(self) -> int:
        """Delete the oldest files until one more may be there; the number of the next."""
        places = [(path, _parse_name(path) or (0, 0)) for path in find_files(self._folder)]
        own = [(path, number) for path, (number, rank) in places if rank == self._rank]

        for path, _ in own[: max(0, len(own) - self._max_files + 1)]:
            with suppress(FileNotFoundError):  # deleted by whoever else looks after the folder
                path.unlink()
                self._on_dropped(path)

        return max((number for _, number in own), default=0) + 1

    def _write(self, line: bytes) -> None:
        assert self._descriptor is not None
        rest = memoryview(line)

        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BaseException:
            self._undo()
            raise

        self._size_bytes += len(line)

    def _undo(self) -> None:
        """Take back half a line; where even that fails, the file ends with it."""
        assert self._descriptor is not None

        try:
            os.ftruncate(self._descriptor, self._size_bytes)
            os.lseek(self._descriptor, self._size_bytes, os.SEEK_SET)
        except OSError:
            self.close()
