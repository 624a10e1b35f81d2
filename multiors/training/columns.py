"""The reward columns that TRL calls: one per source, None for every rollout of another source.

Decides which rollouts a column reads, what the user's functions are given, what is logged, and that a session ends once
its rollout was scored. What a rollout is worth is decided in `multiors.rewards`; the columns only carry.

TRL calls each column with the whole batch of its process, in column order, in training and in evaluation. The first
column also has done what must be done once a batch (`multiors.training.batch`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from multiors.errors import RewardError, RoutingError
from multiors.records import RolloutRecord
from multiors.rewards import (
    GroupScore,
    RewardPart,
    SourceReward,
    check_values,
    compose,
    metric_values,
    naming,
    refine_reason,
)
from multiors.training.batch import RunState, log_values
from multiors.training.evaluating import is_training
from multiors.training.readers import Reading, SourceReader, is_async
from multiors.training.table import TABLE_COLUMNS

__all__ = [
    "AsyncRewardColumn",
    "RewardColumn",
    "RewardColumns",
    "make_columns",
]

logger = logging.getLogger("multiors.training")

OnRollouts = Callable[[list[RolloutRecord]], None]


@dataclass(slots=True)
class _Batch:
    """One call of a column, cut down to the rollouts of its source."""

    arguments: dict[str, Any]
    """TRL's keyword arguments for the whole batch."""

    size: int
    rows: list[int]
    """Which rollouts of the batch are of this source."""

    readings: list[Reading]
    part_arguments: dict[str, Any]
    """The keyword arguments of the user's functions: TRL's, restricted to `rows`, plus `tasks`."""

    extra_columns: dict[str, dict[int, Any]] = field(default_factory=dict)
    """What the user's functions logged for the completions table, by column and row of the batch."""


class RewardColumn:
    """The rewards of one source, named after it, as a callable for `reward_funcs`.

    Args:
        name: The source's name; TRL logs `rewards/<name>/mean`.
        names: All sources of the mix, in column order.
        reward: How the source's rollouts become rewards.
        reader: How its rollouts are read.
        run: The state of the run, shared by the columns.
        is_first: Whether this column does what must be done once a batch.
        on_rollouts: Called with the records of each batch. None: nobody wants them.
    """

    def __init__(
        self,
        name: str,
        *,
        names: Sequence[str],
        reward: SourceReward,
        reader: SourceReader,
        run: RunState,
        is_first: bool,
        on_rollouts: OnRollouts | None,
    ) -> None:
        self.__name__ = name
        self._names = tuple(names)
        self._reward = reward
        self._reader = reader
        self._run = run
        self._is_first = is_first
        self._on_rollouts = on_rollouts
        self._has_reported = False

    def __repr__(self) -> str:
        return f"<reward column {self.__name__!r}>"

    def __call__(self, environments: Sequence[Any], **arguments: Any) -> list[float | None]:
        """The reward of each rollout of the batch; None where it is unscored or of another source.

        Raises:
            RoutingError: Rows arrive out of the schedule's order, or a rollout is of no source.
            RewardError: A reward function broke its contract.
        """
        with self._closing_on_error(environments):
            batch = self._begin(environments, arguments)
            batch.readings = self._read(batch)
            values = [self._call_part(part, batch) for part in self._reward.parts]
            return self._finish(batch, environments, values)

    def _begin(self, environments: Sequence[Any], arguments: dict[str, Any]) -> _Batch:
        arguments = {**arguments, "environments": environments}
        names = self._name_rollouts(environments, arguments)

        if self._is_first:
            self._run.begin_batch(names, arguments, sources=self._names)

        rows = [row for row, name in enumerate(names) if name == self.__name__]
        mine = [environments[row] for row in rows]

        self._check_environments(mine)
        size = len(environments)
        batch = _Batch(arguments, size, rows, [], self._restrict(arguments, rows, size))
        self._check_tasks(batch.part_arguments)
        batch.part_arguments["log_extra"] = _log_extra_for(
            batch, source=self.__name__, taken=TABLE_COLUMNS.union(self._names)
        )

        return batch

    def _read(self, batch: _Batch) -> Any:
        """The readings of the batch's rollouts; to be awaited where the reader is async."""
        mine = [batch.arguments["environments"][row] for row in batch.rows]
        truncated = [self._is_truncated(batch.part_arguments, position) for position in range(len(mine))]
        return self._reader.read(mine, self._reward, truncated, batch.part_arguments)

    def _finish(
        self, batch: _Batch, environments: Sequence[Any], values_FB: Sequence[Sequence[float | None]]
    ) -> list[float | None]:
        rewards: list[float | None] = [None] * batch.size

        for position, (row, reading) in enumerate(zip(batch.rows, batch.readings, strict=True)):
            rewards[row] = compose(reading.outcome.value, [values[position] for values in values_FB], self._reward)
            self._reader.release(environments[row])

        records = self._make_records(batch, rewards, values_FB)
        self._log_records(batch, records)
        self._report_outcomes(batch)

        if self._on_rollouts is not None and records:
            self._on_rollouts(records)

        self._run.end_column(self.__name__, records, batch.arguments, sources=self._names)
        return rewards

    def _call_part(self, part: RewardPart | GroupScore, batch: _Batch) -> list[float | None]:
        if isinstance(part, GroupScore):
            return [reading.group_score for reading in batch.readings]

        if not batch.rows:
            return []

        with naming(part, source=self.__name__):
            values = part.function(**batch.part_arguments)

        return self._check_part(part, values, batch)

    def _check_part(self, part: RewardPart, values: Any, batch: _Batch) -> list[float | None]:
        return check_values(values, source=self.__name__, part=part, num_rollouts=len(batch.rows))

    def _name_rollouts(self, environments: Sequence[Any], arguments: Mapping[str, Any]) -> Sequence[str]:
        names = arguments.get("environment")

        if names is None:
            return [self.__name__ if self._reader.owns(environment) else "" for environment in environments]

        unknown = sorted({repr(name) for name in names} - {repr(name) for name in self._names})

        if unknown:
            raise RoutingError(f"rows name the environments {unknown}, which are not in the mix {list(self._names)}.")

        return list(names)

    def _check_environments(self, environments: Sequence[Any]) -> None:
        """Slots of two specs, or of two kinds of trainer, fit together by name and would be trained on."""
        if not all(self._reader.owns(environment) for environment in environments):
            raise RoutingError(
                f"rows of source {self.__name__!r} were played in environments of another spec. Give the trainer the "
                f"train_dataset, environment_factory, reward_funcs and callbacks of one and the same spec."
            )

        if any(hasattr(type(environment), "get_reward") for environment in environments):
            raise RewardError(
                f"source {self.__name__!r}: its environments score themselves (get_reward), and beside a reward column "
                f"the trainer would count every reward twice. Give GRPOTrainer spec.environment_factory; what "
                f"for_async() returns is for AsyncGRPOTrainer, without reward_funcs."
            )

    def _check_tasks(self, arguments: Mapping[str, Any]) -> None:
        """Rows of another split, as for evaluation, would be played on this source's tasks of the same index."""
        rows = zip(arguments.get("task_index") or [], arguments.get("task") or [], strict=False)
        strange = [
            index for index, task in rows if task is not None and self._reader.find_task(index) not in (None, task)
        ]

        if strange:
            raise RoutingError(
                f"source {self.__name__!r}: the row's task at task_index={strange[0]} is not the one that the source "
                f"has there, and which was played. Rows of another split or spec cannot be used with these "
                f"environments; make a spec with that split."
            )

    def _is_truncated(self, arguments: Mapping[str, Any], position: int) -> bool:
        """Whether a rollout used up its tokens, or ended on calls that TRL's loop no longer made."""
        budget = self._run.max_completion_tokens
        tokens = arguments.get("completion_ids")

        if tokens is not None and budget is not None and len(tokens[position]) >= budget:
            return True

        messages = _messages(arguments["completions"][position]) if arguments.get("completions") else []
        return bool(messages and messages[-1].get("tool_calls"))

    def _restrict(self, arguments: Mapping[str, Any], rows: Sequence[int], size: int) -> dict[str, Any]:
        """Per-rollout arguments cut down to `rows`, others as they are, and the decoded task specifications."""
        restricted = {
            name: [value[row] for row in rows] if isinstance(value, list) and len(value) == size else value
            for name, value in arguments.items()
        }
        restricted["environments"] = [self._reader.show(arguments["environments"][row]) for row in rows]
        restricted["tasks"] = [None if task is None else json.loads(task) for task in restricted.get("task") or []]

        return restricted

    def _make_records(
        self, batch: _Batch, rewards: Sequence[float | None], values_FB: Sequence[Sequence[float | None]]
    ) -> list[RolloutRecord]:
        step = _find_step(batch.arguments)
        slots = (is_training(batch.arguments) and batch.part_arguments.get("slot")) or [None] * len(batch.rows)
        messages = batch.part_arguments.get("completions") or [()] * len(batch.rows)
        prompts = batch.part_arguments.get("prompts") or [()] * len(batch.rows)
        tokens = batch.part_arguments.get("completion_ids")

        return [
            RolloutRecord(
                source=self.__name__,
                task_index=episode.task_index,
                slot=slots[position],
                step=step,
                reward=rewards[row],
                outcome=outcome.value,
                parts={
                    **own_values,
                    **{part.name: values[position] for part, values in zip(self._reward.parts, values_FB, strict=True)},
                },
                reason=None
                if rewards[row] is not None
                else refine_reason(outcome.reason, _messages(messages[position])),
                error=episode.error or outcome.detail,
                finished=episode.finished,
                steps=episode.steps,
                messages=tuple(_messages(messages[position])),
                prompt=tuple(_messages(prompts[position])),
                session=episode.session,
                opening_s=episode.opening_s,
                num_tokens=None if tokens is None else len(tokens[position]),
            )
            for position, (row, (episode, outcome, _, own_values)) in enumerate(
                zip(batch.rows, batch.readings, strict=True)
            )
        ]

    def _log_records(self, batch: _Batch, records: Sequence[RolloutRecord]) -> None:
        log_values(batch.arguments.get("log_metric"), metric_values(self.__name__, records))
        log_extra = batch.arguments.get("log_extra")

        if log_extra is None:
            return

        self._run.table.add(self.__name__, batch.extra_columns)

        for column, values in self._run.table.take(self._names, num_rollouts=batch.size):
            log_extra(column, values)

    def _report_outcomes(self, batch: _Batch) -> None:
        """Warn of the first rollout whose step rewards together make no score; the others are in the metrics."""
        details = [reading.outcome.detail for reading in batch.readings if reading.outcome.detail is not None]

        if details and not self._has_reported:
            self._has_reported = True
            logger.warning(
                "source %r: %s, so the rollout is unscored (bad_reward). Correct SourceReward, or the environment.",
                self.__name__,
                details[0],
            )

    @contextmanager
    def _closing_on_error(self, environments: Sequence[Any]) -> Iterator[None]:
        """End the batch's sessions when scoring fails or is interrupted: nobody will come back for them."""
        try:
            yield
        except BaseException:
            for environment in environments:
                if hasattr(environment, "_release"):
                    environment._release()
            raise


class AsyncRewardColumn(RewardColumn):
    """A column of a source some of whose functions are async; TRL runs such columns of a batch at once."""

    async def __call__(  # type: ignore[override]  # TRL tells the two kinds apart by their `__call__`
        self, environments: Sequence[Any], **arguments: Any
    ) -> list[float | None]:
        """As the plain column, awaiting the source's async functions one after another."""
        with self._closing_on_error(environments):
            batch = self._begin(environments, arguments)
            # What is read may wait for a server to judge a last message. Groups are compared by all processes together,
            # so in the order of the columns, which threads would not keep.
            read = self._read(batch) if self._reward.compares_groups else await asyncio.to_thread(self._read, batch)
            batch.readings = await read if inspect.isawaitable(read) else read
            values = [await self._await_part(part, batch) for part in self._reward.parts]
            return self._finish(batch, environments, values)

    async def _await_part(self, part: RewardPart | GroupScore, batch: _Batch) -> list[float | None]:
        if isinstance(part, GroupScore) or not batch.rows:
            return self._call_part(part, batch)

        with naming(part, source=self.__name__):
            values = part.function(**batch.part_arguments)
            values = await values if inspect.isawaitable(values) else values

        return self._check_part(part, values, batch)


class RewardColumns(list[RewardColumn]):
    """The columns for TRL's `reward_funcs`: a list, which can itself be called for one value per rollout."""

    def __call__(self, environments: Sequence[Any], **arguments: Any) -> list[float | None]:
        """Each rollout's reward from the column of its own source.

        Raises:
            RoutingError: An environment is of none of the sources.
            RewardError: A user's function needs arguments that were not passed, or is async.
        """
        rewards: list[float | None] = [None] * len(environments)
        owners = [[column for column in self if column._reader.owns(environment)] for environment in environments]

        for row, found in enumerate(owners):
            if not found:
                raise RoutingError(
                    f"rollout {row} was played in {environments[row]!r}, which is of no source of this mix."
                )

        for column in self:
            if isinstance(column, AsyncRewardColumn):
                raise RewardError(
                    f"source {column.__name__!r} has async reward functions, which only a trainer can await. Pass the "
                    f"columns to GRPOTrainer's reward_funcs."
                )

            rows = [row for row, found in enumerate(owners) if column in found]

            try:
                values = column(environments, **arguments)
            except TypeError as error:
                raise RewardError(
                    f"source {column.__name__!r}: a reward function could not be called with the arguments "
                    f"{sorted(arguments)}: {error}. Pass what it needs by name."
                ) from error

            for row in rows:
                rewards[row] = values[row]

        return rewards


def make_columns(
    readers: Mapping[str, SourceReader],
    rewards: Mapping[str, SourceReward],
    *,
    run: RunState,
    on_rollouts: OnRollouts | None,
) -> RewardColumns:
    """One column per source, in the order of `readers`."""
    return RewardColumns(
        (AsyncRewardColumn if reader.is_async or _has_async_parts(rewards[name]) else RewardColumn)(
            name,
            names=list(readers),
            reward=rewards[name],
            reader=reader,
            run=run,
            is_first=position == 0,
            on_rollouts=on_rollouts,
        )
        for position, (name, reader) in enumerate(readers.items())
    )


def _has_async_parts(reward: SourceReward) -> bool:
    return any(is_async(part.function) for part in reward.parts if isinstance(part, RewardPart))


def _log_extra_for(batch: _Batch, *, source: str, taken: frozenset[str]) -> Callable[[str, Sequence[Any]], None]:
    """A `log_extra` for the user's functions, which know only their own source's rollouts."""

    def log_extra(column: str, values: Sequence[Any]) -> None:
        if column in taken:
            raise RewardError(
                f"source {source!r}: log_extra({column!r}, ...): the table has a column of that name. Choose another."
            )

        if len(values) != len(batch.rows):
            raise RewardError(
                f"source {source!r}: log_extra({column!r}, ...) got {len(values)} values for {len(batch.rows)} "
                f"rollouts. Pass one each."
            )

        batch.extra_columns[column] = dict(zip(batch.rows, values, strict=True))

    return log_extra


def _find_step(arguments: Mapping[str, Any]) -> int:
    """The step under which the trainer logs what it learns of a batch: it counts a step when that is over."""
    state = arguments.get("trainer_state")
    return 0 if state is None else state.global_step + is_training(arguments)


def _messages(completion: Any) -> list[Mapping[str, Any]]:
    return completion if isinstance(completion, list) else []
