"""The JSON Schema of run files, for editors: they complete keys, and show mistakes and what each key means."""

from __future__ import annotations

from typing import Any

from multiors.config.fields import has_peft, make_adapter_model, make_training_model
from multiors.config.models import RunConfig

__all__ = ["make_schema"]


def make_schema() -> dict[str, Any]:
    """The schema, with the fields of the TRL that is installed, and of peft if it is."""
    schema = RunConfig.model_json_schema()
    definitions = schema.pop("$defs")
    fields = {"training": make_training_model(), **({"peft": make_adapter_model()} if has_peft() else {})}

    for key, model in fields.items():
        described = model.model_json_schema()
        definitions |= {**described.pop("$defs", {}), model.__name__: described}
        schema["properties"][key] = {
            "description": schema["properties"][key]["description"],
            "anyOf": [{"$ref": f"#/$defs/{model.__name__}"}, {"type": "null"}],
        }

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "multiors run file",
        "$defs": definitions,
    }
