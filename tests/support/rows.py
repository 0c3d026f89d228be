"""Rows and identities built by hand: what the reader would hand to `rl_eventlog.reduce`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import polars as pl
import pyarrow as pa

from rl_eventlog.reduce import READ_COLUMNS, Read
from rl_eventlog.schema import table

START = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)

IDENTITY_SCHEMA: dict[str, Any] = {
    "writer": pl.String,
    "role": pl.String,
    "rank": pl.Int32,
    "data_rank": pl.Int32,
    "node": pl.String,
    "launch": pl.String,
    "attempt": pl.Int32,
    "rank_key": pl.String,
    "incarnation": pl.Int32,
    "resume_step": pl.Int64,
}


@dataclass(frozen=True)
class Writer:
    """One writer as the reader describes it."""

    writer: str
    role: str = "trainer"
    rank: int | None = 0
    data_rank: int | None = None
    node: str = "node-0"
    attempt: int = 1
    incarnation: int = 0
    resume_step: int | None = None
    rank_key: str = ""

    @property
    def key(self) -> str:
        return self.rank_key or (f"writer {self.writer}" if self.rank is None else f"rank {self.rank}")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def identities_of(writers: Iterable[Writer]) -> pl.DataFrame:
    ours = list(writers)
    columns = {name: [getattr(w, name) for w in ours] for name in IDENTITY_SCHEMA if name not in ("launch", "rank_key")}
    columns |= {"launch": [f"launch-{w.attempt}" for w in ours], "rank_key": [w.key for w in ours]}
    return pl.DataFrame({name: columns[name] for name in IDENTITY_SCHEMA}, schema=IDENTITY_SCHEMA)


def rows_of(name: str, logged: Iterable[tuple[Writer, Mapping[str, Any]]]) -> pl.DataFrame:
    """Sealed rows of a table, in log order: seqs count up by writer, times by row unless given."""
    schema = table(name).sealed
    seqs: dict[str, int] = {}
    records = []
    for index, (writer, values) in enumerate(logged):
        seq = seqs.get(writer.writer, 0)
        seqs[writer.writer] = seq + 1
        identity = {
            "writer": writer.writer,
            "seq": seq,
            "launch": f"launch-{writer.attempt}",
            "role": writer.role,
            "rank": writer.rank,
            "data_rank": writer.data_rank,
            "node": writer.node,
            "time": at(index),
        }
        records.append(dict.fromkeys(schema.names) | identity | dict(values))
    frame = pl.from_arrow(pa.Table.from_pylist(records, schema=schema))
    assert isinstance(frame, pl.DataFrame)
    return frame


def reader_of(rows: pl.DataFrame) -> Read:
    """What hands out the metrics of writers one after the other, as the reader does."""

    def read(writers: Sequence[str]) -> Iterator[pa.Table]:
        for writer in writers:
            own = rows.filter(pl.col("writer") == writer).sort("seq").select(READ_COLUMNS)
            table = own.to_arrow(compat_level=pl.CompatLevel.oldest())
            for index, field in enumerate(table.schema):
                if pa.types.is_large_string(field.type):
                    texts = table[field.name].cast(pa.string()).combine_chunks().dictionary_encode()
                    table = table.set_column(index, field.name, texts)
            yield table

    return read
