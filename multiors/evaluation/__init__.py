"""Policies played on environments outside training, and whether one is better than another.

    from multiors.evaluation import evaluate, read_evaluation

The files read in the order of the data: `policies` (who is asked), `running` (episodes, many at once), `folder` (what
is kept), `statistics` and `comparing` (what it says), `comparison` (how it is shown). `results` are the values that the
last three share.
This room knows no trainer. Names load when they are first used, as those of the package do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiors.evaluation.callback import EvaluationCallback
    from multiors.evaluation.comparing import compare, summarize
    from multiors.evaluation.folder import EvaluationRun, read_evaluation
    from multiors.evaluation.policies import (
        EndpointPolicy,
        LocalPolicy,
        NeverCalls,
        Policy,
        PolicyError,
        RandomCalls,
        Reply,
        Sampling,
        ScriptedPolicy,
        Start,
    )
    from multiors.evaluation.running import Limits, evaluate

__all__ = [
    "EndpointPolicy",
    "EvaluationCallback",
    "EvaluationRun",
    "Limits",
    "LocalPolicy",
    "NeverCalls",
    "Policy",
    "PolicyError",
    "RandomCalls",
    "Reply",
    "Sampling",
    "ScriptedPolicy",
    "Start",
    "compare",
    "evaluate",
    "read_evaluation",
    "summarize",
]

_MODULE_BY_NAME = {
    "EvaluationCallback": "multiors.evaluation.callback",
    **dict.fromkeys(("compare", "summarize"), "multiors.evaluation.comparing"),
    **dict.fromkeys(("EvaluationRun", "read_evaluation"), "multiors.evaluation.folder"),
    **dict.fromkeys(("Limits", "evaluate"), "multiors.evaluation.running"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'multiors.evaluation' has no attribute {name!r}")

    return getattr(import_module(_MODULE_BY_NAME.get(name, "multiors.evaluation.policies")), name)
