"""The schedule as a dataset."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiors.errors import ConfigError
from multiors.mixing import COLUMNS, Schedule, SourceRows, build_dataset, build_schedule, count_slots
from multiors.mixing.dataset import _cut, _gather_distinct, _write_pieces

EMPTY_PROMPT = [{"role": "user", "content": ""}]
ASKED = [
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Question {index}?"}]
    for index in range(2)
]
MATHS = SourceRows("maths", [10, 11, 12], tasks=['{"a": 1}', '{"environment": "x"}', "[]"])
CODE = SourceRows("code", np.array([7, 5]), prompts=ASKED)


def schedule_of(source_index: list[int], position: list[int]) -> Schedule:
    """A schedule as written."""
    return Schedule(np.array(source_index, dtype=np.int32), np.array(position, dtype=np.int64), None)


def test_rows_say_what_the_schedule_draws() -> None:
    """Each slot is one row with its source, its task and its place, in slot order."""
    dataset = build_dataset(schedule_of([1, 0, 0, 1], [1, 2, 0, 1]), [MATHS, CODE])

    expected = [
        {"environment": "code", "prompt": ASKED[1], "task_index": 5, "slot": 0, "task": None},
        {"environment": "maths", "prompt": EMPTY_PROMPT, "task_index": 12, "slot": 1, "task": "[]"},
        {"environment": "maths", "prompt": EMPTY_PROMPT, "task_index": 10, "slot": 2, "task": '{"a": 1}'},
        {"environment": "code", "prompt": ASKED[1], "task_index": 5, "slot": 3, "task": None},
    ]
    assert expected == list(dataset)


def test_columns_and_types_are_fixed() -> None:
    """What a task holds never becomes a column, and types do not depend on what was fetched."""
    with_tasks = build_dataset(schedule_of([0], [1]), [MATHS])
    without = build_dataset(schedule_of([0], [1]), [CODE])

    assert list(COLUMNS) == with_tasks.column_names
    assert with_tasks.features == without.features
    assert {
        "environment": datasets.Value("string"),
        "prompt": datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")}),
        "task_index": datasets.Value("int64"),
        "slot": datasets.Value("int64"),
        "task": datasets.Value("string"),
    } == dict(with_tasks.features)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=8), st.integers(1, 40))
def test_texts_survive(tasks: list[str], num_slots: int) -> None:
    """Every text comes back as it was given."""
    schedule = build_schedule([1.0], [len(tasks)], num_slots=num_slots, prompts_per_batch=None, seed=0)
    prompts = [[{"role": "user", "content": text}] for text in tasks]

    dataset = build_dataset(schedule, [SourceRows("texts", range(len(tasks)), tasks, prompts)])

    assert [tasks[position] for position in schedule.position] == list(dataset["task"])
    assert [prompts[position] for position in schedule.position] == list(dataset["prompt"])


def test_equal_sources_interleave_as_datasets_does() -> None:
    """With equal shares each round draws every source once, and the rows are those of `interleave_datasets`."""
    shares, num_tasks = [1 / 3] * 3, [4, 4, 4]
    rows = [SourceRows(name, list(range(4))) for name in "abc"]
    length = count_slots(shares, num_tasks, stopping_strategy="first_exhausted")

    schedule = build_schedule(shares, num_tasks, num_slots=length, prompts_per_batch=None, seed=0)
    ours = build_dataset(schedule, rows)
    theirs = datasets.interleave_datasets(
        [datasets.Dataset.from_dict({"environment": [row.name] * 4, "task_index": range(4)}) for row in rows],
        stopping_strategy="first_exhausted",
    )

    assert list(theirs["environment"]) == list(ours["environment"])
    assert Counter(zip(theirs["environment"], theirs["task_index"], strict=True)) == Counter(
        zip(ours["environment"], ours["task_index"], strict=True)
    )


def test_equal_content_has_an_equal_fingerprint() -> None:
    """The fingerprint follows from the content, so that caches are found again; other content has another."""
    rows = [schedule_of([0, 1], [0, 0]), schedule_of([0, 1], [0, 0]), schedule_of([1, 0], [0, 0])]

    first, same, other = (build_dataset(schedule, [MATHS, CODE])._fingerprint for schedule in rows)
    renamed = build_dataset(rows[0], [MATHS, SourceRows("kode", CODE.task_indices, prompts=ASKED)])._fingerprint

    assert first == same
    assert 3 == len({first, other, renamed})


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60))
def test_pieces_stay_below_the_limit(num_bytes: list[int], limit: int) -> None:
    """Pieces follow each other, cover every row, and hold no more than the limit or a single row."""
    pieces = list(_cut(np.array(num_bytes, dtype=np.int64), limit))

    rows = [row for start, stop in pieces for row in range(start, stop)]
    assert list(range(len(num_bytes))) == rows
    assert all(stop - start == 1 or sum(num_bytes[start:stop]) <= limit for start, stop in pieces)


@pytest.mark.parametrize(
    "sources", [[MATHS, CODE], [MATHS, CODE, SourceRows("plain", [3])], [SourceRows("plain", [3])]]
)
@pytest.mark.parametrize(("piece_rows", "piece_bytes"), [(7, 2**30), (2**20, 50), (7, 50)])
def test_rows_of_several_pieces_are_one_table(sources: list[SourceRows], piece_rows: int, piece_bytes: int) -> None:
    """Rows and texts too many for one piece end up as they would in one."""
    num_tasks = [len(source.task_indices) for source in sources]
    shares = [1 / len(sources)] * len(sources)
    schedule = build_schedule(shares, num_tasks, num_slots=24, prompts_per_batch=8, seed=0)
    distinct = _gather_distinct(sources)

    whole = _write_pieces(distinct, schedule, piece_rows=2**20, piece_bytes=2**30)
    cut = _write_pieces(distinct, schedule, piece_rows=piece_rows, piece_bytes=piece_bytes)

    assert 1 == len(whole)
    assert len(cut) > 1 or (1, 2**20) == (len(sources), piece_rows)
    assert whole[0].equals(pa.concat_tables(cut).combine_chunks())


def test_importing_the_room_loads_no_heavy_library() -> None:
    """Arrow and datasets are loaded when a dataset is built, not before."""
    code = "import sys, multiors.mixing, multiors.rewards; print({'datasets', 'pyarrow', 'torch'} & set(sys.modules))"

    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "set()\n" == output


@pytest.mark.parametrize(
    ("source_index", "position", "sources", "message"),
    [
        ([0, 1], [0, 0], [MATHS], r"draws 2 sources, but there are rows of \['maths'\]"),
        ([0, 1], [0, 2], [MATHS, CODE], "source 'code': slot 1 draws its task number 3, but there are 2"),
        ([0, 1], [0, 0], [MATHS, MATHS], "source 'maths': the name is used twice"),
    ],
)
def test_schedules_of_other_sources_are_refused(
    source_index: list[int], position: list[int], sources: list[SourceRows], message: str
) -> None:
    """Missing sources, missing tasks and names used twice are errors before any row is written."""
    with pytest.raises(ConfigError, match=message):
        build_dataset(schedule_of(source_index, position), sources)


@pytest.mark.parametrize("field", ["tasks", "prompts"])
def test_rows_have_one_entry_per_task(field: str) -> None:
    """Task specs and prompts come one per task index."""
    entries: dict[str, Any] = {field: [[]]}

    with pytest.raises(ConfigError, match=f"source 'maths': {field} has 1 entries for 2 tasks"):
        SourceRows("maths", [0, 1], **entries)
