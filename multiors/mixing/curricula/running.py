"""A curriculum at work in one run: what it knows now, and the checks on what it answers.

The one place that holds states, so that curricula need not. It is given observations batch by batch and in order, and
asked for shares; `state()` goes into the checkpoint. A curriculum is often a user's, so what it answers is looked at
here: that its shares sum to 1, and that its first states are JSON-ready.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from multiors.errors import ConfigError
from multiors.mixing.curricula.curriculum import Chain, Curriculum, MixSource, begin, describe_changes, measure, naming
from multiors.mixing.curricula.observing import SourceObservation
from multiors.mixing.settings import is_number, read_settings

__all__ = ["CurriculumRun"]

_NOTHING = 1e-9  # A share below is none: the quota could not tell it from 0 in any run.
_ROUNDING = 1e-6


class CurriculumRun:
    """The shares of one run.

    Args:
        curriculum: Decides them.
        sources: In the order of the mix.
        num_batches: Batches in the run. None: not known.

    Raises:
        ConfigError: The curriculum does not fit the sources, or its states are not JSON-ready values by source.
    """

    def __init__(self, curriculum: Curriculum, sources: Sequence[MixSource], *, num_batches: int | None = None) -> None:
        self._curriculum = curriculum
        self._names = tuple(source.name for source in sources)
        self._sources = tuple(sources)
        self._num_batches = num_batches
        self.changes: list[str] = []
        """What a person should hear of, in order; whoever tells it clears the list."""

        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._states = self._check_states(begin(self._curriculum, self._sources), "begin()", is_first=True)
        self._was_updated = False

    def update(self, seen: Mapping[str, SourceObservation], *, batch: int | None = None) -> None:
        """Take one more batch.

        Args:
            seen: The sources that it held.
            batch: Its number, for errors. None: not known.
        """
        before = self._states
        with naming(self._curriculum, ", update()" if batch is None else f", update() after batch {batch}"):
            updated = self._curriculum.update(before, seen)
        self._states = self._check_states(updated, "update()", is_first=bool(seen) and not self._was_updated)
        self._was_updated = self._was_updated or bool(seen)
        self.changes += describe_changes(self._curriculum, before, self._states)

    def shares(self, reference: Mapping[str, float], batch: int) -> dict[str, float]:
        """Each source's share of a batch; they sum to 1, and 0 means that the source is not drawn.

        Args:
            reference: The shares as they would be without the curriculum, in the order of the mix. 0: left out.
            batch: Number of the batch.

        Raises:
            ConfigError: The curriculum's shares are none.
        """
        with naming(self._curriculum, f", shares() of batch {batch}"):
            given: object = self._curriculum.shares(self._states, reference, batch=batch, num_batches=self._num_batches)
        who = f"curriculum {self._curriculum.name}"
        found: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        if set(found) != set(self._names):
            given = list(found) if isinstance(given, Mapping) else given
            raise ConfigError(
                f"{who}: shares() gave {given!r}; the sources are {list(self._names)}. Give each a share."
            )
        for name, share in found.items():
            if not is_number(share) or share < 0:
                raise ConfigError(f"{who}: shares() gave source {name!r} {share!r}. Return numbers from 0 upwards.")
            if share > _NOTHING and not reference[name]:
                raise ConfigError(
                    f"{who}: shares() gave source {name!r} {share!r}, and its reference share is 0. Return 0 for it."
                )
        total = math.fsum(found.values())
        if abs(total - 1) > _ROUNDING:
            raise ConfigError(f"{who}: the shares of batch {batch} sum to {total!r}. Divide them by their sum.")
        drawn = {name: float(found[name]) if found[name] > _NOTHING else 0.0 for name in self._names}
        total = math.fsum(drawn.values())
        return {name: share / total for name, share in drawn.items()}

    def measure(self) -> dict[str, dict[str, float]]:
        """Numbers to be logged, by source and metric.

        Raises:
            ConfigError: The curriculum has measured what is no source, or no numbers.
        """
        found = measure(self._curriculum, self._states)
        unknown = [name for name in found if name not in self._names]
        if unknown:
            raise ConfigError(
                f"curriculum {self._curriculum.name}: measure() gave numbers for {unknown}; the sources are "
                f"{list(self._names)}. Return a dict of metrics by source."
            )
        return found

    def state(self) -> dict[str, Any]:
        """Everything that the next shares follow from, as JSON-ready values.

        Raises:
            ConfigError: The states are not what they are after they were written as JSON and read again.
        """
        self._check_json(self._states, f"curriculum {self._curriculum.name}: update()")
        return {
            "curriculum": self._curriculum.name,
            "settings": read_settings(self._curriculum),
            "sources": dict(self._states),
        }

    def restore(self, state: Mapping[str, Any], *, forgotten: Collection[str] = ()) -> list[str]:
        """Go on from an earlier state; sources that it does not know begin anew, and so do those that are forgotten.

        Returns:
            A sentence on each thing that changed, but for sources that came or went.
        """
        self.restart()
        if state["curriculum"] != self._curriculum.name:
            return [
                f"the curriculum is {self._curriculum.name}, and was {state['curriculum']}; what that one knew is "
                f"forgotten"
            ]
        known = {name: own for name, own in state["sources"].items() if name not in forgotten}
        if isinstance(self._curriculum, Chain):
            return self._restore_chain(self._curriculum, known, state["settings"])
        change, goes_on = _compare_settings(self._curriculum, state["settings"])
        if goes_on:
            self._states = {name: known.get(name, fresh) for name, fresh in self._states.items()}
        return change

    def _restore_chain(self, curriculum: Chain, known: Mapping[str, Any], settings: Any) -> list[str]:
        """Each part goes on, or begins anew, by its own settings."""
        before = [None] * len(curriculum.parts) if settings is None else settings["parts"]
        found = [_compare_settings(part, each) for part, each in zip(curriculum.parts, before, strict=True)]
        self._states = {
            name: [
                own if goes_on else new
                for own, new, (_, goes_on) in zip(known.get(name, fresh), fresh, found, strict=True)
            ]
            for name, fresh in self._states.items()
        }
        return [sentence for change, _ in found for sentence in change]

    def _check_states(self, states: object, method: str, *, is_first: bool) -> dict[str, Any]:
        who = f"curriculum {self._curriculum.name}: {method}"
        if not isinstance(states, Mapping) or set(states) != set(self._names):
            given = list(states) if isinstance(states, Mapping) else states
            raise ConfigError(f"{who} returned {given!r}. Return one state per source, by name: {list(self._names)}.")
        ordered = {name: states[name] for name in self._names}
        if is_first:
            self._check_json(ordered, who)
        return ordered

    @staticmethod
    def _check_json(states: Mapping[str, Any], who: str) -> None:
        if not _is_json(states):
            raise ConfigError(
                f"{who} returned a state that is not what it is after it was written as JSON and read again. Build "
                f"states of finite numbers, texts, None, lists, and dicts with texts as keys; no tuples, no arrays."
            )


def _compare_settings(curriculum: Curriculum, before: Any) -> tuple[list[str], bool]:
    """What is said of other settings, and whether what was learned with them is kept."""
    if before is None or before == read_settings(curriculum):
        return [], True
    goes_on = curriculum.can_continue(before)
    what = "and goes on with what it knows" if goes_on else "with which it begins anew"
    return [f"the curriculum {curriculum.name} has other settings, {what}"], goes_on


def _is_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False
