"""From what a training hands over to scalars, lists and texts. Nothing here raises because of a value.

Python and numpy numbers, bools, tensors and arrays of one element are scalars; NaN, the infinities
and None stay four different values. Nested mappings are flattened with ``/``. Lists and longer
arrays are many values, None among them left out; strings are texts, anything else is skipped.
A value type other than `Quantiles` around anything but one number is skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa

from rl_eventlog.value_types import VALUE_TYPES, Mean, Quantiles, ValueType

from .scalars import EXACT_INTEGERS, fetch_device_scalars
from .text import text_of

LARGE_COUNT = 8192
"""Numbers in 64 KiB."""
_FLOATS = frozenset({float})
_INT64 = 1 << 63
_MAX_DEPTH = 32


@dataclass(slots=True)
class Sorted:
    """The values of one call by what becomes of them."""

    scalars: dict[str, float | None] = field(default_factory=dict)
    many: dict[str, list[float]] = field(default_factory=dict)
    large: dict[str, Any] = field(default_factory=dict)
    """More than `LARGE_COUNT` values, a copy of what was handed over: not yet looked at."""
    texts: dict[str, str] = field(default_factory=dict)
    inexact: dict[str, int] = field(default_factory=dict)
    """Integers beyond 2^53, which a float64 does not hold exactly."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Type of each value that is none of the above."""
    declared: dict[str, ValueType] = field(default_factory=dict)
    """Value types that were handed over; what they hold is among the above."""
    weights: dict[str, Any] = field(default_factory=dict)
    """Own weights of means."""
    weight: Any = None
    """Weight of the call, one or a mapping by key."""

    def spread_histograms(self, reduce: Any, start: str) -> None:
        """Make scalars that are to become distributions many values: one, or none where it is null."""
        for key in list(self.scalars):
            typed = self.declared.get(key)
            reduction = lookup(reduce, key, start + key) if typed is None else typed.reduction
            if isinstance(reduction, str) and reduction == "histogram":
                value = self.scalars.pop(key)
                self.many[key] = [] if value is None else [value]

    def refuse_many(self) -> None:
        """Skip what is declared to be one number, or numbers, and is not."""
        for key, typed in self.declared.items():
            wants_one = not isinstance(typed, Quantiles)
            if key in self.texts or (wants_one and (key in self.many or key in self.large)):
                found = "a text" if key in self.texts else "many values"
                for values in (self.texts, self.many, self.large):
                    values.pop(key, None)
                advice = "give one number, or Quantiles" if wants_one else "give numbers"
                self.skipped[key] = f"{type(typed).__name__} of {found}: {advice}"


def sort_values(metrics: Any, weight: Any = None) -> Sorted:
    """Flatten `metrics`, a mapping, and put each value where it belongs, with `weight`, that of the call."""
    result = Sorted(weight=weight)
    flat = list(_flatten(metrics, "", (), result))
    for key, value in _off_device(flat, result):
        try:
            _sort(key, value, result)
        except Exception:  # noqa: BLE001 -- a value is the user's object: its own code may raise anything
            result.skipped[key] = type(value).__name__
    result.refuse_many()
    return result


def _off_device(flat: list[tuple[str, Any]], result: Sorted) -> Iterable[tuple[str, Any]]:
    """With the scalars of devices as floats, those of the weights too."""
    if "torch" not in sys.modules:
        return flat
    by_key = isinstance(result.weight, Mapping)
    values = [value for _, value in flat]
    try:
        given = dict(result.weight) if by_key else {"": result.weight}
        fetched = iter(fetch_device_scalars([*values, *result.weights.values(), *given.values()]))
        values = [next(fetched) for _ in values]
        result.weights = {key: next(fetched) for key in result.weights}
        given = {key: next(fetched) for key in given}
    except Exception:  # noqa: BLE001 -- a device that fails: each value is tried on its own
        return flat
    result.weight = given if by_key else given[""]
    return zip([key for key, _ in flat], values, strict=True)


def _flatten(metrics: Any, prefix: str, around: tuple[int, ...], result: Sorted) -> Iterator[tuple[str, Any]]:
    """`around` are the ids of the mappings around this one: one inside itself is skipped."""
    try:
        items = list(metrics.items())
    except Exception:  # noqa: BLE001 -- as above
        result.skipped[prefix.rstrip("/") or "metrics"] = type(metrics).__name__
        return
    for key, value in items:
        name = prefix + text_of(key)
        if isinstance(value, VALUE_TYPES):
            result.declared[name] = value
            if isinstance(value, Mean) and value.weight is not None:
                result.weights[name] = value.weight
            yield name, value.value
        elif type(value) is float or not isinstance(value, Mapping):  # the first is quick, and most are
            yield name, value
        elif id(value) in (*around, id(metrics)) or len(around) == _MAX_DEPTH:
            result.skipped[name] = "a mapping inside itself or nested too deeply"
        else:
            yield from _flatten(value, f"{name}/", (*around, id(metrics)), result)


def _sort(key: str, value: Any, result: Sorted) -> None:
    if value is None or isinstance(value, float):
        result.scalars[key] = value
    elif isinstance(value, int):
        if not -EXACT_INTEGERS <= value <= EXACT_INTEGERS:
            result.inexact[key] = int(value)
        result.scalars[key] = _float(value)
    elif isinstance(value, str):
        result.texts[key] = text_of(value)
    elif hasattr(value, "tolist"):  # numpy scalars and arrays, tensors of any kind
        _sort_array(key, value, result)
    elif isinstance(value, (list, tuple)):
        _keep_many(key, value, result)
    elif hasattr(value, "__float__"):  # Decimal, Fraction
        result.scalars[key] = float(value)
    else:
        result.skipped[key] = type(value).__name__


def _sort_array(key: str, value: Any, result: Sorted) -> None:
    if hasattr(value, "detach"):
        value = value.detach()
        if value.is_sparse:
            value = value.to_dense()
    if _count(value) > LARGE_COUNT:
        result.large[key] = copied(value)
        return
    plain = value.tolist()
    while isinstance(plain, list) and len(plain) == 1:
        plain = plain[0]
    if isinstance(plain, list):
        result.many[key] = numbers(plain)
    elif isinstance(plain, (int, float, str)) or plain is None:
        _sort(key, plain, result)
    else:  # numpy's long double stays itself; what is no number raises
        result.scalars[key] = float(plain)


def _keep_many(key: str, values: Any, result: Sorted) -> None:
    if len(values) > LARGE_COUNT:
        result.large[key] = copied(values)
    else:
        result.many[key] = numbers(values)


def is_large(values: Any) -> bool:
    """Whether there are so many values that they are looked at on another thread."""
    try:
        return _count(values) > LARGE_COUNT
    except Exception:  # noqa: BLE001 -- as in `sort_values`
        return False


def copied(values: Any) -> Any:
    """What the caller may change without changing this; from a device, in the CPU's memory."""
    if isinstance(values, pa.Array):
        return values
    if hasattr(values, "detach"):
        values = values.detach()
        return values.clone() if values.device.type == "cpu" else values.cpu()
    return values.copy() if hasattr(values, "copy") else list(values)


def _count(values: Any) -> int:
    if hasattr(values, "numel"):  # tensors; their `size` is a method
        return int(values.numel())
    size = getattr(values, "size", None)
    return size if isinstance(size, int) else len(values)


def numbers(values: Any) -> list[float]:
    """All numbers in nested lists, arrays and tensors, in order; None is left out.

    Raises:
        TypeError: something in there is no number.
    """
    plain = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(plain, (list, tuple)) and _FLOATS.issuperset(map(type, plain)):  # most are
        return list(plain)
    return [_float(leaf) for leaf in _leaves(plain) if leaf is not None]


def _leaves(values: Any) -> Iterator[Any]:
    plain = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(plain, (list, tuple)):
        for element in plain:
            yield from _leaves(element)
    else:
        yield plain


def _float(value: Any) -> float:
    """`float` of a number, with integers too large for it as infinities."""
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError(type(value).__name__)
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def number_of(value: Any) -> float | None:
    """One number; None where it is none."""
    try:
        return _float(value)
    except Exception:  # noqa: BLE001 -- as in `sort_values`
        return None


def step_of(step: Any) -> int | None:
    """A step; None where it is no whole number of 64 bits."""
    try:
        whole = int(step)
        usable = bool(whole == step and -_INT64 <= whole < _INT64)
    except Exception:  # noqa: BLE001 -- as in `sort_values`
        return None
    return whole if usable else None


def start_of(prefix: Any) -> str:
    """What comes before each key: the prefix and one ``/``, or nothing."""
    text = text_of(prefix).rstrip("/") if prefix else ""
    return f"{text}/" if text else ""


def lookup(declared: Any, key: str, name: str) -> Any:
    """What `reduce=` or `weight=` says of one key: one value for all, or a mapping by key, name or glob."""
    if declared is None or not isinstance(declared, Mapping):
        return declared
    for candidate in (key, name):
        if candidate in declared:
            return declared[candidate]
    for pattern, value in declared.items():
        if isinstance(pattern, str) and (fnmatchcase(key, pattern) or fnmatchcase(name, pattern)):
            return value
    return None
