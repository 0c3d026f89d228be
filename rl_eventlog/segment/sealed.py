"""The sealed form of a segment: a Parquet file that never changes and says in its name what it covers.

- A sealed file appears under its name only when it is whole, on the disk and read back.
- Its name holds the first 16 hex digits of its SHA-256, so a truncated or altered copy is recognised
  without a manifest and two sealers never make one name with two contents.
- The identity of the writer is in real columns: any Parquet reader can tell rows apart.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rl_eventlog.durable import fsync_file, rename_durably, temporary_path
from rl_eventlog.errors import SchemaVersionError, SegmentError
from rl_eventlog.layout import SegmentName, sealed_name
from rl_eventlog.schema import check_version, table as table_schema
from rl_eventlog.types import Identity, LastRow, Span, Spans

from .align import align
from .arrays import build_array, build_scalar
from .same import same_rows

_SEQS_A_BLOCK = 1 << 14
_ROWS_A_GROUP = 1 << 17  # a seal's memory is that of its segment and a few row groups
_POSITION_COLUMNS = ("name", "axis", "axis_value", "step")


@dataclass(frozen=True, slots=True)
class Footer:
    """What the footer of a sealed segment or a compacted file says."""

    version: str
    table: str
    run_uid: str
    holds: dict[str, list[Span]]
    """Seqs by writer."""
    rows: int
    min_step: int | None
    max_step: int | None
    unique_steps: bool
    columns: tuple[str, ...]
    """Names of its columns."""
    last: dict[str, LastRow] | None
    """How far each writer came; None where only the rows tell."""


def write_sealed(folder: Path, rows: pa.Table, span: Span, number: int, table: str, identity: Identity) -> Path:
    """Write one sealed segment.

    Args:
        folder: where the open segment lies.
        rows: the rows of `span` with the columns of the open form, in seq order.
        span: the seqs they have.
        number: `n` of the segment.
        table: name of the table.
        identity: of the writer.

    Returns:
        The path of the file, which was read back before it got its name.

    Raises:
        SegmentError: the rows do not fit the table, or did not read back as they were written; nothing
            of the file stays.
        OSError: it could not be written; nothing of it stays.
    """
    try:
        sealed = with_identity(align(rows, table_schema(table).open), span, identity, table_schema(table).sealed)
        metadata = identity.to_metadata(table) | seqs_metadata(span) | contents_metadata(sealed)
        return publish(
            folder,
            lambda digest: sealed_name(identity.writer, number, span.first, span.last, digest),
            lambda path: _write(path, sealed.replace_schema_metadata(metadata)),
            lambda path: check_rows(path, [sealed]),
        )
    except pa.ArrowException as error:
        raise SegmentError(folder, f"{table} {span.first} to {span.last} cannot be sealed: {error}") from error


def _write(path: Path, rows: pa.Table) -> None:
    with parquet_writer(path, rows.schema) as writer:
        writer.write_table(rows, row_group_size=_ROWS_A_GROUP)


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A writer with the encodings of the format. One that failed does not try again when it is collected."""
    writer = pq.ParquetWriter(path, schema, **_encodings(schema))
    try:
        yield writer
        writer.close()
    except BaseException:
        writer.is_open = False
        with suppress(OSError):
            writer.file_handle.close()
        raise


def publish(
    folder: Path, name: Callable[[str], str], write: Callable[[Path], None], check: Callable[[Path], None]
) -> Path:
    """Make a file that appears under its name only when it is whole, on the disk and read back.

    Args:
        folder: where it will lie.
        name: makes the file name from the first 16 digits of the SHA-256.
        write: writes it.
        check: reads it back.

    Raises:
        SegmentError: it did not read back; nothing of it stays.
        ArrowException: it cannot be written as Parquet; nothing of it stays.
        OSError: it could not be written; nothing of it stays.
    """
    temporary = temporary_path(folder)
    try:
        write(temporary)
        fsync_file(temporary)
        path = folder / name(file_digest(temporary)[:16])
        if (parsed := SegmentName.parse(path.name)) is None:
            raise SegmentError(path, "no name of a sealed file")
        read_footer(temporary, parsed)
        check(temporary)
        rename_durably(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def read_footer(path: Path, name: SegmentName) -> Footer:
    """Open a sealed segment or a compacted file far enough to know that it is what its name says.

    Raises:
        SegmentError: it cannot be read, or its footer, its name and its row count differ.
        SchemaVersionError: a newer major version wrote it, and it is intact.
        OSError: it is gone.
    """
    try:
        parsed = pq.read_metadata(path)
        text = {k.decode(): v.decode() for k, v in (parsed.metadata or {}).items() if k.startswith(b"rle.")}
        footer = Footer(
            version=text["rle.version"],
            table=text["rle.table"],
            run_uid=text["rle.run_uid"],
            holds=_holds(text),
            rows=int(text["rle.rows"]),
            min_step=int(text["rle.min_step"]) if "rle.min_step" in text else None,
            max_step=int(text["rle.max_step"]) if "rle.max_step" in text else None,
            unique_steps=text["rle.unique_steps"] == "true",
            columns=(columns := tuple(parsed.schema.to_arrow_schema().names)),
            last=_last(text, parsed, columns.index("time")),
        )
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno in {errno.ENOENT, errno.ESTALE}:
            raise
        raise SegmentError(path, f"no readable Parquet footer of ours: {error}") from error
    try:
        check_version(footer.version, path)
    except SchemaVersionError:
        check_digest(path, name)  # one damaged file must not stop the others: only its digest vouches for the version
        raise
    covers = [(writer, span.first, span.last) for writer, spans in footer.holds.items() for span in spans]
    if name.level == "sealed" and covers != [(name.writer, name.first, name.last)]:
        raise SegmentError(path, "its footer and its name do not agree")
    seqs = sum(last - first + 1 for _, first, last in covers)
    if not footer.rows == seqs == parsed.num_rows:
        raise SegmentError(path, f"it holds {parsed.num_rows} rows and covers {seqs} seqs")
    return footer


def _holds(text: dict[str, str]) -> dict[str, list[Span]]:
    """What a footer covers: one interval of one writer, or the list of a compacted file."""
    if "rle.covers" not in text:
        return {text["rle.writer"]: [Span(int(text["rle.first_seq"]), int(text["rle.last_seq"]))]}
    holds: dict[str, Spans] = {}
    for writer, first, last in json.loads(text["rle.covers"]):
        span = Span(int(first), int(last))
        spans = holds.setdefault(str(writer), Spans())
        if spans.missing_from(span) != [span]:
            raise ValueError(f"writer {writer} is covered twice at {first} to {last}")
        spans.add(span)
    return {writer: list(spans) for writer, spans in holds.items()}


def _last(text: dict[str, str], parsed: pq.FileMetaData, time_column: int) -> dict[str, LastRow] | None:
    """How far writers came: of a compacted file as it says, of a sealed one from its statistics."""
    if "rle.last_rows" in text:
        rows = json.loads(text["rle.last_rows"])
        return {str(writer): LastRow(step, _time(microseconds)) for writer, step, microseconds in rows}
    groups = [parsed.row_group(index).column(time_column).statistics for index in range(parsed.num_row_groups)]
    if "rle.covers" in text or not groups or not all(group is not None and group.has_min_max for group in groups):
        return None
    step = int(text["rle.max_step"]) if "rle.max_step" in text else None
    # raw: for a time that it gives a type pyarrow loads pandas, if that is there
    return {text["rle.writer"]: LastRow(step, _time(max(group.max_raw for group in groups)))}


def _time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=microseconds)


def file_digest(path: Path) -> str:
    """SHA-256 of the file, 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_digest(path: Path, name: SegmentName) -> None:
    """Compare the whole content with the digest in the name.

    Raises:
        SegmentError: they differ: the copy is truncated or altered.
    """
    if file_digest(path)[:16] != name.digest:
        raise SegmentError(path, "its content does not match the digest in its name: copy the file again")


def check_rows(path: Path, blocks: Iterable[pa.Table]) -> None:
    """Compare the rows of a Parquet file with those that were to be written.

    Args:
        path: the file.
        blocks: the rows, each block in row groups of its own.

    Raises:
        SegmentError: they differ.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        group = 0
        for block in blocks:
            offset = 0
            while offset < block.num_rows and group < file.num_row_groups:
                found = file.read_row_group(group)
                if not same_rows(found, block.slice(offset, found.num_rows)):
                    raise SegmentError(path, "its rows did not read back as they were written")
                offset += found.num_rows
                group += 1
            if offset < block.num_rows:
                raise SegmentError(path, "rows that were written did not read back")
        if group != file.num_row_groups:
            raise SegmentError(path, "it holds more rows than were written")


def with_identity(rows: pa.Table, span: Span, identity: Identity, schema: pa.Schema) -> pa.Table:
    """Rows of an open segment with the columns `schema` of the sealed form."""
    constants = {
        "writer": identity.writer,
        "launch": identity.launch,
        "role": identity.role,
        "rank": identity.rank,
        "data_rank": identity.data_rank,
        "node": identity.node,
    }
    columns = []
    for field in schema:
        if field.name == "seq":
            columns.append(_seqs(span))
        elif field.name in constants:
            columns.append(pa.repeat(build_scalar(constants[field.name], field.type), rows.num_rows))
        else:
            columns.append(rows[field.name])
    return pa.table(columns, schema=schema)


def _seqs(span: Span) -> pa.ChunkedArray:
    """In blocks, each a moment: an array of a whole segment's seqs would hold the interpreter for 15 ms."""
    starts = range(span.first, span.last + 1, _SEQS_A_BLOCK)
    blocks = [build_array(range(start, min(start + _SEQS_A_BLOCK, span.last + 1)), pa.int64()) for start in starts]
    return pa.chunked_array(blocks, pa.int64())


def seqs_metadata(span: Span) -> dict[bytes, bytes]:
    """Footer of a file that covers one interval."""
    return {b"rle.first_seq": str(span.first).encode(), b"rle.last_seq": str(span.last).encode()}


def contents_metadata(rows: pa.Table) -> dict[bytes, bytes]:
    """Footer about the rows themselves."""
    metadata = {
        b"rle.rows": str(rows.num_rows).encode(),
        b"rle.unique_steps": b"true" if _unique_steps(rows) else b"false",
    }
    steps = pc.min_max(rows["step"]).as_py()
    if steps["min"] is not None:
        metadata[b"rle.min_step"] = str(steps["min"]).encode()
        metadata[b"rle.max_step"] = str(steps["max"]).encode()
    return metadata


def _unique_steps(sealed: pa.Table) -> bool:
    """Whether no (name, axis, position) repeats; only tables with an axis can say so."""
    if not set(_POSITION_COLUMNS) <= set(sealed.column_names):
        return False
    elsewhere = pa.nulls(sealed.num_rows, pa.int64())
    position = pc.if_else(pc.is_valid(sealed["axis"]), elsewhere, sealed["step"])
    keys = sealed.select(["name", "axis", "axis_value"]).append_column("position", position)
    keys = keys.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names]))
    repeats = [_equals_next(column.combine_chunks()) for column in keys.columns]
    return not pc.any(reduce(pc.and_, repeats)).as_py()


def _equals_next(column: pa.Array) -> pa.Array:
    """Whether each value but the last is that of the next, null like null."""
    left, right = column[:-1], column[1:]
    return pc.coalesce(pc.equal(left, right), pc.and_(pc.is_null(left), pc.is_null(right)))


def _encodings(schema: pa.Schema) -> dict[str, object]:
    """zstd; dictionary for strings, deltas for integers and times, split bytes for floats; page checksums."""
    dictionary: list[str] = []
    encoding: dict[str, str] = {}
    for path, kind in _leaves(schema):
        if pa.types.is_string(kind):
            dictionary.append(path)
        elif pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
            encoding[path] = "DELTA_BINARY_PACKED"
        elif pa.types.is_floating(kind):
            encoding[path] = "BYTE_STREAM_SPLIT"
    return {
        "compression": "zstd",
        "use_dictionary": dictionary,
        "column_encoding": encoding,
        "write_page_checksum": True,
    }


def _leaves(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    def walk(path: str, kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
        if pa.types.is_list(kind):
            return walk(f"{path}.list.element", kind.value_type)
        if pa.types.is_struct(kind):
            return [leaf for field in kind for leaf in walk(f"{path}.{field.name}", field.type)]
        return [(path, kind)]

    return [leaf for field in schema for leaf in walk(field.name, field.type)]
