"""What one rank hands over, as the log would write it: a value, weight and reduction a key.

Nothing here raises because of a value, so that no rank waits for another in a collective. What the
log would not write as a number (texts, objects) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rl_eventlog.value_types import Quantiles
from rl_eventlog.writer.text import text_of
from rl_eventlog.writer.values import lookup, number_of, numbers, sort_values


class Scalar(NamedTuple):
    """One rank's row of a key."""

    value: float | None
    weight: float | None = None
    """None counts as 1."""
    reduction: str | None = None
    """None where the rank declares nothing."""


@dataclass(frozen=True, slots=True)
class RankValues:
    """What one rank has."""

    scalars: dict[str, Scalar] = field(default_factory=dict)
    many: dict[str, list[float]] = field(default_factory=dict)
    """Of distributions: all values."""


def values_of(metrics: Mapping[str, Any], reduce: Any = None, weight: Any = None) -> RankValues:
    """The values of one rank by flattened key.

    Args:
        metrics: numbers, None, lists, arrays, tensors, value types, and mappings of these.
        reduce: one reduction, or a mapping by key or glob, as in `log_metrics`.
        weight: one weight, or a mapping by key or glob, as in `log_metrics`.
    """
    sorted_values = sort_values(metrics, weight)
    found = RankValues()
    for key, values in {**sorted_values.many, **sorted_values.large}.items():
        found.many[key] = _numbers(values)
    for key, value in sorted_values.scalars.items():
        given = sorted_values.declared.get(key)
        if isinstance(given, Quantiles):
            found.many[key] = [] if value is None else [value]
            continue
        reduction = given.reduction if given else lookup(reduce, key, key)
        number = number_of(lookup(sorted_values.weights.get(key, sorted_values.weight), key, key))
        found.scalars[key] = Scalar(value, number, text_of(reduction) if isinstance(reduction, str) else None)
    return found


def _numbers(values: Any) -> list[float]:
    try:
        return numbers(values)
    except Exception:  # noqa: BLE001 -- as above
        return []
