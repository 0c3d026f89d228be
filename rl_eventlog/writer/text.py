r"""Texts from whatever a training hands over: always valid UTF-8, never an exception.

Half a surrogate pair, as broken decoding leaves it, is written as its escape ``\udXXX``, which a JSON
text reads back as it was. An object whose own code fails becomes the name of its type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_MAX_INTEGER = 1 << 1024  # Python refuses to write much longer ones as decimals
_MAX_DEPTH = 64


def text_of(value: Any) -> str:
    """The text of anything."""
    try:
        text = value if type(value) is str else str(value)
    except Exception:  # noqa: BLE001 -- the object's own code may raise anything
        return f"<{type(value).__name__}>"
    return text.encode(errors="backslashreplace").decode()


def to_json(value: Any) -> str:
    """JSON of anything; what JSON does not know becomes its text, numbers that are not finite too."""
    try:
        return text_of(json.dumps(value, ensure_ascii=False, allow_nan=False, default=_jsonable))
    except Exception:  # noqa: BLE001 -- NaN, odd keys, circles, and the values' own code
        return text_of(json.dumps(plain_json(value), ensure_ascii=False))


def _jsonable(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else text_of(value)


def plain_json(value: Any, inside: frozenset[int] = frozenset()) -> Any:
    """Anything as mappings, lists, texts and numbers that JSON knows; circles end as the name of their type.

    Args:
        value: anything.
        inside: ids of the containers around it.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if isinstance(value, int) and abs(value) < _MAX_INTEGER:
        return value
    try:
        if id(value) in inside or len(inside) == _MAX_DEPTH:
            return f"<{type(value).__name__}>"
        around = inside | {id(value)}
        if isinstance(value, Mapping):
            return {text_of(key): plain_json(item, around) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain_json(item, around) for item in value]
        if hasattr(value, "tolist"):
            return plain_json(value.tolist(), around)
    except Exception:  # noqa: BLE001 -- the value's own code again: then its text
        return text_of(value)
    return text_of(value)


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
