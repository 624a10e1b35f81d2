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
from multiors.rewards import share_values
from multiors.training.order import SlotOrder
from multiors.training.table import TableColumns

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

        log_values(arguments.get("log_metric"), share_values(names, sources))

        if arguments.get("log_extra"):
            arguments["log_extra"]("environment", list(names))

    def _watch_order(self, arguments: Mapping[str, Any]) -> None:
        slots = arguments.get("slot")
        state = arguments.get("trainer_state")

        if slots and None not in slots and state is not None and _is_training(arguments):
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


def _is_training(arguments: Mapping[str, Any]) -> bool:
    """Whether the trainer trains: in evaluation, rows of the schedule may come in any order."""
    trainer = getattr(arguments.get("log_metric"), "__self__", None)
    return trainer is None or bool(trainer.model.training)
