"""What the micro-batches of a step add up to, kept in memory until it is logged.

- A plain value is a weighted mean; a value type says otherwise: `Sum` adds, `Max` and `Min` compare, `Last`
  keeps the last, `Quantiles` gathers values.
- NaN stays: it makes the mean, the sum and the extremes NaN. Null is ignored.
- What a crash takes is at most what was accumulated since the last `log_accumulated`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_eventlog.value_types import Last, Max, Mean, Quantiles, Sum

from .text import text_of
from .values import Sorted, number_of, numbers, sort_values


@dataclass(slots=True)
class _Gathered:
    """One key so far."""

    kind: type | None
    """Its value type; None for a plain value."""
    value: float = 0.0
    """The sum of weight times value for means, else what the type keeps."""
    weights: float = 0.0
    values: list[float] = field(default_factory=list)
    empty: bool = True

    def add(self, value: float, weight: float) -> None:
        if self.kind in (None, Mean):
            self.value += weight * value
            self.weights += weight
        elif self.kind is Sum:
            self.value += value
        elif self.empty or self.kind is Last or math.isnan(value):
            self.value = value
        elif not math.isnan(self.value):
            self.value = max(self.value, value) if self.kind is Max else min(self.value, value)
        self.empty = False

    def logged(self) -> Any:
        """As `log_metrics` takes it."""
        if self.kind is Quantiles:
            return Quantiles(self.values)
        if self.kind is Mean:
            return Mean(self.value / self.weights, weight=self.weights)
        return self.value / self.weights if self.kind is None else self.kind(self.value)


class Accumulator:
    """What was gathered, by key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come in
        self._keys: dict[str, _Gathered] = {}

    def add(self, metrics: Mapping[Any, Any], weight: Any) -> dict[str, str]:
        """Add one micro-batch.

        Args:
            metrics: scalars or value types by key.
            weight: weight of the micro-batch in plain values, finite and not negative.

        Returns:
            Why, by key, something was left out.
        """
        values = sort_values(metrics)
        skipped = values.skipped | dict.fromkeys(values.texts, "not a scalar")
        with self._lock:
            for key, value in values.scalars.items():
                if value is not None and (reason := self._add(key, value, values, weight)):
                    skipped[key] = reason
            for key, many in (*values.many.items(), *values.large.items()):
                try:
                    typed = isinstance(values.declared.get(key), Quantiles)
                    reason = self._gather(key, Quantiles, numbers(many)) if typed else "not a scalar"
                except Exception:  # noqa: BLE001 -- values are the user's objects: one must not cost the others
                    reason = "not numbers"
                skipped |= {key: reason} if reason else {}
        return skipped

    def _add(self, key: str, value: float, values: Sorted, weight: Any) -> str | None:
        declared = values.declared.get(key)
        kind = None if declared is None else type(declared)
        if kind is Quantiles:
            return self._gather(key, Quantiles, [value])
        given = declared.weight if isinstance(declared, Mean) else weight if declared is None else 1.0
        number = number_of(given)
        if number is None or not (math.isfinite(number) and number >= 0):
            return f"weight {text_of(given)}"
        return self._gather(key, kind, [value], number) if number > 0 else None

    def _gather(self, key: str, kind: type | None, values: list[float], weight: float = 1.0) -> str | None:
        gathered = self._keys.setdefault(key, _Gathered(kind))
        if gathered.kind is not kind:
            names = [found.__name__ if found else "a plain value" for found in (kind, gathered.kind)]
            return f"{names[0]}, after {names[1]}"
        if kind is Quantiles:
            gathered.values += values
        else:
            for value in values:
                gathered.add(value, weight)
        return None

    def take(self) -> tuple[dict[str, Any], dict[str, float]]:
        """What to log, and the weights of plain values, by key; starts anew."""
        with self._lock:
            keys, self._keys = self._keys, {}
        weights = {key: gathered.weights for key, gathered in keys.items() if gathered.kind is None}
        return {key: gathered.logged() for key, gathered in keys.items()}, weights
