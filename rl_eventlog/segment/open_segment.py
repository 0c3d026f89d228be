"""The open form of a segment: an Arrow IPC stream that grows by whole batches.

- `append` returns after the batch is with the kernel: it survives the death of the process.
- The offset moves only after a whole write. A write that failed leaves the file, after `append`
  raised, cut back to its last whole batch.
- The file is created exclusively and written with `pwrite` at the segment's own offset, so nothing
  can end up behind a torn batch.
- `read_open` never maps the file and never fails on damage: it returns every row whose batch is
  whole, says what is not, and keeps going after damage.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from rl_eventlog.errors import SegmentError
from rl_eventlog.schema import check_version, table as table_schema
from rl_eventlog.types import Identity, Span

from .frames import CONTINUATION, END_OF_STREAM, Frame, encode_frame, frame_end, parse_frame

RESYNC_WINDOW = 4 << 20


class OpenSegment:
    """The file a writer is appending to. Not thread-safe: its owner holds a lock.

    Attributes:
        path: the file.
        first_seq: seq of its first row.
        next_seq: seq of the next row.
        size: bytes of whole batches written, the schema included.
    """

    def __init__(self, path: Path, table: str, identity: Identity, first_seq: int) -> None:
        """Create the file and write its schema.

        Raises:
            OSError: the file exists, or cannot be made or written.
        """
        self.path = path
        self.first_seq = self.next_seq = first_seq
        self.schema = table_schema(table).open.with_metadata(identity.to_metadata(table))
        self._schema_message = self.schema.serialize().to_pybytes()
        self.size = 0
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            self._write(self._schema_message)
        except OSError:
            self.close()
            with suppress(OSError):
                path.unlink()
            raise

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return self.next_seq - self.first_seq

    def append(self, batch: pa.RecordBatch) -> None:
        """Write one batch.

        Args:
            batch: rows with the columns of the table's open form.

        Raises:
            OSError: it could not be written whole; nothing of it stays.
        """
        self._write(encode_frame(batch, self.next_seq, self.schema, self._schema_message))
        self.next_seq += batch.num_rows

    def fsync(self) -> None:
        """Put what was written so far on the disk."""
        os.fsync(self.fd)

    def close(self) -> None:
        """Close the file; the segment stays open in the sense of the format."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self.fd, memoryview(data)[written:], self.size + written)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.fd, self.size)
            raise
        self.size += len(data)


class Damage(NamedTuple):
    """Bytes of an open segment that hold no valid batch."""

    offset: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class OpenContent:
    """What an open segment holds."""

    path: Path
    table: str
    identity: Identity
    pieces: list[tuple[Span, pa.Table]]
    """Contiguous rows with the columns of the file, by seq."""
    damage: list[Damage]
    """Bad bytes with good batches behind them."""
    torn_tail: int
    """Bytes after the last valid batch: a write that was cut off."""


def read_open(path: Path) -> OpenContent:
    """Read an open segment.

    Raises:
        SegmentError: its schema message is missing, torn or damaged: it covers nothing.
        SchemaVersionError: a newer major version wrote it.
        OSError: the file cannot be read.
    """
    data = memoryview(path.read_bytes())
    schema_end = frame_end(data, 0)
    if schema_end is None:
        raise SegmentError(path, "no whole schema message at its start: torn before its first row")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data[:schema_end]))
        metadata = schema.metadata or {}
        version = metadata[b"rle.version"].decode()
        table = metadata[b"rle.table"].decode()
        identity = Identity.from_metadata(metadata)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise SegmentError(path, f"its schema message is damaged or not ours: {error!r}") from error
    frames, damage, torn_tail = _scan(data, schema_end, zlib.crc32(data[:schema_end]))
    if frames or torn_tail == 0:  # a CRC vouches for the version
        check_version(version, path)
    pieces = [
        (Span(group[0].first_seq, group[-1].first_seq + group[-1].rows - 1), _decode(path, data, schema_end, group))
        for group in _contiguous(frames)
    ]
    return OpenContent(path, table, identity, pieces, damage, torn_tail)


def _scan(data: memoryview, start: int, schema_crc: int) -> tuple[list[Frame], list[Damage], int]:
    frames: list[Frame] = []
    damage: list[Damage] = []
    position = start
    while position < len(data):
        frame = parse_frame(data, position, schema_crc)
        if frame is None:
            if data[position:] == END_OF_STREAM:
                break
            frame = _resync(data, position, schema_crc)
            if frame is None:
                return frames, damage, len(data) - position
            damage.append(Damage(position, frame.start - position, "CRC or framing does not hold"))
        frames.append(frame)
        position = frame.end
    return frames, damage, 0


def _resync(data: memoryview, position: int, schema_crc: int) -> Frame | None:
    """The next valid batch after a damaged one: where its length says, else the next that passes its CRC."""
    end = frame_end(data, position)
    if end is not None and (frame := parse_frame(data, end, schema_crc)):
        return frame
    limit = min(len(data), position + RESYNC_WINDOW)
    window = bytes(data[position:limit])
    found = window.find(CONTINUATION, 1)
    while found >= 0:
        if frame := parse_frame(data, position + found, schema_crc):
            return frame
        found = window.find(CONTINUATION, found + 1)
    return None


def _contiguous(frames: list[Frame]) -> list[list[Frame]]:
    groups: list[list[Frame]] = []
    for frame in sorted(frames, key=lambda frame: frame.first_seq):
        if groups and groups[-1][-1].first_seq + groups[-1][-1].rows == frame.first_seq:
            groups[-1].append(frame)
        else:
            groups.append([frame])
    return groups


def _decode(path: Path, data: memoryview, schema_end: int, frames: list[Frame]) -> pa.Table:
    """Parse valid batches; they are adjacent in the file unless damage lies between them."""
    adjacent = all(before.end == after.start for before, after in pairwise(frames))
    body = (
        data[frames[0].start : frames[-1].end]
        if adjacent
        else b"".join(bytes(data[frame.start : frame.end]) for frame in frames)
    )
    stream = b"".join((bytes(data[:schema_end]), body, END_OF_STREAM))
    try:
        return pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise SegmentError(path, f"its batches pass their CRC but are no Arrow data: {error}") from error
