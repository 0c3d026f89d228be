"""`read_open` on garbage and on mutated segments: an answer or a SegmentError, in little time."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from rl_eventlog.errors import SchemaVersionError, SegmentError
from rl_eventlog.segment.frames import CONTINUATION, END_OF_STREAM, frame_end, parse_frame
from rl_eventlog.segment.open_segment import read_open
from tests.support.segment_files import example_batch, write_open

with tempfile.TemporaryDirectory() as made_in:
    VALID = {
        table: write_open(Path(made_in), table, [1, 3, 2], number=number).read_bytes()
        for number, table in enumerate(("metrics", "samples"))
    }
ROWS = {table: [repr(row) for row in example_batch(table, 6).to_pylist()] for table in VALID}
NUMBERS = st.sampled_from([0, 1, 7, 8, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1])
PIECES = st.one_of(
    st.binary(max_size=40),
    st.just(CONTINUATION),
    st.just(END_OF_STREAM),
    NUMBERS.map(lambda number: number.to_bytes(8, "little")),
    NUMBERS.map(lambda number: (number % 2**32).to_bytes(4, "little")),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("garbage")


@settings(max_examples=500, deadline=2000)
@given(st.lists(PIECES, max_size=12).map(b"".join), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_garbage_is_no_batch(data: bytes, start: int, crc: int) -> None:
    view = memoryview(data)
    assert parse_frame(view, start, crc) is None
    end = frame_end(view, start)
    assert end is None or start < end <= len(data)


@settings(max_examples=500, deadline=5000)
@given(st.sampled_from(sorted(VALID)), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60), PIECES), max_size=4))
def test_a_mutated_segment_gives_right_rows_or_none(
    folder: Path, table: str, edits: list[tuple[float, int, bytes]]
) -> None:
    data = VALID[table]
    for where, length, piece in edits:
        place = int(where * len(data))
        data = data[:place] + piece + data[place + length :]
    path = folder / "mutated"
    path.write_bytes(data)
    try:
        content = read_open(path)
    except (SegmentError, SchemaVersionError):
        return
    for span, rows in content.pieces:
        assert [repr(row) for row in rows.to_pylist()] == ROWS[table][span.first : span.last + 1]
    lost = 6 - sum(len(span) for span, _ in content.pieces)
    assert not lost or content.damage or content.torn_tail


@settings(max_examples=200, deadline=5000)
@given(st.sampled_from(sorted(VALID)), PIECES, st.integers(1, 2000))
def test_much_garbage_between_batches_is_passed_over(folder: Path, table: str, piece: bytes, times: int) -> None:
    data = VALID[table]
    schema_end = frame_end(memoryview(data), 0)
    assert schema_end is not None
    first = parse_frame(memoryview(data), schema_end, zlib.crc32(data[:schema_end]))
    assert first is not None
    path = folder / "garbage"
    path.write_bytes(data[: first.end] + piece * times + data[first.end :])
    rows = [repr(row) for _, rows in read_open(path).pieces for row in rows.to_pylist()]
    assert rows == ROWS[table]
