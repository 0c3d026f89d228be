"""A second reader and writer of open segments, from the text of ``schemas/README.md`` alone.

It knows pyarrow, zlib and the standard library, and nothing of rl_eventlog.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

SCHEMAS = Path(__file__).parents[2] / "schemas"
MARKER = b"\xff\xff\xff\xff"
PLAIN = {
    "utf8": pa.string(),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "timestamp[us, UTC]": pa.timestamp("us", tz="UTC"),
}


class Segment(NamedTuple):
    """What the specification promises to a reader."""

    metadata: dict[str, str]
    batches: list[tuple[int, pa.RecordBatch]]
    """First seq, rows."""
    damage: list[tuple[int, int]]
    """Offset and size of bytes with valid batches behind them."""
    torn_tail: int


def arrow_type(kind: Any) -> pa.DataType:
    """Section 6: the grammar of `type`."""
    if isinstance(kind, str):
        return PLAIN[kind]
    if "list" in kind:
        return pa.list_(arrow_type(kind["list"]))
    return pa.struct([(name, arrow_type(part)) for name, part in kind["struct"].items()])


def columns(table: str, form: str) -> pa.Schema:
    """Section 6: the columns of a form."""
    document = json.loads((SCHEMAS / f"{table}.json").read_text(encoding="utf-8"))
    return pa.schema(
        [
            pa.field(column["name"], arrow_type(column["type"]), nullable=column["nullable"])
            for column in document["columns"]
            if column["stored"] in (form, "both")
        ]
    )


class FlatBuffer:
    """Section 7: FlatBuffers in short. Offsets outside the buffer raise struct.error or ValueError."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def number(self, layout: str, place: int) -> int:
        if place < 0:
            raise ValueError(place)
        value: int = struct.unpack_from(layout, self.data, place)[0]
        return value

    def follow(self, place: int) -> int:
        return place + self.number("<I", place)

    def field(self, table: int, index: int) -> int | None:
        vtable = table - self.number("<i", table)
        if 4 + 2 * index >= self.number("<H", vtable):
            return None
        distance = self.number("<H", vtable + 4 + 2 * index)
        return table + distance if distance else None

    def must(self, table: int, index: int) -> int:
        place = self.field(table, index)
        if place is None:
            raise ValueError("a field is absent")
        return place

    def string(self, place: int) -> tuple[int, bytes]:
        start = self.follow(place)
        return start + 4, self.data[start + 4 : start + 4 + self.number("<I", start)]


def message_end(data: bytes, start: int) -> int:
    """End of the encapsulated message at `start`."""
    if data[start : start + 4] != MARKER:
        raise ValueError("no continuation marker")
    size = struct.unpack_from("<i", data, start + 4)[0]
    if size <= 0 or size % 8:
        raise ValueError("no metadata size")
    buffer = FlatBuffer(data)
    body = buffer.field(buffer.follow(start + 8), 3)
    end = start + 8 + size + (buffer.number("<q", body) if body else 0)
    if not start + 8 + size <= end <= len(data):
        raise ValueError("it reaches beyond the file")
    return int(end)


def read_batch(data: bytes, start: int, schema_message: bytes) -> tuple[int, int, pa.RecordBatch]:
    """First seq, end and rows of the valid batch at `start`; ValueError or struct.error where there is none."""
    end = message_end(data, start)
    buffer = FlatBuffer(data)
    message = buffer.follow(start + 8)
    if data[buffer.must(message, 1)] != 3:
        raise ValueError("no record batch")
    rows = buffer.number("<q", buffer.must(buffer.follow(buffer.must(message, 2)), 0))
    vector = buffer.follow(buffer.must(message, 4))
    pairs: dict[bytes, tuple[int, bytes]] = {}
    for index in range(min(buffer.number("<I", vector), 1000)):
        pair = buffer.follow(vector + 4 + 4 * index)
        pairs[buffer.string(buffer.must(pair, 0))[1]] = buffer.string(buffer.must(pair, 1))
    (place, digits), (_, seq) = pairs.get(b"crc", (0, b"")), pairs.get(b"seq", (0, b""))
    if rows < 1 or len(digits) != 8 or len(seq) != 20 or not seq.isdigit() or not start < place <= end - 8:
        raise ValueError("no seq, no crc or no rows")
    covered = schema_message + data[start:place] + b"00000000" + data[place + 8 : end]
    if digits != b"%08x" % zlib.crc32(covered):
        raise ValueError("the CRC does not agree")
    with pa.ipc.open_stream(schema_message + data[start:end] + MARKER + bytes(4)) as stream:
        return int(seq), end, stream.read_next_batch()


def read_segment(data: bytes) -> Segment:
    """Section 7, Reading. Raises ValueError or struct.error where the schema message is not whole."""
    schema_message = data[: message_end(data, 0)]
    schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
    metadata = {key.decode(): value.decode() for key, value in schema.metadata.items()}
    segment = Segment(metadata, [], [], 0)
    position = good = len(schema_message)
    next_seq = 0
    while position < len(data):
        if data[position:] == MARKER + bytes(4):
            return segment
        try:
            seq, end, batch = read_batch(data, position, schema_message)
        except (ValueError, struct.error, IndexError):
            following = data.find(MARKER, position + 1)
            position = following if following >= 0 else len(data)
            continue
        if position > good:
            segment.damage.append((good, position - good))
        if seq < next_seq:
            segment.damage.append((position, end - position))
        else:
            segment.batches.append((seq, batch))
            next_seq = seq + batch.num_rows
        position = good = end
    return segment._replace(torn_tail=len(data) - good)


def write_segment(table: str, identity: dict[str, str], batches: list[tuple[int, list[dict[str, Any]]]]) -> bytes:
    """Section 7, Writing: the bytes of an open segment."""
    schema = columns(table, "open").with_metadata({"rle.version": "1.0", "rle.table": table, **identity})
    schema_message: bytes = schema.serialize().to_pybytes()
    data = schema_message
    for seq, rows in batches:
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(batch, custom_metadata={"seq": f"{seq:020}", "crc": "00000000"})
        message = sink.getvalue().to_pybytes()[len(schema_message) : -8]
        buffer = FlatBuffer(message)
        vector = buffer.follow(buffer.must(buffer.follow(8), 4))
        for index in range(buffer.number("<I", vector)):
            pair = buffer.follow(vector + 4 + 4 * index)
            if buffer.string(buffer.must(pair, 0))[1] == b"crc":
                place, _ = buffer.string(buffer.must(pair, 1))
                crc = b"%08x" % zlib.crc32(schema_message + message)
                data += message[:place] + crc + message[place + 8 :]
    return data
