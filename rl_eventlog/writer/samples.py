"""Samples as they were handed over to rows of the samples table.

Fields that the table has no column for go to `extra` as JSON: nothing is dropped. A value that does
not fit its column goes there too, under its own name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from rl_eventlog.layout import sha16
from rl_eventlog.schema import table
from rl_eventlog.segment.arrays import build_array

from .batches import fit
from .given_samples import GivenSamples, plain
from .text import text_of, to_json

_SCHEMA = table("samples").open
_OF_THE_CALL = {"step", "time", "split"}
_GIVEN = {field.name: field.type for field in _SCHEMA if field.name not in {*_OF_THE_CALL, "extra"}}
"""Columns that a record may fill."""
_BATCH_BYTES = 1 << 20
_READ_BYTES = 1 << 16  # a few hundred microseconds of conversion
_TURN_SECONDS = 50e-6


def sample_batches(
    given: GivenSamples, count: int, *, step: int | None, split: str, time_us: int, skipped: Callable[[int, str], None]
) -> Iterator[pa.RecordBatch]:
    """Rows for one call, in batches of about `_BATCH_BYTES`.

    Between two samples of a large call other threads get the interpreter: it may run beside a training.

    Args:
        given: the samples.
        count: how many are taken, from the first on.
        step: step of the call, null where there is none.
        split: `validation` or `rollout`.
        time_us: microseconds since 1970.
        skipped: told index and type of each record that is no mapping or cannot be read; the others are kept.
    """
    a_batch, a_read = (max(1, part * given.count // max(1, given.size)) for part in (_BATCH_BYTES, _READ_BYTES))
    rows: list[dict[str, Any]] = []
    for start in range(0, count, a_read):
        for index, record in enumerate(given.records(start, min(start + a_read, count)), start):
            try:
                rows.append(_row(record, index) | {"step": step, "time": time_us, "split": split})
            except Exception:  # noqa: BLE001 -- a record is the user's object: its own code may raise anything
                skipped(index, type(record).__name__)
            if given.size > _READ_BYTES:
                time.sleep(_TURN_SECONDS)
        if len(rows) >= a_batch:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    arrays = [build_array([row.get(field.name) for row in rows], field.type) for field in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


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
        given = value if _is_row_of_numbers(value) else plain(value)
        if key == "rewards" and isinstance(given, Mapping):
            given = [{"key": text_of(part), "value": float(reward)} for part, reward in given.items()]
        elif key == "messages":
            given = [_message(message) for message in given]
        return fit(given, _GIVEN[key])
    except Exception:  # noqa: BLE001 -- a value is the user's object: its own code may raise anything
        return None


def _is_row_of_numbers(value: Any) -> bool:
    return getattr(value, "ndim", 0) == 1 and hasattr(value, "astype")


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
