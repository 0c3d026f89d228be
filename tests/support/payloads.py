"""Build what a sink is given, from plain dicts: what a test does not name takes a harmless default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from rl_eventlog.schema import table
from rl_eventlog.sinks.base import PARAMS, POINTS, Cursor, Payload, RunDescription, Status

START = datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=timezone.utc)
"""Start of every run made here: long ago, so that a clock that leaks into a target shows."""

SAMPLES = pa.schema(
    [
        pa.field("role", pa.string(), nullable=False),
        pa.field("rank", pa.int32()),
        pa.field("attempt", pa.int32(), nullable=False),
        *table("samples").open,
    ]
)


def at(seconds: float) -> datetime:
    """A time that many seconds after the start."""
    return START + timedelta(seconds=seconds)


def run(
    uid: str = "01jnf0000000000000000000aa",
    name: str = "grpo-qwen",
    *,
    status: Status = "running",
    ended: datetime | None = None,
    **more: Any,
) -> RunDescription:
    """A run that started at `START`."""
    return RunDescription(run_uid=uid, name=name, started=START, status=status, ended=ended, **more)


def cursor(commit: int, points: int = 0) -> Cursor:
    """The cursor of a commit, its digest made up from the number."""
    return Cursor(commit=commit, points=points, digest=f"{commit:064x}")


def payload(
    points: Iterable[Mapping[str, Any]] = (),
    params: Iterable[Mapping[str, Any]] = (),
    samples: Iterable[Mapping[str, Any]] = (),
) -> Payload:
    """One commit.

    Args:
        points: `series`, `step` and `value` are needed; the time is `step` seconds after the start.
        params: `key` and `value` (JSON text) are needed.
        samples: `step` is needed; in the order they were sampled.
    """
    return Payload(
        points=_table([_point(row) for row in points], POINTS),
        params=_table([{"time": START, "attempt": 1, **row} for row in params], PARAMS),
        samples=_table([_sample(row, index) for index, row in enumerate(samples)], SAMPLES),
    )


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    step = row["step"]
    defaults = {
        "role": "main",
        "axis": None,
        "position": float(step),
        "time": at(step),
        "attempt": 1,
        "correction": False,
    }
    return {**defaults, **row}


def _sample(row: Mapping[str, Any], index: int) -> dict[str, Any]:
    step = row["step"]
    defaults = {
        "role": "main",
        "rank": 0,
        "attempt": 1,
        "time": at(step or 0),
        "split": "validation",
        "dataset": "sums",
        "sample_index": index,
    }
    return {**defaults, **row}


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
