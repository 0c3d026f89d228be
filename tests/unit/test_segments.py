"""Segments, open and sealed: what is written is what the JSON files say, and comes back to the bit."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_eventlog.errors import SchemaVersionError, SegmentError
from rl_eventlog.layout import SegmentName, open_name
from rl_eventlog.schema import TABLES, arrow_type, read_json, table as table_schema
from rl_eventlog.segment.align import align, unknown_columns
from rl_eventlog.segment.frames import END_OF_STREAM, encode_frame, parse_frame
from rl_eventlog.segment.open_segment import OpenSegment, read_open
from rl_eventlog.segment.same import same_rows
from rl_eventlog.segment.seal import seal_open
from rl_eventlog.segment.sealed import check_digest, file_digest, read_footer, write_sealed
from rl_eventlog.types import MAX_SEQ, Identity, Span
from tests.support.segment_files import IDENTITY, RUN, WRITER, example_batch, write_open

# booleans are left to the Parquet library
ENCODINGS = {
    "BYTE_ARRAY": "RLE_DICTIONARY",
    "INT32": "DELTA_BINARY_PACKED",
    "INT64": "DELTA_BINARY_PACKED",
    "FLOAT": "BYTE_STREAM_SPLIT",
    "DOUBLE": "BYTE_STREAM_SPLIT",
}


def expected_rows(table: str, first: int, last: int) -> pa.Table:
    """The sealed form of rows made by `example_batch`."""
    batch = example_batch(table, last - first + 1, start=first)
    constants: dict[str, Any] = {
        "writer": WRITER,
        "launch": "launch-1",
        "role": "trainer",
        "rank": 3,
        "data_rank": None,
        "node": "node-1",
    }
    schema = table_schema(table).sealed
    columns = []
    for field in schema:
        if field.name == "seq":
            columns.append(pa.array(range(first, last + 1), pa.int64()))
        elif field.name in constants:
            columns.append(pa.array([constants[field.name]] * batch.num_rows, field.type))
        else:
            columns.append(batch[field.name])
    return pa.table(columns, schema=schema)


def columns_of_json(table: str, form: str) -> list[tuple[str, pa.DataType, bool]]:
    return [
        (column["name"], arrow_type(column["type"]), column["nullable"])
        for column in read_json(table)["columns"]
        if column["stored"] in (form, "both")
    ]


@pytest.mark.parametrize("table", TABLES)
def test_an_open_segment_has_the_columns_of_the_json_and_the_values_written(tmp_path: Path, table: str) -> None:
    path = write_open(tmp_path, table, [1, 7, 4])
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        plain = stream.read_all()
    assert [(field.name, field.type, field.nullable) for field in plain.schema] == columns_of_json(table, "open")
    content = read_open(path)
    assert (content.table, content.identity, content.damage, content.torn_tail) == (table, IDENTITY, [], 0)
    ((span, rows),) = content.pieces
    assert span == Span(0, 11)
    expected = pa.Table.from_batches([example_batch(table, 12)])
    assert same_rows(rows.replace_schema_metadata(), expected)
    assert same_rows(plain.replace_schema_metadata(), expected)


@pytest.mark.parametrize("table", TABLES)
def test_a_sealed_segment_has_the_columns_of_the_json_and_the_values_of_the_open_one(
    tmp_path: Path, table: str
) -> None:
    (path,) = seal_open(write_open(tmp_path, table, [5, 7], first_seq=3, number=2), 2, table)
    sealed = pq.ParquetFile(path).read()
    assert [(field.name, field.type, field.nullable) for field in sealed.schema] == columns_of_json(table, "sealed")
    assert same_rows(sealed.replace_schema_metadata(), expected_rows(table, 3, 14))
    name = SegmentName.parse(path.name)
    assert name == SegmentName("sealed", WRITER, 2, 3, 14, hashlib.sha256(path.read_bytes()).hexdigest()[:16])
    footer = read_footer(path, name)
    assert (footer.version, footer.table, footer.run_uid) == ("1.0", table, RUN)
    assert (footer.holds, footer.rows) == ({WRITER: [Span(3, 14)]}, 12)
    check_digest(path, name)


@pytest.mark.parametrize("table", TABLES)
def test_leaves_are_encoded_as_recommended_with_zstd(tmp_path: Path, table: str) -> None:
    (path,) = seal_open(write_open(tmp_path, table, [8]), 0, table)
    metadata = pq.read_metadata(path)
    for index in range(metadata.num_columns):
        column = metadata.row_group(0).column(index)
        assert column.compression == "ZSTD"
        wanted = ENCODINGS.get(column.physical_type)
        assert wanted is None or wanted in column.encodings, column.path_in_schema


def test_the_metadata_of_the_schema_is_the_identity_without_nulls(tmp_path: Path) -> None:
    schema = pa.ipc.read_schema(pa.py_buffer(write_open(tmp_path, "metrics", [1]).read_bytes()))
    assert schema.metadata == {
        b"rle.version": b"1.0",
        b"rle.table": b"metrics",
        b"rle.run_uid": RUN.encode(),
        b"rle.writer": WRITER.encode(),
        b"rle.launch": b"launch-1",
        b"rle.role": b"trainer",
        b"rle.rank": b"3",
        b"rle.node": b"node-1",
    }


def test_an_identity_of_nulls_and_odd_text_comes_back(tmp_path: Path) -> None:
    identity = Identity(RUN, WRITER, "läunch\n", "", None, 7, "n=ö")
    path = write_open(tmp_path, "markers", [2], identity=identity)
    assert read_open(path).identity == identity
    (sealed,) = seal_open(path, 0, "markers")
    row = pq.ParquetFile(sealed).read().to_pylist()[0]
    assert (row["launch"], row["role"], row["rank"], row["data_rank"], row["node"]) == ("läunch\n", "", None, 7, "n=ö")


def test_batches_carry_seq_and_a_crc_over_schema_and_message(tmp_path: Path) -> None:
    path = write_open(tmp_path, "metrics", [2, 3], first_seq=40)
    data = path.read_bytes()
    stream = pa.ipc.open_stream(data)
    found = [dict(metadata) for _, metadata in stream.iter_batches_with_custom_metadata()]
    assert [metadata[b"seq"] for metadata in found] == [b"%020d" % 40, b"%020d" % 42]
    schema_message = stream.schema.serialize().to_pybytes()
    assert data.startswith(schema_message)
    first = parse_frame(memoryview(data), len(schema_message), zlib.crc32(schema_message))
    assert first is not None
    message = data[first.start : first.end]
    crc = found[0][b"crc"]
    assert message.count(crc) == 1
    assert crc == b"%08x" % zlib.crc32(schema_message + message.replace(crc, b"00000000"))


def test_a_frame_is_what_pyarrow_writes_but_for_the_crc() -> None:
    schema = table_schema("timings").open.with_metadata(IDENTITY.to_metadata("timings"))
    batch = example_batch("timings", 4)
    schema_message = schema.serialize().to_pybytes()
    frame = encode_frame(batch, 7, schema, schema_message)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch, custom_metadata={b"seq": b"%020d" % 7, b"crc": b"00000000"})
    plain = sink.getvalue().to_pybytes()
    crc = b"%08x" % zlib.crc32(plain[: -len(END_OF_STREAM)])
    assert schema_message + frame + END_OF_STREAM == plain.replace(b"\x08\0\0\x0000000000", b"\x08\0\0\0" + crc)


def test_the_file_is_made_exclusively(tmp_path: Path) -> None:
    path = write_open(tmp_path, "metrics", [1])
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        OpenSegment(path, "metrics", IDENTITY, 0)
    assert path.read_bytes() == before


def test_a_segment_that_cannot_hold_its_schema_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="disk full"):
        OpenSegment(tmp_path / open_name(WRITER, 0), "metrics", IDENTITY, 0)
    assert list(tmp_path.iterdir()) == []


def test_short_writes_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data[:37]), offset))
    path = write_open(tmp_path, "samples", [3, 2])
    monkeypatch.undo()
    content = read_open(path)
    assert [span for span, _ in content.pieces] == [Span(0, 4)]
    assert same_rows(
        content.pieces[0][1].replace_schema_metadata(), pa.Table.from_batches([example_batch("samples", 5)])
    )


def test_a_write_that_fails_half_way_is_cut_back_and_the_next_one_takes_its_seq(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = OpenSegment(tmp_path / open_name(WRITER, 0), "metrics", IDENTITY, 0)
    segment.append(example_batch("metrics", 2))
    before = segment.path.read_bytes()
    real, calls = os.pwrite, []

    def full_the_second_time(fd: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "disk full")
        return real(fd, bytes(data[:100]), offset)

    monkeypatch.setattr(os, "pwrite", full_the_second_time)
    with pytest.raises(OSError, match="disk full"):
        segment.append(example_batch("metrics", 20, start=2))
    monkeypatch.undo()
    assert segment.path.read_bytes() == before
    assert (segment.rows, segment.next_seq, segment.size) == (2, 2, len(before))
    segment.append(example_batch("metrics", 1, start=2))
    assert [span for span, _ in read_open(segment.path).pieces] == [Span(0, 2)]


def test_an_interrupt_right_after_the_write_costs_no_seq_and_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = OpenSegment(tmp_path / open_name(WRITER, 0), "metrics", IDENTITY, 0)
    segment.append(example_batch("metrics", 2))
    before = segment.path.read_bytes()
    real = os.pwrite

    def interrupted(fd: int, data: bytes, offset: int) -> int:
        real(fd, data, offset)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        segment.append(example_batch("metrics", 30, start=2))
    monkeypatch.undo()
    assert segment.next_seq == 2
    assert segment.path.read_bytes() == before
    segment.append(example_batch("metrics", 1, start=2))
    content = read_open(segment.path)
    assert [span for span, _ in content.pieces] == [Span(0, 2)]
    assert content.damage == []


def test_fsync_covers_the_file_and_once_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = OpenSegment(tmp_path / open_name(WRITER, 0), "metrics", IDENTITY, 0)
    synced = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    segment.fsync()
    segment.fsync()
    assert synced == [segment.path, tmp_path, segment.path]


def test_an_end_of_stream_is_welcome_and_not_needed(tmp_path: Path) -> None:
    path = write_open(tmp_path, "metrics", [2])
    path.write_bytes(path.read_bytes() + END_OF_STREAM)
    content = read_open(path)
    assert ([span for span, _ in content.pieces], content.damage, content.torn_tail) == ([Span(0, 1)], [], 0)


def test_a_segment_without_rows_is_empty_and_sound(tmp_path: Path) -> None:
    path = write_open(tmp_path, "metrics", [])
    content = read_open(path)
    assert (content.pieces, content.damage, content.torn_tail) == ([], [], 0)
    assert seal_open(path, 0, "metrics") == []


def test_the_highest_seq_can_be_written_and_none_above_it(tmp_path: Path) -> None:
    for number, first_seq, spans in ((0, MAX_SEQ - 1, [Span(MAX_SEQ - 1, MAX_SEQ)]), (1, MAX_SEQ, [])):
        segment = OpenSegment(tmp_path / open_name(WRITER, number), "metrics", IDENTITY, first_seq)
        segment.append(example_batch("metrics", 2))
        assert [span for span, _ in read_open(segment.path).pieces] == spans


def test_sealing_twice_gives_one_file_and_leaves_the_open_one_and_no_temporary_file(tmp_path: Path) -> None:
    path = write_open(tmp_path, "samples", [3, 3])
    before = path.read_bytes()
    assert seal_open(path, 0, "samples") == seal_open(path, 0, "samples")
    assert path.read_bytes() == before
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".arrows", ".parquet"]


def test_a_torn_tail_is_left_out_of_the_seal(tmp_path: Path) -> None:
    path = write_open(tmp_path, "metrics", [3, 3])
    path.write_bytes(path.read_bytes()[:-1])
    (sealed,) = seal_open(path, 0, "metrics")
    assert same_rows(pq.ParquetFile(sealed).read().replace_schema_metadata(), expected_rows("metrics", 0, 2))


def test_a_damaged_segment_is_sealed_by_contiguous_interval(tmp_path: Path) -> None:
    path = write_open(tmp_path, "metrics", [2, 3, 4])
    data = bytearray(path.read_bytes())
    middle = data.index(b"%020d" % 2)
    data[middle] ^= 1
    path.write_bytes(data)
    files = seal_open(path, 0, "metrics")
    names = [SegmentName.parse(file.name) for file in files]
    assert [(name.number, name.first, name.last) for name in names if name] == [(0, 0, 1), (0, 5, 8)]
    assert same_rows(pq.ParquetFile(files[1]).read().replace_schema_metadata(), expected_rows("metrics", 5, 8))


def test_sealing_says_no_to_another_table_and_to_columns_it_would_lose(tmp_path: Path) -> None:
    path = write_open(tmp_path, "metrics", [1])
    with pytest.raises(SegmentError, match="it holds rows of 'metrics', not of 'timings'"):
        seal_open(path, 0, "timings")
    newer = newer_minor(tmp_path / open_name(WRITER, 1))
    with pytest.raises(SegmentError, match="a newer version wrote novelty: seal it with that version"):
        seal_open(newer, 1, "metrics")
    assert not list(tmp_path.glob("*.parquet"))


def newer_minor(path: Path) -> Path:
    """A segment of format 1.1 that has one more column."""
    ours = table_schema("metrics").open
    schema = ours.append(pa.field("novelty", pa.string())).with_metadata(
        IDENTITY.to_metadata("metrics") | {b"rle.version": b"1.1"}
    )
    batch = example_batch("metrics", 2)
    batch = pa.RecordBatch.from_arrays([*batch.columns, pa.array(["a", "b"])], schema=schema)
    message = schema.serialize().to_pybytes()
    path.write_bytes(message + encode_frame(batch, 0, schema, message))
    return path


def test_a_newer_minor_version_is_read_and_its_columns_named(tmp_path: Path) -> None:
    ((_, rows),) = read_open(newer_minor(tmp_path / open_name(WRITER, 0))).pieces
    schema = table_schema("metrics").open
    assert unknown_columns(rows.column_names, schema) == ["novelty"]
    assert same_rows(align(rows, schema), pa.Table.from_batches([example_batch("metrics", 2)]))


def test_a_column_that_an_older_version_lacked_becomes_null() -> None:
    schema = table_schema("metrics").open
    older = pa.Table.from_batches([example_batch("metrics", 3)]).drop_columns(["closes_step"])
    assert align(older, schema)["closes_step"].to_pylist() == [None] * 3


def rewritten(path: Path, table: str, change: dict[bytes, bytes]) -> Path:
    """An open segment with other metadata, its CRC right."""
    metadata = IDENTITY.to_metadata(table) | change
    schema = table_schema(table).open.with_metadata({k: v for k, v in metadata.items() if v})
    message = schema.serialize().to_pybytes()
    path.write_bytes(message + encode_frame(example_batch(table, 2), 0, schema, message))
    return path


def test_a_newer_major_version_is_refused(tmp_path: Path) -> None:
    path = rewritten(tmp_path / open_name(WRITER, 0), "metrics", {b"rle.version": b"2.0"})
    with pytest.raises(SchemaVersionError, match=r"written in format 2\.0"):
        read_open(path)


def test_a_version_that_no_crc_vouches_for_costs_only_its_own_file(tmp_path: Path) -> None:
    path = write_open(tmp_path, "metrics", [2])
    path.write_bytes(path.read_bytes().replace(b"1.0", b"9.0"))
    with pytest.raises(SegmentError, match=r"of format 9\.0 and no batch of it is valid"):
        read_open(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({b"rle.version": b""}, "damaged or not ours"),
        ({b"rle.version": b"one"}, "not of the form"),
        ({b"rle.table": b""}, "damaged or not ours"),
        ({b"rle.writer": b""}, "damaged or not ours"),
        ({b"rle.rank": b"three"}, "damaged or not ours"),
        ({b"rle.node": b"\xff"}, "damaged or not ours"),
        ({b"rle.writer": b"01jzw000000000000000000009"}, "its name says otherwise"),
    ],
)
def test_metadata_that_is_not_as_specified_makes_a_file_unusable(
    tmp_path: Path, change: dict[bytes, bytes], reason: str
) -> None:
    path = rewritten(tmp_path / open_name(WRITER, 0), "metrics", change)
    with pytest.raises(SegmentError, match=reason):
        read_open(path)


def test_a_column_of_another_type_makes_a_file_unusable(tmp_path: Path) -> None:
    schema = pa.schema([("step", pa.int64()), ("value", pa.int64())])
    schema = schema.with_metadata(IDENTITY.to_metadata("metrics"))
    batch = pa.RecordBatch.from_pylist([{"step": 1, "value": 2}], schema=schema)
    message = schema.serialize().to_pybytes()
    path = tmp_path / open_name(WRITER, 0)
    path.write_bytes(message + encode_frame(batch, 0, schema, message))
    with pytest.raises(SegmentError, match="its column value is int64, the format says double"):
        read_open(path)


def sealed_with(tmp_path: Path, change: dict[bytes, bytes | None], rows: int = 3) -> tuple[Path, SegmentName]:
    """A sealed file with another footer under a name whose digest is right."""
    (path,) = seal_open(write_open(tmp_path, "metrics", [3]), 0, "metrics")
    table = pq.ParquetFile(path).read()
    metadata = {k: v for k, v in {**table.schema.metadata, **change}.items() if v is not None}
    changed = tmp_path / "changed"
    pq.write_table(table.slice(0, rows).replace_schema_metadata(metadata), changed)
    name = SegmentName("sealed", WRITER, 0, 0, 2, file_digest(changed)[:16])
    return changed, name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({b"rle.last_seq": b"3"}, "footer and its name do not agree"),
        ({b"rle.writer": b"01jzw000000000000000000009"}, "footer and its name do not agree"),
        ({b"rle.rows": b"4"}, "holds 3 rows and covers 3 seqs"),
        ({b"rle.first_seq": None}, "no readable Parquet footer of ours"),
        ({b"rle.first_seq": b"-5"}, "no readable Parquet footer of ours"),
        ({b"rle.unique_steps": None}, "no readable Parquet footer of ours"),
        ({b"rle.version": b"x"}, "not of the form"),
    ],
)
def test_a_footer_that_is_not_what_the_name_says_makes_a_file_unusable(
    tmp_path: Path, change: dict[bytes, bytes | None], reason: str
) -> None:
    path, name = sealed_with(tmp_path, change)
    with pytest.raises(SegmentError, match=reason):
        read_footer(path, name)


def test_a_sealed_file_with_too_few_rows_is_unusable(tmp_path: Path) -> None:
    path, name = sealed_with(tmp_path, {}, rows=2)
    with pytest.raises(SegmentError, match="holds 2 rows and covers 3 seqs"):
        read_footer(path, name)


def test_a_newer_major_version_of_a_sealed_file_is_refused(tmp_path: Path) -> None:
    path, name = sealed_with(tmp_path, {b"rle.version": b"2.0"})
    with pytest.raises(SchemaVersionError):
        read_footer(path, name)


def test_a_truncated_or_altered_copy_of_a_sealed_file_is_recognised(tmp_path: Path) -> None:
    (path,) = seal_open(write_open(tmp_path, "metrics", [30]), 0, "metrics")
    name = SegmentName.parse(path.name)
    assert name is not None
    whole = path.read_bytes()
    for size in (0, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(SegmentError):
            read_footer(path, name)
    altered = bytearray(whole)
    altered[20] ^= 4
    path.write_bytes(altered)
    with pytest.raises(SegmentError, match="does not match the digest in its name: copy the file again"):
        check_digest(path, name)


def test_a_sealed_file_that_is_gone_is_not_called_damaged(tmp_path: Path) -> None:
    name = SegmentName("sealed", WRITER, 0, 0, 2, "0" * 16)
    with pytest.raises(FileNotFoundError):
        read_footer(tmp_path / "gone.parquet", name)


@pytest.mark.parametrize(
    ("covers", "holds"),
    [
        ([["a", 0, 1], ["b", 4, 4]], {"a": [Span(0, 1)], "b": [Span(4, 4)]}),
        ([["a", 0, 0], ["a", 1, 1], ["a", 3, 3]], {"a": [Span(0, 1), Span(3, 3)]}),
        ([["a", 0, 1], ["a", 1, 1]], "covered twice"),
        ([["a", 0, 3]], "holds 3 rows and covers 4 seqs"),
        ([["a", 2, 0]], "no readable Parquet footer of ours"),
        ([["a", 0]], "no readable Parquet footer of ours"),
        ([7], "no readable Parquet footer of ours"),
        ({"a": 1}, "no readable Parquet footer of ours"),
    ],
)
def test_a_compacted_file_says_what_it_covers(tmp_path: Path, covers: Any, holds: Any) -> None:
    change: dict[bytes, bytes | None] = {b"rle.covers": json.dumps(covers).encode()}
    gone = [b"rle.writer", b"rle.first_seq", b"rle.last_seq"]
    path, _ = sealed_with(tmp_path, {**change, **dict.fromkeys(gone)})
    name = SegmentName("compacted", None, None, digest="0" * 16)
    if isinstance(holds, str):
        with pytest.raises(SegmentError, match=holds):
            read_footer(path, name)
    else:
        assert read_footer(path, name).holds == holds


@pytest.mark.parametrize(
    ("columns", "unique"),
    [
        ({"name": ["a", "a"], "step": [1, 2], "axis": [None, None], "axis_value": [None, None]}, True),
        ({"name": ["a", "b"], "step": [1, 1], "axis": [None, None], "axis_value": [None, None]}, True),
        ({"name": ["a", "a"], "step": [1, 1], "axis": [None, None], "axis_value": [None, None]}, False),
        ({"name": ["a", "a"], "step": [1, 2], "axis": ["x", "x"], "axis_value": [0.5, 0.5]}, False),
        ({"name": ["a", "a"], "step": [1, 1], "axis": ["x", "x"], "axis_value": [0.5, 0.6]}, True),
        ({"name": ["a", "a"], "step": [1, 1], "axis": ["x", None], "axis_value": [1.0, None]}, True),
        ({"name": ["a", "a"], "step": [1, 1], "axis": ["x", "x"], "axis_value": [0.0, -0.0]}, False),
        ({"name": ["a", "a"], "step": [None, None], "axis": [None, None], "axis_value": [None, None]}, False),
    ],
)
def test_unique_steps_says_whether_a_position_repeats(
    tmp_path: Path, columns: dict[str, list[Any]], unique: bool
) -> None:
    base = pa.Table.from_batches([example_batch("metrics", 2)])
    for column, values in columns.items():
        field = base.schema.field(column)
        base = base.set_column(base.schema.get_field_index(column), field, pa.array(values, field.type))
    path = write_sealed(tmp_path, base, Span(0, 1), 0, "metrics", IDENTITY)
    name = SegmentName.parse(path.name)
    assert name is not None
    footer = read_footer(path, name)
    steps = [step for step in columns["step"] if step is not None]
    assert footer.unique_steps is unique
    assert (footer.min_step, footer.max_step) == (min(steps, default=None), max(steps, default=None))


def test_rows_that_do_not_fit_the_table_leave_nothing_behind(tmp_path: Path) -> None:
    rows = pa.Table.from_batches([example_batch("metrics", 2)])
    nameless = rows.set_column(2, rows.schema.field("name"), pa.nulls(2, pa.string()))
    with pytest.raises(SegmentError, match="metrics 0 to 1 cannot be sealed"):
        write_sealed(tmp_path, nameless, Span(0, 1), 0, "metrics", IDENTITY)
    with pytest.raises(SegmentError, match="cannot be sealed"):
        write_sealed(tmp_path, rows, Span(0, 2), 0, "metrics", IDENTITY)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_while_sealing_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_open(tmp_path, "metrics", [2])

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        seal_open(path, 0, "metrics")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_looks_like_a_partition_adds_no_column(tmp_path: Path) -> None:
    folder = tmp_path / "seed=3"
    folder.mkdir()
    (path,) = seal_open(write_open(folder, "metrics", [2]), 0, "metrics")
    assert re.fullmatch(rf"{WRITER}-0\.0-1\.[0-9a-f]{{16}}\.parquet", path.name)
    assert pq.ParquetFile(path).schema_arrow.names == table_schema("metrics").sealed.names
