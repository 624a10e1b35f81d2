"""A schedule as rows: one `datasets.Dataset` row per slot, with the columns the trainer and the environments read.

The columns are fixed (`environment`, `prompt`, `task_index`, `slot`, `task`): what a server sends is the content of a
column, never its name. All rows are gathered once from one table of what is distinct, in pieces small enough for
Arrow's 32-bit string offsets. This module decides nothing about order, and sends nothing anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from multiors.errors import ConfigError
from multiors.mixing.schedule import Schedule

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

__all__ = ["COLUMNS", "SourceRows", "build_dataset"]

COLUMNS = ("environment", "prompt", "task_index", "slot", "task")
"""The columns of every mixed dataset, in order."""

_EMPTY_PROMPT = ({"role": "user", "content": ""},)
_PIECE_BYTES = 2**30  # Text in one piece; Arrow's string offsets end at 2**31.


@dataclass(frozen=True, slots=True, eq=False)
class SourceRows:
    """What one source contributes to the rows, by position in its list of tasks."""

    name: str
    """The source's name, for the `environment` column."""

    task_indices: Sequence[int] | npt.NDArray[np.int64]
    """The environment's own index of each task."""

    tasks: Sequence[str] | None = None
    """Each task's spec as JSON text. None: specs were not fetched, and the column is null."""

    prompts: Sequence[Sequence[Mapping[str, str]]] | None = None
    """Messages with `role` and `content` for each task. None: one empty user message."""

    def __post_init__(self) -> None:
        for field, values in (("tasks", self.tasks), ("prompts", self.prompts)):
            if values is not None and len(values) != len(self.task_indices):
                raise ConfigError(
                    f"source {self.name!r}: {field} has {len(values)} entries for {len(self.task_indices)} tasks. "
                    f"Pass one per task, or None."
                )


def build_dataset(schedule: Schedule, sources: Sequence[SourceRows]) -> datasets.Dataset:
    """Write out a schedule.

    Args:
        schedule: Which source and which of its tasks each slot draws.
        sources: In the schedule's order.

    Returns:
        One row per slot, in slot order: `environment` (string), `prompt` (list of role and content), `task_index`
        (int64), `slot` (int64) and `task` (string or null). Equal inputs give an equal fingerprint.

    Raises:
        ConfigError: Two sources have the same name, or the schedule draws a source or a task that is not there.
    """
    import datasets

    row = _find_rows(schedule, sources)
    distinct = _gather_distinct(sources)
    names = [source.name for source in sources]
    table = _write_table(names, schedule, row, distinct=distinct, piece_bytes=_PIECE_BYTES)
    return datasets.Dataset(table, fingerprint=_fingerprint(names, schedule, row, distinct=distinct))


def _write_table(
    names: Sequence[str],
    schedule: Schedule,
    row: npt.NDArray[np.int64],
    *,
    distinct: Mapping[str, pa.Array],
    piece_bytes: int,
) -> pa.Table:
    """The slots' rows, gathered piece by piece from the distinct ones."""
    import pyarrow as pa

    name_by_source = pa.array(names, type=pa.string())
    pieces = [
        pa.table(
            [
                name_by_source.take(pa.array(schedule.source_index[start:stop])),
                distinct["prompt"].take(pa.array(row[start:stop])).cast(_prompt_type(pa.string())),
                distinct["task_index"].take(pa.array(row[start:stop])),
                pa.array(np.arange(start, stop, dtype=np.int64)),
                distinct["task"].take(pa.array(row[start:stop])).cast(pa.string()),
            ],
            names=list(COLUMNS),
        )
        for start, stop in _cut_pieces(_text_bytes(distinct)[row], piece_bytes)
    ]
    return pa.concat_tables(pieces)


def _find_rows(schedule: Schedule, sources: Sequence[SourceRows]) -> npt.NDArray[np.int64]:
    """Row of each slot in the table of what is distinct, where the sources follow each other."""
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"source {name!r}: the name is used twice. Rename one of the two.")
    if int(schedule.source_index.max()) >= len(sources):
        raise ConfigError(
            f"the schedule draws {int(schedule.source_index.max()) + 1} sources, but there are rows of {names}. "
            f"Pass the rows of every source, in the schedule's order."
        )
    num_tasks = np.array([len(source.task_indices) for source in sources], dtype=np.int64)
    missing = np.flatnonzero(schedule.position >= num_tasks[schedule.source_index])
    if len(missing) > 0:
        index = int(schedule.source_index[missing[0]])
        raise ConfigError(
            f"source {names[index]!r}: the schedule draws task number {int(schedule.position[missing[0]])}, "
            f"but there are {int(num_tasks[index])}. Build the schedule from the number of tasks in the rows."
        )
    return (np.cumsum(num_tasks) - num_tasks)[schedule.source_index] + schedule.position


def _gather_distinct(sources: Sequence[SourceRows]) -> dict[str, pa.Array]:
    """Each source's tasks once, one source after the other."""
    import pyarrow as pa

    columns = [_gather_source(source) for source in sources]
    return {name: pa.concat_arrays([column[name] for column in columns]) for name in ("prompt", "task_index", "task")}


def _gather_source(source: SourceRows) -> dict[str, pa.Array]:
    import pyarrow as pa

    num_tasks = len(source.task_indices)
    prompts = pa.array([_EMPTY_PROMPT] if source.prompts is None else source.prompts, _prompt_type(pa.large_string()))
    tasks = pa.array([None] if source.tasks is None else source.tasks, pa.large_string())
    first = pa.array(np.zeros(num_tasks, dtype=np.int64))
    return {
        "prompt": prompts.take(first) if source.prompts is None else prompts,
        "task_index": pa.array(np.asarray(source.task_indices, dtype=np.int64)),
        "task": tasks.take(first) if source.tasks is None else tasks,
    }


def _prompt_type(content: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.struct([("role", pa.string()), ("content", content)]))


def _text_bytes(distinct: Mapping[str, pa.Array]) -> npt.NDArray[np.int64]:
    """Bytes of text in each distinct row."""
    import pyarrow.compute as pc

    contents = pc.binary_length(distinct["prompt"].flatten().field("content"))
    before = np.concatenate([[0], np.cumsum(contents.to_numpy(zero_copy_only=False))]).astype(np.int64)
    prompts = np.diff(before[distinct["prompt"].offsets.to_numpy()])
    tasks = pc.fill_null(pc.binary_length(distinct["task"]), 0).to_numpy(zero_copy_only=False)
    result: npt.NDArray[np.int64] = prompts + tasks
    return result


def _cut_pieces(num_bytes: npt.NDArray[np.int64], limit: int) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive rows whose text stays below the limit; a row above it is a piece of its own."""
    total = np.cumsum(num_bytes)
    start, written = 0, 0
    while start < len(total):
        stop = max(start + 1, int(np.searchsorted(total, written + limit, side="right")))
        yield start, stop
        start, written = stop, int(total[stop - 1])


def _fingerprint(
    names: Sequence[str], schedule: Schedule, row: npt.NDArray[np.int64], *, distinct: Mapping[str, pa.Array]
) -> str:
    """From the content, because the one `datasets` makes would serialise every row."""
    import pyarrow as pa

    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr(list(names)).encode())
    digest.update(pa.record_batch(list(distinct.values()), names=list(distinct)).serialize())
    digest.update(schedule.source_index.tobytes())
    digest.update(row.tobytes())
    return digest.hexdigest()
