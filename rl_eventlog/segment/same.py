"""Equality to the bit: pyarrow's own `equals` holds no NaN equal to itself, and -0.0 equal to 0.0."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    """Whether two tables have the same columns, types and values, nulls and NaN among them."""
    return (
        left.schema.equals(right.schema)
        and left.num_rows == right.num_rows
        and all(_same(a.combine_chunks(), b.combine_chunks()) for a, b in zip(left.columns, right.columns, strict=True))
    )


def _same(left: pa.Array, right: pa.Array) -> bool:
    if not left.is_valid().equals(right.is_valid()):
        return False
    kind = left.type
    if pa.types.is_list(kind):
        lengths: bool = pc.list_value_length(left).equals(pc.list_value_length(right))
        return lengths and _same(left.flatten(), right.flatten())
    if pa.types.is_struct(kind):
        return all(_same(a, b) for a, b in zip(left.flatten(), right.flatten(), strict=True))
    if pa.types.is_floating(kind):
        bits = pa.int64() if kind.bit_width == 64 else pa.int32()
        left, right = left.view(bits), right.view(bits)
    return bool(left.equals(right))
