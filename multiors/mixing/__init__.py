"""What to draw: weights → shares → schedule → dataset. Knows no server and no trainer."""

from __future__ import annotations

from multiors.mixing.breaker import BreakerEvent, CircuitBreaker
from multiors.mixing.comparing import compare_curricula, compare_mixes, digest_shares
from multiors.mixing.dataset import COLUMNS, SourceRows, build_dataset, list_tasks
from multiors.mixing.layout import Layout, lay_out
from multiors.mixing.observed import SlotObservation
from multiors.mixing.plan import Plan, SharePoint, SourcePlan, make_plan
from multiors.mixing.planner import BatchPlanner, PlannedBatch
from multiors.mixing.quota import SHARE_UNITS, apportion
from multiors.mixing.rules import MixRules
from multiors.mixing.schedule import Schedule, build_schedule
from multiors.mixing.shares import Weights, resolve_shares
from multiors.mixing.simulation import PRESETS, Curves, LearningCurve, Simulation, simulate
from multiors.mixing.stopping import StoppingStrategy, count_slots

__all__ = [
    "COLUMNS",
    "PRESETS",
    "SHARE_UNITS",
    "BatchPlanner",
    "BreakerEvent",
    "CircuitBreaker",
    "Curves",
    "Layout",
    "LearningCurve",
    "MixRules",
    "Plan",
    "PlannedBatch",
    "Schedule",
    "SharePoint",
    "Simulation",
    "SlotObservation",
    "SourcePlan",
    "SourceRows",
    "StoppingStrategy",
    "Weights",
    "apportion",
    "build_dataset",
    "build_schedule",
    "compare_curricula",
    "compare_mixes",
    "count_slots",
    "digest_shares",
    "lay_out",
    "list_tasks",
    "make_plan",
    "resolve_shares",
    "simulate",
]
