"""What touches TRL's trainer: reward columns, settings, callback, and the classes of the union and async modes.

The files read in the order of use: `members` (how sources get into a mix), `settings` (before the trainer is built),
`evaluating`, `order`, `batch`, `readers`, `table` and `columns` (in every step), `concurrent` (the trainer whose
environments answer at once), `planned`, `watch` and `limits` (rows decided while training, what is learned from each
batch, when it ends the run), `scored`, `lookahead` and `union` (other trainers and modes), `others` (environments that
are not ORS), `callback` (begin and end). How a share or a reward is decided is not known here.
"""

from __future__ import annotations

from multiors.training.batch import RunState
from multiors.training.columns import RewardColumns, make_columns
from multiors.training.others import TRLSource
from multiors.training.readers import EpisodeReader, SourceReader
from multiors.training.scored import AsyncSlots, check_async, make_async_slots
from multiors.training.settings import (
    BatchShape,
    check_length,
    check_max_sessions,
    check_prompts,
    check_rows,
    check_settings,
    complete_fields,
    describe_refusal,
    find_cancelled_weights,
    find_contradictions,
    measure_batches,
    samples_groups_together,
)
from multiors.training.table import TABLE_COLUMNS
from multiors.training.union import UnionEnvironmentFactory, merge_tools

__all__ = [
    "TABLE_COLUMNS",
    "AsyncSlots",
    "BatchShape",
    "EpisodeReader",
    "RewardColumns",
    "RunState",
    "SourceReader",
    "TRLSource",
    "UnionEnvironmentFactory",
    "check_async",
    "check_length",
    "check_max_sessions",
    "check_prompts",
    "check_rows",
    "check_settings",
    "complete_fields",
    "describe_refusal",
    "find_cancelled_weights",
    "find_contradictions",
    "make_async_slots",
    "make_columns",
    "measure_batches",
    "merge_tools",
    "samples_groups_together",
]
