"""A run read from its files by the text of ``schemas/README.md``: pyarrow, loops, and nothing of rl_eventlog."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.spec_reader import SCHEMAS, columns, read_segment

FOLDER = Path(__file__).parents[2] / "sample_runs"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
"""By run, what was written down when it was made."""
NAMES = sorted(EXPECTED)

Row = dict[str, Any]
Key = tuple[str, int]
"""Writer, seq."""

TABLES = ("metrics", "timings", "hparams", "gpu_samples", "samples", "distributions", "artifacts", "markers")
_WRITER = r"[0-7][0-9a-hjkmnp-tv-z]{25}"
_OPEN = re.compile(rf"(?P<writer>{_WRITER})-(?P<n>\d+)\.arrows")
_SEALED = re.compile(
    rf"(?P<writer>{_WRITER})-(?P<n>\d+)\.(?P<first>\d+)-(?P<last>\d+)\.(?P<sha16>[0-9a-f]{{16}})\.parquet"
)


def fields(name: str) -> dict[str, Row]:
    """Sections 5 and 6: the fields of a document, or the columns of a table, that version 1.0 has."""
    document = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    listed = document["fields"] if "fields" in document else document["columns"]
    return {field["name"]: field for field in listed if field["since"] == "1.0"}


def _schema(table: str, form: str) -> pa.Schema:
    return pa.schema([field for field in columns(table, form) if field.name in fields(table)])


@dataclass(slots=True)
class TableRows:
    """Section 10: the rows of a table, each once, and what is missing."""

    rows: dict[Key, Row] = field(default_factory=dict)
    sealed: set[Key] = field(default_factory=set)
    """Those that are in a sealed segment."""
    gaps: set[Key] = field(default_factory=set)
    torn: int = 0
    """Bytes in torn tails."""
    damaged: int = 0
    """Bytes of damage."""


def read_table(run: Path, table: str, ends: dict[str, Row]) -> TableRows:
    """Apply the coverage rule to the files of one table."""
    found = TableRows()
    candidates: list[tuple[int, int, str, dict[Key, Row]]] = []
    for path in (run / "events" / table).glob("*/*"):
        if _OPEN.fullmatch(path.name):
            held = _open_rows(path, table, found)
            candidates.append((2, -len(held), path.name, held))
        else:
            held = _sealed_rows(path, table)
            found.sealed |= held.keys()
            candidates.append((1, -len(held), path.name, held))
    for _, _, _, held in sorted(candidates, key=lambda candidate: candidate[:3]):
        for key, row in held.items():
            found.rows.setdefault(key, row)
    last: dict[str, int] = {writer: end["last_seq"].get(table, -1) for writer, end in ends.items()}
    for writer, seq in found.rows:
        last[writer] = max(last.get(writer, -1), seq)
    found.gaps = {(writer, seq) for writer, end in last.items() for seq in range(end + 1)} - found.rows.keys()
    return found


def _sealed_rows(path: Path, table: str) -> dict[Key, Row]:
    """Section 8: a sealed segment must be all that its name and footer say."""
    name = _SEALED.fullmatch(path.name)
    assert name, f"{path.name} matches no grammar"
    assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(name["sha16"])
    file = pq.ParquetFile(path)
    footer = {key.decode(): value.decode() for key, value in file.metadata.metadata.items()}
    content = file.read()
    assert content.schema.equals(_schema(table, "sealed"))
    seqs = content["seq"].to_pylist()
    assert sorted(seqs) == list(range(int(name["first"]), int(name["last"]) + 1))
    assert (footer["rle.version"], footer["rle.table"], footer["rle.writer"]) == ("1.0", table, name["writer"])
    assert [footer[f"rle.{key}"] for key in ("first_seq", "last_seq", "rows")] == [
        name["first"],
        name["last"],
        str(len(seqs)),
    ]
    return {(row["writer"], row["seq"]): row for row in content.to_pylist()}


def _open_rows(path: Path, table: str, found: TableRows) -> dict[Key, Row]:
    """Section 7: the valid batches of an open segment, its identity put into each row."""
    segment = read_segment(path.read_bytes())
    found.torn += segment.torn_tail
    found.damaged += sum(size for _, size in segment.damage)
    told = {key.removeprefix("rle."): value for key, value in segment.metadata.items()}
    assert (told["version"], told["table"]) == ("1.0", table)
    identity: Row = {name: told[name] for name in ("writer", "launch", "role", "node")}
    identity |= {name: int(told[name]) if name in told else None for name in ("rank", "data_rank")}
    held: dict[Key, Row] = {}
    for first, batch in segment.batches:
        assert batch.schema.equals(_schema(table, "open"))
        for seq, row in enumerate(batch.to_pylist(), first):
            held[identity["writer"], seq] = {**identity, "seq": seq, **row}
    return held


@dataclass(slots=True)
class GoldenRun:
    """Everything that a run's files say."""

    path: Path
    writers: dict[str, Row]
    """Documents by writer."""
    ends: dict[str, Row]
    beats: dict[str, Row]
    attempts: dict[str, int]
    """Number by launch."""
    incarnations: dict[str, int]
    """Number by writer, from 0."""
    tables: dict[str, TableRows]


def read_golden(path: Path) -> GoldenRun:
    """Read a run."""
    writers: dict[str, Row] = {}
    ends: dict[str, Row] = {}
    beats: dict[str, Row] = {}
    for file in (path / "writers").iterdir():
        writer, _, kind = file.name.partition(".")
        content = file.read_bytes()
        into = {"json": writers, "end.json": ends, "beat": beats}[kind]
        into[writer] = json.loads(content[:1015] if kind == "beat" else content)
    return GoldenRun(
        path=path,
        writers=writers,
        ends=ends,
        beats=beats,
        attempts=_attempts(writers),
        incarnations=_incarnations(writers),
        tables={table: read_table(path, table, ends) for table in TABLES},
    )


def _attempts(writers: dict[str, Row]) -> dict[str, int]:
    """A launch comes after those that all of its writers found on the disk, then by its first writer's time."""
    members: dict[str, list[Row]] = defaultdict(list)
    for document in writers.values():
        members[document["launch"]].append(document)
    names = {hashlib.sha256(launch.encode()).hexdigest()[:16] for launch in members}

    def place(launch: str) -> tuple[int, str]:
        seen = [len(names & set(document["launches_seen"])) for document in members[launch]]
        return min(seen), min(document["opened"] for document in members[launch])

    return {launch: number for number, launch in enumerate(sorted(members, key=place), 1)}


def _incarnations(writers: dict[str, Row]) -> dict[str, int]:
    """Writers of one launch, role and rank, by the time they were opened."""
    counts: dict[tuple[Any, ...], int] = defaultdict(int)
    numbers = {}
    for writer, document in sorted(writers.items(), key=lambda item: (item[1]["opened"], item[0])):
        rank = (document["launch"], document["role"], document["rank"])
        numbers[writer] = counts[rank]
        counts[rank] += 1
    return numbers
