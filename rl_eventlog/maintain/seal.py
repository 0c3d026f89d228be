"""Seal what dead writers left open.

- Only adds files, beside the open ones; the segments of a writer that may live are left alone.
- Killed anywhere, it leaves whole files and at most a temporary one; run again, it goes on.
- Two at once are harmless: they make the same files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_eventlog.errors import SegmentError
from rl_eventlog.layout import GRACE_SECONDS
from rl_eventlog.reader import Problem, RunFiles
from rl_eventlog.reader.segments import look
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.coverage import Candidate
from rl_eventlog.segment.seal import seal_open
from rl_eventlog.types import Spans

from .gone import is_gone
from .opened import as_candidate, open_files, read_own
from .removal import Reclaimed, reclaim


@dataclass(frozen=True, slots=True)
class SealReport:
    """What `seal` did."""

    sealed: tuple[Path, ...]
    """New sealed files."""
    left_alone: tuple[Path, ...]
    """Open segments whose writer may still live."""
    problems: tuple[Problem, ...]
    """Open segments that could not be sealed."""
    removed: tuple[Path, ...]
    """Files that were covered and are gone."""
    waiting: tuple[Path, ...]
    """Covered files that may go once what covers them is older than the grace time."""


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
        SchemaVersionError: a newer major version wrote it.
        OSError: the disk refused.
    """
    files = RunFiles.open(path)
    sealed: list[Path] = []
    left_alone: list[Path] = []
    problems: list[Problem] = []
    for table in TABLES:
        covered = look(files.layout, table, files.run_uid, with_open=False).coverage.covered
        for segment, name in open_files(files, table):
            if not is_gone(files.writers.get(name.writer or ""), assume_dead=assume_dead):
                left_alone.append(segment)
                continue
            try:
                if _adds(as_candidate(read_own(files, table, segment)), covered):
                    sealed += seal_open(segment, name.number or 0, table)
            except SegmentError as error:
                problems.append(Problem(error.path, error.reason))
            except FileNotFoundError:  # reclaimed just now: it was covered
                continue
    reclaimed = Reclaimed()
    if reclaim_covered:
        reclaimed = reclaim(files.refresh(), assume_dead=assume_dead, grace_seconds=grace_seconds)
    return SealReport(
        tuple(sealed), tuple(left_alone), tuple(problems), tuple(reclaimed.removed), tuple(reclaimed.waiting)
    )


def _adds(candidate: Candidate, covered: Mapping[str, Spans]) -> bool:
    """Whether it holds a row that no sealed or compacted file holds."""
    return any(
        covered.get(writer, Spans()).missing_from(span) for writer, spans in candidate.holds.items() for span in spans
    )
