"""The rows of one table writer by writer, in an order that the caller chooses.

- Each row once, by the coverage rule; of each writer in the order of its seqs.
- Memory is that of a few files ahead of the caller. Of a compacted file it is that of the writers that
  share rows with those asked for so far: few, where they are asked for in the order of `compact`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rl_eventlog.errors import SegmentError
from rl_eventlog.schema import table as table_schema
from rl_eventlog.segment.align import align
from rl_eventlog.segment.coverage import Use
from rl_eventlog.types import Span

from .segments import TableFiles, open_tables, scan_sealed

_FILES_AHEAD = 8
_FILES_SEARCHED = 128
_THREADS = 2


class NameFilter(Protocol):
    """Which names are wanted."""

    def matches(self, name: str) -> bool:
        """Whether this one is."""

    def expression(self, column: str) -> pl.Expr:
        """Whether the name in a column is."""

    def may_lie_between(self, lowest: str, highest: str) -> bool:
        """Whether one of these could be; True where that is not known."""


def rows_by_writer(
    files: TableFiles,
    writers: Sequence[str],
    columns: Sequence[str],
    *,
    names: NameFilter | None = None,
    last_seqs: Mapping[str, int] | None = None,
) -> Generator[pa.Table, None, None]:
    """Read the rows of writers.

    Args:
        files: of the table.
        writers: whose rows, each once, in the order in which they are to come.
        columns: of the sealed form. Texts come as dictionaries.
        names: only rows with these names; None for all.
        last_seqs: last seq to use by writer; writers that are not in it give nothing. None: all rows.

    Yields:
        The rows of each of `writers`; none where it has none.

    Raises:
        SegmentError: a file cannot be read any more.
        OSError: a file is gone since it was looked at.
    """
    source = _Source(files, columns, names, last_seqs)
    with closing(_read_ahead(source, writers) if names is None else _search(source, writers)) as own:
        for writer, parts in zip(writers, own, strict=True):
            yield source.in_order(writer, [*parts, *source.shared(writer)])


def _read_ahead(source: _Source, writers: Sequence[str]) -> Generator[list[pa.Table], None, None]:
    """The rows of each writer in files of its own, read while the caller works on those before."""
    ahead = iter(writers)
    waiting: deque[list[Future[pa.Table]]] = deque()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="rle-read") as pool:
        try:
            for _ in writers:
                while len(waiting) < _FILES_AHEAD and (coming := next(ahead, None)) is not None:
                    waiting.append([pool.submit(source.read, use) for use in source.own.get(coming, [])])
                yield [future.result() for future in waiting.popleft()]
        finally:
            pool.shutdown(cancel_futures=True)


def _search(source: _Source, writers: Sequence[str]) -> Generator[list[pa.Table], None, None]:
    """The same of wanted names: Polars finds them in half the time, where it looks into many files at once."""
    batches = [writers[start : start + _FILES_SEARCHED] for start in range(0, len(writers), _FILES_SEARCHED)]
    with ThreadPoolExecutor(1, thread_name_prefix="rle-search") as pool:
        ahead = iter(batches)
        waiting = deque(pool.submit(source.search, batch) for batch in islice(ahead, 2))
        try:
            for batch in batches:
                found = waiting.popleft().result()
                yield from (found.get(writer, []) for writer in batch)
                waiting.extend(pool.submit(source.search, batch) for batch in islice(ahead, 1))
        finally:
            pool.shutdown(cancel_futures=True)


class _Source:
    """Where the rows of each writer lie: in files of its own, and in files that writers share."""

    def __init__(
        self, files: TableFiles, columns: Sequence[str], names: NameFilter | None, last_seqs: Mapping[str, int] | None
    ) -> None:
        sealed = table_schema(files.table).sealed
        self._files = files
        self._names = names
        self._last_seqs = last_seqs
        self._columns = list(columns)
        self._schema = _with_dictionaries(sealed, [*dict.fromkeys([*columns, "seq"])])
        self.own: dict[str, list[Use]] = {}
        self._shared: dict[str, list[_SharedFile]] = {}
        for use in files.coverage.uses:
            if use.candidate.level == "compacted":
                shared = _SharedFile(
                    use, _with_dictionaries(sealed, [*dict.fromkeys([*columns, "writer", "seq"])]), names
                )
                for writer in use.takes:
                    self._shared.setdefault(writer, []).append(shared)
            else:
                for writer in use.takes:
                    self.own.setdefault(writer, []).append(use)

    def shared(self, writer: str) -> list[pa.Table]:
        """Its rows in compacted files."""
        return [shared.rows(writer).select(self._schema.names) for shared in self._shared.get(writer, [])]

    def in_order(self, writer: str, parts: list[pa.Table]) -> pa.Table:
        """Rows of one writer in the order of their seqs, those after the frontier left out."""
        rows = _in_one_piece(parts) if parts else self._schema.empty_table()
        seqs = rows["seq"].to_numpy()
        if not np.all(seqs[1:] > seqs[:-1]):
            order = np.argsort(seqs, kind="stable")  # as compacted rows come, a few runs that only need merging
            rows, seqs = rows.take(order), seqs[order]
        if self._last_seqs is not None:
            rows = rows.slice(0, int(np.searchsorted(seqs, self._last_seqs.get(writer, -1), side="right")))
        return rows.select(self._columns)

    def read(self, use: Use) -> pa.Table:
        """What is taken from a file that holds rows of one writer."""
        if use.candidate.level == "open":
            return _in_one_piece([_aligned(part, self._schema) for part in open_tables(self._files, use)])
        with _parquet_file(use, self._schema) as file:
            rows = _aligned(file.read(columns=_there(file, self._schema), use_threads=False), self._schema)
        return rows if use.whole else _taken(rows, next(iter(use.takes.values())))

    def search(self, writers: Sequence[str]) -> dict[str, list[pa.Table]]:
        """By writer its rows with wanted names in files of its own."""
        uses = [use for writer in writers for use in self.own.get(writer, [])]
        found: dict[str, list[pa.Table]] = {}
        of_open = [use for use in uses if use.candidate.level == "open"]
        for use in of_open:
            found.setdefault(next(iter(use.takes)), []).append(_named(self.read(use), self._names))
        if self._names and (sealed := [use for use in uses if use.candidate.level != "open"]):
            rows = scan_sealed(self._files.table, sealed).filter(self._names.expression("name"))
            columns = [*dict.fromkeys(["writer", *self._schema.names])]
            frame = rows.select(columns).collect().sort("writer", maintain_order=True)
            table, first = _as_dictionaries(frame, self._schema), 0
            for length, writer in frame["writer"].rle().struct.unnest().iter_rows():
                found.setdefault(writer, []).append(table.slice(first, length))
                first += length
        return found


class _SharedFile:
    """The rows of a compacted file, handed out by writer while it is read from its beginning to its end.

    The rows of its blocks are sorted by name: all writers of a block are complete at its end, and put in order there.
    """

    def __init__(self, use: Use, schema: pa.Schema, names: NameFilter | None) -> None:
        self._use = use
        self._schema = schema
        self._names = names
        self._groups = self._row_groups()
        self._waiting: list[pa.Table] = []
        self._found: dict[str, list[pa.Table]] = {writer: [] for writer in use.takes}
        self._to_come = {writer: sum(map(len, use.candidate.holds[writer])) for writer in use.takes}

    def rows(self, writer: str) -> pa.Table:
        """Those of a writer; asked for once."""
        while self._to_come[writer] > 0 and (group := next(self._groups, None)) is not None:
            self._count(group)
            self._waiting.append(_named(group, self._names))
        if self._waiting:
            self._hand_out(_in_one_piece(self._waiting))
            self._waiting = []
        found = self._found.pop(writer)
        return _in_one_piece(found) if found else self._schema.empty_table()

    def _row_groups(self) -> Iterator[pa.Table]:
        with _parquet_file(self._use, self._schema) as file:
            columns = _there(file, self._schema)
            for group in range(file.num_row_groups):
                if self._names is None or _may_hold(file, group, self._names):
                    yield _aligned(file.read_row_group(group, columns=columns), self._schema)

    def _count(self, group: pa.Table) -> None:
        column = group["writer"].unify_dictionaries().combine_chunks()
        counts = np.bincount(column.indices.to_numpy(), minlength=len(column.dictionary)).tolist()
        for writer, count in zip(column.dictionary.to_pylist(), counts, strict=True):
            if writer in self._to_come:
                self._to_come[writer] -= count

    def _hand_out(self, rows: pa.Table) -> None:
        column = rows["writer"].combine_chunks()
        writers, codes = column.dictionary.to_pylist(), column.indices.to_numpy()
        counts = np.bincount(codes, minlength=len(writers))
        ends = np.cumsum(counts)
        rows = rows.take(_order(codes, rows["seq"].to_numpy(), counts, ends))
        for writer, count, end in zip(writers, counts.tolist(), ends.tolist(), strict=True):
            if count and writer in self._found:
                own = rows.slice(end - count, count)
                self._found[writer].append(own if self._use.whole else _taken(own, self._use.takes[writer]))


def _order(codes: npt.NDArray[Any], seqs: npt.NDArray[Any], counts: npt.NDArray[Any], ends: npt.NDArray[Any]) -> Any:
    """[n] places of the rows by writer and seq. Where seqs have no gaps, as most, a row's place is known unsorted."""
    lowest = np.full(len(counts), np.iinfo(np.int64).max)
    highest = np.full(len(counts), -1)
    np.minimum.at(lowest, codes, seqs)
    np.maximum.at(highest, codes, seqs)
    if not np.array_equal((highest - lowest + 1)[counts > 0], counts[counts > 0]):
        return np.lexsort((seqs, codes))
    order = np.empty(len(codes), np.int64)
    order[(ends - counts - lowest)[codes] + seqs] = np.arange(len(codes))
    return order


def _with_dictionaries(schema: pa.Schema, columns: list[str]) -> pa.Schema:
    texts = pa.dictionary(pa.int32(), pa.string())
    fields = [schema.field(name) for name in columns]
    return pa.schema([field.with_type(texts) if pa.types.is_string(field.type) else field for field in fields])


@contextmanager
def _parquet_file(use: Use, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    path = use.candidate.path
    texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    try:
        with pq.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True) as file:
            yield file
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise SegmentError(path, str(error)) from error


def _there(file: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    """The columns that it has: older versions had fewer."""
    there = set(file.schema_arrow.names)
    return [name for name in schema.names if name in there]


def _may_hold(file: pq.ParquetFile, group: int, names: NameFilter) -> bool:
    column = file.metadata.row_group(group).column(file.schema_arrow.names.index("name"))
    found = column.statistics
    return found is None or not found.has_min_max or names.may_lie_between(found.min, found.max)


def _aligned(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return rows if rows.schema.equals(schema) else align(rows, schema)


def _in_one_piece(parts: list[pa.Table]) -> pa.Table:
    """One table of one chunk a column; an empty one may have none."""
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def _as_dictionaries(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    rows = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    columns = []
    for field in schema:
        column = rows[field.name].combine_chunks()
        texts = pa.types.is_dictionary(field.type)
        columns.append(column.cast(pa.string()).dictionary_encode() if texts else column.cast(field.type))
    return pa.table(columns, schema=schema)


def _taken(rows: pa.Table, spans: list[Span]) -> pa.Table:
    seqs = rows["seq"].to_numpy()
    return rows.filter(pa.array(np.logical_or.reduce([(seqs >= span.first) & (seqs <= span.last) for span in spans])))


def _named(rows: pa.Table, names: NameFilter | None) -> pa.Table:
    if names is None or not rows.num_rows:
        return rows
    column = rows["name"].unify_dictionaries().combine_chunks()
    wanted = np.array([names.matches(name) for name in column.dictionary.to_pylist()], bool)
    return rows.filter(pa.array(wanted[column.indices.to_numpy()]))
