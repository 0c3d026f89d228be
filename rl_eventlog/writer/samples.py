"""Samples as they are handed over, columns or records, to rows of the samples table.

Fields that the table has no column for go to `extra` as JSON: nothing is dropped. A value that does
not fit its column goes there too, under its own name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rl_eventlog.layout import sha16
from rl_eventlog.schema import table
from rl_eventlog.segment.arrays import build_array

from .batches import fit
from .text import text_of, to_json

_SCHEMA = table("samples").open
_OF_THE_CALL = {"step", "time", "split"}
_GIVEN = {field.name: field.type for field in _SCHEMA if field.name not in {*_OF_THE_CALL, "extra"}}
"""Columns that a record may fill."""


def sample_rows(
    samples: Any, *, step: int | None, split: str, time_us: int, skipped: Callable[[int, str], None]
) -> pa.RecordBatch:
    """Rows for one call.

    Args:
        samples: a list of mappings, a mapping of equally long columns, an Arrow table or a Polars frame.
        step: step of the call, null where there is none.
        split: `validation` or `rollout`.
        time_us: microseconds since 1970.
        skipped: told index and type of each record that is no mapping or cannot be read; the others are kept.

    Raises:
        ValueError: the columns differ in length, or the object is none of these.
    """
    rows = []
    for index, record in enumerate(_records(samples)):
        try:
            rows.append(_row(record, index) | {"step": step, "time": time_us, "split": split})
        except Exception:  # noqa: BLE001 -- a record is the user's object: its own code may raise anything
            skipped(index, type(record).__name__)
    return pa.RecordBatch.from_arrays(
        [build_array([row.get(field.name) for row in rows], field.type) for field in _SCHEMA], schema=_SCHEMA
    )


def _records(samples: Any) -> list[Any]:
    """One object a sample, mappings but for those of a list that is not all of them."""
    if hasattr(samples, "to_pylist"):  # Arrow table or batch
        return list(samples.to_pylist())
    if hasattr(samples, "to_dicts"):  # Polars frame
        return list(samples.to_dicts())
    if isinstance(samples, Mapping):
        columns = {key: _plain(column) for key, column in samples.items()}
        if any(not isinstance(column, (list, tuple)) for column in columns.values()):
            raise ValueError("samples given as a mapping must hold columns: lists or arrays of one value a sample")
        lengths = {text_of(key): len(column) for key, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of samples differ in length: {lengths}")
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if isinstance(samples, Sequence) and (not samples or any(isinstance(record, Mapping) for record in samples)):
        return list(samples)
    raise ValueError(
        f"samples must be records, columns, an Arrow table or a Polars frame, not {type(samples).__name__}"
    )


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _row(record: Mapping[Any, Any], index: int) -> dict[str, Any]:
    """The row of a record.

    Raises:
        Exception: the record is none, or what its own code raises.
    """
    if not isinstance(record, Mapping):
        raise TypeError
    row: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in record.items():
        if value is None:
            continue
        if key == "extra" and isinstance(value, Mapping):
            extra |= {text_of(name): item for name, item in value.items()}
        elif key in _GIVEN and (fitted := _fit(key, value)) is not None:
            row[key] = fitted
        else:
            extra[text_of(key)] = value
    row.setdefault("sample_index", index)
    row.setdefault("prompt_id", _prompt_id(row))
    if extra:
        row["extra"] = to_json(extra)
    return row


def _fit(key: str, value: Any) -> Any:
    """The value as its column takes it; None where it does not fit."""
    try:
        plain = _plain(value)
        if key == "rewards" and isinstance(plain, Mapping):
            plain = [{"key": text_of(part), "value": float(reward)} for part, reward in plain.items()]
        elif key == "messages":
            plain = [_message(message) for message in plain]
        return fit(plain, _GIVEN[key])
    except Exception:  # noqa: BLE001 -- a value is the user's object: its own code may raise anything
        return None


def _message(message: Mapping[str, Any]) -> dict[str, str | None]:
    """One message; content that is not text (images, parts) is kept as JSON."""
    fields = ((field, message.get(field)) for field in ("role", "content", "name", "tool_calls"))
    return {
        field: None if value is None else text_of(value) if isinstance(value, str) else to_json(value)
        for field, value in fields
    }


def _prompt_id(row: Mapping[str, Any]) -> str | None:
    """First 16 hex digits of the SHA-256 of the prompt, else of the messages as canonical JSON."""
    if row.get("prompt") is not None:
        text = row["prompt"]
    elif row.get("messages"):
        text = json.dumps(row["messages"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    else:
        return None
    return sha16(text.encode())
