"""The compacted form: rows of many sealed segments of one table in one Parquet file.

- It is made, named and read back like a sealed segment. What it covers stands in its footer.
- Memory is that of one block of rows, however many blocks there are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rl_eventlog.errors import SegmentError
from rl_eventlog.layout import compacted_name
from rl_eventlog.schema import table as table_schema
from rl_eventlog.types import FORMAT_VERSION, Span

from .sealed import check_rows, contents_metadata, parquet_writer, publish

GROUP_ROWS = 131_072
"""Rows in a row group: since blocks are sorted by name, a reader of few names skips most of them."""


def write_compacted(
    folder: Path,
    blocks: Callable[[], Iterable[pa.Table]],
    covers: Mapping[str, list[Span]],
    *,
    compactions: int,
    table: str,
    run_uid: str,
) -> Path:
    """Write one compacted file.

    Args:
        folder: the table's folder for compacted files.
        blocks: gives exactly the rows of `covers`, with the columns of the sealed form; called twice,
            to write and to read back, and gives the same both times.
        covers: seqs by writer.
        compactions: how often the rows were compacted, this time included.
        table: name of the table.
        run_uid: id of the run.

    Returns:
        The path of the file, which was read back before it got its name.

    Raises:
        SegmentError: it did not read back as it was written; nothing of it stays.
        OSError: it could not be written, or a source is gone; nothing of it stays.
    """
    listed = [[writer, span.first, span.last] for writer, spans in sorted(covers.items()) for span in sorted(spans)]
    identity = {
        "rle.version": FORMAT_VERSION,
        "rle.table": table,
        "rle.run_uid": run_uid,
        "rle.covers": json.dumps(listed),
    }
    schema = table_schema(table).sealed

    def write(temporary: Path) -> None:
        summary = _Summary()
        with parquet_writer(temporary, schema) as writer:
            for block in blocks():
                summary.add(block)
                writer.write_table(block, row_group_size=GROUP_ROWS)
            writer.add_key_value_metadata(identity | summary.metadata())

    try:
        return publish(
            folder, lambda digest: compacted_name(digest, compactions), write, lambda path: check_rows(path, blocks())
        )
    except pa.ArrowException as error:
        raise SegmentError(folder, f"rows of {table} cannot be compacted: {error}") from error


class _Summary:
    """The footer's words about the rows, block by block."""

    def __init__(self) -> None:
        self._rows = 0
        self._steps: list[int] = []
        self._last: dict[str, tuple[int | None, int]] = {}
        self._unique = True

    def add(self, block: pa.Table) -> None:
        """Count in one block."""
        # Repeats across blocks are not looked for: `true` would have to be sure, `false` costs a reader nothing.
        self._unique = self._rows == 0 and contents_metadata(block)[b"rle.unique_steps"] == b"true"
        self._rows += block.num_rows
        steps = pc.min_max(block["step"]).as_py()
        if steps["min"] is not None:
            self._steps = [min([*self._steps, steps["min"]]), max([*self._steps, steps["max"]])]
        times = pa.table([block["writer"], block["step"], block["time"].cast(pa.int64())], ["writer", "step", "time"])
        found = times.group_by("writer").aggregate([("step", "max"), ("time", "max")])
        for writer, step, time in zip(
            *(found[name].to_pylist() for name in ("writer", "step_max", "time_max")), strict=True
        ):
            before = self._last.get(writer, (None, time))
            known = [one for one in (before[0], step) if one is not None]
            self._last[writer] = max(known, default=None), max(before[1], time)

    def metadata(self) -> dict[str, str]:
        """What the footer says."""
        metadata = {"rle.rows": str(self._rows), "rle.unique_steps": "true" if self._unique else "false"}
        metadata["rle.last_rows"] = json.dumps([[writer, *last] for writer, last in sorted(self._last.items())])
        if self._steps:
            metadata |= {"rle.min_step": str(self._steps[0]), "rle.max_step": str(self._steps[1])}
        return metadata
