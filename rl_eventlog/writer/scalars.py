"""Numbers of a call as floats, quickly, and without asking a device twice.

What is here is a shortcut for calls in which every value is one plain number; `values.sort_values`
is the rule, and takes every other call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

EXACT_INTEGERS = 1 << 53

_FLOATS = frozenset({float})
_MAX_KINDS = 1024


class NotPlainError(Exception):
    """A value is no plain number."""


class _OnDeviceError(NotPlainError):
    """A value lies on a device: to ask for it alone would wait for the device."""


def plain_floats(values: Collection[Any]) -> Collection[float] | None:
    """The values as floats, in order; None where one is not a single, exactly representable number."""
    if _FLOATS.issuperset(map(type, values)):
        return values
    try:
        try:
            return [_CONVERTERS[type(value)](value) for value in values]
        except _OnDeviceError:
            return fetch_device_scalars([_unless_on_device(value) for value in values])
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


def _unless_on_device(value: Any) -> Any:
    """The float of a plain value, a scalar of a device as it is: no device is asked for a call that has no plan."""
    try:
        return _CONVERTERS[type(value)](value)
    except _OnDeviceError:
        if value.numel() != 1:
            raise NotPlainError from None
        return value


def _refuse(value: Any) -> float:
    raise NotPlainError(type(value).__name__)


def _from_integer(value: Any) -> float:
    if not -EXACT_INTEGERS <= value <= EXACT_INTEGERS:
        raise NotPlainError
    return float(value)


def _from_item(value: Any) -> float:
    """Of arrays and tensors of one element; `item` raises where there are more."""
    number = value.item()
    kind = type(number)
    if kind is float:
        return number  # type: ignore[no-any-return]
    if kind is int or kind is bool:
        return _from_integer(number)
    raise NotPlainError


def _from_tensor(value: Any) -> float:
    if not value.is_cpu:
        raise _OnDeviceError
    return _from_item(value)


class _Converters(dict[type, Callable[[Any], float]]):
    """From the type of a value to what makes a float of it."""

    def __missing__(self, kind: type) -> Callable[[Any], float]:
        found = _find_converter(kind)
        if len(self) < _MAX_KINDS:
            self[kind] = found
        return found


_CONVERTERS = _Converters({float: float, bool: float, int: _from_integer})


def _find_converter(kind: type) -> Callable[[Any], float]:
    """Of numpy's and torch's types, whose ways are known; anything else goes by the rule."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch and issubclass(kind, torch.Tensor):
        return _from_tensor
    if not numpy:
        return _refuse
    if issubclass(kind, (numpy.floating, numpy.bool_)):
        return float
    if issubclass(kind, numpy.integer):
        return _from_integer
    return _from_item if issubclass(kind, numpy.ndarray) else _refuse
