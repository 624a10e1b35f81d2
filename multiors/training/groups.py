"""Comparing the rollouts of each group where a source's environment does that, also of groups spread over processes.

Decides which rollouts make up a group (those of one slot; in evaluation, of one task), which are compared (those in
which the environment did not fail), and whose session asks (that of the first whose session is open). Every process
calls this once per batch and source, whether it has rollouts of the source or not, because it exchanges what the others
need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from multiors.errors import RewardError
from multiors.ors.rollouts.comparison import Verdict
from multiors.training.evaluating import is_training
from multiors.training.processes import find_rank, gather

__all__ = ["compare_groups"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One rollout, as the other processes need to know it."""

    process: int
    row: int
    group: int
    """The slot, or in evaluation the task."""

    candidate: Mapping[str, Any]
    is_open: bool
    verdict: Verdict | None = None


def compare_groups(
    environments: Sequence[Any], compared: Sequence[bool], arguments: Mapping[str, Any], *, source: str
) -> list[Verdict | None]:
    """What each rollout was worth beside the others of its group. None: it was not compared.

    Args:
        environments: The source's rollouts of this process.
        compared: Whether each of them is compared.
        arguments: TRL's keyword arguments of reward functions, cut down to these rollouts.
        source: The source's name, for messages.

    Raises:
        RewardError: The rows have no slots, so the groups are not known.
    """
    completions = arguments.get("completions")
    named = arguments.get("slot") or (None if is_training(arguments) else arguments.get("task_index"))

    if environments and (not named or not completions):
        raise RewardError(
            f"source {source!r}: the rollouts of a group cannot be compared without the arguments 'slot' and "
            f"'completions'. Train on spec.train_dataset, and set remove_unused_columns=False."
        )

    process = find_rank()
    mine = [
        _Entry(process, row, named[row], environment._as_candidate(completions[row]), environment._is_open())
        for row, environment in enumerate(environments)
        if compared[row] and named and completions
    ]
    groups: defaultdict[int, list[_Entry]] = defaultdict(list)

    for entry in sorted(gather(mine), key=lambda entry: (entry.group, entry.process, entry.row)):
        groups[entry.group].append(entry)

    judged = [entry for entry in gather(_ask(groups, environments, process)) if entry.process == process]
    verdicts: list[Verdict | None] = [None] * len(environments)

    for entry in judged:
        verdicts[entry.row] = entry.verdict

    return verdicts


def _ask(groups: Mapping[int, Sequence[_Entry]], environments: Sequence[Any], process: int) -> list[_Entry]:
    """Have those groups compared whose first open session is on this process, all at once."""
    started = []

    for group in groups.values():
        asking = next((entry for entry in group if entry.is_open), None)

        if asking is not None and asking.process == process:
            started.append((group, environments[asking.row]._start_comparison([entry.candidate for entry in group])))

    return [
        replace(entry, candidate={}, verdict=verdict)
        for group, future in started
        for entry, verdict in zip(group, future.result(), strict=True)
    ]
