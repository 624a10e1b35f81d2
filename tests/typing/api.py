"""What a type checker makes of the public names. Checked, never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, assert_type

from multiors import (
    CheckReport,
    CircuitBreaker,
    ComparisonError,
    ConfigError,
    GroupScore,
    MultiOpenRewardSpec,
    MultiORSError,
    ORSSource,
    RewardError,
    RewardPart,
    RolloutLog,
    RolloutRecord,
    RolloutUpload,
    RoutingError,
    SessionError,
    SourceError,
    SourceReward,
    StepRecord,
    UnscoredReason,
    check,
    draw_run,
    read_rollouts,
)
from multiors.checks import CheckFinding
from multiors.config import RunConfig, build_spec, load_run_file
from multiors.mixing import LearningCurve, Plan, Simulation, SourcePlan
from multiors.ors.rollouts.factory import EnvironmentFactory
from multiors.rewards import RunSummary, SourceSummary
from multiors.training import RewardColumns, TRLSource, UnionEnvironmentFactory
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
assert_type(rule.parts, tuple[RewardPart | GroupScore, ...])
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
    on_failure="unscored",
    max_failing_rollouts=3,
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
    circuit_breaker=CircuitBreaker(max_failure_rate=0.5, window_rollouts=16),
)
assert_type(spec.training_arguments(max_steps=3), dict[str, Any])
assert_type(spec.environment_factory, dict[str, Callable[[], Any]] | UnionEnvironmentFactory)
assert_type(spec.reward_funcs, RewardColumns)
assert_type(spec.reward_funcs(environments=[]), list[float | None])
assert_type(spec.reward_weights, list[float])
assert_type(spec.sources, dict[str, ORSSource | TRLSource])
assert_type(spec.describe_tools(), dict[str, str])
assert_type(spec.summary(), RunSummary)
assert_type(spec.summary().sources, Mapping[str, SourceSummary])
assert_type(spec.summary().sources["one"].mean_reward, float | None)
spec.close()

plan = spec.plan()
assert_type(plan, Plan)
assert_type(plan.sources, tuple[SourcePlan, ...])
assert_type(plan.prompts_per_batch, int | None)
assert_type(plan.to_json(), dict[str, Any])

simulation = spec.simulate({"one": LearningCurve(0.2, end=0.9, half_slots=64)}, seed=1)
assert_type(simulation, Simulation)
assert_type(simulation.rewards_BS, tuple[tuple[float | None, ...], ...])
assert_type(spec.simulate(LearningCurve()), Simulation)
draw_run(simulation, "run.png")
draw_run([{"step": 1, "env/one/share": 1.0}], Path("run.svg"))
draw_run(Path("checkpoint-1"), "run.png")

report = check(spec, training={"max_steps": 3}, tokenizer=None, probe=True, timeout_s=5)
assert_type(report, CheckReport)
assert_type(report.ok, bool)
assert_type(report.of("one", "tasks"), list[CheckFinding])
assert_type(report.findings[0].source, str | None)
assert_type(report.to_json(), dict[str, Any])

slots = spec.for_async()
assert_type(slots.environment_factory, dict[str, ScoredEnvironmentFactory])
assert_type(slots.reward_funcs, list[Callable[..., Any]])

with spec as entered:
    assert_type(entered, MultiOpenRewardSpec)

weights: Literal["tasks"] = "tasks"
assert_type(MultiOpenRewardSpec({"one": source}, weights=weights), MultiOpenRewardSpec)

# What is wrong is seen before it runs.
ORSSource("lab/name", on_failure="retry")  # type: ignore[arg-type]  # no such policy
MultiOpenRewardSpec({"one": source}, circuit_breaker=True)  # type: ignore[arg-type]  # settings, or None
MultiOpenRewardSpec({"one": source}, tools="both")  # type: ignore[arg-type]  # no such mode
MultiOpenRewardSpec({"one": source}, weights="equal")  # type: ignore[arg-type]  # no such word
MultiOpenRewardSpec({"one": source}, stopping_strategy="last")  # type: ignore[arg-type]  # no such strategy
MultiOpenRewardSpec({"one": source}, "tasks")  # type: ignore[call-arg]  # options have names
ORSSource("lab/name", 3)  # type: ignore[call-arg]  # options have names
RewardPart("brevity")  # type: ignore[arg-type]  # no function
StepRecord(tool="a", failure="lost")  # type: ignore[arg-type]  # no reason
StepRecord(tool="a").tool = "b"  # type: ignore[misc]  # records do not change

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


log = RolloutLog("rollouts", max_file_bytes=2**20, max_files=3)
assert_type(log.num_lost, int)
upload = RolloutUpload("run", api_key="k", api_url=None)
assert_type(upload.num_failed, int)
logged = MultiOpenRewardSpec({"one": source}, rollout_log=log, on_rollouts=[upload, collect])
assert_type(MultiOpenRewardSpec({"one": source}, rollout_log=Path("rollouts")), MultiOpenRewardSpec)
assert_type(list(read_rollouts("rollouts")), list[RolloutRecord])
MultiOpenRewardSpec({"one": source}, rollout_log=3)  # type: ignore[arg-type]  # no folder


def run_file(path: Any) -> None:
    """The run file from Python."""
    config = load_run_file(path)
    assert_type(config, RunConfig)
    assert_type(build_spec(config, on_rollouts=collect), MultiOpenRewardSpec)
