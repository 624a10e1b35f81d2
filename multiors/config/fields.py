"""The fields of TRL's `GRPOConfig` as they stand under `training:`, and of peft's `LoraConfig` under `peft:`, read off
the classes that are installed.

Decides which of them may be written and what a mistake is called. What a value means to a mix is decided elsewhere.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

__all__ = [
    "ELSEWHERE",
    "Kind",
    "describe_unknown_adapter_field",
    "describe_unknown_field",
    "has_peft",
    "list_fields",
    "make_adapter_model",
    "make_training_model",
    "suggest",
]

Kind: TypeAlias = Literal["switch", "text", "other"]
"""Whether a field is true or false, text, or anything else."""

ELSEWHERE = {
    "hub_token": "no key belongs into a run file; set the environment variable HF_TOKEN",
    "push_to_hub_token": "no key belongs into a run file; set the environment variable HF_TOKEN",
    "model_init_kwargs": "write it under model: {name: ..., init_kwargs: {...}}",
    "resume_from_checkpoint": "a run file says nothing of checkpoints; pass --resume to `multiors train`",
}
"""Fields that do not stand under `training:`, and what to do instead."""

_SET_BY_PEFT = {"peft_type", "peft_version", "auto_mapping", "inference_mode", "base_model_name_or_path", "revision"}


@cache
def make_training_model() -> type[BaseModel]:
    """A model with the fields of `GRPOConfig`, their types and what TRL says of them. Importing TRL takes seconds."""
    from trl import GRPOConfig

    return _make_model(GRPOConfig, "TrainingConfig", "Fields of TRL's GRPOConfig.", left_out=ELSEWHERE)


@cache
def make_adapter_model() -> type[BaseModel]:
    """A model with the fields of `LoraConfig`, as of `make_training_model`. Needs peft."""
    from peft import LoraConfig

    return _make_model(LoraConfig, "AdapterConfig", "Fields of peft's LoraConfig.", left_out=_SET_BY_PEFT)


def has_peft() -> bool:
    """Whether adapters can be trained here."""
    return importlib.util.find_spec("peft") is not None


def _make_model(described: type[Any], name: str, about: str, *, left_out: Collection[str]) -> type[BaseModel]:
    hints = get_type_hints(described)
    fields: dict[str, Any] = {
        field.name: (hints[field.name], Field(default=_find_default(field), description=_describe(field)))
        for field in dataclasses.fields(described)
        if field.init and field.name not in left_out and _is_plain(hints[field.name])
    }
    config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    return create_model(name, __config__=config, __doc__=about, **fields)


@cache
def list_fields() -> Mapping[str, Kind]:
    """The fields by name, and what their values are."""
    return {name: _find_kind(field.annotation) for name, field in make_training_model().model_fields.items()}


def _find_kind(hint: Any) -> Kind:
    types = {each for each in get_args(hint) or (hint,) if each is not type(None)}

    if bool in types and str not in types:
        return "switch"

    is_text = all(isinstance(each, type) and issubclass(each, str) for each in types)
    return "text" if is_text else "other"


def describe_unknown_field(name: str) -> str:
    """What to say of a name that is none of the fields."""
    if name in ELSEWHERE:
        return f"this does not stand here: {ELSEWHERE[name]}"

    return f"GRPOConfig has no field of this name{suggest(name, list_fields())}"


def describe_unknown_adapter_field(name: str) -> str:
    """What to say of a name that is no field of an adapter."""
    if name in _SET_BY_PEFT:
        return "this does not stand here: peft sets it itself"

    return f"LoraConfig has no field of this name that YAML can hold{suggest(name, make_adapter_model().model_fields)}"


def suggest(name: str, names: Collection[str]) -> str:
    """The end of a sentence that says which of the names somebody may have meant; empty if none is near."""
    near = get_close_matches(name, names, n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _find_default(field: dataclasses.Field[Any]) -> Any:
    return field.default if isinstance(field.default, str | int | float) else None


def _describe(field: dataclasses.Field[Any]) -> str | None:
    text = field.metadata.get("help")
    return " ".join(str(text).split()) if text else None


def _is_plain(hint: Any) -> bool:
    """Whether YAML can hold a value of this type; objects of other packages it cannot."""
    return not any(dataclasses.is_dataclass(each) for each in (hint, *get_args(hint)))
