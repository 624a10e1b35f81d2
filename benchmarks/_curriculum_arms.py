"""The arms of `curriculum_training.py`, how much each run does, and where its result lies. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from multiors.mixing.curricula import Curriculum, Ladder, LearningProgress, TaskCurriculum

__all__ = ["ARMS", "LEARNABLE", "WARM", "Arm", "Effort", "get_path"]

LEARNABLE = ("parrot", "dictionary", "semaphore")
"""The sources in which something can be learned."""

WARM = "warm"
"""The name of the job that is not an arm."""


@dataclass(frozen=True, slots=True)
class Arm:
    """What decides the mix."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """Of sources, where it is not 1."""

    sources: Curriculum | None = None
    tasks: TaskCurriculum | None = None


# With the default `up=0.9` a ladder had not opened the highest levels when these short runs were over.
_EARLY = Ladder(field="level", up=0.6, min_groups=4)

ARMS = {
    "uniform": Arm(),
    "static": Arm(weights={"semaphore": 2.0}),
    "learning_progress": Arm(sources=LearningProgress()),
    "uniform + ladder": Arm(tasks=Ladder(field="level")),
    "learning_progress + ladder": Arm(sources=LearningProgress(), tasks=Ladder(field="level")),
    "uniform + early ladder": Arm(tasks=_EARLY),
    "learning_progress + early ladder": Arm(sources=LearningProgress(), tasks=_EARLY),
}
"""The last two were added after the results of the others were seen."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done. Less is only good for tests."""

    scripted_episodes: int = 160
    """Per source."""

    warm_start_steps: int = 300
    batches: int = 50
    """Generation batches of GRPO."""

    prompts_per_batch: int = 8
    episodes_per_task: int = 6
    """In each measurement."""


def get_path(folder: Path, job: str, seed: int) -> Path:
    """Where the result of a job goes."""
    return folder / f"{job.replace(' + ', '-')}-{seed}.json"
