"""The event files of one table: which there are, which are usable, and their rows as a LazyFrame.

- Open segments are read batch by batch from a copy in memory, never mapped.
- A file that vanished meanwhile means: list again; what was read by then is kept.
- A file that cannot be used covers nothing and is named.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rl_eventlog.errors import SegmentError
from rl_eventlog.layout import RunLayout, SegmentName
from rl_eventlog.schema import table as table_schema
from rl_eventlog.segment.align import align, unknown_columns
from rl_eventlog.segment.coverage import Candidate, Coverage, Use, cover
from rl_eventlog.segment.open_segment import OpenContent, read_open
from rl_eventlog.segment.sealed import check_digest, read_footer, with_identity
from rl_eventlog.types import LastRow, Span

from .facts import Problem

_LISTINGS = 8
_VANISHED = {errno.ENOENT, errno.ESTALE}  # the second is NFS's word for it


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The usable files of one table and what is taken from each."""

    table: str
    coverage: Coverage
    open_contents: Mapping[Path, OpenContent]
    problems: list[Problem] = field(default_factory=list)
    torn_tails: Mapping[Path, int] = field(default_factory=dict)
    """Bytes after the last whole batch of an open segment: a write that was cut off."""
    candidates: tuple[Candidate, ...] = ()
    """Every usable file, also those of which nothing is taken."""


def event_files(layout: RunLayout, table: str, *, with_open: bool = True) -> Iterator[tuple[Path, SegmentName]]:
    """Event files of a table: two folder levels, whatever the folders are called."""
    try:
        shards = [entry.path for entry in os.scandir(os.path.join(layout.path, "events", table)) if entry.is_dir()]  # noqa: PTH118 -- most runs lack most tables, and thousands of runs are listed
    except FileNotFoundError:
        return
    for shard in sorted(shards):
        for entry in sorted(os.scandir(shard), key=lambda entry: entry.name):
            name = SegmentName.parse(entry.name)
            if name and (with_open or name.level != "open"):
                yield Path(entry.path), name


def look(layout: RunLayout, table: str, run_uid: str, *, digests: bool = False, with_open: bool = True) -> TableFiles:
    """List the files of a table and apply the coverage rule.

    Args:
        layout: places of the run.
        table: name of the table.
        run_uid: id of the run; files of others are left out.
        digests: compare each sealed and compacted file with the digest in its name.
        with_open: False leaves out open segments, which are read whole.

    Raises:
        SchemaVersionError: a newer major version wrote one of them.
        OSError: a folder cannot be read.
    """
    read: dict[Path, _File] = {}
    listed: list[Path] = []
    missed: dict[Path, OSError] = {}
    missed_before = missed
    for listings_left in reversed(range(_LISTINGS)):
        missed_before, missed = missed, {}
        try:
            names = list(event_files(layout, table, with_open=with_open))
        except OSError as error:  # a folder went while it was listed
            if error.errno in _VANISHED and listings_left:
                continue
            raise
        listed = [path for path, _ in names]
        for path, name in names:
            if path not in read:
                try:
                    read[path] = _read(path, name, table, run_uid, digests=digests)
                except OSError as error:  # sealed, reclaimed or compacted between listing and reading
                    missed[path] = error
        # What is listed twice and cannot be found is a link to nowhere. What was read is not read again: on a large
        # run some file vanishes during every whole look.
        if missed.keys() <= missed_before.keys():
            break
    files = [read[path] for path in listed if path in read]
    contents = {file.content.path: file.content for file in files if file.content}
    candidates = tuple(file.candidate for file in files if file.candidate)
    return TableFiles(
        table,
        cover(candidates),
        contents,
        [problem for file in files for problem in file.problems]
        + [_unreadable(path, error) for path, error in missed.items() if path in missed_before],
        {path: content.torn_tail for path, content in contents.items() if content.torn_tail},
        candidates,
    )


class _File(NamedTuple):
    """An event file that was looked at."""

    candidate: Candidate | None
    """None where it cannot be used, or is empty."""
    content: OpenContent | None
    """Of an open segment."""
    problems: list[Problem]


def _read(path: Path, name: SegmentName, table: str, run_uid: str, *, digests: bool) -> _File:
    """Look at one file.

    Raises:
        SchemaVersionError: a newer major version wrote it.
        OSError: it vanished.
    """
    content = None
    try:
        if name.level == "open":
            if path.stat().st_size == 0:  # made a moment ago, or by a writer that was killed before its first row
                return _File(None, None, [])
            content = read_open(path)
            owner, of, holds = content.identity.run_uid, content.table, _holds(content)
            columns, known, last = content.columns, table_schema(table).open, _last(content)
        else:
            footer = read_footer(path, name)
            owner, of, holds = footer.run_uid, footer.table, footer.holds
            columns, known, last = footer.columns, table_schema(table).sealed, footer.last
            if digests:
                check_digest(path, name)
    except SegmentError as error:
        return _File(None, None, [Problem(path, error.reason)])
    except OSError as error:
        if error.errno in _VANISHED:
            raise
        return _File(None, None, [_unreadable(path, error)])
    damage = content.damage if content else []
    problems = [Problem(path, f"damaged at byte {d.offset}: {d.reason}") for d in damage]
    if of != table:
        return _File(None, content, [*problems, Problem(path, f"it holds rows of the table {of!r}, left out")])
    if owner != run_uid:
        return _File(None, content, [*problems, Problem(path, f"it belongs to another run ({owner}), left out")])
    if unknown := unknown_columns(columns, known):
        problems.append(Problem(path, f"columns of a newer version left out: {', '.join(unknown)}"))
    return _File(Candidate(path, name.level, holds, last), content, problems)


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(path, f"it cannot be read: {error}")


def _holds(content: OpenContent) -> dict[str, list[Span]]:
    return {content.identity.writer: [span for span, _ in content.pieces]}


def _last(content: OpenContent) -> dict[str, LastRow] | None:
    if not content.pieces:
        return None
    steps, times = ([pc.max(rows[name]).as_py() for _, rows in content.pieces] for name in ("step", "time"))
    return {content.identity.writer: LastRow(max((s for s in steps if s is not None), default=None), max(times))}


def rows(files: TableFiles) -> pl.LazyFrame:
    """All rows by the coverage rule, with the columns of the sealed form."""
    schema = polars_schema(files.table)
    sealed = [use for use in files.coverage.uses if use.candidate.level != "open"]
    frames = [scan_sealed(files.table, sealed)] if sealed else []
    of_open = [part for use in files.coverage.uses if use.candidate.level == "open" for part in open_tables(files, use)]
    if of_open:
        frames.append(pl.DataFrame(pa.concat_tables(of_open)).lazy())
    return pl.concat(frames) if frames else pl.LazyFrame(schema=schema)


def scan_sealed(table: str, uses: Sequence[Use]) -> pl.LazyFrame:
    """The rows that are taken from sealed and compacted files, of which there is at least one."""
    schema = polars_schema(table)
    whole = [use.candidate.path for use in uses if use.whole]
    frames = [_scan(whole, schema)] if whole else []
    frames += [_scan([use.candidate.path], schema).filter(taken(use)) for use in uses if not use.whole]
    return pl.concat(frames)


def polars_schema(table: str) -> pl.Schema:
    """Columns of the sealed form of a table, as Polars types."""
    return pl.DataFrame(table_schema(table).sealed.empty_table()).schema


def _scan(paths: list[Path], schema: pl.Schema) -> pl.LazyFrame:
    return pl.scan_parquet(paths, schema=schema, glob=False, extra_columns="ignore", missing_columns="insert").select(
        schema.names()
    )


def taken(use: Use) -> pl.Expr:
    """Which rows to take from a file that others cover in part."""
    return pl.any_horizontal(
        (pl.col("writer") == writer) & pl.col("seq").is_between(span.first, span.last)
        for writer, spans in use.takes.items()
        for span in spans
    )


def open_tables(files: TableFiles, use: Use) -> Iterator[pa.Table]:
    """The rows that are taken from an open segment, with the columns of the sealed form, batch by batch."""
    content = files.open_contents[use.candidate.path]
    schema = table_schema(files.table)
    for span, table in content.pieces:
        sealed = with_identity(align(table, schema.open), span, content.identity, schema.sealed)
        for take in use.takes[content.identity.writer]:
            first, last = max(take.first, span.first), min(take.last, span.last)
            if first <= last:
                yield sealed.slice(first - span.first, len(Span(first, last)))
