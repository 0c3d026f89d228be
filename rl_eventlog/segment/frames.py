"""One record batch as bytes: an encapsulated Arrow IPC message that carries its seq and a CRC.

- The CRC covers the schema message and the whole batch message, so a flipped bit anywhere in them
  is seen before Arrow parses a byte of it.
- `parse_frame` never raises on damaged bytes and never reads outside the buffer.

The message layout is that of the Arrow columnar format, "Encapsulated message format"; the few
FlatBuffers fields needed (body length, row count, custom metadata) are read here by hand, since
pyarrow does not say where in the bytes they lie.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import pyarrow as pa

from rl_eventlog.types import MAX_SEQ

CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + b"\0\0\0\0"
_CRC_PLACE = b"########"  # no digit and no hex letter: cannot occur in seq or crc
_CRC_ZERO = b"00000000"
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH, _MESSAGE_CUSTOM_METADATA = 1, 2, 3, 4
_RECORD_BATCH = 3  # MessageHeader union of Arrow's Message.fbs
_BATCH_BUFFERS = 2
_BUFFER_BYTES = 16  # struct Buffer: offset and length, both i64
_MAX_METADATA_PAIRS = 64

_i32 = struct.Struct("<i").unpack_from
_u16 = struct.Struct("<H").unpack_from
_u32 = struct.Struct("<I").unpack_from
_i64 = struct.Struct("<q").unpack_from


class Frame(NamedTuple):
    """One valid batch message within a buffer."""

    start: int
    end: int
    first_seq: int
    rows: int


def encode_frame(batch: pa.RecordBatch, first_seq: int, schema: pa.Schema, schema_message: bytes) -> bytes:
    """The bytes of one batch.

    Args:
        batch: rows of one log call.
        first_seq: seq of its first row.
        schema: the segment's schema with its metadata.
        schema_message: `schema` as pyarrow writes it before the batch.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch, custom_metadata={b"seq": b"%020d" % first_seq, b"crc": _CRC_PLACE})
    message = bytearray(memoryview(sink.getvalue())[len(schema_message) : -len(END_OF_STREAM)])
    place = message.index(_CRC_PLACE, 0, 8 + _i32(message, 4)[0])
    message[place : place + 8] = _CRC_ZERO
    message[place : place + 8] = b"%08x" % zlib.crc32(message, zlib.crc32(schema_message))
    return bytes(message)


def parse_frame(data: memoryview, start: int, schema_crc: int) -> Frame | None:
    """The batch message that begins at `start`, or None where no valid one does."""
    end = frame_end(data, start)
    if end is None:
        return None
    try:
        header = _parse_header(data, start)
    except (struct.error, IndexError):
        return None
    if header is None:
        return None
    seq, rows, crc_place = header
    if not start < crc_place <= end - 8:
        return None
    if bytes(data[crc_place : crc_place + 8]) != b"%08x" % _crc(data, start, end, crc_place, schema_crc):
        return None
    return Frame(start, end, seq, rows)


def frame_end(data: memoryview, start: int) -> int | None:
    """Where the message at `start` says it ends; None where it is no message or reaches beyond the data."""
    if start + 8 > len(data) or data[start : start + 4] != CONTINUATION:
        return None
    metadata_size = _i32(data, start + 4)[0]
    body_start = start + 8 + metadata_size
    if metadata_size <= 0 or metadata_size % 8 or body_start > len(data):
        return None
    try:
        table = start + 8 + _u32(data, start + 8)[0]
        place = _field(data, table, _MESSAGE_BODY_LENGTH)
        body_size = _i64(data, place)[0] if place else 0
    except (struct.error, IndexError):
        return None
    end = body_start + body_size
    return end if body_size >= 0 and end <= len(data) else None


class Places(NamedTuple):
    """Where the parts of a batch message lie that a template changes."""

    seq: int
    crc: int
    buffers: list[int]
    """Place of each body buffer, in the order of Arrow's buffer table."""


def places(message: bytes, schema_message: bytes) -> Places:
    """Look into a valid message of `encode_frame`.

    Raises:
        ValueError: it is not valid.
    """
    data = memoryview(message)
    frame = parse_frame(data, 0, zlib.crc32(schema_message))
    header = _parse_header(data, 0)
    if frame is None or header is None:
        raise ValueError("no valid batch message")
    body = 8 + _i32(data, 4)[0]
    table = 8 + _u32(data, 8)[0]
    header_place = _field(data, table, _MESSAGE_HEADER)
    vector = _field(data, header_place + _u32(data, header_place)[0], _BATCH_BUFFERS)
    vector += _u32(data, vector)[0]
    offsets = (_i64(data, vector + 4 + _BUFFER_BYTES * index)[0] for index in range(_u32(data, vector)[0]))
    return Places(message.index(b"%020d" % frame.first_seq, 0, body), header[2], [body + offset for offset in offsets])


def _crc(data: memoryview, start: int, end: int, crc_place: int, schema_crc: int) -> int:
    crc = zlib.crc32(data[start:crc_place], schema_crc)
    crc = zlib.crc32(_CRC_ZERO, crc)
    return zlib.crc32(data[crc_place + 8 : end], crc)


def _field(data: memoryview, table: int, index: int) -> int:
    """Position of a field of a FlatBuffers table, 0 where it is absent."""
    vtable = table - _i32(data, table)[0]
    if vtable < 0:
        raise IndexError(vtable)
    place = 4 + 2 * index
    if place >= _u16(data, vtable)[0]:
        return 0
    offset = _u16(data, vtable + place)[0]
    return table + offset if offset else 0


def _string(data: memoryview, place: int) -> tuple[int, int]:
    """Position and length of the string that the offset at `place` points to."""
    start = place + _u32(data, place)[0]
    return start + 4, _u32(data, start)[0]


def _parse_header(data: memoryview, start: int) -> tuple[int, int, int] | None:
    """First seq, rows and the place of the crc digits, or None."""
    table = start + 8 + _u32(data, start + 8)[0]
    kind = _field(data, table, _MESSAGE_HEADER_TYPE)
    header = _field(data, table, _MESSAGE_HEADER)
    pairs = _field(data, table, _MESSAGE_CUSTOM_METADATA)
    if not (kind and header and pairs) or data[kind] != _RECORD_BATCH:
        return None
    rows_place = _field(data, header + _u32(data, header)[0], 0)
    rows = _i64(data, rows_place)[0] if rows_place else 0
    vector = pairs + _u32(data, pairs)[0]
    seq: int | None = None
    crc_place: int | None = None
    for index in range(min(_u32(data, vector)[0], _MAX_METADATA_PAIRS)):
        entry = vector + 4 + 4 * index
        pair = entry + _u32(data, entry)[0]
        key_start, key_size = _string(data, _field(data, pair, 0))
        value_start, value_size = _string(data, _field(data, pair, 1))
        key = bytes(data[key_start : key_start + key_size]) if key_size == 3 else b""
        if key == b"crc" and value_size == 8:
            crc_place = value_start
        elif key == b"seq" and value_size == 20:
            digits = bytes(data[value_start : value_start + 20])
            seq = int(digits) if digits.isdigit() else None
    if seq is None or crc_place is None or rows <= 0 or seq + rows - 1 > MAX_SEQ:
        return None
    return seq, rows, crc_place
