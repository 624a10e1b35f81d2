"""Sessions opened in the background for a trainer that resets its environments one at a time.

`AsyncGRPOTrainer` plays the schedule in order, each slot `num_generations` times, and waits for each reset before the
next. So the reset of a slot's first rollout starts the sessions of its whole group and of the next slot's group. A
value of this module knows the schedule and pickles to the rollout worker; what was opened is known there only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from multiors.ors.rollouts.blueprint import Blueprint
from multiors.ors.rollouts.opening import Opening, discard, open_ahead

__all__ = ["Lookahead"]

# Of AsyncGRPOConfig (TRL 1.16); the true number is seen after the first group.
_FIRST_GUESS = 8


@dataclass(frozen=True, slots=True)
class Lookahead:
    """The schedule, as far as opening sessions ahead needs it."""

    identity: str
    """Of the mix."""

    blueprints: Sequence[Blueprint]
    """Of the sources, in their order."""

    sources: Sequence[int]
    """Index of each slot's source."""

    task_indices: Sequence[int]
    """Each slot's task."""

    def begin(self, slot: int) -> None:
        """Note that a rollout of this slot is being reset, and open what comes next."""
        _progress[self.identity].begin(slot, self)

    def open_group(self, slot: int, num_rollouts: int) -> list[Opening]:
        """Start the sessions of a slot's rollouts."""
        blueprint = self.blueprints[self.sources[slot]]
        return [open_ahead(blueprint, self.task_indices[slot]) for _ in range(num_rollouts)]


@dataclass(slots=True)
class _Progress:
    """What was opened ahead for one mix in this process."""

    slot: int | None = None
    num_resets: int = 0
    num_generations: int = _FIRST_GUESS
    openings_by_slot: dict[int, list[Opening]] = field(default_factory=dict)

    def begin(self, slot: int, lookahead: Lookahead) -> None:
        if slot == self.slot:
            self.num_resets += 1
            return

        if self.slot is not None:
            self.num_generations = self.num_resets

        self.slot, self.num_resets = slot, 1
        following = (slot + 1) % len(lookahead.sources)

        for past in self.openings_by_slot.keys() - {slot, following}:
            discard(self.openings_by_slot.pop(past))

        for ahead in (slot, following):
            if ahead not in self.openings_by_slot:
                self.openings_by_slot[ahead] = lookahead.open_group(ahead, self.num_generations)


_progress: defaultdict[str, _Progress] = defaultdict(_Progress)
