"""How a payload becomes W&B history rows: a pure function of the payload, so a resend is equal.

- A row holds the consecutive points of one (role, axis, step, position, attempt); a series that
  comes twice starts a new row. Rows of samples follow, one table for each split, step, role and attempt.
- A row carries its true position under the position key of its role or axis, and its own time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from rl_eventlog.sinks.base import Payload

_UNPREFIXED_ROLES = ("main", "trainer", "controller")
_FREED = "metric/"
_MICROSECONDS = 1_000_000
_EXACT_INTEGERS = 2**53

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One W&B history row."""

    values: Json
    """What `run.log` is given, the table left out."""
    series: tuple[str, ...]
    """Names in the row whose x-axis is `position_key`."""
    position_key: str | None
    """Name of the position in `values`; None where the row has none."""
    table: Json | None = field(default=None)
    """`name`, `columns` and `data` of a table of samples."""


def history_rows(payload: Payload) -> Iterator[HistoryRow]:
    """All rows of a commit, in the order they are sent."""
    yield from _point_rows(payload.points)
    yield from _sample_rows(payload.samples)


def position_key(role: str, axis: str | None) -> str:
    """Name of the x-axis at W&B: `step`, `<role>_step`, or the axis, prefixed as series are.

    Names that W&B refuses or keeps for itself become `axis/<name>`; an asterisk, which its client takes
    for a pattern, becomes `_0x2a_`.
    """
    steps = "step" if role in _UNPREFIXED_ROLES else f"{role}_step"
    key = steps if axis is None else _with_role(role, axis)
    return (f"axis/{key}" if _is_unusable(key) else key).replace("*", "_0x2a_")


def _with_role(role: str, name: str) -> str:
    return name if role in _UNPREFIXED_ROLES or name.startswith(f"{role}/") else f"{role}/{name}"


def _point_rows(points: pa.Table) -> Iterator[HistoryRow]:
    times = points["time"].cast(pa.int64())
    columns = [points[name] for name in ("role", "axis", "step", "position", "attempt", "series", "value")]
    group: tuple[Any, ...] | None = None
    values: Json = {}
    latest = 0
    for *key, series, value, time in zip(*(column.to_pylist() for column in [*columns, times]), strict=True):
        if tuple(key) != group or series in values:
            if group is not None:
                yield _point_row(group, values, latest)
            group, values, latest = tuple(key), {}, time
        values[series] = value
        latest = max(latest, time)
    if group is not None:
        yield _point_row(group, values, latest)


def _point_row(group: tuple[Any, ...], values: Json, time: int) -> HistoryRow:
    role, axis, step, position, attempt = group
    key = position_key(role, axis)
    named = {_free_name(series, key): value for series, value in values.items()}
    where = step if axis is None else _number(position)
    return HistoryRow(
        values={**named, key: where, "attempt": attempt, "_timestamp": time / _MICROSECONDS},
        series=tuple(named),
        position_key=key,
    )


def _free_name(series: str, key: str) -> str:
    """A name that W&B takes, and that hides neither the row's own keys nor those W&B keeps for itself.

    Two series never share one: a series called `metric/step` moves too, so that it is not `step`'s.
    """
    hides_key = series.endswith(key) and not series.removesuffix(key).replace(_FREED, "")
    return f"{_FREED}{series}" if hides_key or _is_unusable(series) else series


def _is_unusable(name: str) -> bool:
    """The rows' `attempt`, W&B's own names, those it refuses or cannot show, and what such a series becomes."""
    while name.startswith(_FREED):
        name = name.removeprefix(_FREED)
    return name == "attempt" or name.startswith("_") or not name.strip()


def _number(position: float) -> int | float:
    return int(position) if position.is_integer() and abs(position) <= _EXACT_INTEGERS else position


def _sample_rows(samples: pa.Table) -> Iterator[HistoryRow]:
    groups: dict[tuple[Any, ...], list[Json]] = {}
    for row in samples.to_pylist():
        groups.setdefault((row["split"], row["step"], row["role"], row["attempt"]), []).append(row)
    for (split, step, role, attempt), rows in groups.items():
        time = max(row["time"] for row in rows)
        values: Json = {"attempt": attempt, "_timestamp": time.timestamp()}
        key = None
        if step is not None:
            key = position_key(role, None)
            values[key] = step
        name = _with_role(role, f"samples/{split}")
        columns = [column for column in rows[0] if column != "split" and any(row[column] is not None for row in rows)]
        data = [[_cell(row[column]) for column in columns] for row in rows]
        yield HistoryRow(values, (name,), key, table={"name": name, "columns": columns, "data": data})


def _cell(value: Any) -> Any:
    """Tables at W&B hold plain values: times become ISO 8601, lists and structs JSON."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | Mapping):
        return json.dumps(value, ensure_ascii=False)
    return value
