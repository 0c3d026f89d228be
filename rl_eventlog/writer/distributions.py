"""Many values as one mergeable row: moments and DDSketch bins.

Bin i holds gamma^(i-1) < x <= gamma^i, so a quantile read from the bins is within 1% of the value
(Masson, Rim, Lee: DDSketch, VLDB 2019). At most 2,048 bins a sign are kept; beyond that the lowest
ones collapse. Values that are not finite count in `count` and the moments, and in no bin.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pyarrow as pa

from rl_eventlog.segment.arrays import build_array, build_scalar
from rl_eventlog.types import MAX_BINS

from .batches import Position, row_batch
from .scalars import EXACT_INTEGERS
from .values import numbers

RELATIVE_ERROR = 0.01
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PLAIN = frozenset({float, int, bool})
_ZERO = build_scalar(0.0, pa.float64())
_LOG_GAMMA = build_scalar(math.log(GAMMA), pa.float64())


def sketch(values: Any) -> dict[str, Any]:
    """The columns of a distributions row for `values`: numbers in nested lists, arrays and tensors.

    Raises:
        TypeError: something in there is no number.
    """
    import pyarrow.compute as pc  # here, as below: loaded at open, not paid for by every import

    found = floats(values)
    finite = found.filter(pc.is_finite(found))
    positive = finite.filter(pc.greater(finite, _ZERO))
    negative = finite.filter(pc.less(finite, _ZERO))
    index, count = _bins(positive)
    negative_index, negative_count = _bins(pc.negate(negative))
    return {
        **_moments(found),
        "bin_index": index,
        "bin_count": count,
        "negative_bin_index": negative_index,
        "negative_bin_count": negative_count,
        "zero_count": len(finite) - len(positive) - len(negative),
        "gamma": GAMMA,
    }


def given_histogram(counts: Any, edges: Any) -> dict[str, Any]:
    """The columns of a distributions row for K counts between K+1 edges, which must rise.

    Raises:
        ValueError: the lengths do not fit, the edges do not rise, or the counts are no whole numbers.
        TypeError: they are no numbers at all.
    """
    heights, borders = numbers(counts), numbers(edges)
    if len(borders) != len(heights) + 1 or any(not low < high for low, high in pairwise(borders)):
        raise ValueError(f"{len(heights)} counts need {len(heights) + 1} rising edges, got {len(borders)}")
    if any(not (0 <= height <= EXACT_INTEGERS and height.is_integer()) for height in heights):
        raise ValueError("counts must be whole numbers, not densities")
    whole = [int(height) for height in heights]
    return {"count": sum(whole), "edges": borders, "edge_counts": whole}


def distribution_batch(name: str, columns: Mapping[str, Any], position: Position) -> pa.RecordBatch:
    """The row of one distribution, with the columns of `sketch` or `given_histogram`."""
    row = {
        "step": position.step,
        "time": position.time_us,
        "name": name,
        "axis": position.axis,
        "axis_value": position.axis_value,
        **columns,
    }
    return row_batch("distributions", row)


def floats(values: Any) -> pa.Array:
    """All numbers as float64, a copy; those of arrays, tensors and plain lists without a look at each.

    Raises:
        TypeError: something in there is no number.
    """
    if hasattr(values, "detach") and str(values.layout) == "torch.strided":
        values = values.detach().double().cpu().numpy()
    if isinstance(values, pa.DoubleArray):
        return values.drop_null() if values.null_count else values
    if hasattr(values, "dtype") and getattr(values.dtype, "kind", "") in "fiu":
        data = values.astype("float64").ravel()
        return pa.Array.from_buffers(pa.float64(), len(data), [None, pa.py_buffer(data)])
    if isinstance(values, list) and _PLAIN.issuperset(map(type, values)):
        with suppress(OverflowError):  # integers too large for a float are infinities
            data = array("d", values)
            return pa.Array.from_buffers(pa.float64(), len(data), [None, pa.py_buffer(data)])
    return build_array(numbers(values), pa.float64())


def _moments(found: pa.Array) -> dict[str, Any]:
    import pyarrow.compute as pc

    if len(found) == 0:
        return {"count": 0}
    total = pc.sum(found).as_py()
    has_nan = math.isnan(total)
    centred = pc.subtract(found, build_scalar(total / len(found), pa.float64()))
    return {
        "count": len(found),
        "sum": total,
        # Arrow's own min and max skip NaN
        "min": math.nan if has_nan and pc.any(pc.is_nan(found)).as_py() else pc.min(found).as_py(),
        "max": math.nan if has_nan and pc.any(pc.is_nan(found)).as_py() else pc.max(found).as_py(),
        "m2": pc.sum(pc.multiply(centred, centred)).as_py(),
    }


def _bins(positive: pa.Array) -> tuple[list[int], list[int]]:
    """Indices, rising, and counts."""
    import pyarrow.compute as pc

    indices = pc.ceil(pc.divide(pc.ln(positive), _LOG_GAMMA)).cast(pa.int32())
    counted = sorted((entry["values"], entry["counts"]) for entry in pc.value_counts(indices).to_pylist())
    if len(counted) > MAX_BINS:
        split = len(counted) - MAX_BINS
        lowest = sum(count for _, count in counted[: split + 1])
        counted = [(counted[split][0], lowest), *counted[split + 1 :]]
    return [index for index, _ in counted], [count for _, count in counted]
