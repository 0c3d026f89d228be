"""From what a training hands over to scalars, lists and texts. Nothing here raises because of a value.

Python and numpy numbers, bools, tensors and arrays of one element are scalars; NaN, the infinities
and None stay four different values. Nested mappings are flattened with ``/``. Lists and longer
arrays are many values, strings are texts, anything else is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

EXACT_INTEGERS = 1 << 53
_MAX_DEPTH = 32


@dataclass(slots=True)
class Sorted:
    """The values of one call by what becomes of them."""

    scalars: dict[str, float | None] = field(default_factory=dict)
    many: dict[str, list[float]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    inexact: dict[str, int] = field(default_factory=dict)
    """Integers beyond 2^53, which a float64 does not hold exactly."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Type of each value that is none of the above."""


def sort_values(metrics: Mapping[Any, Any]) -> Sorted:
    """Flatten `metrics` and put each value where it belongs."""
    result = Sorted()
    for key, value in _flatten(metrics, "", 0):
        try:
            _sort(key, value, result)
        except Exception:  # noqa: BLE001 -- a value is the user's object: its own code may raise anything
            result.skipped[key] = type(value).__name__
    return result


def _flatten(metrics: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _flatten(value, f"{name}/", depth + 1)
        else:
            yield name, value


def _sort(key: str, value: Any, result: Sorted) -> None:
    if value is None or isinstance(value, float):
        result.scalars[key] = value
    elif isinstance(value, int):
        if not -EXACT_INTEGERS <= value <= EXACT_INTEGERS:
            result.inexact[key] = int(value)
        result.scalars[key] = _float(value)
    elif isinstance(value, str):
        result.texts[key] = value
    elif hasattr(value, "tolist"):  # numpy scalars and arrays, tensors of any kind
        _sort_array(key, value, result)
    elif isinstance(value, (list, tuple)):
        result.many[key] = [_element(element) for element in value]
    elif hasattr(value, "__float__"):  # Decimal, Fraction
        result.scalars[key] = float(value)
    else:
        result.skipped[key] = type(value).__name__


def _sort_array(key: str, value: Any, result: Sorted) -> None:
    if hasattr(value, "detach"):
        value = value.detach()
        if value.dtype.is_complex:
            raise TypeError(key)
        if value.dtype.itemsize == 2 or value.is_sparse:  # bfloat16 has no numpy form
            value = value.to_dense().float() if value.is_sparse else value.float()
    plain = value.tolist()
    while isinstance(plain, list) and len(plain) == 1:
        plain = plain[0]
    if isinstance(plain, list):
        result.many[key] = [_element(element) for element in _leaves(plain)]
    elif isinstance(plain, (bool, int, float, str)) or plain is None:
        _sort(key, plain, result)
    else:
        result.skipped[key] = type(value).__name__


def _leaves(nested: list[Any]) -> Iterator[Any]:
    for element in nested:
        if isinstance(element, list):
            yield from _leaves(element)
        else:
            yield element


def _element(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError(value)
    return float("nan") if value is None else _float(value)


def _float(value: Any) -> float:
    """`float`, with integers too large for it as infinities."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def lookup(declared: Any, key: str, name: str) -> Any:
    """What `reduce=` or `weight=` says of one key: one value for all, or a mapping by key, name or glob."""
    if not isinstance(declared, Mapping):
        return declared
    for candidate in (key, name):
        if candidate in declared:
            return declared[candidate]
    for pattern, value in declared.items():
        if fnmatchcase(key, pattern) or fnmatchcase(name, pattern):
            return value
    return None
