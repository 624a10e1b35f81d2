"""Environments that are not ORS: whatever fits TRL's contract, as a source of a mix.

`rows` (a dataset of somebody's as tasks), `environment` (an object of somebody's class, played and watched), `reader`
(what its own reward functions say of it), `source` (the three together). What a failure means, what is recorded and how
a reward is composed is the same as for ORS environments.
"""

from __future__ import annotations

from multiors.training.others.reader import OtherReader
from multiors.training.others.source import TRLSource, check_slots

__all__ = ["OtherReader", "TRLSource", "check_slots"]
