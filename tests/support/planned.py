"""What the writers log that are killed or copied: the row of each seq is known beforehand.

Nothing here knows rl_eventlog: the judge of the files uses it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

TABLES = ("metrics", "timings", "markers")
ROWS_A_CALL = {"metrics": 3, "timings": 1, "markers": 1}
_THIRDS = (0.1, math.nan, math.inf, -math.inf, -0.0)


def log_step(log: Any, number: int, acknowledge: Callable[[str], None]) -> None:
    """Log what step `number` has: metrics, at each third a timing, at each seventh a marker.

    Args:
        log: an `EventWriter`.
        number: from 0, one after the other.
        acknowledge: told the table after each call that returned.
    """
    log.log_metrics({"a": number, "b": -number, "c": _THIRDS[number % 5]}, step=number)
    acknowledge("metrics")
    if number % 3 == 0:
        log.log_timing("t", number / 8, step=number)
        acknowledge("timings")
    if number % 7 == 0:
        log.mark("m", step=number, text="é" * (number % 60 + 1))
        acknowledge("markers")


def expected(table: str, seq: int) -> tuple[int, str, Any]:
    """Step, name and value of a row."""
    if table == "metrics":
        number = seq // 3
        return number, "abc"[seq % 3], (float(number), float(-number), _THIRDS[number % 5])[seq % 3]
    if table == "timings":
        return seq * 3, "t", seq * 3 / 8
    return seq * 7, "m", "é" * (seq * 7 % 60 + 1)


def logged(table: str, row: dict[str, Any]) -> tuple[int, str, Any]:
    """Step, name and value as a file has them."""
    value = row[{"metrics": "value", "timings": "duration_seconds", "markers": "text"}[table]]
    return row["step"], row["name"], value
