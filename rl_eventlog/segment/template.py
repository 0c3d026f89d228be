"""The fast write: batch messages of the metrics table without building Arrow objects.

- What a template writes is byte-identical to what pyarrow writes for the same rows. That is checked on
  other values than it was made from before it is used; where it does not hold (another pyarrow), there
  is no template and pyarrow goes on writing.
- For one shape (names, reductions, axis, which columns are null) the message is constant but for seq,
  crc, step, time, axis value, values and weights. Where these lie is read from the message's own
  buffer table.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from collections.abc import Collection
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from .arrays import build_array
from .frames import encode_frame, places

_pack_integer = struct.Struct("<q").pack
_pack_float = struct.Struct("<d").pack
_pack_crc = struct.Struct(">I").pack
_hex = binascii.hexlify
_crc32 = zlib.crc32
_CRC_ZERO = b"00000000"
_MADE_FROM = (1, 2, 3.0, 4.0, 5.0)
_CHECKED_WITH = (-(2**40), 1_700_000_000_000_000, -0.5, 1e300, 0.25)


class Shape(NamedTuple):
    """What is constant in the rows of a call."""

    names: tuple[str, ...]
    reductions: tuple[str | None, ...]
    axis: str | None
    closes_step: bool
    has_step: bool
    weighted: tuple[bool, ...]
    """Which names have a weight."""


class Template:
    """The message of one shape. Not thread-safe: `fill` writes into the template's own buffer.

    Attributes:
        rows: rows of the message.
        size: its bytes.
    """

    __slots__ = (
        "_axis_value",
        "_buffer",
        "_crc",
        "_pack_floats",
        "_prefix_crc",
        "_seq",
        "_step",
        "_tail",
        "_time",
        "_value",
        "_weight",
        "rows",
        "size",
    )

    def __init__(self, shape: Shape, schema: pa.Schema, schema_message: bytes) -> None:
        """Build it and check it against pyarrow.

        Args:
            shape: of the rows.
            schema: of the segment, with its metadata.
            schema_message: `schema` as pyarrow writes it.

        Raises:
            ValueError: pyarrow writes this shape differently; use pyarrow for it.
        """
        self.rows = rows = len(shape.names)
        message = encode_frame(_batch(shape, schema, *_MADE_FROM), 0, schema, schema_message)
        found = places(message, schema_message)
        data = dict(zip(schema.names, _data_places(schema, found.buffers), strict=True))
        width = 8 * rows
        self._buffer = bytearray(message)
        self._seq = slice(found.seq, found.seq + 20)
        self._crc = slice(found.crc, found.crc + 8)
        self._step = slice(data["step"], data["step"] + width) if shape.has_step else None
        self._time = slice(data["time"], data["time"] + width)
        self._axis_value = slice(data["axis_value"], data["axis_value"] + width) if shape.axis is not None else None
        self._value = data["value"]
        self._weight = data["weight"] if any(shape.weighted) else None
        self._pack_floats = struct.Struct(f"<{rows}d").pack_into
        if found.crc > found.seq:
            raise ValueError("pyarrow writes the metadata in another order")
        # nothing before the seq changes but the crc digits, which count as zeros
        prefix = message[: found.crc] + _CRC_ZERO + message[found.crc + 8 : found.seq]
        self._prefix_crc = _crc32(prefix, _crc32(schema_message))
        self._tail = memoryview(self._buffer)[found.seq :]
        self.size = len(message)
        self._check(shape, schema, schema_message)

    def fill(
        self,
        first_seq: int,
        step: int | None,
        time_us: int,
        axis_value: float | None,
        values: Collection[float],
        weights: Collection[float] | None,
    ) -> bytearray:
        """Write one call into the message.

        Args:
            first_seq: seq of the first row.
            step: training step; None where the shape has none.
            time_us: microseconds since 1970.
            axis_value: position on the axis; None where the shape has none.
            values: floats, one a name.
            weights: floats, one a name, 0.0 for those without; not used where the shape has none.

        Returns:
            The template's own buffer, good until the next call.

        Raises:
            struct.error: a number does not fit; nothing but the buffer has changed.
        """
        buffer = self._buffer
        buffer[self._seq] = b"%020d" % first_seq
        if self._step is not None:
            buffer[self._step] = _pack_integer(step) * self.rows
        buffer[self._time] = _pack_integer(time_us) * self.rows
        if self._axis_value is not None:
            buffer[self._axis_value] = _pack_float(axis_value) * self.rows
        self._pack_floats(buffer, self._value, *values)
        if self._weight is not None and weights is not None:
            self._pack_floats(buffer, self._weight, *weights)
        buffer[self._crc] = _hex(_pack_crc(_crc32(self._tail, self._prefix_crc)))
        return buffer

    def _check(self, shape: Shape, schema: pa.Schema, schema_message: bytes) -> None:
        step, time_us, axis_value, value, weight = _CHECKED_WITH
        weights = [weight if weighted else 0.0 for weighted in shape.weighted]
        filled = self.fill(
            12_345_678_901,
            int(step) if shape.has_step else None,
            int(time_us),
            axis_value if shape.axis is not None else None,
            [value] * self.rows,
            weights,
        )
        batch = _batch(shape, schema, *_CHECKED_WITH)
        if bytes(filled) != encode_frame(batch, 12_345_678_901, schema, schema_message):
            raise ValueError("pyarrow lays this batch out in another way")


#: The rows of one call that are written through a template: the template, and the arguments of its `fill`
#: but the seq. A plain tuple, since a class of its own would cost a tenth of the whole call.
TemplateRows: TypeAlias = "tuple[Template, int | None, int, float | None, Collection[float], Collection[float] | None]"


def _data_places(schema: pa.Schema, buffers: list[int]) -> list[int]:
    """Place of the data buffer of each column: strings have offsets before it, all a validity bitmap."""
    result, index = [], 0
    for field in schema:
        index += 3 if pa.types.is_string(field.type) else 2
        result.append(buffers[index - 1])
    if index != len(buffers):
        raise ValueError("pyarrow writes another number of buffers")
    return result


def _batch(
    shape: Shape, schema: pa.Schema, step: float, time_us: float, axis_value: float, value: float, weight: float
) -> pa.RecordBatch:
    count = len(shape.names)
    columns: dict[str, list[Any]] = {
        "step": [int(step) if shape.has_step else None] * count,
        "time": [int(time_us)] * count,
        "name": list(shape.names),
        "axis": [shape.axis] * count,
        "axis_value": [axis_value if shape.axis is not None else None] * count,
        "value": [value] * count,
        "weight": [weight if weighted else None for weighted in shape.weighted],
        "reduction": list(shape.reductions),
        "closes_step": [True if shape.closes_step else None] * count,
    }
    return pa.RecordBatch.from_arrays([build_array(columns[f.name], f.type) for f in schema], schema=schema)
