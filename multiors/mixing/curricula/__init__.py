"""Curricula: what the mix follows while the policy learns. Pure functions of what was observed; knows no trainer.

Between sources a `Curriculum` decides shares, inside a source a `TaskCurriculum` decides which tasks are drawn.
"""

from __future__ import annotations

from multiors.mixing.curricula.bandit import BanditScore, ScoreBandit
from multiors.mixing.curricula.box import fit_box
from multiors.mixing.curricula.curriculum import Chain, Curriculum, MixSource, chain
from multiors.mixing.curricula.gates import Gates
from multiors.mixing.curricula.ladder import Ladder
from multiors.mixing.curricula.observing import SourceObservation, TaskObservation, group_by_source
from multiors.mixing.curricula.pools import Pools
from multiors.mixing.curricula.progress import LearningProgress
from multiors.mixing.curricula.running import CurriculumRun
from multiors.mixing.curricula.schedules import ScheduleUnit, ShareSchedule
from multiors.mixing.curricula.tasks import SourceTasks, TaskCurriculum, TaskDraws
from multiors.mixing.curricula.worst import WorstSource

__all__ = [
    "BanditScore",
    "Chain",
    "Curriculum",
    "CurriculumRun",
    "Gates",
    "Ladder",
    "LearningProgress",
    "MixSource",
    "Pools",
    "ScheduleUnit",
    "ScoreBandit",
    "ShareSchedule",
    "SourceObservation",
    "SourceTasks",
    "TaskCurriculum",
    "TaskDraws",
    "TaskObservation",
    "WorstSource",
    "chain",
    "fit_box",
    "group_by_source",
]
