"""How many rows a run has and how far its writers came, from the footers of its files: no row is read.

Only of compacted files that do not say it, as those of before 1.0 do not, rows are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

import polars as pl

from rl_eventlog.reader import RunFiles
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.coverage import Use
from rl_eventlog.types import LastRow


@dataclass(frozen=True, slots=True)
class Count:
    """Rows of some writers, and how far they came."""

    rows: int = 0
    last_step: int | None = None
    last_row: datetime | None = None
    """Time of the latest row, UTC."""


def count_rows(files: RunFiles) -> tuple[dict[str, int], dict[str, Count]]:
    """Rows by table, tables without rows left out; and a `Count` by writer, over all tables."""
    by_table: dict[str, int] = {}
    by_writer: dict[str, Count] = {}
    for table in TABLES:
        for use in files.table(table).coverage.uses:
            last = use.candidate.last or _last_rows(files, table, use)
            for writer, spans in use.takes.items():
                rows = sum(map(len, spans))
                by_table[table] = by_table.get(table, 0) + rows
                count = Count(rows, *_of(writer, last))
                by_writer[writer] = add_up([by_writer[writer], count]) if writer in by_writer else count
    return by_table, by_writer


def add_up(counts: Iterable[Count]) -> Count:
    """Several as one."""
    found = list(counts)
    return Count(
        sum(count.rows for count in found),
        max((count.last_step for count in found if count.last_step is not None), default=None),
        max((count.last_row for count in found if count.last_row is not None), default=None),
    )


def _of(writer: str, last: Mapping[str, LastRow]) -> tuple[int | None, datetime | None]:
    if writer not in last:
        return None, None
    step, time = last[writer]
    return step, time.astimezone(timezone.utc)


def _last_rows(files: RunFiles, table: str, use: Use) -> dict[str, LastRow]:
    rows = files.rows(table).filter(pl.col("writer").is_in(list(use.takes)))
    found = rows.group_by("writer").agg(pl.col("step").max(), pl.col("time").max()).collect()
    return {writer: LastRow(step, time) for writer, step, time in found.iter_rows()}
