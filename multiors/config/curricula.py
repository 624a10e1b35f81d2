"""Curricula as they stand in a run file: a name and settings, or a class of the user's.

The settings that may be written are the fields of the classes in `multiors.mixing.curricula`, read off them here, so
that a field is described once. What a curriculum decides is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, create_model, model_validator

from multiors.config.shorthand import Shorthand
from multiors.errors import ConfigError
from multiors.mixing.curricula import (
    Gates,
    Ladder,
    LearningProgress,
    Pools,
    ScheduleUnit,
    ScoreBandit,
    ShareSchedule,
    WorstSource,
)

__all__ = ["CURRICULUM_KEYS", "AnyCurriculum", "AnyTaskCurriculum", "CurriculumConfig", "as_curricula", "as_curriculum"]

_CUSTOM = "custom"
_PLACE = r"^\w[\w.]*:\w[\w.]*$"
_Point = Annotated[tuple[float, dict[str, float]], Field(strict=False)]  # YAML has lists
_Points = list[_Point]


class CurriculumConfig(BaseModel):
    """A curriculum's name and settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """What was written besides the name."""
        return {name: getattr(self, name) for name in self.model_fields_set if name != "name"}


class CustomCurriculum(CurriculumConfig):
    """A class of the user's; further keys are its arguments."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=_PLACE, description="Where the class is: 'module:Class'.")

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments."""
        return dict(self.model_extra or {})


def _describe(name: str, make: Callable[..., Any], **types: Any) -> type[CurriculumConfig]:
    """A model with the arguments of a class, or of what makes one; the types that are given replace its own."""
    hints = {**get_type_hints(vars(make)["__init__"] if isinstance(make, type) else make), **types}
    fields: dict[str, Any] = {
        argument.name: (hints[argument.name], ... if argument.default is Parameter.empty else _default_of(argument))
        for argument in signature(make).parameters.values()
    }

    def build(config: CurriculumConfig) -> CurriculumConfig:
        make(**config.settings)  # what is wrong with the settings together
        return config

    model: type[CurriculumConfig] = create_model(
        make.__qualname__,
        __base__=CurriculumConfig,
        __validators__={"build": _after(build)},
        name=_fixed(name),
        **fields,
    )
    _MAKERS[name] = make
    CURRICULUM_KEYS[name] = tuple(model.model_fields)
    return model


def _after(build: Callable[[CurriculumConfig], CurriculumConfig]) -> Any:
    return model_validator(mode="after")(build)


def _fixed(name: str) -> Any:
    return Literal[name], ...


def _default_of(argument: Parameter) -> Any:
    # A dataclass whose default is made anew each time shows a marker here.
    return Field(default_factory=dict) if "factory" in repr(argument.default) else argument.default


CURRICULUM_KEYS: dict[str, tuple[str, ...]] = {}
"""The keys of each curriculum, by its name in a run file."""

_MAKERS: dict[str, Callable[..., Any]] = {}

_BETWEEN = {
    "learning_progress": _describe("learning_progress", LearningProgress),
    "score_bandit": _describe("score_bandit", ScoreBandit),
    "worst_source": _describe("worst_source", WorstSource),
    "gates": _describe("gates", Gates),
    "share_schedule": _describe("share_schedule", ShareSchedule, points=_Points, unit=ScheduleUnit),
    "share_stages": _describe("share_stages", ShareSchedule.stages, stages=_Points, unit=ScheduleUnit),
}
_INSIDE = {"ladder": _describe("ladder", Ladder), "pools": _describe("pools", Pools)}


def _find_tag(value: Any) -> str | None:
    name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
    return _CUSTOM if isinstance(name, str) and ":" in name else name if isinstance(name, str) else None


def _make_union(models: Mapping[str, type[CurriculumConfig]]) -> Any:
    tagged = [Annotated[model, Tag(name)] for name, model in {**models, _CUSTOM: CustomCurriculum}.items()]
    union: Any = tagged[0]
    for each in tagged[1:]:
        union = union | each
    known = ", ".join(models)
    return Annotated[
        union,
        Discriminator(
            _find_tag,
            custom_error_type="unknown_curriculum",
            custom_error_message=f"no curriculum is named so; there are {known}, or 'module:Class'",
        ),
    ]


def _as_mapping(value: object) -> object:
    """A name may stand alone."""
    return {"name": value} if isinstance(value, str) else value


def _as_sequence(value: object) -> object:
    """One stands as it is, several in a list."""
    if value is None:
        return ()
    if value == []:
        raise ValueError("the list holds no curriculum; leave the key out")
    return [_as_mapping(each) for each in value] if isinstance(value, list) else [_as_mapping(value)]


def _describe_names(models: Mapping[str, type[CurriculumConfig]]) -> Callable[[Any], dict[str, Any]]:
    """JSON Schema of the names that may stand alone: of those that need no settings."""
    names = [name for name, model in models.items() if not _needed(model)]
    return lambda _: {"anyOf": [{"enum": names}, {"type": "string", "pattern": _PLACE}]}


def _needed(model: type[CurriculumConfig]) -> list[str]:
    return [name for name, field in model.model_fields.items() if field.is_required() and name != "name"]


if TYPE_CHECKING:
    AnyCurriculum: TypeAlias = tuple[CurriculumConfig, ...]
    AnyTaskCurriculum: TypeAlias = CurriculumConfig | None
else:
    AnyCurriculum = Annotated[
        tuple[Annotated[_make_union(_BETWEEN), Shorthand(_as_mapping, _describe_names(_BETWEEN))], ...],
        Shorthand(_as_sequence, lambda several: {"anyOf": [several["items"], {"type": "null"}]}),
    ]
    AnyTaskCurriculum = Annotated[_make_union(_INSIDE) | None, Shorthand(_as_mapping, _describe_names(_INSIDE))]


def as_curriculum(config: CurriculumConfig, find: Callable[[str], Callable[..., Any]]) -> Any:
    """The curriculum that was described.

    Args:
        config: Its name and settings.
        find: Finds a class of the user's by 'module:Class'.

    Raises:
        ConfigError: The user's class does not take these arguments, or has raised something else.
    """
    if not isinstance(config, CustomCurriculum):
        return _MAKERS[config.name](**config.settings)
    make = find(config.name)
    try:
        return make(**config.settings)
    except Exception as error:  # a class of the user's may raise anything
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"curriculum {config.name!r} cannot be made of {config.settings!r}: {what}.") from error


def as_curricula(configs: Sequence[CurriculumConfig], find: Callable[[str], Callable[..., Any]]) -> list[Any] | None:
    """The curricula that were described, in order. None: there are none."""
    return [as_curriculum(config, find) for config in configs] or None
