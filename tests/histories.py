"""Histories of a mix for tests of curricula: what became of its sources, batch by batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from multiors.mixing.curricula import Curriculum, CurriculumRun, MixSource, SourceObservation
from multiors.mixing.curricula.observing import Group

__all__ = ["Group", "History", "even", "groups_of", "histories", "names", "play", "references", "seen_in", "sources_of"]

History = Sequence[Mapping[str, Sequence[Group]]]
"""For each batch the groups of the sources that it held."""

UNIT = (0.0, 1.0)


def names(count: int) -> list[str]:
    """So many sources."""
    return [f"source-{index}" for index in range(count)]


def sources_of(found: Sequence[str], reward_range: tuple[float, float] | None = UNIT) -> list[MixSource]:
    """Sources of a hundred tasks each."""
    return [MixSource(name, 100, reward_range) for name in found]


def even(found: Sequence[str]) -> dict[str, float]:
    """Equal shares."""
    return {name: 1 / len(found) for name in found}


def groups_of(*rewards: float | None, num_groups: int = 1) -> list[Group]:
    """The same group so many times."""
    return [rewards] * num_groups


def seen_in(
    batch: Mapping[str, Sequence[Group]], reward_range: tuple[float, float] | None = UNIT
) -> dict[str, SourceObservation]:
    """A batch as curricula are told it."""
    return {name: SourceObservation(tuple(found), reward_range) for name, found in batch.items()}


def play(
    curriculum: Curriculum,
    history: History,
    reference: Mapping[str, float],
    *,
    reward_range: tuple[float, float] | None = UNIT,
    is_saved: bool = False,
) -> list[dict[str, float]]:
    """The shares before each batch and after the last; `is_saved`: each time by a new run, restored from JSON."""

    def begin() -> CurriculumRun:
        return CurriculumRun(curriculum, sources_of(list(reference), reward_range), num_batches=len(history) + 1)

    run = begin()
    found = [run.shares(reference, 0)]
    for number, batch in enumerate(history, 1):
        run.update(seen_in(batch, reward_range))
        if is_saved:
            state: dict[str, Any] = json.loads(json.dumps(run.state(), sort_keys=True))
            run = begin()
            assert [] == run.restore(state)
        found.append(run.shares(reference, number))
    return found


rewards = st.none() | st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)
groups = st.lists(rewards, min_size=1, max_size=4).map(tuple)


def histories(found: Sequence[str]) -> st.SearchStrategy[History]:
    """A few batches, each with some of the sources, and with rewards from 0 to 1."""
    batch = st.dictionaries(st.sampled_from(found), st.lists(groups, min_size=1, max_size=2))
    return st.lists(batch, max_size=8)


def references(found: Sequence[str]) -> st.SearchStrategy[dict[str, float]]:
    """Shares of all sources; some may be left out, though not all."""
    parts = st.lists(st.just(0.0) | st.floats(0.001, 1), min_size=len(found), max_size=len(found)).filter(any)
    return parts.map(lambda values: {name: value / sum(values) for name, value in zip(found, values, strict=True)})
