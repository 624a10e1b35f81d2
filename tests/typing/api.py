"""What a type checker makes of the public names. Checked, never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, assert_type

from multiors import (
    ComparisonError,
    ConfigError,
    Episode,
    MultiOpenRewardSpec,
    MultiORSError,
    ORSSource,
    RewardError,
    RewardPart,
    RolloutRecord,
    RoutingError,
    SessionError,
    SourceError,
    SourceReward,
    StepRecord,
    UnscoredReason,
)
from multiors.config import RunConfig, build_spec, load_run_file
from multiors.mixing import Plan, SourcePlan
from multiors.ors.rollouts.environment import EnvironmentFactory
from multiors.training import RewardColumns, SlotSource, UnionEnvironmentFactory
from multiors.training.scored import ScoredEnvironmentFactory


def brevity(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """A user's function."""
    return [None] * len(completions)


async def judge(completions: Sequence[Any], tasks: Sequence[Any], **_: Any) -> list[float]:
    """An async one."""
    return [0.0] * len(completions)


def collect(records: list[RolloutRecord]) -> None:
    """Takes the records of a batch."""
    for record in records:
        assert_type(record.source, str)
        assert_type(record.task_index, int | None)
        assert_type(record.slot, int | None)
        assert_type(record.reward, float | None)
        assert_type(record.outcome, float | None)
        assert_type(record.parts, Mapping[str, float | None])
        assert_type(record.reason, UnscoredReason | None)
        assert_type(record.steps, tuple[StepRecord, ...])
        assert_type(record.to_json(), dict[str, Any])


part = RewardPart(judge, weight=0.1, name="judge", scores_alone=True)
assert_type(part.function, Callable[..., Any])
assert_type(part.weight, float)

rule = SourceReward(weight=2, outcome_weight=0.5, parts=(RewardPart(brevity), part), unscored=0.0, unfinished=None)
assert_type(rule.parts, tuple[RewardPart, ...])
assert_type(rule.unscored, float | None)

source = ORSSource(
    "lab/name",
    num_tasks=3,
    split="train",
    indices=(1, 2),
    api_key=None,
    secrets={"HF_TOKEN": "x", "OTHER": ("y", ["host"])},
    env_name="sorting",
    include_metadata=True,
    discover_task_tools=True,
    task_tools_discovery_index=0,
    variant="hard",
    weight=1.5,
    reward=rule,
    session_url=None,
    open_timeout_s=1,
    call_timeout_s=2.0,
)
assert_type(source.environment_factory, EnvironmentFactory)
assert_type(source.reward_funcs, Callable[..., list[float | None]])
assert_type(source.weight, float | None)

spec = MultiOpenRewardSpec(
    {"one": source, "two": object()},
    weights={"one": 1, "two": 2.5},
    seed=1,
    num_slots=None,
    stopping_strategy="all_exhausted",
    tools="separate",
    on_rollouts=collect,
)
assert_type(spec.training_arguments(max_steps=3), dict[str, Any])
assert_type(spec.environment_factory, dict[str, Callable[[], Any]] | UnionEnvironmentFactory)
assert_type(spec.reward_funcs, RewardColumns)
assert_type(spec.reward_funcs(environments=[]), list[float | None])
assert_type(spec.reward_weights, list[float])
assert_type(spec.sources, dict[str, ORSSource | SlotSource])
assert_type(spec.describe_tools(), dict[str, str])
spec.close()

plan = spec.plan()
assert_type(plan, Plan)
assert_type(plan.sources, tuple[SourcePlan, ...])
assert_type(plan.prompts_per_batch, int | None)
assert_type(plan.to_json(), dict[str, Any])

slots = spec.for_async()
assert_type(slots.environment_factory, dict[str, ScoredEnvironmentFactory])
assert_type(slots.reward_funcs, list[Callable[..., Any]])

with spec as entered:
    assert_type(entered, MultiOpenRewardSpec)

weights: Literal["tasks"] = "tasks"
assert_type(MultiOpenRewardSpec({"one": source}, weights=weights), MultiOpenRewardSpec)

# What is wrong is seen before it runs.
MultiOpenRewardSpec({"one": source}, tools="both")  # type: ignore[arg-type]  # no such mode
MultiOpenRewardSpec({"one": source}, weights="equal")  # type: ignore[arg-type]  # no such word
MultiOpenRewardSpec({"one": source}, stopping_strategy="last")  # type: ignore[arg-type]  # no such strategy
MultiOpenRewardSpec({"one": source}, "tasks")  # type: ignore[call-arg]  # options have names
ORSSource("lab/name", 3)  # type: ignore[call-arg]  # options have names
RewardPart("brevity")  # type: ignore[arg-type]  # no function
StepRecord(tool="a", failure="lost")  # type: ignore[arg-type]  # no reason
Episode(task_index=0, steps=(), opened=True, finished=False).steps = ()  # type: ignore[misc]  # records do not change

errors: tuple[type[MultiORSError], ...] = (
    ComparisonError,
    ConfigError,
    RewardError,
    RoutingError,
    SessionError,
    SourceError,
)
values: tuple[type[ValueError], ...] = (ConfigError, SourceError, RewardError, ComparisonError)
lookup: type[LookupError] = RoutingError
runtime: type[RuntimeError] = SessionError
assert_type(UnscoredReason.NO_SCORE.is_infrastructure, bool)


def run_file(path: Any) -> None:
    """The run file from Python."""
    config = load_run_file(path)
    assert_type(config, RunConfig)
    assert_type(build_spec(config, on_rollouts=collect), MultiOpenRewardSpec)
