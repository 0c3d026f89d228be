"""Weighted means over the micro-batches of a step, kept in memory until they are logged.

What a crash takes is at most what was accumulated since the last `log_accumulated`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

from .text import text_of
from .values import number_of, sort_values


class Accumulator:
    """Sums of weight and of weight times value, by key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come in
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, metrics: Mapping[Any, Any], weight: Any) -> dict[str, str]:
        """Add one micro-batch; NaN in it makes the mean NaN, null is ignored.

        Args:
            metrics: scalars by key.
            weight: weight of the micro-batch, finite and not negative.

        Returns:
            Type by key of what is no scalar and was left out.
        """
        values = sort_values(metrics)
        skipped = values.skipped | dict.fromkeys([*values.many, *values.large, *values.texts], "not a scalar")
        number = number_of(weight)
        if number is None or not (math.isfinite(number) and number >= 0):
            return skipped | dict.fromkeys(values.scalars, f"weight {text_of(weight)}")
        with self._lock:
            for key, value in values.scalars.items():
                if value is not None and number > 0:
                    weights, total = self._sums.get(key, (0.0, 0.0))
                    self._sums[key] = (weights + number, total + number * value)
        return skipped

    def take(self) -> dict[str, tuple[float, float]]:
        """Weighted mean and sum of weights by key; starts anew."""
        with self._lock:
            sums, self._sums = self._sums, {}
        return {key: (total / weights, weights) for key, (weights, total) in sums.items()}
