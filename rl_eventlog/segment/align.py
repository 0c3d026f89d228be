"""Bring rows of an older or newer minor version to the columns of ours."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa


def align(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns in the order of `schema`: missing ones become null, unknown ones are left out.

    Raises:
        pa.ArrowInvalid: a column cannot be cast to its type.
    """
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def unknown_columns(names: Iterable[str], schema: pa.Schema) -> list[str]:
    """Those of the columns that a newer minor version has and ours has not."""
    return [name for name in names if name not in schema.names]
