"""One number of many durations: numpy's results without numpy, where infinities meet as well."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence


def _mean(seconds: Sequence[float]) -> float:
    return sum(seconds) / len(seconds)  # not `fsum`, which raises where infinities meet


def _std(seconds: Sequence[float]) -> float:
    mean = _mean(seconds)
    return math.sqrt(_mean([(value - mean) * (value - mean) for value in seconds]))


OPERATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": _mean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "std": _std,
    "sum": sum,
    "count": len,
}


def reduced(seconds: Sequence[float], operation: str) -> float:
    """One number of them, at least one; NaN, but for their count, if one of them is."""
    if operation != "count" and any(map(math.isnan, seconds)):
        return math.nan
    return OPERATIONS[operation](seconds)
