"""Scores to test statistics with: written by hand, and drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st

from multiors.evaluation.statistics import RunScores, SourceScores

__all__ = ["change_scores", "close", "make_run", "make_source", "reorder", "runs", "sources"]

Scores = Sequence[Sequence[float | None]]
"""By task, then by episode."""

Item = TypeVar("Item")

close: Callable[..., Any] = pytest.approx
"""For tuples of which some are not exact; the type checker holds that they never equal numbers."""


def make_source(scores: Scores, range_: tuple[float, float] | None = None) -> SourceScores:
    """Tasks and episodes are numbered from 0."""
    return SourceScores({task: dict(enumerate(each)) for task, each in enumerate(scores)}, range_)


def make_run(
    name: str = "run", weights: Mapping[str, float] | None = None, **scores: Scores | SourceScores
) -> RunScores:
    """An evaluation of the sources that are named."""
    made = {key: each if isinstance(each, SourceScores) else make_source(each) for key, each in scores.items()}
    return RunScores(name, made, weights or {})


def change_scores(run: RunScores, change: Callable[[float], float]) -> RunScores:
    """The same evaluation with other scores and ranges; None stays None."""
    changed = {
        name: SourceScores(
            {
                task: {episode: None if score is None else change(score) for episode, score in episodes.items()}
                for task, episodes in source.scores_TE.items()
            },
            None if source.range is None else (change(source.range[0]), change(source.range[1])),
        )
        for name, source in run.sources.items()
    }
    return RunScores(run.name, changed, run.weights)


def reorder(run: RunScores) -> RunScores:
    """The same evaluation, with tasks and episodes noted in the opposite order."""
    turned = {
        name: SourceScores({task: _turn(episodes) for task, episodes in _turn(source.scores_TE).items()}, source.range)
        for name, source in run.sources.items()
    }
    return RunScores(run.name, turned, run.weights)


def _turn(items: Mapping[int, Item]) -> dict[int, Item]:
    return dict(reversed(list(items.items())))


def sources(range_: tuple[float, float] | None = (0.0, 1.0)) -> st.SearchStrategy[SourceScores]:
    """Up to eight tasks with up to four episodes, some of them unscored; scores are eighths, so that sums are exact."""
    scores = st.none() | st.integers(0, 8).map(lambda eighths: eighths / 8)
    tasks = st.dictionaries(st.integers(0, 20), st.dictionaries(st.integers(0, 5), scores, max_size=4), max_size=8)
    return tasks.map(lambda found: SourceScores(found, range_))


def runs(names: Sequence[str] = ("a", "b"), name: str = "run") -> st.SearchStrategy[RunScores]:
    """Evaluations of two sources, of which the first weighs twice as much."""
    return st.fixed_dictionaries(dict.fromkeys(names, sources())).map(
        lambda found: RunScores(name, found, {names[0]: 2.0})
    )
