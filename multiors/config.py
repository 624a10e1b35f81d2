"""The run file: one YAML document that describes a mix.

Decides what may be written in it and what a mistake is called: unknown keys are refused, every error names the key path
and the line, and nothing is asked of a server. Keys and secrets do not belong into it; they come from the environment.

    seed: 0
    num_slots: 1000
    sources:
      sort:
        target: http://127.0.0.1:8001
        env_name: sorting
        weight: 2.0
      heat:
        target: http://127.0.0.1:8001
        env_name: thermostat
        weight: 1.0
        reward: {unscored: 0.0, parts: [{function: "rewards:brevity", weight: 0.1}]}
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic_core import ErrorDetails

from multiors.curriculum_config import CURRICULUM_KEYS, AnyCurriculum, AnyTaskCurriculum, as_curricula, as_curriculum
from multiors.errors import ConfigError
from multiors.mixing import CircuitBreaker
from multiors.ors import ORSSource
from multiors.ors.rollouts.blueprint import Images
from multiors.ors.sessions.limits import DEFAULT_MAX_CONCURRENT_CALLS
from multiors.rewards import GroupScore, Reduction, RewardPart, SourceReward
from multiors.rollout_log import DEFAULT_MAX_FILE_BYTES, DEFAULT_MAX_FILES, RolloutLog
from multiors.spec import MultiOpenRewardSpec

__all__ = [
    "CircuitBreakerConfig",
    "PartConfig",
    "RewardConfig",
    "RolloutLogConfig",
    "RunConfig",
    "SourceConfig",
    "build_spec",
    "load_run_file",
    "load_training_file",
]


def _refuse_truth(value: object) -> object:
    """YAML reads `yes` and `on` as true, which Python would take for 1."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number, not a truth value")

    return value


def _as_list(value: object) -> object:
    """One target stands as it is, several in a list."""
    return [value] if isinstance(value, str) else value


def _as_folder(value: object) -> object:
    """A log's folder may stand alone."""
    return {"folder": value} if isinstance(value, str) else value


def _as_settings(value: object) -> object:
    """What can be switched on by `true`, with the settings it has by default."""
    return {} if value is True else None if value is False else value


_TEXT = {"type": "string", "minLength": 1}
_TARGETS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}
_Number = Annotated[float, BeforeValidator(_refuse_truth), Field(allow_inf_nan=False)]
_Positive = Annotated[float, BeforeValidator(_refuse_truth), Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, strict=True)]
_Index = Annotated[int, Field(ge=0, strict=True)]
_Interval = tuple[_Number, _Number]
_Text = Annotated[str, Field(min_length=1)]
_Targets = Annotated[tuple[_Text, ...], BeforeValidator(_as_list), Field(min_length=1), WithJsonSchema(_TARGETS)]


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PartConfig(_Config):
    """One of the user's reward functions."""

    function: str = Field(pattern=r"^\w[\w.]*:\w[\w.]*$", description="Where it is: 'module:function'.")
    weight: _Number = Field(default=1.0, description="Factor of its values in the source's reward.")
    name: str | None = Field(default=None, description="Its name in records. None: the function's.")
    scores_alone: bool = Field(default=False, description="Whether it scores rollouts the environment did not.")


class GroupScoreConfig(_Config):
    """The environment's comparison of a group's rollouts, as a part of the reward."""

    weight: _Number = Field(default=1.0, description="Factor of its scores in the source's reward.")
    name: _Text = Field(default="group_score", description="Its name in records.")
    scores_alone: bool = Field(default=True, description="Whether it scores rollouts that no tool scored.")


class RewardConfig(_Config):
    """How the rollouts of a source become rewards."""

    weight: _Positive = Field(default=1.0, description="How strongly the source acts on the gradient.")
    reduction: Reduction = Field(default="last", description="How step rewards become the outcome.")
    range: _Interval | None = Field(default=None, description="Lowest and highest outcome there is, before scale.")
    scale: _Number = Field(default=1.0, description="Factor of the outcome.")
    offset: _Number = Field(default=0.0, description="Added to the outcome after scale.")
    clip: _Interval | None = Field(default=None, description="Lowest and highest value after scale and offset.")
    outcome_weight: _Number = Field(default=1.0, description="Factor of the outcome beside the parts.")
    unscored: _Number | None = Field(default=None, description="Score of a rollout nobody judged. None: no score.")
    unfinished: _Number | None = Field(default=None, description="Score of an episode never finished. None: as scored.")
    parts: tuple[PartConfig, ...] = Field(default=(), description="The user's reward functions.")
    group_score: Annotated[GroupScoreConfig | None, BeforeValidator(_as_settings)] = Field(
        default=None, description="The environment's comparison of a group's rollouts: true, or settings."
    )


class SourceConfig(_Config):
    """One environment."""

    target: _Targets = Field(description="Catalogue name 'owner/name', URL of an ORS server, or URLs of equal servers.")
    env_name: str | None = Field(default=None, description="Which environment of the server.")
    variant: str | None = Field(default=None, description="ORS variant of a catalogue environment.")
    split: str = Field(default="train", description="Which split's tasks.")
    num_tasks: _Count | None = Field(default=None, description="At most so many tasks. None: all.")
    indices: tuple[_Index, ...] | None = Field(default=None, min_length=1, description="Exactly these tasks.")
    include_metadata: bool = Field(default=True, description="Whether task specifications are fetched.")
    discover_task_tools: bool = Field(default=True, description="Whether tasks are probed for tools of their own.")
    task_tools_discovery_index: _Index | None = Field(default=None, description="The one task to probe.")
    task_difficulty: bool = Field(default=False, description="Whether rows say what others' rollouts earned.")
    toolset: _Text | None = Field(default=None, description="A toolset of the SDK's, whose tools sessions have too.")
    env_overrides: dict[str, str] | None = Field(
        default=None, description="Environment variables of the environment's container, on a platform."
    )
    images: Images = Field(default="auto", description="What is done with images: 'show', 'drop', or 'auto'.")
    secrets: tuple[_Text, ...] = Field(
        default=(), description="Names of secrets; the values are those of environment variables."
    )
    weight: _Positive | None = Field(default=None, description="Share of the mix, relative to the others'.")
    task_curriculum: AnyTaskCurriculum = Field(default=None, description="Decides which of its tasks are drawn.")
    reward: RewardConfig = Field(default=RewardConfig(), description="How its rollouts become rewards.")
    session_url: str | None = Field(default=None, description="Session address of a platform of one's own.")
    open_timeout_s: _Positive = Field(default=600.0, description="Seconds for opening a session.")
    call_timeout_s: _Positive = Field(default=600.0, description="Seconds for one tool call.")
    retries: _Index = Field(default=2, description="How often a session that failed to open is tried anew.")
    on_failure: Literal["unscored", "stop"] = Field(
        default="unscored", description="Whether a failure of the environment ends the training."
    )
    max_failing_rollouts: _Index | None = Field(
        default=None, description="One failing rollout more ends the training. None: any number is borne."
    )
    max_sessions: _Count | None = Field(default=None, description="Sessions open at once, per process.")
    max_concurrent_calls: _Count = Field(
        default=DEFAULT_MAX_CONCURRENT_CALLS, description="Calls and openings under way at once, per process."
    )

    @model_validator(mode="after")
    def _check_tasks(self) -> SourceConfig:
        if self.num_tasks is not None and self.indices is not None:
            raise ValueError("num_tasks and indices are both given; one of them says which tasks")

        return self


class RolloutLogConfig(_Config):
    """Where the rollouts are written, and how much of them is kept."""

    folder: _Text = Field(description="Where the files go.")
    max_file_bytes: _Count = Field(default=DEFAULT_MAX_FILE_BYTES, description="No file is larger.")
    max_files: _Count = Field(default=DEFAULT_MAX_FILES, description="So many files of a process are kept.")


class CircuitBreakerConfig(_Config):
    """When a source whose environment fails is left out."""

    max_failure_rate: Annotated[_Number, Field(ge=0, lt=1)] = Field(
        default=0.5, description="Fraction of failing rollouts that is borne."
    )
    window_rollouts: _Count = Field(default=16, description="The last rollouts of a source that are looked at.")
    probe_after_batches: _Count = Field(default=4, description="Batches until a source is tried again.")
    max_probe_interval_batches: _Count = Field(default=64, description="The most batches between two tries.")


class RunConfig(_Config):
    """A mix of environments."""

    sources: dict[str, SourceConfig] = Field(min_length=1, description="The environments by name.")
    weights: Literal["tasks"] | None = Field(default=None, description="'tasks' weighs sources by their task counts.")
    seed: _Index = Field(default=0, description="Decides the order of tasks and slots.")
    num_slots: _Count | None = Field(default=None, description="Length of the schedule, in prompts.")
    stopping_strategy: Literal["first_exhausted", "all_exhausted", "max_slots"] | None = Field(
        default=None, description="Where the schedule ends if num_slots does not say."
    )
    tools: Literal["separate", "union"] = Field(default="separate", description="Whose tools a prompt shows.")
    rollout_log: Annotated[RolloutLogConfig | None, BeforeValidator(_as_folder)] = Field(
        default=None, description="Where every rollout is written as a line of JSON: a folder, or its settings."
    )
    curriculum: AnyCurriculum = Field(default=(), description="Decides the shares: a name, settings, or a list.")
    circuit_breaker: Annotated[CircuitBreakerConfig | None, BeforeValidator(_as_settings)] = Field(
        default=None, description="When a source whose environment fails is left out: true, or settings."
    )
    max_sessions: _Count | None = Field(default=None, description="Sessions of all sources open at once, per process.")
    max_concurrent_calls: _Count | None = Field(
        default=None, description="Calls and openings of all sources under way at once, per process."
    )


def load_run_file(path: Path) -> RunConfig:
    """Read and check a run file.

    Raises:
        ConfigError: It cannot be read, is no YAML, or has mistakes; each is named with key path and line.
    """
    node, values = _read_yaml(path, "run file")
    repeated = _find_repeated_keys(node, (), set())

    if repeated:
        raise ConfigError(_describe(path, node, [(location, "stands here twice") for location in repeated]))

    if not isinstance(values, dict):
        raise ConfigError(f"run file {str(path)!r} holds no mapping. It begins with 'sources:'.")

    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        mistakes = [(tuple(each["loc"]), _describe_mistake(each)) for each in error.errors()]
        raise ConfigError(_describe(path, node, mistakes)) from None


def load_training_file(path: Path) -> dict[str, Any]:
    """Read a YAML file of `GRPOConfig` fields; what they mean is not looked at.

    Raises:
        ConfigError: It cannot be read, or is no YAML mapping of names to values.
    """
    _, values = _read_yaml(path, "training file")

    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"training file {str(path)!r} holds no mapping of GRPOConfig fields, as in 'max_steps: 100'.")

    return values


def _read_yaml(path: Path, kind: str) -> tuple[yaml.Node | None, Any]:
    """A file's YAML as nodes, which know their lines, and as values."""
    try:
        text = path.read_text(encoding="utf-8")
        return yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{kind} {str(path)!r} cannot be read: {error.strerror}.") from error
    # Besides its own errors, the reader lets through those of a text that is no UTF-8, and of dates that do not exist.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{kind} {str(path)!r} is no YAML: {' '.join(str(error).split())}.") from error


def build_spec(config: RunConfig, **options: Any) -> MultiOpenRewardSpec:
    """The spec that a run file describes; `options` are further arguments of the spec.

    Raises:
        ConfigError: A reward function cannot be imported, or the mix contradicts itself.
    """
    sources: dict[str, ORSSource] = {}
    mistakes = []

    for name, source in config.sources.items():
        try:
            sources[name] = _build_source(name, source)
        except ConfigError as error:
            located = str(error).startswith(f"sources.{name}.")
            mistakes.append(str(error) if located else f"sources.{name}: {error}")

    if mistakes:
        raise ConfigError("\n".join(mistakes))
    curricula = as_curricula(config.curriculum, partial(_import_named, "curriculum"))
    breaker = None if config.circuit_breaker is None else CircuitBreaker(**config.circuit_breaker.model_dump())
    log = None if config.rollout_log is None else RolloutLog(**config.rollout_log.model_dump())

    return MultiOpenRewardSpec(
        sources,
        **config.model_dump(exclude={"sources", "rollout_log", "circuit_breaker", "curriculum"}),
        **{"rollout_log": log, "circuit_breaker": breaker, "curriculum": curricula, **options},
    )


def _build_source(name: str, config: SourceConfig) -> ORSSource:
    find = partial(_import_named, f"sources.{name}.task_curriculum.name")

    return ORSSource(
        **config.model_dump(exclude={"reward", "secrets", "task_curriculum"}),
        task_curriculum=None if config.task_curriculum is None else as_curriculum(config.task_curriculum, find),
        secrets=dict.fromkeys(config.secrets) or None,
        reward=_build_reward(name, config.reward),
    )


def _build_reward(source: str, config: RewardConfig) -> SourceReward:
    parts: list[RewardPart | GroupScore] = [
        RewardPart(
            _import_named(f"sources.{source}.reward.parts.{position}.function", part.function),
            weight=part.weight,
            name=part.name or "",
            scores_alone=part.scores_alone,
        )
        for position, part in enumerate(config.parts)
    ]

    if config.group_score is not None:
        parts.append(GroupScore(**config.group_score.model_dump()))

    return SourceReward(**config.model_dump(exclude={"parts", "group_score"}), parts=tuple(parts))


def _import_named(location: str, name: str) -> Callable[..., Any]:
    module_name, _, attributes = name.partition(":")

    # A run file names functions of the folder it is used in, as `python -m` would find them.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))

    try:
        value: Any = import_module(module_name)
        for attribute in attributes.split("."):
            value = getattr(value, attribute)
    except Exception as error:  # a module of the user's runs here, and may raise anything
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{location}: {name!r} cannot be imported: {what}. Write 'module:name'.") from error

    if not callable(value):
        raise ConfigError(f"{location}: {name!r} is a {type(value).__name__}, which cannot be called.")

    found: Callable[..., Any] = value
    return found


def _describe_mistake(mistake: ErrorDetails) -> str:
    # Of an unknown key the value is not shown: it may be the secret that someone put here.
    if mistake["type"] == "extra_forbidden":
        return f"there is no such key here; the keys are {_list_keys(mistake['loc'][:-1])}"

    message = mistake["msg"].removeprefix("Value error, ")
    value = mistake["input"]

    if mistake["type"] == "unknown_curriculum" and isinstance(value, dict):
        if "name" not in value:
            return message.replace("no curriculum is named so", "a curriculum needs its key 'name'")
        value = value["name"]

    shows_value = mistake["type"] != "missing" and not isinstance(value, dict)
    return f"{message} (got {value!r})" if shows_value else message


def _list_keys(location: Sequence[str | int]) -> str:
    """The keys that may stand at a place of the run file: its depth says which, since sources may have any name."""
    if location[:1] == ("curriculum",) or location[2:3] == ("task_curriculum",):
        return ", ".join(CURRICULUM_KEYS[str(location[-1])])

    models: dict[int, type[_Config]] = {
        0: RunConfig,
        1: CircuitBreakerConfig if "circuit_breaker" in location else RolloutLogConfig,
        2: SourceConfig,
        3: RewardConfig,
        4: GroupScoreConfig,
        5: PartConfig,
    }
    return ", ".join(models[len(location)].model_fields)


def _describe(path: Path, node: yaml.Node | None, mistakes: Sequence[tuple[tuple[str | int, ...], str]]) -> str:
    in_file_order = sorted(mistakes, key=lambda mistake: _find_line(node, mistake[0]))
    lines = [
        f"- line {_find_line(node, location)}: {_name_place(node, location)}: {message}"
        for location, message in in_file_order
    ]
    return "\n".join([f"run file {str(path)!r} has {len(lines)} mistake{'s' * (len(lines) > 1)}:", *lines])


def _find_line(node: yaml.Node | None, location: Sequence[str | int]) -> int:
    """Line of the deepest key on the path that is written in the file, from 1."""
    written = _follow(node, location)
    return int(written[-1][1] if written else node.start_mark.line if node else 0) + 1


def _name_place(node: yaml.Node | None, location: Sequence[str | int]) -> str:
    """The path as it is written in the file, and the last step of it also where that is missing."""
    written = [step for step, _ in _follow(node, location)]
    # A key that is missing is named; what stands in a list's or a choice's place without being written is not.
    is_missing = location and isinstance(location[-1], str) and location[-1] not in {*written, *CURRICULUM_KEYS}
    return ".".join(map(str, [*written, location[-1]] if is_missing else written)) or "the file"


def _follow(node: yaml.Node | None, location: Sequence[str | int]) -> list[tuple[str | int, int]]:
    """The steps of a path that are written in the file, each with its line; a choice among curricula is not."""
    written: list[tuple[str | int, int]] = []

    for step in location:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(step)]
            if found:
                node = found[-1][1]
                written.append((step, found[-1][0].start_mark.line))
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            written.append((step, node.start_mark.line))

    return written


def _find_repeated_keys(
    node: yaml.Node | None, location: tuple[str | int, ...], seen: set[int]
) -> list[tuple[str | int, ...]]:
    """YAML lets a later key silently win: two sources of one name would become one."""
    # An alias stands for a node that was looked at; it may even stand inside it.
    if id(node) in seen or not isinstance(node, yaml.MappingNode | yaml.SequenceNode):
        return []

    seen.add(id(node))

    if isinstance(node, yaml.SequenceNode):
        children = list(enumerate(node.value))
        repeated = []
    else:
        children = [(key.value, value) for key, value in node.value]
        names = [name for name, _ in children]
        repeated = [(*location, name) for name in dict.fromkeys(names) if names.count(name) > 1]

    return repeated + [each for step, value in children for each in _find_repeated_keys(value, (*location, step), seen)]
