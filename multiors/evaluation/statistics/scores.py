"""What statistics work on: the scores of one evaluation, episode by episode, as plain numbers.

None is an unscored episode, and stays None in everything that is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["RunScores", "SourceScores"]


@dataclass(frozen=True, slots=True)
class SourceScores:
    """The scores of one source in one evaluation."""

    scores_TE: Mapping[int, Mapping[int, float | None]]
    """By task index, then by episode. A task that was played is in it, scored or not."""

    range: tuple[float, float] | None = None
    """Lowest and highest score there is, as the user declared it. None: not declared."""


@dataclass(frozen=True, slots=True)
class RunScores:
    """The scores of one evaluation: of one policy, or of one training run of an arm."""

    name: str
    """What runs of two arms are matched by, where there are several."""

    sources: Mapping[str, SourceScores]
    """In the order of the mix."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the sources in the macro average, relative to each other. A source that is missing weighs 1."""
