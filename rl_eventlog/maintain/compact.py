"""Many sealed segments of a table in one file.

- Only adds. The sources stay until `reclaim_covered` removes them, and count again if the compacted
  file is lost.
- What a compacted file covers is what its footer lists; every read result stays as it was.
- Memory is bounded by `GROUP_ROWS`, whatever the size of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rl_eventlog.durable import make_folder
from rl_eventlog.layout import SegmentName
from rl_eventlog.reader import RunFiles
from rl_eventlog.reader.segments import TableFiles, rows
from rl_eventlog.schema import TABLES, table as table_schema
from rl_eventlog.segment.coverage import Coverage, Use
from rl_eventlog.segment.compacted import write_compacted
from rl_eventlog.types import Span

from .fold import fold_writers, remove_folded
from .removal import GRACE_SECONDS, reclaim

GROUP_ROWS = 4_000_000


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What `compact` did."""

    compacted: tuple[Path, ...]
    """New compacted files."""
    sources: int
    """Files whose rows are in them."""
    folded_writers: int
    """Writers of ended attempts whose documents are in one file now."""
    removed: tuple[Path, ...]
    """Files that were covered and are gone."""


def compact(
    path: Path, *, reclaim_covered: bool = False, assume_dead: bool = False, grace_seconds: float = GRACE_SECONDS
) -> CompactReport:
    """Merge the sealed files of each table, and fold the documents of ended writers.

    Args:
        path: folder of the run.
        reclaim_covered: afterwards remove files that older, intact ones cover.
        assume_dead: a person says that no writer without an end record lives.
        grace_seconds: how old a covering file must be before what it covers may go.

    Raises:
        RunNotFoundError: the path holds no run.
        OSError: the disk refused.
    """
    files = RunFiles.open(path, digests=True)
    compacted: list[Path] = []
    sources = 0
    for table in TABLES:
        for group in _groups(files.table(table)):
            compacted.append(_compact_group(files, table, group))
            sources += len(group)
    folded = fold_writers(files)
    removed: list[Path] = []
    if reclaim_covered:
        removed = reclaim(files.refresh(), assume_dead=assume_dead, grace_seconds=grace_seconds)
        removed += remove_folded(files, grace_seconds)
    return CompactReport(tuple(compacted), sources, folded, tuple(removed))


def _groups(table: TableFiles) -> Iterator[list[Use]]:
    """Sealed and small compacted files in groups of at most `GROUP_ROWS` rows, at least two files each."""
    group: list[Use] = []
    size = 0
    for use in table.coverage.uses:
        if use.candidate.level == "open" or use.candidate.rows > GROUP_ROWS // 2:
            continue
        if group and size + use.candidate.rows > GROUP_ROWS:
            if len(group) > 1:
                yield group
            group, size = [], 0
        group.append(use)
        size += use.candidate.rows
    if len(group) > 1:
        yield group


def _compact_group(files: RunFiles, table: str, group: list[Use]) -> Path:
    frame = rows(TableFiles(table, Coverage(uses=group), {})).collect()
    merged = frame.to_arrow().cast(table_schema(table).sealed)
    covers: dict[str, list[Span]] = {}
    for use in group:
        for writer, spans in use.takes.items():
            covers.setdefault(writer, []).extend(spans)
    names = (SegmentName.parse(use.candidate.path.name) for use in group)
    compactions = 1 + max(name.compactions for name in names if name)
    folder = files.layout.events / table / "compacted"
    make_folder(folder)
    return write_compacted(
        folder, _sorted(merged), covers, compactions=compactions, table=table, run_uid=files.run_uid
    )


def _sorted(merged: pa.Table) -> pa.Table:
    """By (name, axis, position) where the table has these, then by writer and seq."""
    keys = [name for name in ("name", "axis", "axis_value", "step", "writer", "seq") if name in merged.column_names]
    return merged.take(pc.sort_indices(merged, sort_keys=[(key, "ascending") for key in keys]))
