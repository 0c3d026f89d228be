"""Record batches of the plain tables from Python values. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rl_eventlog.schema import table
from rl_eventlog.segment.arrays import build_array, number_array

from .text import text_of
from .values import step_of


@dataclass(frozen=True, slots=True)
class Metric:
    """One scalar of a call."""

    name: str
    value: float | None
    weight: float | None
    reduction: str | None


@dataclass(frozen=True, slots=True)
class Position:
    """Where the rows of a call lie."""

    step: int | None
    time_us: int
    axis: str | None = None
    axis_value: float | None = None
    closes_step: bool = False


def metrics_batch(metrics: Sequence[Metric], position: Position) -> pa.RecordBatch:
    """One row a metric."""
    count = len(metrics)
    return _batch(
        "metrics",
        count,
        {
            "step": position.step,
            "time": position.time_us,
            "axis": position.axis,
            "axis_value": position.axis_value,
            "closes_step": True if position.closes_step else None,
        },
        {
            "name": [metric.name for metric in metrics],
            "value": [metric.value for metric in metrics],
            "weight": [metric.weight for metric in metrics],
            "reduction": [metric.reduction for metric in metrics],
        },
    )


def row_batch(name: str, row: dict[str, Any]) -> pa.RecordBatch:
    """One row of any table; columns that are not given are null."""
    return _batch(name, 1, row, {})


def rows_batch(name: str, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Rows of any table; columns that are not given are null."""
    columns = {field.name: [row.get(field.name) for row in rows] for field in table(name).open}
    return _batch(name, len(rows), {}, columns)


def fit(value: Any, kind: pa.DataType) -> Any:
    """The value as a column of that type takes it; None where it does not fit."""
    try:
        if pa.types.is_string(kind):
            return text_of(value) if isinstance(value, str) else None
        if pa.types.is_floating(kind):
            return float(value)
        if pa.types.is_integer(kind):
            value = step_of(value)
        if pa.types.is_list(kind):
            with suppress(TypeError):  # None in it, for one: `build_array` knows
                if (packed := number_array(value, kind.value_type)) is not None:
                    return packed
        build_array([value], kind)
    except Exception:  # noqa: BLE001 -- this runs the value's own code
        return None
    return value


def _batch(name: str, count: int, constants: dict[str, Any], columns: dict[str, list[Any]]) -> pa.RecordBatch:
    schema = table(name).open
    arrays = [
        build_array(columns[field.name] if field.name in columns else [constants.get(field.name)] * count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
