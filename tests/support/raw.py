"""The rows of a run read with pyarrow alone, without a line of rl_eventlog: the judge of what a writer left."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def raw_rows(run: Path, table: str) -> list[dict[str, Any]]:
    """Every row once, by writer and seq.

    A row may be in a sealed file and in the open one it was sealed from, and then must be the same; in
    two files of one kind it must not be.
    """
    folder = run / "events" / table
    sealed = _once(row for path in sorted(folder.glob("*/*.parquet")) for row in pq.read_table(path).to_pylist())
    opened = _once(row for path in sorted(folder.glob("*/*.arrows")) for row in open_rows(path))
    for key in sealed.keys() & opened.keys():
        assert repr(sealed[key]) == repr(sealed[key] | opened[key]), f"{key} differs between its two files"
    merged = opened | sealed
    return [merged[key] for key in sorted(merged)]


def open_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of an open segment up to its torn tail, if any."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # one without rows, which its writer took back: the disk is full
        return
    try:
        stream = pa.ipc.open_stream(io.BytesIO(data))
    except (pa.ArrowInvalid, OSError):  # torn within its schema message
        return
    metadata = {key.decode(): value.decode() for key, value in stream.schema.metadata.items()}
    while True:
        try:
            batch, custom = stream.read_next_batch_with_custom_metadata()
        except (StopIteration, pa.ArrowInvalid, OSError):
            return
        first = int(custom[b"seq"])
        for index, row in enumerate(batch.to_pylist()):
            yield row | {"writer": metadata["rle.writer"], "seq": first + index, "role": metadata["rle.role"]}


def _once(rows: Iterator[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        key = (row["writer"], row["seq"])
        assert key not in found, f"{key} is in two files of one kind"
        found[key] = row
    return found


def assert_dense(rows: list[dict[str, Any]]) -> None:
    """Seqs of each writer count up from 0 without a gap."""
    by_writer: dict[str, list[int]] = {}
    for row in rows:
        by_writer.setdefault(row["writer"], []).append(row["seq"])
    for writer, seqs in by_writer.items():
        assert sorted(seqs) == list(range(len(seqs))), f"{writer} has gaps"


def every_row(run: Path, table: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Every row of any file, by writer and seq: in however many files it is, it is the same row."""
    folder = run / "events" / table
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(folder.glob("*/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            known = found.setdefault((row["writer"], row["seq"]), row)
            assert repr(known) == repr(row), f"{path} holds another row"
    for path in sorted(folder.glob("*/*.arrows")):
        for row in open_rows(path):
            key = (row["writer"], row["seq"])
            known = found.setdefault(key, row)
            assert repr(known) == repr(known | row), f"{path} holds another row"
    return found
