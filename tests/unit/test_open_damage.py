"""A damaged open segment: cut anywhere, any byte flipped, a bad batch in the middle, lengths out of this world.

Whatever happens to the bytes: no crash, no wrong row, and what is lost is reported.
"""

from __future__ import annotations

import struct
import zlib
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pytest

from rl_eventlog.errors import SchemaVersionError, SegmentError
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.frames import CONTINUATION, frame_end, parse_frame
from rl_eventlog.segment.open_segment import OpenContent, read_open
from rl_eventlog.segment.same import same_rows
from rl_eventlog.types import Span
from tests.support.segment_files import example_batch, write_open

MASKS = (0x01, 0x80, 0xFF)
SIZES = [2, 1, 3, 2]
STARTS = [0, *accumulate(SIZES)]


class Original:
    """A whole segment, its batches and their bounds."""

    def __init__(self, folder: Path, table: str, *, stride: int = 1) -> None:
        self.path = write_open(folder, table, SIZES)
        self.data = self.path.read_bytes()
        view = memoryview(self.data)
        end = frame_end(view, 0)
        assert end is not None
        self.bounds = [end]
        for _ in SIZES:
            frame = parse_frame(view, self.bounds[-1], zlib.crc32(self.data[:end]))
            assert frame is not None
            self.bounds.append(frame.end)
        assert self.bounds[-1] == len(self.data)
        self.rows = pa.Table.from_batches([example_batch(table, STARTS[-1])])
        self.places = range(0, len(self.data), stride)

    def read(self, data: bytes) -> OpenContent:
        self.path.unlink()  # ext4 flushes a file that is cut to nothing and written again
        self.path.write_bytes(data)
        return read_open(self.path)

    def batches_read(self, content: OpenContent) -> list[int]:
        """Which batches came back; each row must be the one written under its seq."""
        seqs: list[int] = []
        for span, rows in content.pieces:
            expected = self.rows.slice(span.first, len(span))
            assert same_rows(rows.replace_schema_metadata(), expected)
            seqs += range(span.first, span.last + 1)
        batches = [batch for batch, start in enumerate(STARTS[:-1]) if start in seqs]
        assert seqs == [seq for batch in batches for seq in range(STARTS[batch], STARTS[batch + 1])]
        return batches


@pytest.fixture(params=TABLES)
def original(request: pytest.FixtureRequest, tmp_path: Path) -> Original:
    # every byte of one table; of the others, which differ in their columns alone, each 11th
    return Original(tmp_path, request.param, stride=1 if request.param == "metrics" else 11)


def check_cuts(original: Original) -> None:
    for size in original.places:
        whole = sum(bound <= size for bound in original.bounds[1:])
        if size < original.bounds[0]:
            with pytest.raises(SegmentError):
                original.read(original.data[:size])
            continue
        content = original.read(original.data[:size])
        assert original.batches_read(content) == list(range(whole))
        assert content.damage == []
        assert content.torn_tail == size - original.bounds[whole]


def check_flips(original: Original, mask: int) -> None:
    for place in original.places:
        data = bytearray(original.data)
        data[place] ^= mask
        hit = sum(bound <= place for bound in original.bounds) - 1
        try:
            content = original.read(bytes(data))
        except (SegmentError, SchemaVersionError):
            assert hit == -1
            continue
        if hit == -1:
            assert content.pieces == []
            assert content.torn_tail > 0
        else:
            assert original.batches_read(content) == [batch for batch in range(len(SIZES)) if batch != hit]
            lost = [(d.offset, d.size) for d in content.damage] + [(len(data) - content.torn_tail, content.torn_tail)]
            assert (original.bounds[hit], original.bounds[hit + 1] - original.bounds[hit]) in lost


def test_a_segment_cut_anywhere_gives_its_whole_batches(original: Original) -> None:
    check_cuts(original)


@pytest.mark.parametrize("mask", MASKS)
def test_any_byte_flipped_costs_its_batch_alone_and_is_reported(original: Original, mask: int) -> None:
    check_flips(original, mask)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("table", TABLES)
def test_every_cut_and_every_flip_of_every_table(tmp_path: Path, table: str) -> None:
    original = Original(tmp_path, table)
    check_cuts(original)
    for mask in MASKS:
        check_flips(original, mask)
    print(f"{table}, open: {len(original.data)} cuts, {len(MASKS) * len(original.data)} flips")


def test_a_wiped_block_costs_the_batches_it_touches(original: Original) -> None:
    start, end = original.bounds[1] + 16, original.bounds[3] - 16
    content = original.read(original.data[:start] + bytes(end - start) + original.data[end:])
    assert original.batches_read(content) == [0, 3]
    assert [(d.offset, d.size) for d in content.damage] == [
        (original.bounds[1], original.bounds[3] - original.bounds[1])
    ]


def test_missing_and_added_bytes_in_the_middle_are_passed_over(original: Original) -> None:
    place = original.bounds[1] + 20
    missing = original.read(original.data[:place] + original.data[place + 13 :])
    assert original.batches_read(missing) == [0, 2, 3]
    added = original.read(original.data[: original.bounds[1]] + b"\xff" * 13 + original.data[original.bounds[1] :])
    assert original.batches_read(added) == [0, 1, 2, 3]
    assert [(d.offset, d.size) for d in added.damage] == [(original.bounds[1], 13)]


def test_a_damaged_length_that_leads_to_a_later_batch_hides_none_in_between(original: Original) -> None:
    data = bytearray(original.data)
    metadata_size = struct.unpack_from("<i", data, original.bounds[1] + 4)[0]
    body = original.bounds[2] - original.bounds[1] - 8 - metadata_size
    place = data.index(struct.pack("<q", body), original.bounds[1], original.bounds[1] + 8 + metadata_size)
    struct.pack_into("<q", data, place, body + original.bounds[3] - original.bounds[2])
    assert original.batches_read(original.read(bytes(data))) == [0, 2, 3]


def test_zeros_behind_the_last_batch_are_a_torn_tail(original: Original) -> None:
    content = original.read(original.data + bytes(4096))
    assert original.batches_read(content) == [0, 1, 2, 3]
    assert (content.damage, content.torn_tail) == ([], 4096)


def test_an_end_of_stream_in_the_middle_is_damage(original: Original) -> None:
    cut = original.bounds[2]
    content = original.read(original.data[:cut] + CONTINUATION + bytes(4) + original.data[cut:])
    assert original.batches_read(content) == [0, 1, 2, 3]
    assert [(d.offset, d.size) for d in content.damage] == [(cut, 8)]


def test_a_batch_that_comes_twice_counts_once_and_is_reported(original: Original) -> None:
    one, two = original.bounds[1], original.bounds[2]
    content = original.read(original.data + original.data[one:two])
    assert original.batches_read(content) == [0, 1, 2, 3]
    assert [(d.offset, d.size, d.reason) for d in content.damage] == [
        (len(original.data), two - one, "its seqs come a second time")
    ]


def test_a_batch_of_another_segment_is_no_batch_of_this_one(tmp_path: Path) -> None:
    original = Original(tmp_path, "metrics")
    other = tmp_path / "other"
    other.mkdir()
    path = write_open(other, "metrics", [1], first_seq=8, number=1)
    schema_end = frame_end(memoryview(path.read_bytes()), 0)
    # the same schema message: the same writer's next segment, so its batch is as good as one of ours
    same = original.read(original.data + path.read_bytes()[schema_end:])
    assert [span for span, _ in same.pieces] == [Span(0, 8)]
    foreign = Original(other, "timings")
    content = original.read(original.data + foreign.data[foreign.bounds[0] :])
    assert original.batches_read(content) == [0, 1, 2, 3]
    assert content.torn_tail == len(foreign.data) - foreign.bounds[0]


def test_a_file_of_another_kind_is_unusable(tmp_path: Path) -> None:
    original = Original(tmp_path, "metrics")
    for data in (b"", b"\xff", b"PAR1" * 9, CONTINUATION * 9, b"ARROW1\0\0" + original.data):
        with pytest.raises(SegmentError):
            original.read(data)


@pytest.mark.parametrize("number", [0, 1, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 8])
def test_lengths_out_of_this_world_are_only_damage(tmp_path: Path, number: int) -> None:
    original = Original(tmp_path, "metrics")
    start, end = original.bounds[1], original.bounds[2]
    for width in (4, 8):
        for place in range(start + 4, end - width + 1, 4):
            data = bytearray(original.data)
            data[place : place + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
            if data == original.data:
                continue
            assert original.batches_read(original.read(bytes(data))) == [0, 2, 3]


def test_a_valid_crc_over_broken_arrow_data_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = write_open(tmp_path, "hparams", [2])
    data = path.read_bytes()
    schema_message = data[: frame_end(memoryview(data), 0)]
    frame = data[len(schema_message) :]
    crc = pa.ipc.open_stream(data).read_next_batch_with_custom_metadata()[1][b"crc"]
    reasons = set()
    for place in range(8 + struct.unpack_from("<i", frame, 4)[0], len(frame), 4):
        bad = bytearray(frame)
        struct.pack_into("<i", bad, place, 2**30)  # among others, string offsets that point far beyond the data
        blank = bytes(bad).replace(crc, b"00000000")
        path.write_bytes(
            schema_message + blank.replace(b"00000000\0", b"%08x\0" % zlib.crc32(schema_message + blank), 1)
        )
        try:
            content = read_open(path)
        except SegmentError as error:
            reasons.add(error.reason.split(":")[0])
        else:
            assert [span for span, _ in content.pieces] == [Span(0, 1)]
    assert reasons == {"its batches pass their CRC but are no Arrow data"}
