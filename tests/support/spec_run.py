"""A second reader of whole runs, from the text of ``schemas/README.md`` alone: which files count, and their rows.

It knows pyarrow and the standard library, and nothing of rl_eventlog. Files that lie about themselves are
looked for everywhere: rows of one seq that differ between files are reported, whichever of them counts.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.spec_reader import read_segment

_N = r"(0|[1-9][0-9]*)"
_WRITER = r"(?P<writer>[0-7][0-9a-hjkmnp-tv-z]{25})"
_OPEN = re.compile(rf"{_WRITER}-{_N}\.arrows")
_SEALED = re.compile(rf"{_WRITER}-{_N}\.(?P<first>{_N})-(?P<last>{_N})\.(?P<sha16>[0-9a-f]{{16}})\.parquet")
_COMPACTED = re.compile(rf"(?P<sha16>[0-9a-f]{{16}})\.c{_N}\.parquet")
_LEVELS = ("compacted", "sealed", "open")

Key = tuple[str, int]
"""Writer and seq."""


@dataclass(slots=True)
class Candidate:
    """A usable event file."""

    path: Path
    level: str
    rows: dict[Key, dict[str, Any]]


@dataclass(slots=True)
class TableRows:
    """What a run has of one table."""

    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    """Each once, by the coverage rule."""
    usable: Counter[str] = field(default_factory=Counter)
    """Usable files by level."""
    unusable: list[str] = field(default_factory=list)
    """Files that cover nothing, and why."""
    damage: list[str] = field(default_factory=list)
    """Bytes of open segments between valid batches."""
    torn: list[str] = field(default_factory=list)
    """Open segments with a torn tail."""
    differing: list[str] = field(default_factory=list)
    """Rows that two files give differently."""
    temporary: int = 0
    """Files in the making."""


def read_table(run: Path, table: str) -> TableRows:
    """Section 10: the rows of a table."""
    found = TableRows()
    candidates = []
    for path in sorted((run / "events" / table).glob("*/*")):
        if path.name.startswith(".tmp-"):
            found.temporary += 1
        try:
            candidate = _candidate(path, table, found)
        except (pa.ArrowException, OSError, ValueError, KeyError, struct.error) as error:
            found.unusable.append(f"{path.name}: {error!r}")
            continue
        if candidate and candidate.rows:
            found.usable[candidate.level] += 1
            candidates.append(candidate)
    candidates.sort(key=lambda one: (_LEVELS.index(one.level), -len(one.rows), one.path.name.encode()))
    for candidate in candidates:
        for key, row in candidate.rows.items():
            known = found.rows.setdefault(key, row)
            if known is not row and not _same(known, row):
                found.differing.append(f"{candidate.path.name}: {key}")
    return found


def _candidate(path: Path, table: str, found: TableRows) -> Candidate | None:
    """A usable file; None where the name is not of the format."""
    if _OPEN.fullmatch(path.name):
        return Candidate(path, "open", dict(_open_rows(path, found)))
    if match := _SEALED.fullmatch(path.name):
        rows, footer = _parquet(path, match["sha16"])
        span = [(match["writer"], int(match["first"]), int(match["last"]))]
        stated = [(footer["rle.writer"], int(footer["rle.first_seq"]), int(footer["rle.last_seq"]))]
        return Candidate(path, "sealed", _covering(rows, footer, span, stated, table))
    if match := _COMPACTED.fullmatch(path.name):
        rows, footer = _parquet(path, match["sha16"])
        spans = [(writer, first, last) for writer, first, last in json.loads(footer["rle.covers"])]
        return Candidate(path, "compacted", _covering(rows, footer, spans, spans, table))
    return None


def _open_rows(path: Path, found: TableRows) -> Iterator[tuple[Key, dict[str, Any]]]:
    segment = read_segment(path.read_bytes())
    found.damage.extend(f"{path.name}: {size} bytes at {offset}" for offset, size in segment.damage)
    if segment.torn_tail:
        found.torn.append(path.name)
    writer = segment.metadata["rle.writer"]
    if segment.batches and not path.name.startswith(writer):
        raise ValueError(f"writer {writer} wrote it")
    for first, batch in segment.batches:
        for index, row in enumerate(batch.to_pylist()):
            yield (writer, first + index), row


def _parquet(path: Path, sha16: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest()[:16] != sha16:
        raise ValueError("the digest does not agree")
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        footer = {key.decode(): value.decode() for key, value in file.metadata.metadata.items()}
        return file.read().to_pylist(), footer


def _covering(
    rows: list[dict[str, Any]], footer: dict[str, str], named: list[Any], stated: list[Any], table: str
) -> dict[Key, dict[str, Any]]:
    """The rows by key, if they are just those that name and footer promise."""
    keyed = {(row["writer"], row["seq"]): row for row in rows}
    promised = {(writer, seq) for writer, first, last in stated for seq in range(first, last + 1)}
    if named != stated or footer["rle.table"] != table or keyed.keys() != promised:
        raise ValueError("name, footer and rows do not agree")
    if not int(footer["rle.rows"]) == len(rows) == len(promised):
        raise ValueError("a row comes twice")
    return keyed


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows agree in the columns that both have; NaN is NaN."""
    return all(repr(one[name]) == repr(other[name]) for name in one.keys() & other.keys())
