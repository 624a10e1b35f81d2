"""The run file: one YAML document that describes a mix, and how it is trained and evaluated.

The files read in the order of use: `reading` (YAML, and lines), `overrides`, `secrets`, `fields` (of `GRPOConfig`),
`curricula`, `models` (what may be written), `loading` (what a mistake is called, and how a file is written again),
`building` (the spec), `schema` (for editors). No server is asked for anything.
"""

from __future__ import annotations

from multiors.config.building import build_spec
from multiors.config.fields import describe_unknown_field, has_peft, list_fields
from multiors.config.loading import dump_run_file, load_run_file, load_training_file
from multiors.config.models import (
    CircuitBreakerConfig,
    EvaluationConfig,
    GroupScoreConfig,
    ModelConfig,
    OtherSourceConfig,
    PartConfig,
    RewardConfig,
    RolloutLogConfig,
    RunConfig,
    SourceConfig,
)
from multiors.config.overrides import Override, parse_override
from multiors.config.schema import make_schema

__all__ = [
    "CircuitBreakerConfig",
    "EvaluationConfig",
    "GroupScoreConfig",
    "ModelConfig",
    "OtherSourceConfig",
    "Override",
    "PartConfig",
    "RewardConfig",
    "RolloutLogConfig",
    "RunConfig",
    "SourceConfig",
    "build_spec",
    "describe_unknown_field",
    "dump_run_file",
    "has_peft",
    "list_fields",
    "load_run_file",
    "load_training_file",
    "make_schema",
    "parse_override",
]
