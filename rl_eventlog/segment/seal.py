"""Turn an open segment into sealed ones.

- Every row of a valid batch is in exactly one of the files, under its own seq.
- The open file is left as it is: whether and when it may go is its owner's business.
"""

from __future__ import annotations

from pathlib import Path

from rl_eventlog.errors import SegmentError
from rl_eventlog.schema import table as table_schema

from .align import unknown_columns
from .open_segment import read_open
from .sealed import write_sealed


def seal_open(path: Path, number: int, table: str, folder: Path | None = None) -> list[Path]:
    """Write one sealed segment for each contiguous interval of an open one.

    Sealing the same bytes again gives the same files.

    Args:
        path: the open segment.
        number: its `n`.
        table: its table.
        folder: where they go; beside the open segment where not given.

    Returns:
        The sealed files in seq order; none where no batch is whole. Each was read back.

    Raises:
        SegmentError: the segment cannot be read, is of another table, has columns that this version
            does not know, or a sealed file did not read back as it was written.
        SchemaVersionError: a newer major version wrote it.
        OSError: a file cannot be read or written.
    """
    content = read_open(path, polite=True)
    if content.table != table:
        raise SegmentError(path, f"it holds rows of {content.table!r}, not of {table!r}")
    for _, rows in content.pieces:
        if unknown := unknown_columns(rows.column_names, table_schema(table).open):
            raise SegmentError(path, f"a newer version wrote {', '.join(unknown)}: seal it with that version")
    folder = folder or path.parent
    return [write_sealed(folder, rows, span, number, table, content.identity) for span, rows in content.pieces]
