"""A schedule as rows: one `datasets.Dataset` row per slot, with the columns the trainer and the environments read.

The columns are fixed (`environment`, `prompt`, `task_index`, `slot`, `task`): what a server sends is the content of a
column, never its name. Rows are gathered from one table of what is distinct, in pieces small enough for Arrow's 32-bit
string offsets. This module decides nothing about order, and sends nothing anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from multiors.errors import ConfigError
from multiors.mixing.schedule import Schedule

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

__all__ = ["COLUMNS", "SourceRows", "build_dataset", "list_tasks"]

COLUMNS = ("environment", "prompt", "task_index", "slot", "task")
"""The columns of every mixed dataset, in order."""

_AVG_REWARD = "avg_reward"  # One more, where a source has asked for them.

_EMPTY_PROMPT = ({"role": "user", "content": ""},)
_PIECE_ROWS = 2**20  # What is written at once, so that nothing beside the result is as large as the result.
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

    avg_rewards: Sequence[float | None] | None = None
    """What others' rollouts of each task earned on average; None for a task without any. None: that was not asked."""

    def __post_init__(self) -> None:
        for field, values in (("tasks", self.tasks), ("prompts", self.prompts), ("avg_rewards", self.avg_rewards)):
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
        (int64), `slot` (int64) and `task` (string or null); where a source has them also `avg_reward` (double or null).
        Equal inputs give an equal fingerprint.

    Raises:
        ConfigError: Two sources have the same name, or the schedule draws a source or a task that is not there.
    """
    import datasets
    import pyarrow as pa

    _check_sources(schedule, sources)
    distinct = _gather_distinct(sources)
    pieces = _write_pieces(distinct, schedule, piece_rows=_PIECE_ROWS, piece_bytes=_PIECE_BYTES)
    return datasets.Dataset(pa.concat_tables(pieces), fingerprint=_fingerprint(distinct, schedule))


def list_tasks(source: SourceRows) -> datasets.Dataset:
    """Write out a source's tasks, each once and in its order, as rows that belong to no schedule.

    Returns:
        One row per task, with the columns of a mixed dataset but `slot`.
    """
    _, first = np.unique(np.asarray(source.task_indices, dtype=np.int64), return_index=True)
    every = Schedule(np.zeros(len(first), dtype=np.int32), np.sort(first).astype(np.int64), prompts_per_batch=None)
    return build_dataset(every, [source]).select_columns([name for name in COLUMNS if name != "slot"])


@dataclass(frozen=True, slots=True)
class _Distinct:
    """Every task of every source once, one source after the other."""

    names: pa.Array
    """(sources,)"""

    first_row: npt.NDArray[np.int64]
    """Where each source begins, (sources,)."""

    task_index: npt.NDArray[np.int64]
    """(rows,)"""

    prompt: pa.Array | None
    """(rows,). None: every prompt is the empty one."""

    task: pa.Array | None
    """(rows,). None: no specs were fetched."""

    avg_reward: pa.Array | None
    """(rows,). None: no source has them, and there is no such column."""


def _check_sources(schedule: Schedule, sources: Sequence[SourceRows]) -> None:
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"source {name!r}: the name is used twice. Rename one of the two.")
    num_sources = int(schedule.source_index.max()) + 1
    if num_sources > len(sources):
        raise ConfigError(
            f"the schedule draws {num_sources} sources, but there are rows of {names}. "
            f"Pass the rows of every source, in the schedule's order."
        )
    num_tasks = np.array([len(source.task_indices) for source in sources], dtype=np.int64)
    for begin in range(0, schedule.num_slots, _PIECE_ROWS):
        source_index = schedule.source_index[begin : begin + _PIECE_ROWS]
        is_missing = schedule.position[begin : begin + _PIECE_ROWS] >= num_tasks[source_index]
        if is_missing.any():
            slot = begin + int(np.argmax(is_missing))
            index = int(schedule.source_index[slot])
            raise ConfigError(
                f"source {names[index]!r}: slot {slot} draws its task number {int(schedule.position[slot]) + 1}, but "
                f"there are {int(num_tasks[index])}. Build the schedule from the number of tasks in the rows."
            )


def _gather_distinct(sources: Sequence[SourceRows]) -> _Distinct:
    import pyarrow as pa

    num_tasks = np.array([len(source.task_indices) for source in sources], dtype=np.int64)
    prompts = [source.prompts for source in sources]
    tasks = [source.tasks for source in sources]
    return _Distinct(
        names=pa.array([source.name for source in sources], pa.string()),
        first_row=np.cumsum(num_tasks) - num_tasks,
        task_index=np.concatenate([np.asarray(source.task_indices, dtype=np.int64) for source in sources]),
        prompt=_gather_column(prompts, num_tasks, default=_EMPTY_PROMPT, kind=_prompt_type(pa.large_string())),
        task=_gather_column(tasks, num_tasks, default=None, kind=pa.large_string()),
        avg_reward=_gather_column(
            [source.avg_rewards for source in sources], num_tasks, default=None, kind=pa.float64()
        ),
    )


def _gather_column(
    columns: Sequence[Sequence[Any] | None], num_tasks: npt.NDArray[np.int64], *, default: Any, kind: pa.DataType
) -> pa.Array | None:
    """The sources' columns one after the other, with the default where a source has none. None: no source has any."""
    import pyarrow as pa

    if all(column is None for column in columns):
        return None
    return pa.concat_arrays(
        [
            _repeat(default, count, kind) if column is None else pa.array(column, kind)
            for column, count in zip(columns, num_tasks.tolist(), strict=True)
        ]
    )


def _repeat(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.array([value], kind).take(pa.array(np.zeros(count, dtype=np.int64)))


def _prompt_type(content: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.struct([("role", pa.string()), ("content", content)]))


def _write_pieces(distinct: _Distinct, schedule: Schedule, *, piece_rows: int, piece_bytes: int) -> list[pa.Table]:
    """The slots' rows in order."""
    import pyarrow as pa

    num_bytes = _count_text_bytes(distinct)
    prompt_type = _prompt_type(pa.string())
    same_prompts = _repeat(_EMPTY_PROMPT, min(piece_rows, schedule.num_slots), prompt_type)
    pieces = []
    for begin in range(0, schedule.num_slots, piece_rows):
        source_index = schedule.source_index[begin : begin + piece_rows]
        row = distinct.first_row[source_index] + schedule.position[begin : begin + piece_rows]
        for start, stop in [(0, len(row))] if num_bytes is None else _cut(num_bytes[row], piece_bytes):
            part, size = row[start:stop], stop - start
            prompt = same_prompts[:size] if distinct.prompt is None else distinct.prompt.take(pa.array(part))
            task = pa.nulls(size, pa.string()) if distinct.task is None else distinct.task.take(pa.array(part))
            columns = [
                distinct.names.take(pa.array(source_index[start:stop])),
                prompt.cast(prompt_type),
                pa.array(distinct.task_index[part]),
                pa.array(np.arange(begin + start, begin + stop, dtype=np.int64)),
                task.cast(pa.string()),
            ]
            names = list(COLUMNS)
            if distinct.avg_reward is not None:
                columns.append(distinct.avg_reward.take(pa.array(part)))
                names.append(_AVG_REWARD)
            pieces.append(pa.table(columns, names=names))
    return pieces


def _count_text_bytes(distinct: _Distinct) -> npt.NDArray[np.int64] | None:
    """Bytes of text in each distinct row. None: there is none in any."""
    import pyarrow.compute as pc

    if distinct.prompt is None and distinct.task is None:
        return None
    num_bytes = np.zeros(len(distinct.task_index), dtype=np.int64)
    if distinct.prompt is not None:
        contents = pc.binary_length(distinct.prompt.flatten().field("content")).to_numpy(zero_copy_only=False)
        before = np.concatenate([[0], np.cumsum(contents)]).astype(np.int64)
        num_bytes += np.diff(before[distinct.prompt.offsets.to_numpy()])
    if distinct.task is not None:
        num_bytes += pc.fill_null(pc.binary_length(distinct.task), 0).to_numpy(zero_copy_only=False)
    return num_bytes


def _cut(num_bytes: npt.NDArray[np.int64], limit: int) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive rows whose text stays below the limit; a row above it is a piece of its own."""
    total = np.cumsum(num_bytes)
    start, written = 0, 0
    while start < len(total):
        stop = max(start + 1, int(np.searchsorted(total, written + limit, side="right")))
        yield start, stop
        start, written = stop, int(total[stop - 1])


def _fingerprint(distinct: _Distinct, schedule: Schedule) -> str:
    """From the content, because the one `datasets` makes would serialise every row."""
    from datasets.fingerprint import Hasher

    columns = [distinct.names, distinct.prompt, distinct.task, distinct.avg_reward]
    buffers = [[] if column is None else column.buffers() for column in columns]
    sizes = [[None if buffer is None else buffer.size for buffer in of_column] for of_column in buffers]
    texts = [buffer for of_column in buffers for buffer in of_column if buffer is not None]
    numbers = [distinct.task_index.data, schedule.source_index.data, schedule.position.data]
    fingerprint: str = Hasher.hash_bytes([repr(sizes).encode(), *texts, *numbers])
    return fingerprint
