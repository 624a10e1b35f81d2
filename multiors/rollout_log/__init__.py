"""The rollout log: every rollout of a run as a line of JSON, and the way back.

The files read in the order of the data: `lines` (a record as text), `files` (where it goes), `log` (who writes it, and
when), `reading` (the way back). This room knows no server, no trainer and no reward.
"""

from __future__ import annotations

from multiors.rollout_log.files import find_files, find_rank
from multiors.rollout_log.log import DEFAULT_MAX_FILE_BYTES, DEFAULT_MAX_FILES, RolloutLog
from multiors.rollout_log.reading import read_rollouts

__all__ = ["DEFAULT_MAX_FILES", "DEFAULT_MAX_FILE_BYTES", "RolloutLog", "find_files", "find_rank", "read_rollouts"]
