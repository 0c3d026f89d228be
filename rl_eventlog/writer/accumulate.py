"""What the micro-batches of a step add up to, kept in memory until it is logged.

- A plain value is a weighted mean; a value type says otherwise: `Sum` adds, `Max` and `Min` compare, `Last`
  keeps the last, `Quantiles` gathers values.
- NaN stays: it makes the mean, the sum and the extremes NaN. Null is ignored.
- What a crash takes is at most what was accumulated since the last `log_accumulated`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rl_eventlog.value_types import VALUE_TYPES, Last, Max, Mean, Quantiles, Sum, ValueType

from .distributions import floats
from .text import text_of
from .values import Sorted, number_of, sort_values


@dataclass(slots=True)
class _Gathered:
    """One key so far."""

    kind: type | None
    """Its value type; None for a plain value."""
    value: float = 0.0
    """The sum of weight times value for means, else what the type keeps."""
    weights: float = 0.0
    parts: list[pa.Array] = field(default_factory=list)
    """Of `Quantiles`: the values of each micro-batch."""
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
            return Quantiles(pa.concat_arrays(self.parts))
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
            weight: weight of the micro-batch in means that have none of their own, finite and not negative.

        Returns:
            Why, by key, something was left out.
        """
        values = sort_values(metrics, weight)
        skipped = values.skipped | dict.fromkeys(values.texts, "not a scalar")
        ready = [*_many(values, skipped), *_scalars(values, skipped)]  # what takes its time is done before the lock
        with self._lock:
            for key, kind, value, number in ready:
                if reason := self._gather(key, kind, value, number):
                    skipped[key] = reason
        return skipped

    def _gather(self, key: str, kind: type | None, value: Any, weight: float) -> str | None:
        gathered = self._keys.setdefault(key, _Gathered(kind))
        if gathered.kind is not kind:
            names = [found.__name__ if found else "a plain value" for found in (kind, gathered.kind)]
            return f"{names[0]}, after {names[1]}"
        if kind is Quantiles:
            gathered.parts.append(value)
        else:
            gathered.add(value, weight)
        return None

    def take(self) -> tuple[dict[str, Any], dict[str, float]]:
        """What to log, and the weights of plain values, by key; starts anew."""
        with self._lock:
            keys, self._keys = self._keys, {}
        weights = {key: gathered.weights for key, gathered in keys.items() if gathered.kind is None}
        return {key: gathered.logged() for key, gathered in keys.items()}, weights


def _many(values: Sorted, skipped: dict[str, str]) -> Iterator[tuple[str, type | None, Any, float]]:
    """Key, kind, values and weight of what `Quantiles` gathers; why something is not, goes to `skipped`."""
    for key, many in (*values.many.items(), *values.large.items()):
        if key not in values.declared:
            skipped[key] = "not a scalar"
            continue
        try:
            yield key, Quantiles, floats(many), 1.0
        except Exception:  # noqa: BLE001 -- values are the user's objects: one must not cost the others
            skipped[key] = "not numbers"


def _scalars(values: Sorted, skipped: dict[str, str]) -> Iterator[tuple[str, type | None, Any, float]]:
    """The same of single numbers."""
    for key, value in values.scalars.items():
        if value is None:
            continue
        declared = values.declared.get(key)
        kind = None if declared is None else _kind(declared)
        if kind is None or kind is Mean:
            given = values.weights.get(key, values.weight)
            number = number_of(given)
            if number is None or not (math.isfinite(number) and number >= 0):
                skipped[key] = f"weight {text_of(given)}"
            elif number > 0:
                yield key, kind, value, number
        else:
            yield key, kind, floats([value]) if kind is Quantiles else value, 1.0


def _kind(declared: ValueType) -> type:
    """The value type that it is, or that its class is made from."""
    return next(kind for kind in VALUE_TYPES if isinstance(declared, kind))
