"""The open segments of a run, read one at a time: together they may be more than memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rl_eventlog.errors import SegmentError
from rl_eventlog.layout import SegmentName
from rl_eventlog.reader import RunFiles
from rl_eventlog.reader.segments import event_files
from rl_eventlog.segment.coverage import Candidate
from rl_eventlog.segment.open_segment import OpenContent, read_open


def open_files(files: RunFiles, table: str, *, with_empty: bool = False) -> Iterator[tuple[Path, SegmentName]]:
    """Open segments of a table: those that hold something, or all."""
    for path, name in event_files(files.layout, table):
        if name.level != "open":
            continue
        try:
            if with_empty or path.stat().st_size:
                yield path, name
        except FileNotFoundError:  # its owner sealed it just now
            continue


def read_own(files: RunFiles, table: str, path: Path) -> OpenContent:
    """Read an open segment of this run and table.

    Raises:
        SegmentError: it cannot be used, or belongs elsewhere.
        SchemaVersionError: a newer major version wrote it.
        OSError: it cannot be read.
    """
    content = read_open(path)
    if content.table != table:
        raise SegmentError(path, f"it holds rows of the table {content.table!r}")
    if content.identity.run_uid != files.run_uid:
        raise SegmentError(path, f"it belongs to another run ({content.identity.run_uid})")
    return content


def as_candidate(content: OpenContent) -> Candidate:
    """An open segment as the coverage rule sees it."""
    return Candidate(content.path, "open", {content.identity.writer: [span for span, _ in content.pieces]})
