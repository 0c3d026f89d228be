"""Many sealed segments of a table in one file.

- Only adds. The sources stay until `reclaim` removes them, and count again if the compacted file is lost.
- A compacted file holds every row of its sources, so each of them is covered by one file; every read
  result stays as it was.
- Memory is bounded by `BLOCK_BYTES` and the largest row group of a source, whatever the size of the run.
- Killed anywhere, it leaves whole files and at most a temporary one. Two at once are harmless: they
  make the same files, or files that cover one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rl_eventlog.durable import make_folder
from rl_eventlog.errors import SegmentError
from rl_eventlog.layout import GRACE_SECONDS, SegmentName
from rl_eventlog.reader import Problem, RunFiles
from rl_eventlog.reader.segments import look, taken
from rl_eventlog.schema import TABLES, table as table_schema
from rl_eventlog.segment.align import align, unknown_columns
from rl_eventlog.segment.compacted import write_compacted
from rl_eventlog.segment.coverage import Candidate, Use, cover
from rl_eventlog.segment.sealed import check_digest

from .fold import fold_writers, remove_folded
from .removal import Reclaimed, reclaim

FILE_BYTES = 1 << 30
"""Sources of one compacted file, about; a file of half of that or more is left as it is."""
BLOCK_BYTES = 128 << 20
"""Rows sorted at once, in memory."""
_LOOKS = 4


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What `compact` did."""

    compacted: tuple[Path, ...]
    """New compacted files."""
    sources: int
    """Files whose rows are in them."""
    folded_writers: int
    """Writers whose documents are in one file now, and were not before."""
    problems: tuple[Problem, ...]
    """Sealed and compacted files that could not be used, or were left as they are."""
    removed: tuple[Path, ...]
    """Files that were covered and are gone."""
    waiting: tuple[Path, ...]
    """Covered files that may go once what covers them is older than the grace time."""


def compact(
    path: Path, *, reclaim_covered: bool = False, assume_dead: bool = False, grace_seconds: float = GRACE_SECONDS
) -> CompactReport:
    """Merge the sealed files of each table, and fold the documents of writers that are gone.

    Args:
        path: folder of the run.
        reclaim_covered: afterwards remove files that older, intact ones cover.
        assume_dead: a person says that no writer without an end record lives.
        grace_seconds: how old a covering file must be before what it covers may go.

    Raises:
        RunNotFoundError: the path holds no run.
        SchemaVersionError: a newer major version wrote it.
        SegmentError: a compacted file did not read back as it was written.
        OSError: the disk refused.
    """
    files = RunFiles.open(path)
    compacted: list[Path] = []
    sources = 0
    problems: list[Problem] = []
    for table in TABLES:
        made, merged, left = _compact_table(files, table)
        compacted += made
        sources += merged
        problems += left
    folded = fold_writers(files, assume_dead=assume_dead)
    reclaimed = Reclaimed()
    if reclaim_covered:
        files = files.refresh()
        reclaimed = reclaim(files, assume_dead=assume_dead, grace_seconds=grace_seconds)
        remove_folded(files, reclaimed, assume_dead=assume_dead, grace_seconds=grace_seconds)
    return CompactReport(
        tuple(compacted), sources, folded, tuple(problems), tuple(reclaimed.removed), tuple(reclaimed.waiting)
    )


def _compact_table(files: RunFiles, table: str) -> tuple[list[Path], int, list[Problem]]:
    """New files, number of their sources, problems. Looks again where a source is reclaimed meanwhile."""
    made: list[Path] = []
    merged = 0
    for looks_left in reversed(range(_LOOKS)):
        try:
            sources, problems = _sources(files, table)
            order = _reading_order(files)
            for group in _groups(sorted(sources, key=order)):
                made.append(_compact_group(files, table, group, order))
                merged += len(group)
        except FileNotFoundError:
            if not looks_left:
                raise
            continue
        return made, merged, problems
    raise AssertionError("the last look returns or raises")


def _sources(files: RunFiles, table: str) -> tuple[list[Candidate], list[Problem]]:
    """Sealed and small compacted files that hold rows no file before them holds, in the order of the rule."""
    look_at = look(files.layout, table, files.run_uid, with_open=False)
    candidates, problems = list(look_at.candidates), list(look_at.problems)
    while True:
        sources = [use.candidate for use in cover(candidates).uses]
        sources = [source for source in sources if source.path.stat().st_size < FILE_BYTES // 2]
        if len(sources) < 2:
            return [], problems
        bad = [problem for source in sources if (problem := _unfit(source.path, table))]
        if not bad:
            return sources, problems
        unfit = {problem.path for problem in bad}
        problems = [*(problem for problem in problems if problem.path not in unfit), *bad]
        candidates = [candidate for candidate in candidates if candidate.path not in unfit]


def _reading_order(files: RunFiles) -> Callable[[Candidate], int]:
    """Order of files by their first writer: as metrics are merged, so that few rows of a file wait for others.

    Role by role, the newest attempt first, there the lowest rank.
    """
    keys, newest_first = ["role", "attempt", "rank", "incarnation", "writer"], [False, True, False, False, False]
    ordered = files.identities().sort(keys, descending=newest_first, nulls_last=True)["writer"]
    places = {writer: place for place, writer in enumerate(ordered)}
    return lambda source: min((places.get(writer, len(places)) for writer in source.holds), default=len(places))


def _unfit(path: Path, table: str) -> Problem | None:
    """Why the rows of this file cannot go into another."""
    if unknown := unknown_columns(pq.read_schema(path).names, table_schema(table).sealed):
        return Problem(path, f"a newer version wrote {', '.join(unknown)}: compact it with that version")
    try:
        if name := SegmentName.parse(path.name):
            check_digest(path, name)
    except SegmentError as error:
        return Problem(path, error.reason)
    return None


def _groups(sources: list[Candidate]) -> Iterator[list[Candidate]]:
    """At least two files each, of about `FILE_BYTES` together."""
    group: list[Candidate] = []
    size = 0
    for source in sources:
        source_size = source.path.stat().st_size
        if size + source_size > FILE_BYTES:
            if len(group) > 1:
                yield group
            group, size = [], 0
        group.append(source)
        size += source_size
    if len(group) > 1:
        yield group


def _compact_group(files: RunFiles, table: str, group: list[Candidate], order: Callable[[Candidate], int]) -> Path:
    coverage = cover(group)
    uses = sorted(coverage.uses, key=lambda use: order(use.candidate))
    names = (SegmentName.parse(source.path.name) for source in group)
    folder = files.layout.events / table / "compacted"
    make_folder(folder)
    return write_compacted(
        folder,
        lambda: _blocks(uses, table),
        {writer: list(spans) for writer, spans in coverage.covered.items()},
        compactions=1 + max(name.compactions for name in names if name),
        table=table,
        run_uid=files.run_uid,
    )


def _blocks(uses: list[Use], table: str) -> Iterator[pa.Table]:
    """The rows of files, each once, in sorted blocks."""
    waiting: list[pa.Table] = []
    size = 0
    for use in uses:
        for rows in _row_groups(use, table):
            waiting.append(rows)
            size += rows.nbytes
            if size >= BLOCK_BYTES:
                yield _sorted(waiting)
                waiting, size = [], 0
    if waiting:
        yield _sorted(waiting)


def _row_groups(use: Use, table: str) -> Iterator[pa.Table]:
    with pq.ParquetFile(use.candidate.path, page_checksum_verification=True) as file:
        for group in range(file.num_row_groups):
            rows = align(file.read_row_group(group), table_schema(table).sealed)
            if not use.whole:
                keys = pl.DataFrame(rows.select(["writer", "seq"]))
                rows = rows.filter(keys.select(taken(use)).to_series().to_arrow())
            if rows.num_rows:
                yield rows


def _sorted(tables: list[pa.Table]) -> pa.Table:
    """By (name, axis, position) where the table has these, then by writer and seq."""
    rows = pa.concat_tables(tables)
    keys = [name for name in ("name", "axis", "axis_value", "step", "writer", "seq") if name in rows.column_names]
    frame = pl.DataFrame(rows.select(keys))
    # numbers that are in order as the texts are: sorting these is several times as fast
    numbers = [
        column.cast(pl.Enum(column.unique().drop_nulls().sort())) for column in frame if column.dtype == pl.String
    ]
    order = frame.with_columns(numbers).select(pl.arg_sort_by(keys, nulls_last=True)).to_series()
    return rows.take(order.to_arrow()).combine_chunks()
