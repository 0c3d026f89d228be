"""What one rank hands over, as the log would write it: a value, weight and reduction a key.

Nothing here raises because of a value, so that no rank waits for another in a collective. What the
log would not write as a number (texts, objects) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rl_eventlog.value_types import VALUE_TYPES, Mean, Quantiles
from rl_eventlog.writer.text import text_of
from rl_eventlog.writer.values import lookup, number_of, numbers, sort_values

_MAX_DEPTH = 32


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
    typed: dict[str, Any] = {}
    sorted_values = sort_values(_bare(metrics, typed))
    found = RankValues()
    for key, values in {**sorted_values.many, **sorted_values.large}.items():
        found.many[key] = _numbers(values)
    for key, value in sorted_values.scalars.items():
        given = typed.get(key)
        if isinstance(given, Quantiles):
            found.many[key] = [] if value is None else [value]
            continue
        reduction = given.reduction if given else lookup(reduce, key, key)
        number = number_of(given.weight if isinstance(given, Mean) else lookup(weight, key, key))
        found.scalars[key] = Scalar(value, number, text_of(reduction) if isinstance(reduction, str) else None)
    return found


def _bare(metrics: Any, typed: dict[str, Any]) -> dict[str, Any]:
    """`metrics`, flat and without its value types, which go to `typed` by key."""
    flat = dict(_flat(metrics, "", (id(metrics),)))
    typed.update({key: value for key, value in flat.items() if isinstance(value, VALUE_TYPES)})
    return {key: value.value if key in typed else value for key, value in flat.items()}


def _flat(metrics: Any, prefix: str, around: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """What is no mapping, or a mapping inside itself, is left out."""
    try:
        items = list(metrics.items())
    except Exception:  # noqa: BLE001 -- the user's object: its own code may raise anything
        return
    for key, value in items:
        name = prefix + text_of(key)
        if not isinstance(value, Mapping):
            yield name, value
        elif id(value) not in around and len(around) < _MAX_DEPTH:
            yield from _flat(value, f"{name}/", (*around, id(value)))


def _numbers(values: Any) -> list[float]:
    try:
        return numbers(values)
    except Exception:  # noqa: BLE001 -- as above
        return []
