"""The open form of a segment: an Arrow IPC stream that grows by whole batches.

- `append` returns after the batch is with the kernel: it survives the death of the process.
- Offset and seq move together, after a whole write. A write that failed or was interrupted leaves the
  file, when `append` raises, cut back to its last whole batch.
- The file is created exclusively and written with `pwrite` at the segment's own offset, so nothing
  can end up behind a torn batch.
- `read_open` never maps the file and never fails on damage: it returns every row whose batch is
  whole, says what is not, and keeps going after damage.
"""

from __future__ import annotations

import errno
import os
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from rl_eventlog.durable import fsync_folder
from rl_eventlog.errors import SchemaVersionError, SegmentError
from rl_eventlog.layout import SegmentName
from rl_eventlog.schema import TABLES, check_version, table as table_schema
from rl_eventlog.types import Identity, Span

from .frames import CONTINUATION, END_OF_STREAM, Frame, encode_frame, frame_end, parse_frame

if TYPE_CHECKING:
    from .template import TemplateRows

# A continuation marker and the low and high byte of a small metadata size: the start of any batch message.
_MESSAGE_START = re.compile(re.escape(CONTINUATION) + rb"(?=[\x00-\xf8]..\x00)", re.DOTALL)
_FRAMES_A_BLOCK = 512
_BLOCK_BYTES = 2 << 20
_FRAMES_A_TURN = 16  # 0.1 ms of checks
_TURN_SECONDS = 50e-6  # a real sleep: `sleep(0)` takes the interpreter back before a waiting thread is awake
_RESYNC_COST = 4  # passes over what is left; damaged files need about one


class OpenSegment:
    """The file a writer is appending to. Not thread-safe: its owner holds a lock.

    Attributes:
        path: the file.
        first_seq: seq of its first row.
        schema: of its batches, with the identity in its metadata.
        schema_message: `schema` as it stands at the start of the file.
    """

    def __init__(self, path: Path, table: str, identity: Identity, first_seq: int) -> None:
        """Create the file and write its schema.

        Raises:
            OSError: the file exists, or cannot be made or written.
        """
        self.path = path
        self.first_seq = first_seq
        self.schema = table_schema(table).open.with_metadata(identity.to_metadata(table))
        self.schema_message = self.schema.serialize().to_pybytes()
        # one attribute: a KeyboardInterrupt between two would leave an offset and a seq that do not belong together
        self._position = (0, first_seq)
        self._entry_on_disk = False
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            self._write(self.schema_message, rows=0)
        except OSError:
            self.close()
            with suppress(OSError):
                path.unlink()
            raise

    @property
    def size(self) -> int:
        """Bytes of whole messages written, the schema message included."""
        return self._position[0]

    @property
    def next_seq(self) -> int:
        """Seq of the next row."""
        return self._position[1]

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return self.next_seq - self.first_seq

    def append(self, rows: pa.RecordBatch | TemplateRows) -> int:
        """Write the rows of one call as one batch.

        Args:
            rows: a batch with the columns of the table's open form, or rows of a template made for
                `schema` and `schema_message`.

        Returns:
            The size of the file, bytes.

        Raises:
            OSError: they could not be written whole; nothing of them stays.
        """
        next_seq = self._position[1]
        if isinstance(rows, tuple):
            template, step, time_us, axis_value, values, weights = rows
            return self._write(template.fill(next_seq, step, time_us, axis_value, values, weights), template.rows)
        return self._write(encode_frame(rows, next_seq, self.schema, self.schema_message), rows.num_rows)

    def fsync(self, fd: int | None = None) -> None:
        """Put what was written so far on the disk, and the file's entry in its folder.

        Args:
            fd: a duplicate of the file's descriptor, for a caller that holds no lock.
        """
        os.fsync(self.fd if fd is None else fd)
        if not self._entry_on_disk:
            fsync_folder(self.path.parent)
            self._entry_on_disk = True

    def in_place(self) -> bool:
        """Whether the path still leads to this file: someone may have removed or replaced it.

        Raises:
            OSError: that cannot be told now.
        """
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.fd))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def take_over(self, other: OpenSegment, offset: int = 0) -> None:
        """Write the rows of another segment of this writer and table.

        Args:
            other: the segment; if it is closed, it is open for reading afterwards.
            offset: where to begin in it: 0, or the end of a message. Its row there has `first_seq`.

        Raises:
            OSError: they could not be read or written; nothing of them stays.
        """
        if other.fd < 0:
            other.fd = os.open(other.path, os.O_RDONLY | os.O_CLOEXEC)
        start = max(offset, len(other.schema_message))
        size, next_seq = other._position
        data = os.pread(other.fd, size - start, start)
        if len(data) != size - start:
            raise OSError(errno.EIO, "could not be read whole", str(other.path))
        self._write(data, next_seq - self.first_seq)

    def close(self) -> None:
        """Close the file; the segment stays open in the sense of the format.

        Raises:
            OSError: the file system says only now that it could not write. The file is closed.
        """
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def _write(self, data: bytes | bytearray, rows: int) -> int:
        size, next_seq = self._position
        try:
            written = os.pwrite(self.fd, data, size)
            while written < len(data):
                written += os.pwrite(self.fd, memoryview(data)[written:], size + written)
            size += written
            self._position = (size, next_seq + rows)
        except BaseException:  # KeyboardInterrupt too: its batch must not stay with seqs that others will get
            with suppress(OSError):
                os.ftruncate(self.fd, self._position[0])
            raise
        return size


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
    columns: tuple[str, ...]
    """Names of its columns; none where it has no valid batch."""
    damage: list[Damage]
    """Bad bytes with good batches behind them."""
    torn_tail: int
    """Bytes after the last valid batch: a write that was cut off."""


def read_open(path: Path, *, polite: bool = False) -> OpenContent:
    """Read an open segment.

    Args:
        path: the file.
        polite: let other threads of this process go on while the batches are checked, for sealing
            beside a training: each check is short, but all together would hold the interpreter.

    Raises:
        SegmentError: its schema message is missing, torn or damaged, or it is not what its name says:
            it covers nothing.
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
    frames, damage, torn_tail = _scan(data, schema_end, zlib.crc32(data[:schema_end]), polite=polite)
    try:
        check_version(version, path)
    except SchemaVersionError as error:
        if not frames and torn_tail:  # no CRC vouches for the version: one bad file must not stop the others
            raise SegmentError(path, f"it says it is of format {version} and no batch of it is valid") from error
        raise
    if frames:
        _check_name(path, identity.writer)
        _check_columns(path, table, schema)
    pieces = [
        (Span(group[0].first_seq, group[-1].first_seq + group[-1].rows - 1), _decode(path, data, schema_end, group))
        for group in _contiguous(frames)
    ]
    columns = tuple(pieces[0][1].column_names) if pieces else ()
    return OpenContent(path, table, identity, pieces, columns, damage, torn_tail)


def _check_name(path: Path, writer: str) -> None:
    name = SegmentName.parse(path.name)
    if name and name.writer != writer:
        raise SegmentError(path, f"writer {writer} wrote it, its name says otherwise")


def _check_columns(path: Path, table: str, schema: pa.Schema) -> None:
    """Compare with the columns of the format, where it knows the table; others are newer."""
    known = table_schema(table).open if table in TABLES else pa.schema([])
    try:
        found = {field.name: field.type for field in schema}
    except ValueError as error:  # a name that is not UTF-8
        raise SegmentError(path, f"its column names are damaged: {error}") from error
    if len(found) != len(schema):
        raise SegmentError(path, "a column comes twice")
    for field in known:
        if found.get(field.name, field.type) != field.type:
            raise SegmentError(path, f"its column {field.name} is {found[field.name]}, the format says {field.type}")


def _scan(data: memoryview, start: int, schema_crc: int, *, polite: bool) -> tuple[list[Frame], list[Damage], int]:
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
        if frames and frame.first_seq < frames[-1].first_seq + frames[-1].rows:
            damage.append(Damage(frame.start, frame.end - frame.start, "its seqs come a second time"))
        else:
            frames.append(frame)
        position = frame.end
        if polite and len(frames) % _FRAMES_A_TURN == 0:
            time.sleep(_TURN_SECONDS)
    return frames, damage, 0


def _resync(data: memoryview, position: int, schema_crc: int) -> Frame | None:
    """The next batch after a damaged one that passes its CRC. The damaged one's length is not trusted."""
    budget = _RESYNC_COST * (len(data) - position)
    for match in _MESSAGE_START.finditer(data, position + 1):
        end = frame_end(data, match.start())
        if end is None:
            continue
        if frame := parse_frame(data, match.start(), schema_crc):
            return frame
        budget -= end - match.start()
        if budget < 0:
            break
    return None


def _contiguous(frames: list[Frame]) -> list[list[Frame]]:
    groups: list[list[Frame]] = []
    for frame in frames:
        if groups and groups[-1][-1].first_seq + groups[-1][-1].rows == frame.first_seq:
            groups[-1].append(frame)
        else:
            groups.append([frame])
    return groups


def _blocks(frames: list[Frame]) -> Iterator[list[Frame]]:
    """Frames in blocks that are a moment's work: of many small ones, or of a few large ones."""
    block: list[Frame] = []
    for frame in frames:
        block.append(frame)
        if len(block) == _FRAMES_A_BLOCK or frame.end - block[0].start > _BLOCK_BYTES:
            yield block
            block = []
    if block:
        yield block


def _decode(path: Path, data: memoryview, schema_end: int, frames: list[Frame]) -> pa.Table:
    """Parse valid batches, a block at a time: to free a table of a whole segment's batches takes 0.1 s in one go.

    A CRC is no proof against intent: every offset is checked before anything follows it.
    """
    blocks = []
    for block in _blocks(frames):
        batches = (data[frame.start : frame.end] for frame in block)
        stream = b"".join((data[:schema_end], *batches, END_OF_STREAM))
        try:
            rows = pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
            rows.validate(full=True)
            blocks.append(rows.combine_chunks())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SegmentError(path, f"its batches pass their CRC but are no Arrow data: {error}") from error
    return blocks[0] if len(blocks) == 1 else pa.concat_tables(blocks).combine_chunks()
