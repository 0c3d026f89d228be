"""Reducing: merge the rows of ranks, incarnations and attempts into one row a point.

Pure functions from LazyFrame to LazyFrame: they read no file and collect nothing.
"""

from __future__ import annotations

from rl_eventlog.types import REDUCTIONS

from .hparams import hparam_history, hparam_warnings, latest_hparams
from .metrics import each_rank, merge_metrics, metric_warnings
from .names import name_matches
from .overlap import Attempts, identify, resume_warnings, select_view, with_position
from .phases import phases_of_run, phases_of_steps
from .stragglers import find_stragglers
from .timings import merge_timings, sum_spans

__all__ = [
    "REDUCTIONS",
    "Attempts",
    "each_rank",
    "find_stragglers",
    "hparam_history",
    "hparam_warnings",
    "identify",
    "latest_hparams",
    "merge_metrics",
    "merge_timings",
    "metric_warnings",
    "name_matches",
    "phases_of_run",
    "phases_of_steps",
    "resume_warnings",
    "select_view",
    "sum_spans",
    "with_position",
]
