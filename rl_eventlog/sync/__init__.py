"""Replaying runs to targets, exactly once."""

from __future__ import annotations

from .discover import MakeSink, SyncResult, sync_many, unsent_runs
from .engine import Progress, replay
from .options import Hold, SyncOptions
from .report import Held, SeriesCount, SyncReport

__all__ = [
    "Held",
    "Hold",
    "MakeSink",
    "Progress",
    "SeriesCount",
    "SyncOptions",
    "SyncReport",
    "SyncResult",
    "replay",
    "sync_many",
    "unsent_runs",
]
