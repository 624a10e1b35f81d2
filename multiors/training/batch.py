"""What is done once for each batch of a process, whatever sources it holds, and what the columns share about the run.

Checks that rows come in the order of the schedule, and that no completion was sampled from another rollout's prompt;
logs what concerns all sources. Knows no reward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from multiors.errors import RoutingError
from multiors.records import RolloutRecord
from multiors.rewards import share_values
from multiors.training.evaluating import EvaluationMetrics, is_training
from multiors.training.order import SlotOrder
from multiors.training.settings import BatchShape
from multiors.training.table import TableColumns
from multiors.training.watch import RunWatch

__all__ = ["RunState", "log_values"]


@dataclass(slots=True)
class RunState:
    """What the columns of one mix share about the run in progress."""

    order: SlotOrder = field(default_factory=SlotOrder)
    table: TableColumns = field(default_factory=TableColumns)
    max_completion_tokens: int | None = None
    """The trainer's budget for a rollout. None: not known."""

    samples_groups_together: bool = False
    """Whether the trainer samples a whole group from the prompt of its first rollout."""

    evaluation: EvaluationMetrics | None = None
    """Who names what is logged of an evaluation. None: nobody."""

    watch: RunWatch | None = None
    """Who is told of each training batch. None: nobody."""

    _records: list[RolloutRecord] = field(default_factory=list)
    _ended: set[str] = field(default_factory=set)
    """The columns that have scored the batch in progress."""

    def begin(self, shape: BatchShape, max_completion_tokens: int, *, samples_groups_together: bool) -> None:
        """A training run begins.

        Args:
            shape: The trainer's batches.
            max_completion_tokens: Its budget for a rollout.
            samples_groups_together: Whether it samples a whole group from the prompt of its first rollout.
        """
        self.order.restart(prompts_per_batch=shape.prompts_per_batch)
        self.max_completion_tokens = max_completion_tokens
        self.samples_groups_together = samples_groups_together

    def begin_batch(self, names: Sequence[str], arguments: Mapping[str, Any], *, sources: Sequence[str]) -> None:
        """Check a batch and log what concerns all sources.

        Args:
            names: The source of each rollout.
            arguments: TRL's keyword arguments of reward functions.
            sources: All sources of the mix.

        Raises:
            RoutingError: Rows arrive out of the schedule's order, or a group has two prompts and one was sampled from.
        """
        self._watch_order(arguments)
        self._check_prompts(names, arguments)

        if arguments.get("environment") is None:
            return

        if is_training(arguments):
            log_values(arguments.get("log_metric"), share_values(names, sources))
        elif self.evaluation is not None:
            self.evaluation.note(arguments)

        if arguments.get("log_extra"):
            arguments["log_extra"]("environment", list(names))

    def end_column(
        self, source: str, records: Sequence[RolloutRecord], arguments: Mapping[str, Any], *, sources: Sequence[str]
    ) -> None:
        """Note that a column has scored its rollouts; the last of a training batch ends the batch.

        Args:
            source: The column's source.
            records: Of its rollouts.
            arguments: TRL's keyword arguments of reward functions.
            sources: All sources of the mix.

        Raises:
            SessionError: A source failed more often than it may.
        """
        if self.watch is None or not _is_training_batch(arguments):
            return

        # Columns with async functions end in any order, and a batch whose scoring failed never ends.
        if source in self._ended:
            self._records, self._ended = [], set()

        self._records += records
        self._ended.add(source)

        if self._ended >= set(sources):
            scored, self._records, self._ended = self._records, [], set()
            log_values(arguments.get("log_metric"), self.watch.end_batch(scored))

    def _watch_order(self, arguments: Mapping[str, Any]) -> None:
        if _is_training_batch(arguments):
            slots, state = arguments["slot"], arguments["trainer_state"]
            self.order.check(slots, is_first_process=state.is_world_process_zero, global_step=state.global_step)

    def _check_prompts(self, names: Sequence[str], arguments: Mapping[str, Any]) -> None:
        if not self.samples_groups_together:
            return

        rows = list(zip(arguments.get("slot") or [], arguments.get("prompts") or [], strict=False))
        strange = [row for row, (left, right) in enumerate(pairwise(rows)) if left[0] == right[0] and left != right]

        if strange:
            raise RoutingError(
                f"source {names[strange[0]]!r}: the rollouts of one group were given different prompts, and vLLM's "
                f"server mode samples all of them from the first. If a session did not open, use "
                f"ConcurrentGRPOTrainer, which gives its rollout the prompt of the group; if the environment's prompt "
                f"is random, use vllm_mode='colocate'."
            )


def log_values(log_metric: Callable[[str, float], None] | None, values_by_name: Mapping[str, Sequence[float]]) -> None:
    """Log each value of each metric; TRL averages them."""
    if log_metric is not None:
        for name, values in values_by_name.items():
            for value in values:
                log_metric(name, value)


def _is_training_batch(arguments: Mapping[str, Any]) -> bool:
    """Whether these are rollouts of the schedule, which are trained on."""
    slots = arguments.get("slot") or [None]
    return None not in slots and arguments.get("trainer_state") is not None and is_training(arguments)
