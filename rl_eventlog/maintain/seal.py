"""Seal what dead writers left open.

Only adds files, beside the open ones; a live writer's segments are left alone. Two at once are
harmless: they make the same files. Killed anywhere, run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rl_eventlog.errors import SegmentError
from rl_eventlog.layout import SegmentName
from rl_eventlog.reader import Problem, RunFiles
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.seal import seal_open

from .removal import GRACE_SECONDS, is_gone, reclaim


@dataclass(frozen=True, slots=True)
class SealReport:
    """What `seal` did."""

    sealed: tuple[Path, ...]
    """New sealed files."""
    left_alone: tuple[Path, ...]
    """Open segments whose writer may still live."""
    problems: tuple[Problem, ...]
    """Open segments that could not be sealed, or only in part."""
    removed: tuple[Path, ...]
    """Files that were covered and are gone."""


def seal(
    path: Path, *, reclaim_covered: bool = False, assume_dead: bool = False, grace_seconds: float = GRACE_SECONDS
) -> SealReport:
    """Add sealed files for the open segments of writers that are gone.

    Args:
        path: folder of the run.
        reclaim_covered: afterwards remove files that older, intact ones cover.
        assume_dead: a person says that no writer without an end record lives.
        grace_seconds: how old a covering file must be before what it covers may go.

    Raises:
        RunNotFoundError: the path holds no run.
        OSError: the disk refused.
    """
    files = RunFiles.open(path)
    sealed: list[Path] = []
    left_alone: list[Path] = []
    problems: list[Problem] = []
    for table in TABLES:
        for use in files.table(table).coverage.uses:
            if use.candidate.level != "open":
                continue
            name = SegmentName.parse(use.candidate.path.name)
            if name is None or name.number is None or name.writer is None:
                continue
            if not is_gone(files.writers.get(name.writer), assume_dead=assume_dead):
                left_alone.append(use.candidate.path)
                continue
            try:
                sealed += seal_open(use.candidate.path, name.number, table)
            except SegmentError as error:
                problems.append(Problem(error.path, error.reason))
    removed = reclaim(files.refresh(), assume_dead=assume_dead, grace_seconds=grace_seconds) if reclaim_covered else []
    return SealReport(tuple(sealed), tuple(left_alone), tuple(problems), tuple(removed))
