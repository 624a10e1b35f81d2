"""A source used alone, in the place of TRL's `OpenRewardSpec`: its tasks as rows, and its rewards.

A mix has rows of its own (`multiors.mixing.dataset`), in which no task's key can become a column.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from multiors.ors.discovery import TaskList
from multiors.ors.rollouts.submission import submit_messages

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["fold_into_columns", "last_rewards"]

# Columns that TRL or this library takes for its own; a task's key of this name cannot become a column (TRL 1.16).
_RESERVED_COLUMNS = frozenset(
    {
        "completion", "completion_ids", "completions", "environment", "environments", "image", "images", "log_extra",
        "log_metric", "prompt", "prompts", "self", "slot", "task", "task_index", "task_spec", "trainer_state",
    }
)  # fmt: skip


def last_rewards(environments: Sequence[Any], completions: Sequence[Any] = (), **_: Any) -> list[float | None]:
    """The last reward of each rollout, None where nothing scored it; the rollouts' sessions end here.

    Where the environment has a terminal tool, each rollout's last message is submitted first.
    """
    submit_messages(environments, completions)

    for environment in environments:
        environment._release()

    return [environment.reward for environment in environments]


def fold_into_columns(tasks: TaskList, label: str) -> Dataset:
    """The tasks as rows with their keys as columns; keys that cannot be columns are left out, and that is said."""
    from datasets import Dataset

    num_rows = len(tasks.indices)
    rows: dict[str, list[Any]] = {
        "prompt": [[{"role": "user", "content": ""}] for _ in range(num_rows)],
        "task_index": list(tasks.indices),
    }

    if tasks.avg_rewards is not None:
        rows["avg_reward"] = list(tasks.avg_rewards)

    if tasks.specs is None:
        return Dataset.from_dict(rows)

    specs = [json.loads(spec) for spec in tasks.specs]
    keys = sorted({key for spec in specs if isinstance(spec, Mapping) for key in spec})
    left_out = []

    for key in keys:
        values = [spec.get(key) if isinstance(spec, Mapping) else None for spec in specs]
        if key in _RESERVED_COLUMNS or key in rows or not _survives_arrow([key]) or not _survives_arrow(values):
            left_out.append(key)
        else:
            rows[key] = values

    if left_out or not all(isinstance(spec, Mapping) for spec in specs):
        rows["task"] = list(tasks.specs)
        what = f"the task keys {left_out}" if left_out else "tasks that are no objects"
        warnings.warn(
            f"source {label!r}: {what} cannot be columns (TRL uses the name, or Arrow would change the values). "
            f"The column 'task' holds each task as JSON text instead.",
            stacklevel=2,
        )

    return Dataset.from_dict(rows)


def _survives_arrow(values: list[Any]) -> bool:
    """Whether Arrow gives back exactly what it was given: it pads nested objects and refuses mixed types."""
    import pyarrow as pa

    try:
        restored = pa.array(values).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError):
        return False

    return json.dumps(restored) == json.dumps(values)
