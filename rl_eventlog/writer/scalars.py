"""Numbers of a call as floats, quickly, and without asking a device twice.

What is here is a shortcut for calls in which every value is one plain number; `values.sort_values`
is the rule, and takes every other call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

EXACT_INTEGERS = 1 << 53

_FLOATS = frozenset({float})
_MAX_KINDS = 1024


class NotPlainError(Exception):
    """A value is no plain number."""


def plain_floats(values: Collection[Any]) -> Collection[float] | None:
    """The values as floats, in order; None where one is not a single, exactly representable number."""
    if _FLOATS.issuperset(map(type, values)):
        return values
    if "torch" in sys.modules:
        values = fetch_device_scalars(list(values))
    try:
        return [value if type(value) is float else _converter(type(value))(value) for value in values]
    except Exception:  # noqa: BLE001 -- a value's own code may raise anything; the rule takes the call
        return None


def fetch_device_scalars(values: list[Any]) -> list[Any]:
    """Replace the one-element tensors that are not in the CPU's memory by floats, in one transfer a device.

    `float(tensor)` waits for the device each time; a training that logs twenty losses would wait twenty
    times a step.
    """
    torch = sys.modules["torch"]
    places: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.device.type != "cpu" and value.numel() == 1:
            places.setdefault(value.device, []).append(index)
    for device, indices in places.items():
        kind = torch.float32 if device.type == "mps" else torch.float64  # Apple's devices know no float64
        scalars = [values[index].detach().reshape(()).to(kind) for index in indices]
        for index, number in zip(indices, torch.stack(scalars).tolist(), strict=True):
            values[index] = number
    return values


def _refuse(value: Any) -> float:
    raise NotPlainError(type(value).__name__)


def _from_integer(value: Any) -> float:
    if not -EXACT_INTEGERS <= value <= EXACT_INTEGERS:
        raise NotPlainError
    return float(value)


def _from_item(value: Any) -> float:
    """Of numpy scalars, and of arrays and tensors of one element; `item` raises where there are more."""
    number = value.item()
    kind = type(number)
    if kind is float:
        return number  # type: ignore[no-any-return]
    if kind is int or kind is bool:
        return _from_integer(number)
    raise NotPlainError


_CONVERTERS: dict[type, Callable[[Any], float]] = {bool: float, int: _from_integer}


def _converter(kind: type) -> Callable[[Any], float]:
    found = _CONVERTERS.get(kind)
    if found is None:
        found = _from_item if _has_item(kind) else _refuse
        if len(_CONVERTERS) < _MAX_KINDS:
            _CONVERTERS[kind] = found
    return found


def _has_item(kind: type) -> bool:
    """Whether it is numpy's or torch's, whose `item` is known; anything else goes by the rule."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds: Sequence[Any] = (
        *((numpy.generic, numpy.ndarray) if numpy else ()),
        *((torch.Tensor,) if torch else ()),
    )
    return bool(kinds) and issubclass(kind, tuple(kinds))
