"""The sources of an evaluation: asked once, before the first episode, for their tasks and tools.

Decides which tasks of which split are played, and what can be said of the scores beforehand. A source that is evaluated
has sessions of its own, so that a training that uses the same one is not disturbed.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from multiors.errors import ConfigError
from multiors.evaluation.folder import SourcePlan
from multiors.evaluation.running.choice import choose_tasks
from multiors.ors import ORSSource
from multiors.ors.preparation import prepare_sources
from multiors.ors.rollouts.factory import EnvironmentFactory
from multiors.ors.rollouts.showing import note_model
from multiors.ors.tools import render_tools
from multiors.rewards import GroupScore, SourceReward, as_source_reward

__all__ = ["EvaluatedSource", "prepare_evaluation"]


@dataclass(frozen=True, slots=True)
class EvaluatedSource:
    """Everything needed to play one source."""

    name: str
    source: ORSSource
    reward: SourceReward
    """As in training, without a comparison of groups."""

    plan: SourcePlan
    tools: tuple[Mapping[str, Any], ...]
    """As the policy sees them: the JSON schemas that transformers makes of the methods a trainer calls."""

    factory: EnvironmentFactory

    def find_task(self, task_index: int) -> Any:
        """The task's specification, decoded. None: it was not fetched."""
        text = self.source.find_task(task_index)
        return None if text is None else json.loads(text)


def prepare_evaluation(
    sources: Mapping[str, Any], *, num_tasks: int | None, split: str | None, seed: int, sees_images: bool
) -> dict[str, EvaluatedSource]:
    """Ask all sources for their tasks and tools, all at once.

    Args:
        sources: By name.
        num_tasks: Of each source, at most. None: all that the source has.
        split: Whose tasks are played. None: that of each source.
        seed: Decides which tasks are chosen.
        sees_images: Whether the policy takes images.

    Raises:
        ConfigError: There is no source, or one cannot be evaluated.
        SourceError: A source cannot be used.
    """
    if not sources:
        raise ConfigError("an evaluation needs at least one source. Pass a spec, or {'name': ORSSource(...), ...}.")

    _check_playable(sources)
    twins = {name: source.evaluated(name, split=split) for name, source in sources.items()}
    prepare_sources(list(twins.values()))
    note_model([twin.identity for twin in twins.values()], sees_images=sees_images)
    return {name: _prepare(name, twin, num_tasks=num_tasks, seed=seed) for name, twin in twins.items()}


def _check_playable(sources: Mapping[str, Any]) -> None:
    others = [name for name, source in sources.items() if not isinstance(source, ORSSource)]
    rest = [name for name in sources if name not in others]

    if others:
        listed = " ".join(f"--source {name}" for name in rest)
        advice = f"Evaluate the others of the mix ({listed}; in Python a mapping of them). " if rest else ""
        raise ConfigError(
            f"source {others[0]!r} is no ORS environment, and only a trainer plays such a one. {advice}In training, "
            f"spec.eval_dataset has this one too."
        )


def _prepare(name: str, source: ORSSource, *, num_tasks: int | None, seed: int) -> EvaluatedSource:
    reward = _without_comparison(name, as_source_reward(source.reward))
    tasks = choose_tasks(source.task_list.indices, num_tasks, seed=seed, source=name)
    specs = {index: source.find_task(index) for index in tasks}
    outcome_range = _find_range(reward)
    plan = SourcePlan(
        target=source.address,
        env_name=source.env_name,
        split=source.split,
        tasks=tasks,
        digests={index: _digest(spec) for index, spec in specs.items() if spec is not None},
        weight=1.0,
        range=outcome_range,
        reward=_describe_reward(reward),
        reward_range=None if reward.parts or outcome_range is None else _scale(outcome_range, reward.outcome_weight),
    )
    return EvaluatedSource(
        name, source, reward, plan, tuple(render_tools(source.tools)), EnvironmentFactory(source.blueprint)
    )


def _without_comparison(name: str, reward: SourceReward) -> SourceReward:
    if not reward.compares_groups:
        return reward

    warnings.warn(
        f"source {name!r}: GroupScore compares the rollouts of a training group, which an evaluation has not; episodes "
        f"are scored by what else the reward has.",
        stacklevel=5,
    )
    return replace(reward, parts=tuple(part for part in reward.parts if not isinstance(part, GroupScore)))


def _describe_reward(reward: SourceReward) -> dict[str, Any]:
    outcome = ("reduction", "scale", "offset", "clip", "unscored", "unfinished")
    return {
        "outcome": {name: getattr(reward, name) for name in outcome},
        "outcome_weight": reward.outcome_weight,
        "parts": [[part.name, part.weight, part.scores_alone] for part in reward.parts],
    }


def _find_range(reward: SourceReward) -> tuple[float, float] | None:
    """Lowest and highest outcome, with those that a source gives to what the environment left unscored."""
    declared = reward.outcome_range

    if declared is None:
        return None

    given = [*declared, *(value for value in (reward.unscored, reward.unfinished) if value is not None)]
    return min(given), max(given)


def _scale(ends: tuple[float, float], factor: float) -> tuple[float, float]:
    low, high = sorted(factor * end for end in ends)
    return low, high


def _digest(spec: str) -> str:
    return hashlib.blake2b(spec.encode(errors="surrogatepass"), digest_size=8).hexdigest()
