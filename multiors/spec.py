"""`MultiOpenRewardSpec`: several ORS environments as TRL's three slots. The only module that knows all rooms.

Asks the sources what they have, lets `mixing` decide which task fills which slot, hands TRL a dataset, one environment
factory per source and one reward column per source, and keeps the trainer's settings consistent with them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from multiors.errors import ConfigError
from multiors.mixing import (
    CircuitBreaker,
    Curves,
    Layout,
    Plan,
    Simulation,
    StoppingStrategy,
    build_dataset,
    lay_out,
    make_plan,
    resolve_shares,
)
from multiors.mixing.curricula import Curriculum, SourceTasks
from multiors.ors.preparation import find_random_prompts, prepare_sources
from multiors.ors.rollouts.factory import EnvironmentFactory
from multiors.ors.rollouts.opening import discard_owned_by
from multiors.ors.rollouts.showing import note_model
from multiors.ors.sessions.limits import Cap
from multiors.ors.sessions.runtime import get_runtime
from multiors.ors.sessions.secrets import Secrets
from multiors.ors.source import ORSSource
from multiors.pictures import draw_at_end
from multiors.rewards import RunSummary, SourceReward, as_source_reward
from multiors.training import (
    AsyncSlots,
    BatchShape,
    RewardColumns,
    RunState,
    UnionEnvironmentFactory,
    check_async,
    check_length,
    check_prompts,
    check_rows,
    check_settings,
    complete_fields,
    find_cancelled_weights,
    make_async_slots,
    make_columns,
    measure_batches,
    samples_groups_together,
)
from multiors.training.evaluating import EvaluationMetrics
from multiors.training.limits import FailureLimit, FailureLimits
from multiors.training.members import (
    check_group_scores,
    check_mix,
    check_sessions,
    check_shared_secrets,
    describe_tasks,
    log_plan,
    make_eval_rows,
    make_reader,
    make_rows,
    make_rules,
    name_sources,
)
from multiors.training.planned import (
    check_planned_rows,
    check_planning,
    lay_out_planned,
    require_batches,
    simulate_planned,
)
from multiors.training.processes import is_first_process
from multiors.training.recording import Listeners, LogTarget, Recording
from multiors.training.watch import RunWatch

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainerCallback

__all__ = ["MultiOpenRewardSpec"]


class MultiOpenRewardSpec:
    """Several ORS environments in one GRPO run.

    Give its slots to `GRPOTrainer` as you would those of one `OpenRewardSpec`, with the arguments from
    `training_arguments`. Nothing is asked of a server before a slot is read.

    Args:
        sources: The environments by name: `ORSSource`, TRL's `OpenRewardSpec`, `TRLSource`, or any object with TRL's
            three slots. Names are what trackers and tables will show: letters, digits, "-" and "_".
        weights: Each source's share of the mix: None takes the sources' own `weight`, "tasks" weighs by task counts,
            and a mapping names every source.
        seed: Decides the order of tasks and slots, together with the position in the schedule and nothing else.
        num_slots: Length of the schedule; one slot is one prompt. None: as `stopping_strategy` says, or as many as the
            run needs once `training_arguments(max_steps=...)` was called.
        stopping_strategy: "first_exhausted" ends when the first source has been seen once, "all_exhausted" when every
            source has, "max_slots" after `num_slots`.
        tools: "separate" shows each task its own environment's tools, "union" those of all sources.
        secrets: Values for the secrets that sources name without a value, or whose environments require them.
        on_rollouts: Called with the records of each scored batch, once per source; one function or several.
        rollout_log: A folder, or a `RolloutLog`, where every rollout is written as a line of JSON. None: nowhere.
        curriculum: Decides the shares, one or several in the order in which they act. None: they are constant.
        circuit_breaker: When a source whose environment fails is left out for a while. None: never.
        max_sessions: Sessions of all sources open at once, per process; not fewer than the rollouts of a batch. None:
            no limit.
        max_concurrent_calls: Tool calls and openings of all sources under way at once, per process. None: as many as
            there are sockets, which is half of the limit of open files.

    Raises:
        ConfigError: A name or an argument is wrong.

    Example:
        >>> spec = MultiOpenRewardSpec(
        ...     {
        ...         "sort": ORSSource("http://127.0.0.1:8001", env_name="sorting", weight=2.0),
        ...         "heat": ORSSource("http://127.0.0.1:8001", env_name="thermostat", weight=1.0),
        ...     }
        ... )
        >>> list(spec.sources)
        ['sort', 'heat']
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        *,
        weights: Literal["tasks"] | Mapping[str, float] | None = None,
        seed: int = 0,
        num_slots: int | None = None,
        stopping_strategy: StoppingStrategy | None = None,
        tools: Literal["separate", "union"] = "separate",
        secrets: Secrets | None = None,
        on_rollouts: Listeners | None = None,
        rollout_log: LogTarget | None = None,
        curriculum: Curriculum | Sequence[Curriculum] | None = None,
        circuit_breaker: CircuitBreaker | None = None,
        max_sessions: int | None = None,
        max_concurrent_calls: int | None = None,
    ) -> None:
        if tools not in ("separate", "union"):
            raise ConfigError(f"tools={tools!r} is not a mode. Pass 'separate' or 'union'.")

        self._identity = uuid.uuid4().hex
        self._cap = Cap(self._identity, "the mix", max_sessions=max_sessions, max_concurrent_calls=max_concurrent_calls)
        self.sources = name_sources(sources, cap=self._cap, secrets=secrets)
        self._secrets = secrets
        self._weights = dict(weights) if isinstance(weights, Mapping) else weights
        self._seed = seed
        self._num_slots = num_slots
        self._stopping_strategy: StoppingStrategy = stopping_strategy or (
            "max_slots" if num_slots is not None else "first_exhausted"
        )
        self._tools = tools
        self._recording = Recording(on_rollouts, rollout_log, self.sources)
        self._rewards: dict[str, SourceReward] = {
            name: as_source_reward(source.reward) for name, source in self.sources.items()
        }
        self._rules = make_rules(self.sources, curriculum, circuit_breaker)
        limits = FailureLimits({name: FailureLimit.of(source) for name, source in self.sources.items()})
        self._watch = RunWatch(list(self.sources), limits)
        self._is_prepared = False
        self._shape: BatchShape | None = None
        self._run_slots: int | None = None
        self._layout: Layout | None = None
        self._dataset: Dataset | None = None
        self._evaluation = EvaluationMetrics(list(self.sources))
        self._runs: list[RunState] = []
        check_mix(
            self.sources,
            seed=seed,
            num_slots=num_slots,
            cap=self._cap,
            weights=self._weights,
            stopping_strategy=self._stopping_strategy,
            tools=tools,
        )

    def __repr__(self) -> str:
        return f"MultiOpenRewardSpec({self.sources!r})"

    def __enter__(self) -> MultiOpenRewardSpec:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watch.report(is_shared=False)  # what an error has interrupted
        self.close()

    # Before the trainer is built

    def training_arguments(self, **fields: Any) -> dict[str, Any]:
        """The user's `GRPOConfig` fields, completed with what the mix needs.

        Also lays the schedule out for the trainer's batches: call it before `train_dataset` is read. Without
        `max_steps` the length of the run follows the schedule's.

        Args:
            fields: As they would be passed to `GRPOConfig`.

        Returns:
            Fields for `GRPOConfig(**...)`.

        Raises:
            ConfigError: A field contradicts the mix, or the dataset was read before.
        """
        from trl import GRPOConfig

        completed = complete_fields(fields, self._reward_weights)
        shape = measure_batches(GRPOConfig(**completed))
        max_steps = fields.get("max_steps", -1)
        run_slots = shape.count_slots(max_steps) if max_steps > 0 else None

        if self._layout is not None and (shape, run_slots) != (self._shape, self._run_slots):
            raise ConfigError(
                "training_arguments(...) was called after the dataset or plan was read, with other batches than those "
                "the schedule was laid out for. Call it first."
            )

        if run_slots is not None:
            check_length(max_steps, run_slots, num_slots=self._num_slots, stopping_strategy=self._stopping_strategy)

        cancelled = find_cancelled_weights(
            self._reward_weights,
            completed.get("multi_objective_aggregation"),
            completed.get("scale_rewards"),
            prompts_per_batch=shape.prompts_per_batch,
        )

        if cancelled:
            raise ConfigError(cancelled)

        self._shape, self._run_slots = shape, run_slots

        if max_steps <= 0:
            completed["max_steps"] = shape.count_steps(self._lay_out().schedule.num_slots)

        return completed

    def plan(self) -> Plan:
        """What the schedule holds, per source: tasks, share, slots, and passes over its tasks. Prints as a table.

        Raises:
            ConfigError: A curriculum does not fit the sources.
        """
        layout, tasks = self._lay_out(), self._tasks()
        self._rules.check(tasks)

        return make_plan(
            list(self.sources),
            layout.schedule,
            num_tasks=[each.num_tasks for each in tasks],
            shares=layout.shares,
            seed=self._seed,
            stopping_strategy="max_slots" if self._run_slots is not None else self._stopping_strategy,
            requested_slots=None if self._run_slots is not None else self._num_slots,
            changed_by=self._rules.learning,
            shares_by_batch=layout.shares_by_batch,
        )

    def simulate(self, curves: Curves = None, *, seed: int = 0) -> Simulation:
        """What this mix would draw if its sources were learned as assumed; call `training_arguments` first.

        Args:
            curves: How sources are assumed to be learned, one curve for all or by source. What is not named has
                `LearningCurve()`.
            seed: Of the rewards that rollouts get.

        Raises:
            ConfigError: The trainer's batches are not known, or a curve is for no source of the mix.
        """
        return simulate_planned(
            self._rules,
            shape=require_batches(self._shape),
            num_slots=self._lay_out().schedule.num_slots,
            tasks=self._tasks(),
            shares=self._shares(),
            seed=self._seed,
            curves=curves,
            rewards_seed=seed,
        )

    def summary(self) -> RunSummary:
        """What became of the last run's rollouts, per source: in this process, and after the run, in all."""
        return self._watch.summary

    def describe_tools(self) -> dict[str, str]:
        """A table of each environment's tools as the policy sees them, by source."""
        self._prepare()
        return {name: source.describe_tools() for name, source in self.sources.items()}

    # TRL's slots

    @property
    def train_dataset(self) -> Dataset:
        """The schedule as rows: `environment`, `prompt`, `task_index`, `slot`, and `task` (JSON text)."""
        if self._dataset is None:
            schedule = self._lay_out().schedule
            rows = [make_rows(name, source) for name, source in self.sources.items()]

            if not self._rules.react:
                self._dataset = build_dataset(schedule, rows)
            else:
                self._dataset = lay_out_planned(
                    self._watch,
                    rows,
                    self._rules,
                    tasks=self._tasks(),
                    shares=self._shares(),
                    shape=self._shape,
                    num_slots=schedule.num_slots,
                    seed=self._seed,
                )

        return self._dataset

    @property
    def eval_dataset(self) -> dict[str, Dataset]:
        """Every task of each source once, by source: `environment`, `prompt`, `task_index` and `task` (JSON text)."""
        if not self._evaluation.datasets:
            self._prepare()
            self._evaluation.datasets = make_eval_rows(self.sources)

        return dict(self._evaluation.datasets)

    @property
    def environment_factory(self) -> dict[str, Callable[[], Any]] | UnionEnvironmentFactory:
        """A picklable factory per source; with `tools="union"` one for all."""
        self._prepare()

        if self._tools == "union":
            blueprints = {
                name: source.blueprint for name, source in self.sources.items() if isinstance(source, ORSSource)
            }
            return UnionEnvironmentFactory(self._identity, blueprints)

        return {
            name: EnvironmentFactory(source.blueprint) if isinstance(source, ORSSource) else source.environment_factory
            for name, source in self.sources.items()
        }

    @property
    def reward_funcs(self) -> RewardColumns:
        """One reward column per source; a fresh list at each access, because TRL keeps and changes the one it gets."""
        run = RunState(watch=self._watch, evaluation=self._evaluation)
        self._runs.append(run)

        readers = {name: make_reader(name, source) for name, source in self.sources.items()}
        return make_columns(readers, self._rewards, run=run, on_rollouts=self._recording.listener)

    @property
    def reward_weights(self) -> list[float]:
        """One weight per column, in column order."""
        return list(self._reward_weights.values())

    @property
    def callbacks(self) -> list[TrainerCallback]:
        """Checks of the trainer's settings before the first step, and the end of every session after the last."""
        from multiors.training.callback import MixCallback

        return [
            MixCallback(
                check=self._check_settings,
                see=self._see,
                begin=self._begin,
                save=self._watch.save,
                name=self._evaluation.rename,
                end=self._end,
            )
        ]

    def for_async(self) -> AsyncSlots:
        """The slots for `AsyncGRPOTrainer`.

        Raises:
            ConfigError: The mix has something that trainer cannot do: reward weights, the user's reward functions, the
                union mode, terminal tools, or specs taken by their slots.
        """
        sources = {name: source for name, source in self.sources.items() if isinstance(source, ORSSource)}
        check_async(
            self._rewards,
            is_union=self._tools == "union",
            reacting=self._rules.reacting,
            has_limits=self._watch.has_limits,
            has_slot_sources=len(sources) < len(self.sources),
        )
        self._prepare()
        blueprints = {name: source.blueprint for name, source in sources.items()}

        return make_async_slots(blueprints, self._rewards, self.train_dataset, identity=self._identity)

    def close(self) -> None:
        """Close every session of this mix and wait for it."""
        identities = {source.identity for source in self._ors_sources}
        discard_owned_by(identities)
        get_runtime().close_owned_by(identities)
        self._recording.close()

    # Inside

    @property
    def _reward_weights(self) -> dict[str, float]:
        return {name: reward.weight for name, reward in self._rewards.items()}

    def _prepare(self) -> None:
        """Ask all sources for their tasks and tools, all at once; every source that fails is named."""
        if not self._is_prepared:
            prepare_sources(self._ors_sources)
            check_group_scores(self.sources, self._rewards)
            check_shared_secrets(self.sources, self._secrets)
            self._is_prepared = True

    def _see(self, processing_class: Any) -> None:
        # A model that takes images has a processor, one that takes text a tokenizer (TRL 1.16, GRPOTrainer).
        identities = [source.identity for source in self._ors_sources]
        note_model(identities, sees_images=hasattr(processing_class, "image_processor"))

    @property
    def _ors_sources(self) -> list[ORSSource]:
        return [source for source in self.sources.values() if isinstance(source, ORSSource)]

    def _tasks(self) -> list[SourceTasks]:
        return [describe_tasks(name, source, self._rewards[name]) for name, source in self.sources.items()]

    def _shares(self) -> dict[str, float]:
        return resolve_shares(
            {name: source.weight for name, source in self.sources.items()},
            {tasks.name: tasks.num_tasks for tasks in self._tasks()},
            weights=self._weights,
        )

    def _lay_out(self) -> Layout:
        if self._layout is None:
            self._prepare()
            self._layout = lay_out(
                self._shares(),
                self._tasks(),
                self._rules,
                run_slots=self._run_slots,
                num_slots=self._num_slots,
                stopping_strategy=self._stopping_strategy,
                prompts_per_batch=None if self._shape is None else self._shape.prompts_per_batch,
                seed=self._seed,
            )

        return self._layout

    def _check_settings(self, args: Any) -> BatchShape:
        schedule = self._lay_out().schedule
        shape = check_settings(
            args,
            reward_weights=self._reward_weights,
            num_slots=schedule.num_slots,
            prompts_per_batch=schedule.prompts_per_batch,
        )
        if self._rules.react:
            check_planning(args, shape, self._shape, self._rules)

        check_sessions(
            self.sources,
            self._cap,
            shape,
            schedule,
            may_give_all_slots=self._rules.react,
            evaluated_per_process=args.per_device_eval_batch_size if args.do_eval else 0,
        )
        return shape

    def _end(self, args: Any, state: Any) -> None:
        self._watch.report()
        self.close()

        if self._rules.has_curriculum and is_first_process():
            draw_at_end(state.log_history, args.output_dir)

    def _begin(self, args: Any, dataset: Any, state: Any) -> None:
        self.close()  # what an interrupted run left open would count against the limits of this one
        shape = self._check_settings(args)
        plan = self.plan()
        self._recording.start()
        log_plan(plan, shape)
        schedule = self.train_dataset

        if dataset is not None and dataset is not schedule:
            (check_planned_rows if self._rules.react else check_rows)(dataset, schedule)

        if samples_groups_together(args):
            check_prompts(find_random_prompts(self._ors_sources))

        self._watch.begin(state, shape, self._lay_out(), self._rules)

        for run in self._runs:
            run.begin(shape, args.max_completion_length, samples_groups_together=samples_groups_together(args))
