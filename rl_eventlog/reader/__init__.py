"""Reading the files of a run by the coverage rule."""

from __future__ import annotations

from .attempts import Launch, Standing
from .facts import Beat, End, Problem, WriterFacts, combine_entries, read_folded
from .files import RunFiles, find_runs

__all__ = [
    "Beat",
    "End",
    "Launch",
    "Problem",
    "RunFiles",
    "Standing",
    "WriterFacts",
    "combine_entries",
    "find_runs",
    "read_folded",
]
