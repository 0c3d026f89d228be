"""Reducing: merge the rows of ranks, incarnations and attempts into one row a point.

Pure functions that read no file: from LazyFrame to LazyFrame, which collect nothing; `merge_metrics` takes
the rows rank by rank.
"""

from __future__ import annotations

from rl_eventlog.types import REDUCTIONS

from .distributions import distribution_warnings, merge_distributions
from .hparams import hparam_history, hparam_warnings, latest_hparams
from .metrics import MERGED_SCHEMA, Merged, Read, each_rank, last_values, merge_metrics
from .names import NamePatterns
from .overlap import Attempts, identify, resume_warnings, select_view, with_position
from .phases import phases_of_run, phases_of_steps
from .rank_rows import READ_COLUMNS
from .stragglers import find_stragglers
from .timings import merge_timings, sum_spans

__all__ = [
    "MERGED_SCHEMA",
    "READ_COLUMNS",
    "REDUCTIONS",
    "Attempts",
    "Merged",
    "NamePatterns",
    "Read",
    "distribution_warnings",
    "each_rank",
    "find_stragglers",
    "hparam_history",
    "hparam_warnings",
    "identify",
    "last_values",
    "latest_hparams",
    "merge_distributions",
    "merge_metrics",
    "merge_timings",
    "phases_of_run",
    "phases_of_steps",
    "resume_warnings",
    "select_view",
    "sum_spans",
    "with_position",
]
