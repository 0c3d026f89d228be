"""Arrow arrays from Python values, without `pa.array` and `pa.scalar`.

Those import pandas at their first use, where it is installed: 0.3 s and 50 MB in a process that has no
use for it, under a lock that a fork at that moment leaves locked in the child for ever. These are
also stricter: 1.5 is no integer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

_CODES = {pa.float64(): "d", pa.float32(): "f", pa.int64(): "q", pa.int32(): "i"}


def build_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """An array of that type, with None as null.

    Raises:
        TypeError: a value is not of the type.
        OverflowError: a number is too large for it.
        UnicodeEncodeError: a text is no valid UTF-8.
    """
    count = len(values)
    valid = _bits(value is not None for value in values) if None in values else None
    if pa.types.is_timestamp(kind):
        return pa.Array.from_buffers(kind, count, [valid, _fixed(values, "q")])
    if kind in _CODES:
        return pa.Array.from_buffers(kind, count, [valid, _fixed(values, _CODES[kind])])
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, count, [valid, _bits(values)])
    if pa.types.is_string(kind):
        texts = [b"" if value is None else str.encode(value) for value in values]
        return pa.Array.from_buffers(kind, count, [valid, _offsets(texts), pa.py_buffer(b"".join(texts))])
    if pa.types.is_list(kind):
        lists = [() if value is None else value for value in values]
        child = _joined(lists, kind.value_type) or build_array(list(chain.from_iterable(lists)), kind.value_type)
        return pa.Array.from_buffers(kind, count, [valid, _offsets(lists)], children=[child])
    records = [{} if value is None else value for value in values]
    children = [build_array([record.get(field.name) for record in records], field.type) for field in kind]
    return pa.Array.from_buffers(kind, count, [valid], children=children)


def number_array(values: Any, kind: pa.DataType) -> array[Any] | None:
    """The values of one list, or one-dimensional numpy array, as `build_array` takes them fastest.

    Returns:
        None where the type is no number.

    Raises:
        TypeError: a value is not of the type, or None.
        OverflowError: a number is too large for it.
    """
    code = _CODES.get(kind)
    if code is None:
        return None
    found = getattr(getattr(values, "dtype", None), "kind", "")
    if found and found in ("iu" if code in "iq" else "iuf"):
        converted = values.astype(code)
        if code in "iq" and (converted != values).any():
            raise OverflowError("an integer is too large for its column")
        return array(code, converted.tobytes())
    return array(code, values.tolist() if found else values)


def build_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A scalar of that type; raises as `build_array` does."""
    return build_array([value], kind)[0]


def _joined(lists: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Lists that are all arrays of the type's own numbers, without a look at each number."""
    parts = [part for part in lists if len(part)]
    if not parts or not all(isinstance(part, array) and part.typecode == _CODES.get(kind) for part in parts):
        return None
    return pa.Array.from_buffers(kind, sum(map(len, parts)), [None, pa.py_buffer(b"".join(parts))])


def _fixed(values: Sequence[Any], code: str) -> pa.Buffer:
    return pa.py_buffer(array(code, [0 if value is None else value for value in values]))


def _bits(values: Iterable[Any]) -> pa.Buffer:
    """One bit a value, the lowest first."""
    digits = "".join(["1" if value else "0" for value in values])[::-1]
    return pa.py_buffer(int(digits or "0", 2).to_bytes((len(digits) + 7) // 8, "little"))


def _offsets(parts: Sequence[Any]) -> pa.Buffer:
    return pa.py_buffer(array("i", accumulate((len(part) for part in parts), initial=0)))
