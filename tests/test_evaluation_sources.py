"""The sources of an evaluation: which tasks are played, and what can be said of their scores beforehand."""

from __future__ import annotations

from typing import Any

import pytest

from multiors import GroupScore, MultiOpenRewardSpec, ORSSource, RewardPart, SourceReward
from multiors.errors import ConfigError
from multiors.evaluation.running.sources import EvaluatedSource, prepare_evaluation
from tests.servers.launch import ServerHandle


def prepare(sources: Any, **options: Any) -> dict[str, EvaluatedSource]:
    """The sources, with a policy that takes no images, and all tasks unless said otherwise."""
    return prepare_evaluation(sources, **{"num_tasks": None, "split": None, "seed": 0, "sees_images": False, **options})


def test_a_plan_says_what_is_played(zoo_server: ServerHandle) -> None:
    """Where, of which split, which tasks, and what tells them from others of the same index."""
    source = ORSSource(zoo_server.url, env_name="splits", split="test", discover_task_tools=False)
    plan = prepare({"s": source})["s"].plan
    again, other = (prepare({"s": source}, split=split)["s"].plan.digests for split in (None, "train"))

    assert (zoo_server.url, "splits", "test", (0, 1)) == (plan.target, plan.env_name, plan.split, plan.tasks)
    assert plan.digests == again
    assert not set(plan.digests.values()) & set(other.values())


def test_tasks_whose_specifications_are_not_fetched_have_no_digest(zoo_server: ServerHandle) -> None:
    """And the policy is told no task."""
    source = ORSSource(zoo_server.url, env_name="splits", include_metadata=False, discover_task_tools=False)
    found = prepare({"s": source})["s"]

    assert ({}, (0, 1, 2), None) == (found.plan.digests, found.plan.tasks, found.find_task(0))


def judge(completions: Any, **_: Any) -> list[float]:
    """A function of the user's."""
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("reward", "outcomes", "rewards"),
    [
        (None, None, None),
        (SourceReward(), None, None),
        (SourceReward(range=(0.0, 10.0)), (0.0, 10.0), (0.0, 10.0)),
        (SourceReward(range=(0.0, 10.0), scale=0.1, offset=-1.0), (-1.0, 0.0), (-1.0, 0.0)),
        (SourceReward(range=(0.0, 1.0), outcome_weight=-2.0), (0.0, 1.0), (-2.0, 0.0)),
        (SourceReward(range=(0.0, 1.0), unscored=-1.0), (-1.0, 1.0), (-1.0, 1.0)),
        (SourceReward(range=(0.0, 1.0), unfinished=-3.0, unscored=2.0), (-3.0, 2.0), (-3.0, 2.0)),
        (SourceReward(range=(0.0, 1.0), parts=(RewardPart(judge),)), (0.0, 1.0), None),
    ],
)
def test_the_range_of_scores_is_what_was_declared(
    zoo_server: ServerHandle, reward: Any, outcomes: Any, rewards: Any
) -> None:
    """With what giving up is worth; of a reward in which functions of the user's have a part, nothing is known."""
    source = ORSSource(zoo_server.url, env_name="echo", reward=reward, discover_task_tools=False)
    plan = prepare({"s": source})["s"].plan

    assert outcomes == (None if plan.range is None else pytest.approx(plan.range))
    assert rewards == (None if plan.reward_range is None else pytest.approx(plan.reward_range))


def test_a_comparison_of_groups_is_left_out(zoo_server: ServerHandle) -> None:
    """An evaluation has no groups, which is said; what else the reward has stays."""
    reward = SourceReward(parts=(RewardPart(judge), GroupScore()), reduction="sum")
    source = ORSSource(zoo_server.url, env_name="echo", reward=reward, discover_task_tools=False)

    with pytest.warns(UserWarning, match="source 's': GroupScore compares the rollouts of a training group"):
        found = prepare({"s": source})["s"].reward

    assert SourceReward(parts=(RewardPart(judge),), reduction="sum") == found


def test_an_evaluation_disturbs_no_training(zoo_server: ServerHandle) -> None:
    """Its sources have an identity of their own, by which sessions are closed; the given ones are as they were."""
    spec = MultiOpenRewardSpec({"s": ORSSource(zoo_server.url, env_name="echo", discover_task_tools=False)})
    given = spec.sources["s"]
    found = [prepare(spec.sources)["s"] for _ in range(2)]

    assert isinstance(given, ORSSource)
    assert 3 == len({given.identity, *(each.source.identity for each in found)})
    assert ["s", "s"] == [each.source.label for each in found]


def test_what_is_no_ors_source_is_refused(zoo_server: ServerHandle) -> None:
    """Its name and the remedy are said, and so it is without any source."""
    from trl.experimental.openreward import OpenRewardSpec

    with pytest.raises(
        ConfigError, match=r"source 'other' is no ORS environment, .*\(--source s --source t; in Python"
    ):
        prepare(
            {"s": ORSSource(zoo_server.url), "other": OpenRewardSpec(zoo_server.url), "t": ORSSource(zoo_server.url)}
        )
    with pytest.raises(ConfigError, match=r"plays such a one\. In training, spec\.eval_dataset"):
        prepare({"alone": OpenRewardSpec(zoo_server.url)})
    with pytest.raises(ConfigError, match="at least one source"):
        prepare({})
