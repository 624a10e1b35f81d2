"""What changes a mix while it is trained: a circuit breaker, a curriculum between sources, and curricula inside them.

Holds what a user asked for, and begins it for a run. When each is asked is decided in `multiors.mixing.planner`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multiors.errors import ConfigError
from multiors.mixing.breaker import CircuitBreaker
from multiors.mixing.curricula import (
    Curriculum,
    CurriculumRun,
    MixSource,
    SourceTasks,
    TaskCurriculum,
    TaskDraws,
)
from multiors.mixing.settings import read_settings

__all__ = ["MixRules"]


@dataclass(frozen=True)
class MixRules:
    """The rules of one mix.

    Raises:
        ConfigError: One of them is of another kind.
    """

    breaker: CircuitBreaker | None = None
    """When a source is left out. None: never."""

    curriculum: Curriculum | None = None
    """Decides the shares. None: they are constant."""

    task_curricula: Mapping[str, TaskCurriculum] = field(default_factory=dict)
    """Decides which of its tasks a source draws, by source. One that is not named draws all in turn."""

    def __post_init__(self) -> None:
        breaker: object = self.breaker
        if breaker is not None and not isinstance(breaker, CircuitBreaker):
            raise ConfigError(f"circuit_breaker={breaker!r} is none. Pass CircuitBreaker(...), or None.")
        rules: Mapping[str, object] = self.task_curricula
        for name, rule in rules.items():
            if not isinstance(rule, TaskCurriculum):
                between = " Between sources: MultiOpenRewardSpec(..., curriculum=...)."
                hint = between if isinstance(rule, Curriculum) else ""
                raise ConfigError(
                    f"source {name!r}: task_curriculum={rule!r} does not choose among tasks. Pass Ladder(...), "
                    f"Pools(...), or None.{hint}"
                )

    @property
    def react(self) -> bool:
        """Whether what is drawn depends on what is observed. False: all of it is known before the run."""
        return bool(self.reacting)

    @property
    def has_curriculum(self) -> bool:
        """Whether a curriculum decides anything, between sources or inside one."""
        return self.curriculum is not None or bool(self.task_curricula)

    @property
    def reacting(self) -> list[str]:
        """What makes it depend on that, as the user passed it."""
        found = [] if self.breaker is None else ["a circuit breaker"]
        if self.curriculum is not None and self.curriculum.reacts:
            found.append("a curriculum")
        return [*found, *(f"a task curriculum of source {name!r}" for name in self.task_curricula)]

    @property
    def learning(self) -> list[str]:
        """The curricula that follow what is observed, by their names."""
        return self.names[1:] if self.scheduled is not None else self.names

    def follows_rewards(self, name: str) -> bool:
        """Whether a curriculum remembers the rewards of a source."""
        return (self.curriculum is not None and self.curriculum.reacts) or name in self.task_curricula

    @property
    def names(self) -> list[str]:
        """All curricula: the one between sources first, then those inside them."""
        between = [] if self.curriculum is None else [self.curriculum.name]
        return [*between, *(f"{type(rule).__name__} in source {name!r}" for name, rule in self.task_curricula.items())]

    @property
    def scheduled(self) -> dict[str, Any] | None:
        """The curriculum that is laid out before the run, by name and settings. None: there is none."""
        return None if self.curriculum is None or self.curriculum.reacts else self.followed

    @property
    def followed(self) -> dict[str, Any] | None:
        """The curriculum between sources, by name and settings. None: shares follow the weights."""
        if self.curriculum is None:
            return None
        return {"curriculum": self.curriculum.name, "settings": read_settings(self.curriculum)}

    def begin_shares(self, sources: Sequence[SourceTasks], *, num_batches: int | None) -> CurriculumRun | None:
        """The curriculum at the beginning of a run. None: there is none.

        Raises:
            ConfigError: It does not fit the sources.
        """
        if self.curriculum is None:
            return None
        known = [MixSource(source.name, source.num_tasks, source.reward_range) for source in sources]
        return CurriculumRun(self.curriculum, known, num_batches=num_batches)

    def begin_tasks(self, sources: Sequence[SourceTasks], *, seed: int) -> dict[int, TaskDraws]:
        """The draws of the sources that choose among their tasks, by position in the mix.

        Raises:
            ConfigError: A curriculum does not fit the tasks of its source.
        """
        return {
            index: self.task_curricula[source.name].begin(source, seed=seed, source=index)
            for index, source in enumerate(sources)
            if source.name in self.task_curricula
        }

    def check(self, sources: Sequence[SourceTasks]) -> None:
        """Raise unless every curriculum can begin with these sources.

        Raises:
            ConfigError: One does not fit them.
        """
        self.begin_shares(sources, num_batches=None)
        self.begin_tasks(sources, seed=0)

    def find_shares(
        self, sources: Sequence[SourceTasks], shares: Mapping[str, float], *, num_batches: int
    ) -> list[list[float]]:
        """The shares of every batch of a run in which nothing is observed.

        Args:
            sources: In the order of the mix.
            shares: As they would be without a curriculum, by source.
            num_batches: Batches of the run.
        """
        run = self.begin_shares(sources, num_batches=num_batches)
        if run is None:
            return [list(shares.values())] * num_batches
        return [list(run.shares(shares, batch).values()) for batch in range(num_batches)]
