"""Segments for tests: rows for any table, made from its schema alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from rl_eventlog.layout import open_name
from rl_eventlog.schema import table as table_schema
from rl_eventlog.segment.open_segment import OpenSegment
from rl_eventlog.types import Identity

RUN = "01jzrn00000000000000000000"
WRITER = "01jzw000000000000000000000"
IDENTITY = Identity(RUN, WRITER, "launch-1", "trainer", 3, None, "node-1")
START = datetime(2025, 1, 31, 12, tzinfo=timezone.utc)
FLOATS = (1.5, math.nan, math.inf, -math.inf, -0.0, 1e-300)


def value(kind: pa.DataType, index: int) -> Any:
    """A value of that type; different indexes give different values, but for booleans."""
    if pa.types.is_string(kind):
        return ("é", "", "👍 ")[index % 3] + str(index)
    if pa.types.is_boolean(kind):
        return index % 2 == 0
    if pa.types.is_integer(kind):
        return index - 1
    if pa.types.is_floating(kind):
        return FLOATS[index % len(FLOATS)]
    if pa.types.is_timestamp(kind):
        return START + timedelta(microseconds=index)
    if pa.types.is_list(kind):
        return [value(kind.value_type, index + i) for i in range(index % 4)]
    return {field.name: None if index % 5 == 4 else value(field.type, index) for field in kind}


def example_batch(table: str, rows: int, *, start: int = 0) -> pa.RecordBatch:
    """Rows with the columns of the open form; nullable columns are null here and there."""
    schema = table_schema(table).open
    columns = [
        pa.array(
            [
                None if field.nullable and (row + position) % 3 == 2 else value(field.type, row)
                for row in range(start, start + rows)
            ],
            field.type,
        )
        for position, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def write_open(
    folder: Path,
    table: str,
    sizes: Iterable[int],
    *,
    first_seq: int = 0,
    number: int = 0,
    identity: Identity = IDENTITY,
) -> Path:
    """An open segment with batches of these sizes; row r has the values of index r, its seq."""
    segment = OpenSegment(folder / open_name(identity.writer, number), table, identity, first_seq)
    for size in sizes:
        segment.append(example_batch(table, size, start=segment.next_seq))
    segment.close()
    return segment.path
