"""What may be written in a run file: its keys, their types and what they mean. Unknown keys are refused.

seed: 0
model: Qwen/Qwen3-4B
training: {max_steps: 200, num_generations: 8}
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

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from multiors.config.curricula import AnyCurriculum, AnyTaskCurriculum
from multiors.config.secrets import KeyVariable, SecretVariables
from multiors.config.shorthand import Shorthand
from multiors.ors.rollouts.blueprint import Images
from multiors.ors.sessions.limits import DEFAULT_MAX_CONCURRENT_CALLS
from multiors.rewards import Reduction
from multiors.rollout_log import DEFAULT_MAX_FILE_BYTES, DEFAULT_MAX_FILES

__all__ = [
    "CircuitBreakerConfig",
    "EvaluationConfig",
    "GroupScoreConfig",
    "ModelConfig",
    "OtherSourceConfig",
    "PartConfig",
    "RewardConfig",
    "RolloutLogConfig",
    "RunConfig",
    "SourceConfig",
    "drop_tag",
    "find_source_model",
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


def _as_named(value: object) -> object:
    """A model's name may stand alone."""
    return {"name": value} if isinstance(value, str) else value


def _as_mapping(value: object) -> object:
    """A key without anything under it."""
    return {} if value is None else value


def _refuse_token(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in fields:
        if name in ("token", "use_auth_token"):
            raise PydanticCustomError("secret", "no key belongs into a run file; set the environment variable HF_TOKEN")

    return fields


_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_TARGETS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}
_Number = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_refuse_truth)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_refuse_truth)]
_Rate = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), BeforeValidator(_refuse_truth)]
_Count = Annotated[int, Field(ge=1, strict=True)]
_Index = Annotated[int, Field(ge=0, strict=True)]
_Interval = tuple[_Number, _Number]
_Text = Annotated[str, Field(min_length=1)]
_Targets = Annotated[tuple[_Text, ...], BeforeValidator(_as_list), Field(min_length=1), WithJsonSchema(_TARGETS)]
_SWITCH = Shorthand(_as_settings, lambda _: {"type": "boolean"})
_NAMED = Shorthand(_as_named, lambda _: dict(_TEXT))
_FOLDER = Shorthand(_as_folder, lambda _: dict(_TEXT))
_NAMED_CODE = r"^\w[\w.]*:\w[\w.]*$"


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class PartConfig(_Config):
    """One of the user's reward functions."""

    function: str = Field(pattern=_NAMED_CODE, description="Where it is: 'module:function'.")
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
    group_score: Annotated[GroupScoreConfig | None, _SWITCH] = Field(
        default=None, description="The environment's comparison of a group's rollouts: true, or settings."
    )


class SourceConfig(_Config):
    """One ORS environment."""

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
    api_key: KeyVariable | None = Field(
        default=None, description="Its key, as ${VARIABLE}. None: OPENREWARD_API_KEY for a catalogue name."
    )
    secrets: SecretVariables = Field(
        default={}, description="Names of secrets, or the ${VARIABLE} that has the value of each, by name."
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


class OtherSourceConfig(_Config):
    """An environment that is no ORS server."""

    spec: str = Field(
        pattern=_NAMED_CODE, description="Where it is: 'module:name', an object with TRL's slots or what makes one."
    )
    weight: _Positive | None = Field(default=None, description="Share of the mix, relative to the others'.")
    task_curriculum: AnyTaskCurriculum = Field(default=None, description="Decides which of its rows are drawn.")
    reward: RewardConfig = Field(default=RewardConfig(), description="How its rollouts become rewards.")
    on_failure: Literal["unscored", "stop"] = Field(
        default="unscored", description="Whether a failure of the environment ends the training."
    )
    max_failing_rollouts: _Index | None = Field(
        default=None, description="One failing rollout more ends the training. None: any number is borne."
    )

    @field_validator("reward")
    @classmethod
    def _check_reward(cls, reward: RewardConfig) -> RewardConfig:
        if reward.reduction != "last" or reward.group_score is not None:
            raise ValueError("reduction and group_score are for ORS environments, whose tools and groups have rewards")

        return reward


# What pydantic puts into the place of a mistake; no key looks like them.
_ORS, _OTHER = "an ORS environment", "another environment"


def _choose_source(value: object) -> str:
    is_other = isinstance(value, OtherSourceConfig) or (isinstance(value, Mapping) and "spec" in value)
    return _OTHER if is_other else _ORS


_AnySource = Annotated[
    Annotated[SourceConfig, Tag(_ORS)] | Annotated[OtherSourceConfig, Tag(_OTHER)], Discriminator(_choose_source)
]


def find_source_model(tag: object) -> type[BaseModel]:
    """The model of a source, by what pydantic puts behind its name in the place of a mistake."""
    return OtherSourceConfig if tag == _OTHER else SourceConfig


def drop_tag(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The place of a mistake as it is written."""
    return tuple(step for step in location if step not in (_ORS, _OTHER))


class RolloutLogConfig(_Config):
    """Where the rollouts are written, and how much of them is kept."""

    folder: _Text = Field(description="Where the files go.")
    max_file_bytes: _Count = Field(default=DEFAULT_MAX_FILE_BYTES, description="No file is larger.")
    max_files: _Count = Field(default=DEFAULT_MAX_FILES, description="So many files of a process are kept.")


class CircuitBreakerConfig(_Config):
    """When a source whose environment fails is left out."""

    max_failure_rate: _Rate = Field(default=0.5, description="Fraction of failing rollouts that is borne.")
    window_rollouts: _Count = Field(default=16, description="The last rollouts of a source that are looked at.")
    probe_after_batches: _Count = Field(default=4, description="Batches until a source is tried again.")
    max_probe_interval_batches: _Count = Field(default=64, description="The most batches between two tries.")


class ModelConfig(_Config):
    """What is trained."""

    name: _Text = Field(description="A folder, or a name on the Hub.")
    init_kwargs: Annotated[dict[str, Any], AfterValidator(_refuse_token)] = Field(
        default={}, description="Arguments of `from_pretrained`, such as dtype or attn_implementation."
    )


class EvaluationConfig(_Config):
    """What is played to evaluate, by `multiors evaluate` and while training."""

    every_steps: _Count | None = Field(default=None, description="Steps between evaluations in training. None: never.")
    split: _Text | None = Field(default=None, description="Whose tasks are played. None: those of each source.")
    num_tasks: _Count | None = Field(default=None, description="Tasks of each source, at most.")
    episodes: _Count | None = Field(default=None, description="Episodes of each task.")
    seed: _Index = Field(default=0, description="Decides tasks and luck.")


class RunConfig(_Config):
    """A mix of environments, and how it is trained and evaluated."""

    sources: dict[str, _AnySource] = Field(min_length=1, description="The environments by name.")
    weights: Literal["tasks"] | None = Field(default=None, description="'tasks' weighs sources by their task counts.")
    seed: _Index = Field(default=0, description="Decides the order of tasks and slots.")
    num_slots: _Count | None = Field(default=None, description="Length of the schedule, in prompts.")
    stopping_strategy: Literal["first_exhausted", "all_exhausted", "max_slots"] | None = Field(
        default=None, description="Where the schedule ends if num_slots does not say."
    )
    tools: Literal["separate", "union"] = Field(default="separate", description="Whose tools a prompt shows.")
    rollout_log: Annotated[RolloutLogConfig | None, _FOLDER] = Field(
        default=None, description="Where every rollout is written as a line of JSON: a folder, or its settings."
    )
    curriculum: AnyCurriculum = Field(default=(), description="Decides the shares: a name, settings, or a list.")
    circuit_breaker: Annotated[CircuitBreakerConfig | None, _SWITCH] = Field(
        default=None, description="When a source whose environment fails is left out: true, or settings."
    )
    max_sessions: _Count | None = Field(default=None, description="Sessions of all sources open at once, per process.")
    max_concurrent_calls: _Count | None = Field(
        default=None, description="Calls and openings of all sources under way at once, per process."
    )
    model: Annotated[ModelConfig | None, _NAMED] = Field(
        default=None, description="What is trained: a folder, a name on the Hub, or settings."
    )
    training: Annotated[dict[str, Any], BeforeValidator(_as_mapping)] = Field(
        default={}, description="Fields of TRL's GRPOConfig."
    )
    peft: dict[str, Any] | None = Field(
        default=None, description="Fields of peft's LoraConfig: an adapter is trained. None: the whole model is."
    )
    trainer: Literal["concurrent", "grpo"] = Field(
        default="concurrent", description="'grpo' is TRL's own, whose environments answer one after another."
    )
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description="What is played to evaluate.")
