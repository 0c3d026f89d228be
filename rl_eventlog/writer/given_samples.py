"""Samples as they are handed over: records, columns, an Arrow table or a Polars frame, read a few at a time.

Taking them costs no more than a look at each column: what is large is not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .text import text_of

COPIED_BYTES = 1 << 20
"""Columns up to this size are copied, so that the caller may go on using them."""
_WEIGHED = 16
_DEPTH = 6
_NUMBER_BYTES = 8


class GivenSamples:
    """What one call handed over.

    Attributes:
        count: of samples.
        size: bytes, roughly.
    """

    def __init__(self, samples: Any) -> None:
        """Look at them.

        Raises:
            ValueError: the columns differ in length, or the object is none of those.
        """
        self.count, self.size, self._read = _look(samples)

    def records(self, start: int, stop: int) -> list[Any]:
        """One object a sample, mappings but for those of a list that is not all of them."""
        return self._read(start, stop)


def plain(value: Any) -> Any:
    """Arrays, tensors and series as lists; anything else as it is."""
    for method in ("tolist", "to_pylist", "to_list"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


_Look = tuple[int, int, Callable[[int, int], list[Any]]]


def _look(samples: Any) -> _Look:
    if hasattr(samples, "to_pylist"):  # Arrow table or batch
        return (
            len(samples),
            samples.get_total_buffer_size(),
            lambda start, stop: list(samples.slice(start, stop - start).to_pylist()),
        )
    if hasattr(samples, "to_dicts"):  # Polars frame
        return (
            samples.height,
            int(samples.estimated_size()),
            lambda start, stop: list(samples.slice(start, stop - start).to_dicts()),
        )
    if isinstance(samples, Mapping):
        return _look_at_columns(samples)
    if isinstance(samples, Sequence) and (not samples or any(isinstance(record, Mapping) for record in samples)):
        records = list(samples)
        return len(records), weigh(records), lambda start, stop: records[start:stop]
    raise ValueError(
        f"samples must be records, columns, an Arrow table or a Polars frame, not {type(samples).__name__}"
    )


def _look_at_columns(samples: Mapping[Any, Any]) -> _Look:
    columns = {key: _hold(column) for key, column in samples.items()}
    lengths = {text_of(key): len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns of samples differ in length: {lengths}")

    def read(start: int, stop: int) -> list[Any]:
        parts = [_rows(column[start:stop]) for column in columns.values()]
        return [dict(zip(columns, values, strict=True)) for values in zip(*parts, strict=True)]

    size = sum(_bytes(column) for column in columns.values())
    return next(iter(lengths.values()), 0), size, read


def _hold(column: Any) -> Any:
    """A column that stays as it is; large arrays are trusted to.

    Raises:
        ValueError: it is no column.
    """
    if isinstance(column, (list, tuple)):
        return list(column)
    if hasattr(column, "detach"):
        column = column.detach().cpu()
        return column.clone() if _is_column(column) and _bytes(column) <= COPIED_BYTES else _checked(column)
    return column.copy() if hasattr(column, "setflags") and _bytes(column) <= COPIED_BYTES else _checked(column)


def _is_column(column: Any) -> bool:
    if not any(hasattr(column, method) for method in ("tolist", "to_pylist", "to_list")):
        return False
    try:
        len(column)
    except TypeError:  # an array without dimensions
        return False
    return True


def _checked(column: Any) -> Any:
    if not _is_column(column):
        raise ValueError("samples given as a mapping must hold columns: lists or arrays of one value a sample")
    return column


def _rows(part: Any) -> Any:
    """One value a sample: what has more dimensions stays as arrays, which are quicker than lists of numbers."""
    return list(part) if getattr(part, "ndim", 1) > 1 else plain(part)


def _bytes(column: Any) -> int:
    size = getattr(column, "nbytes", None)
    return size if isinstance(size, int) else weigh(column)


def weigh(values: Any) -> int:
    """Bytes that nested lists, mappings and texts hold, roughly: long lists are judged by a few of their elements."""
    try:
        return _weigh(values, _DEPTH)
    except Exception:  # noqa: BLE001 -- a value is the user's object: its own code may raise anything
        return _NUMBER_BYTES


def _weigh(values: Any, depth: int) -> int:
    if isinstance(values, str):
        return len(values)
    if depth and isinstance(values, Mapping):
        return sum(_weigh(value, depth - 1) for value in values.values())
    if depth and isinstance(values, (list, tuple)):
        chosen = values[:: max(1, len(values) // _WEIGHED)][:_WEIGHED]
        return sum(_weigh(value, depth - 1) for value in chosen) * len(values) // max(1, len(chosen))
    size = getattr(values, "nbytes", None)
    return size if isinstance(size, int) else _NUMBER_BYTES
