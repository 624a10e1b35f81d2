"""`RolloutLog`: takes the records of a run and has them written by a thread of its own.

Decides that the training step hands over and goes on, that nothing is dropped in silence, and that what cannot be
written never ends a run: it is said once and counted. How a record looks is decided in `lines`, where it goes in
`files`.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from multiors.errors import ConfigError
from multiors.records import RolloutRecord
from multiors.redaction import Redactor
from multiors.rollout_log.files import LogFiles, find_rank
from multiors.rollout_log.lines import render, render_header

__all__ = ["DEFAULT_MAX_FILES", "DEFAULT_MAX_FILE_BYTES", "RolloutLog"]

logger = logging.getLogger("multiors.rollout_log")

DEFAULT_MAX_FILE_BYTES = 64 * 1024**2
DEFAULT_MAX_FILES = 64

_LEAST_FILE_BYTES = 64 * 1024
# A record may take a quarter of a file, so that a file holds more than one.
_RECORDS_PER_FILE = 4
# Calls of `write` that may wait for the disk; then the next waits too.
_MAX_WAITING = 32
_WAIT_TIMEOUT_S = 120.0


class RolloutLog:
    """Writes each rollout of a run as one line of JSON.

    Pass it, or just its folder, to `MultiOpenRewardSpec(rollout_log=...)`, which tells it the keys and secrets that
    must not be written and ends it with the run. Every process has files of its own. Files that are there stay as they
    are.

    Args:
        folder: Where the files go. It is made when the first one is.
        max_file_bytes: No file is larger; then comes the next. A record that takes more than a quarter is cut, with a
            mark where something is missing.
        max_files: So many files of a process are kept, those of earlier runs in the folder included; then the oldest is
            deleted, and a warning says so once.

    Raises:
        ConfigError: An argument is wrong, or the folder is a file.

    Example:
        >>> log = RolloutLog("rollouts", max_files=8)
        >>> log.num_lost
        0
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
        max_files: int = DEFAULT_MAX_FILES,
    ) -> None:
        self.folder = _check_folder(folder)
        self._max_file_bytes = _check_count("max_file_bytes", max_file_bytes, least=_LEAST_FILE_BYTES)
        self._max_files = _check_count("max_files", max_files, least=1)
        self._sources: list[str] = []
        self._secrets: set[str] = set()
        self._redactor = Redactor()
        self._num_lost = self._num_lost_told = 0
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        self._writer: _Writer | None = None
        _logs.add(self)

    def __repr__(self) -> str:
        return f"RolloutLog({str(self.folder)!r})"

    @property
    def num_lost(self) -> int:
        """Records that could not be written, of all that this process handed over."""
        return self._num_lost

    def hide(self, secrets: Iterable[str]) -> None:
        """Leave these out of every record from now on, and OPENREWARD_API_KEY with them."""
        self._secrets.update(secret for secret in secrets if secret)
        key = os.environ.get("OPENREWARD_API_KEY")
        self._redactor = Redactor({*self._secrets, *([key] if key else [])})

    def start(self, sources: Sequence[str] = ()) -> None:
        """Begin a file now instead of with the first record, so that a folder that cannot be written is found early.

        Args:
            sources: Names for the head of the files.

        Raises:
            ConfigError: The file cannot be made.
        """
        self._sources = list(dict.fromkeys([*self._sources, *sources]))

        with self._lock:
            if self._writer is not None:
                return

            files = self._make_files()

            try:
                files.open()
            except OSError as error:
                raise ConfigError(
                    f"the rollout log {str(self.folder)!r} cannot be written: {error.strerror}. Choose another folder."
                ) from error

            self._begin(files)

    def write(self, records: Sequence[RolloutRecord]) -> None:
        """Hand records over to be written. Returns at once, unless much is waiting for the disk; then it waits too."""
        batch = tuple(records)

        with self._lock:
            writer = self._writer or self._begin(self._make_files())

        if batch and not writer.take(batch):
            self._lose(f"the disk took nothing for {_WAIT_TIMEOUT_S:.0f} s", len(batch))

    def flush(self) -> None:
        """Wait until what was handed over is written."""
        with self._lock:
            writer = self._writer

        if writer is not None and not writer.flush():
            logger.warning("the rollout log in %s is not written to its end yet.", self.folder)

    def close(self) -> None:
        """Write what is waiting and end the file. A later record begins another."""
        with self._lock:
            writer, self._writer = self._writer, None

        if writer is not None and not writer.end():
            logger.warning("the rollout log in %s was still writing when it was closed.", self.folder)

        if self._num_lost > self._num_lost_told:
            self._num_lost_told = self._num_lost
            logger.warning("%d rollouts of this process are not in the rollout log in %s.", self._num_lost, self.folder)

    def _begin(self, files: LogFiles) -> _Writer:
        self._writer = _Writer(self, files)
        return self._writer

    def _make_files(self) -> LogFiles:
        self.hide(())
        return LogFiles(
            self.folder,
            rank=find_rank(),
            max_file_bytes=self._max_file_bytes,
            max_files=self._max_files,
            make_header=self._make_header,
            on_dropped=self._report_dropped,
        )

    def _make_header(self) -> bytes:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return render_header(self._sources, multiors=version("multiors"), rank=find_rank(), begun=now)

    def _append(self, record: RolloutRecord, files: LogFiles) -> None:
        """Write a record. Runs on the writer's thread."""
        try:
            line = render(record, self._redactor, limit_bytes=self._max_file_bytes // _RECORDS_PER_FILE)
        except Exception as error:  # noqa: BLE001  a record may hold anything of a user's, and must not end the run
            self._lose(f"a record of source {record.source!r} cannot be written as JSON ({type(error).__name__})", 1)
            return

        try:
            files.append(line)
        except Exception as error:  # noqa: BLE001  whatever happens to a disk, the run goes on
            self._lose(str(getattr(error, "strerror", None) or type(error).__name__), 1)

    def _lose(self, why: str, num_records: int) -> None:
        with self._lock:
            self._num_lost += num_records
            is_new = why not in self._reported
            self._reported.add(why)

        if is_new:
            logger.warning(
                "the rollout log in %s lacks %d rollouts or more: %s. Training goes on; the end says how many.",
                self.folder,
                num_records,
                why,
            )

    def _report_dropped(self, path: Path) -> None:
        if "dropped" not in self._reported:
            self._reported.add("dropped")
            logger.warning(
                "the rollout log in %s has its max_files=%d files, so the oldest, %s, was deleted, and so will be each "
                "that is then the oldest. Pass RolloutLog(..., max_files=...) to keep more.",
                self.folder,
                self._max_files,
                path.name,
            )

    def _forget_writer(self) -> None:
        """Begin anew in a forked child, which has its parent's files but not its threads."""
        self._lock = threading.Lock()
        self._writer = None


class _Writer:
    """The thread that writes, from the first record until the log is closed."""

    def __init__(self, log: RolloutLog, files: LogFiles) -> None:
        self._waiting: queue.Queue[tuple[RolloutRecord, ...] | threading.Event | None] = queue.Queue(_MAX_WAITING)
        self._log = log
        self._files = files
        # A daemon, because a thread that is not would keep a process from ending that nobody closes the log of.
        self._thread = threading.Thread(target=self._work, name="multiors rollout log", daemon=True)
        self._thread.start()

    def take(self, batch: tuple[RolloutRecord, ...]) -> bool:
        """Have a batch written; whether there was room for it in time."""
        return self._put(batch)

    def flush(self) -> bool:
        """Write what is waiting; whether that was done in time."""
        done = threading.Event()
        return self._put(done) and done.wait(_WAIT_TIMEOUT_S)

    def end(self) -> bool:
        """Write the rest and end the file; whether that was done in time."""
        if self._put(None):
            self._thread.join(_WAIT_TIMEOUT_S)

        return not self._thread.is_alive()

    def _put(self, item: tuple[RolloutRecord, ...] | threading.Event | None) -> bool:
        try:
            self._waiting.put(item, timeout=_WAIT_TIMEOUT_S)
        except queue.Full:
            return False

        return True

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue

            for record in item:
                self._log._append(record, self._files)

        self._files.close()


def _check_folder(folder: object) -> Path:
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise ConfigError(f"the rollout log's folder={folder!r} is no path. Pass the name of a folder.")

    path = Path(os.fsdecode(folder)).absolute()

    if path.exists() and not path.is_dir():
        raise ConfigError(f"the rollout log's folder {str(path)!r} is a file. Choose another.")

    return path


def _check_count(name: str, value: object, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"the rollout log's {name}={value!r} is no whole number from {least} upwards.")

    return value


_logs: weakref.WeakSet[RolloutLog] = weakref.WeakSet()


def _close_all() -> None:
    for log in list(_logs):
        log.close()


def _forget_parent() -> None:
    for log in list(_logs):
        log._forget_writer()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_parent)
