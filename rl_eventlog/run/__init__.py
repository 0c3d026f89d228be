"""Runs as users read them: tables as LazyFrames, and how the run fares."""

from __future__ import annotations

from .info import AttemptInfo, Gap, RankInfo, RoleInfo, RunInfo
from .run import Run
from .runs import Runs
from .stalls import Stall
from .state import State, Thresholds, is_provably_alive, is_provably_dead
from .tables import Tables

__all__ = [
    "AttemptInfo",
    "Gap",
    "RankInfo",
    "RoleInfo",
    "Run",
    "RunInfo",
    "Runs",
    "Stall",
    "State",
    "Tables",
    "Thresholds",
    "is_provably_alive",
    "is_provably_dead",
]
