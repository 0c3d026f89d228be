"""The compacted form: rows of many sealed segments of one table in one Parquet file.

It is made, named and read back like a sealed segment. What it covers stands in its footer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from rl_eventlog.layout import compacted_name
from rl_eventlog.types import FORMAT_VERSION, Span

from .sealed import contents_metadata, publish


def write_compacted(
    folder: Path, rows: pa.Table, covers: Mapping[str, list[Span]], *, compactions: int, table: str, run_uid: str
) -> Path:
    """Write one compacted file.

    Args:
        folder: the table's folder for compacted files.
        rows: exactly the rows of `covers`, with the columns of the sealed form.
        covers: seqs by writer.
        compactions: how often the rows were compacted, this time included.
        table: name of the table.
        run_uid: id of the run.

    Returns:
        The path of the file, which was read back before it got its name.

    Raises:
        SegmentError: it did not read back as it was written; nothing of it stays.
        OSError: it could not be written; nothing of it stays.
    """
    listed = [[writer, span.first, span.last] for writer, spans in sorted(covers.items()) for span in sorted(spans)]
    metadata = {
        b"rle.version": FORMAT_VERSION.encode(),
        b"rle.table": table.encode(),
        b"rle.run_uid": run_uid.encode(),
        b"rle.covers": json.dumps(listed).encode(),
    }
    return publish(folder, rows, metadata | contents_metadata(rows), lambda digest: compacted_name(digest, compactions))
