"""The JSON Schema of run files, for editors: they complete keys, and show mistakes and what each key means."""

from __future__ import annotations

from typing import Any

from multiors.config.fields import make_training_model
from multiors.config.models import RunConfig

__all__ = ["make_schema"]


def make_schema() -> dict[str, Any]:
    """The schema, with the fields of the TRL that is installed."""
    schema = RunConfig.model_json_schema()
    training = make_training_model().model_json_schema()
    definitions = {**schema.pop("$defs"), **training.pop("$defs", {}), "TrainingConfig": training}
    about = schema["properties"]["training"]["description"]
    schema["properties"]["training"] = {
        "description": about,
        "anyOf": [{"$ref": "#/$defs/TrainingConfig"}, {"type": "null"}],
    }

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "multiors run file",
        "$defs": definitions,
    }
