"""Reading the files of a run by the coverage rule."""

from __future__ import annotations

from .attempts import Launch
from .facts import Beat, End, Problem, WriterFacts, read_folded
from .files import RunFiles, find_runs

__all__ = ["Beat", "End", "Launch", "Problem", "RunFiles", "WriterFacts", "find_runs", "read_folded"]
