"""Looks at GPUs and hosts to rows of the gpu_samples table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_eventlog.host import host_name
from rl_eventlog.schema import table

from .batches import Position, fit
from .skips import Skips
from .text import text_of

_COLUMNS = {field.name: field.type for field in table("gpu_samples").open if field.name != "time"}


def gpu_row(look: Mapping[str, Any], position: Position, skips: Skips) -> dict[str, Any]:
    """One row; what fits no column is counted and named."""
    row: dict[str, Any] = {"step": position.step, "time": position.time_us, "device_node": host_name()}
    for key, value in look.items():
        kind = _COLUMNS.get(key)
        fitted = None if kind is None or value is None else fit(value, kind)
        if fitted is not None:
            row[key] = fitted
        elif value is not None:
            skips.skip("values skipped", f"gpu_samples {text_of(key)}", type(value).__name__)
    return row
