"""Samples as they are handed over, columns or records, to rows of the samples table.

Fields that the table has no column for go to `extra` as JSON: nothing is dropped. A value that does
not fit its column goes there too, under its own name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rl_eventlog.schema import table

_SCHEMA = table("samples").open
_FIELDS = {field.name: field.type for field in _SCHEMA}


def sample_rows(samples: Any, *, step: int | None, split: str, time_us: int) -> pa.RecordBatch:
    """Rows for one call.

    Args:
        samples: a list of mappings, a mapping of equally long columns, an Arrow table or a Polars frame.
        step: step of the call, null where there is none.
        split: `validation` or `rollout`.
        time_us: microseconds since 1970.

    Raises:
        ValueError: the columns differ in length, or the object is none of these.
    """
    rows = [_row(dict(record), index) for index, record in enumerate(_records(samples))]
    for row in rows:
        row |= {"step": step, "time": time_us, "split": split}
    return pa.RecordBatch.from_arrays(
        [pa.array([row.get(name) for row in rows], kind) for name, kind in _FIELDS.items()], schema=_SCHEMA
    )


def _records(samples: Any) -> list[Mapping[str, Any]]:
    if hasattr(samples, "to_pylist"):  # Arrow table or batch
        return list(samples.to_pylist())
    if hasattr(samples, "to_dicts"):  # Polars frame
        return list(samples.to_dicts())
    if isinstance(samples, Mapping):
        columns = {str(key): _plain(column) for key, column in samples.items()}
        lengths = {key: len(column) for key, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of samples differ in length: {lengths}")
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if isinstance(samples, Sequence) and all(isinstance(record, Mapping) for record in samples):
        return list(samples)
    raise ValueError(
        f"samples must be records, columns, an Arrow table or a Polars frame, not {type(samples).__name__}"
    )


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _row(record: dict[str, Any], index: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in record.items():
        plain = _plain(value)
        if plain is None:
            continue
        if key == "extra":
            extra |= dict(plain) if isinstance(plain, Mapping) else {"extra": plain}
        elif key in _FIELDS and (fitted := _fit(key, plain)) is not None:
            row[key] = fitted
        else:
            extra[key] = plain
    row.setdefault("sample_index", index)
    row.setdefault("prompt_id", _prompt_id(row))
    if extra:
        row["extra"] = to_json(extra)
    return row


def _fit(key: str, value: Any) -> Any:
    """The value as its column takes it; None where it does not fit."""
    kind = _FIELDS[key]
    try:
        if key == "rewards" and isinstance(value, Mapping):
            value = [{"key": str(part), "value": float(reward)} for part, reward in value.items()]
        elif key == "messages":
            value = [_message(message) for message in value]
        elif pa.types.is_floating(kind):
            value = float(value)
        elif pa.types.is_integer(kind) and isinstance(value, float) and value.is_integer():
            value = int(value)
        pa.array([value], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError):
        return None
    return value


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """One message; content that is not text (images, parts) is kept as JSON."""
    content, calls = message.get("content"), message.get("tool_calls")
    return {
        "role": message.get("role"),
        "content": content if content is None or isinstance(content, str) else to_json(content),
        "name": message.get("name"),
        "tool_calls": calls if calls is None or isinstance(calls, str) else to_json(calls),
    }


def _prompt_id(row: Mapping[str, Any]) -> str | None:
    """First 16 hex digits of the SHA-256 of the prompt, else of the messages as canonical JSON."""
    if row.get("prompt") is not None:
        text = row["prompt"]
    elif row.get("messages"):
        text = json.dumps(row["messages"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    else:
        return None
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def to_json(value: Any) -> str:
    """JSON of anything; what JSON does not know becomes its text, numbers that are not finite too."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_jsonable)
    except (ValueError, TypeError):
        return json.dumps(_without_nan(value), ensure_ascii=False, default=_jsonable)


def _jsonable(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value
