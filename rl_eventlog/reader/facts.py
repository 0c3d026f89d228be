"""What the writers of a run say of themselves: `writers/` and `launches/`.

A document that is missing or torn costs what it said, never the run: the segments carry the identity
of their writer too. Single files win over folded ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from rl_eventlog.documents import decode_beat, parse_time, read_document
from rl_eventlog.ids import ULID, ulid_milliseconds
from rl_eventlog.layout import RunLayout
from rl_eventlog.schema import check_version
from rl_eventlog.types import Identity


class Problem(NamedTuple):
    """A file that could not be used, or not wholly, or says something odd."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Beat:
    """The last heartbeat of a writer."""

    time: datetime
    step: int | None
    idle_seconds: float | None
    open_timers: tuple[str, ...]
    rows_at_risk: int
    rows_lost: int


@dataclass(frozen=True, slots=True)
class End:
    """The end record of a writer."""

    ended: datetime
    reason: str
    last_seq: Mapping[str, int]
    rows_lost: Mapping[str, int]
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """One writer, from its documents or, where they are gone, from its segments."""

    identity: Identity
    name: str | None
    """Display name of the run."""
    opened: datetime
    world_size: int | None = None
    project: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    host: str | None = None
    boot_id: str | None = None
    pid: int | None = None
    process_start: int | None = None
    launches_seen: tuple[str, ...] = ()
    restart_count: int | None = None
    resume_step: int | None = None
    forked_from: str | None = None
    parent_run: str | None = None
    actor: str | None = None
    beat_seconds: float = 30.0
    provenance: Mapping[str, Any] | None = None
    beat: Beat | None = None
    end: End | None = None

    @property
    def writer(self) -> str:
        """Id of the writer."""
        return self.identity.writer

    @property
    def role(self) -> str:
        """What the process does."""
        return self.identity.role

    @property
    def rank(self) -> int | None:
        """Number within the role."""
        return self.identity.rank

    @property
    def data_rank(self) -> int | None:
        """Data-parallel rank."""
        return self.identity.data_rank

    @property
    def node(self) -> str:
        """Name of the machine."""
        return self.identity.node

    @property
    def launch(self) -> str:
        """Launch id."""
        return self.identity.launch


@dataclass(slots=True)
class _Documents:
    """Raw documents of one writer."""

    open: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    beat: dict[str, Any] | None = None
    paths: list[Path] = field(default_factory=list)


def read_writers(layout: RunLayout) -> tuple[dict[str, WriterFacts], list[Problem]]:
    """All writers that have a readable document.

    Raises:
        SchemaVersionError: a writer wrote a newer major version.
    """
    problems: list[Problem] = []
    documents: dict[str, _Documents] = {}
    for path in sorted((layout.writers / "compacted").glob("*.jsonl.zst")):
        _read_folded(path, documents, problems)
    for path in sorted(layout.writers.glob("*")):
        _read_single(path, documents, problems)
    writers: dict[str, WriterFacts] = {}
    for writer, found in documents.items():
        if found.open is None:
            continue  # its segments say who it was
        try:
            check_version(str(found.open["format_version"]), found.paths[0])
            writers[writer] = _facts(found)
        except (KeyError, TypeError, AttributeError) as error:
            problems.append(Problem(found.paths[0], f"the writer's document is not as specified: {error!r}"))
    return writers, problems


def facts_of_segment(identity: Identity, end: End | None = None) -> WriterFacts:
    """What is known of a writer whose documents are gone."""
    opened = datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=ulid_milliseconds(identity.writer))
    return WriterFacts(identity=identity, name=None, opened=opened, end=end)


def _read_single(path: Path, documents: dict[str, _Documents], problems: list[Problem]) -> None:
    writer, dot, kind = path.name.partition(".")
    readers: dict[str, Callable[[Path], dict[str, Any] | None]] = {
        "json": read_document,
        "end.json": read_document,
        "beat": _read_beat,
    }
    if not dot or kind not in readers or not ULID.fullmatch(writer):
        return
    try:
        document = readers[kind](path)
    except (OSError, ValueError) as error:
        problems.append(Problem(path, f"unreadable, left out: {error}"))
        return
    found = documents.setdefault(writer, _Documents())
    setattr(found, {"json": "open", "end.json": "end", "beat": "beat"}[kind], document)
    found.paths.insert(0 if kind == "json" else len(found.paths), path)


def _read_beat(path: Path) -> dict[str, Any] | None:
    """Read twice where the CRC does not hold: the writer may be at it."""
    return decode_beat(path.read_bytes()) or decode_beat(path.read_bytes())


def _read_folded(path: Path, documents: dict[str, _Documents], problems: list[Problem]) -> None:
    try:
        with pa.CompressedInputStream(pa.PythonFile(path.open("rb")), "zstd") as stream:
            lines = stream.read().splitlines()
        for line in lines:
            entry = json.loads(line)
            documents[str(entry["writer"])] = _Documents(entry["open"], entry["end"], entry["beat"], [path])
    except (OSError, ValueError, KeyError, TypeError) as error:
        problems.append(Problem(path, f"unreadable, left out: {error}"))


def _facts(found: _Documents) -> WriterFacts:
    document = found.open or {}
    identity = Identity(
        run_uid=document["run_uid"],
        writer=document["writer"],
        launch=document["launch"],
        role=document["role"],
        rank=document["rank"],
        data_rank=document["data_rank"],
        node=document["node"],
    )
    optional = {
        key: document.get(key)
        for key in (
            "world_size",
            "project",
            "group",
            "notes",
            "host",
            "boot_id",
            "pid",
            "process_start",
            "restart_count",
            "resume_step",
            "forked_from",
            "parent_run",
            "actor",
            "provenance",
        )
    }
    return WriterFacts(
        identity=identity,
        name=document["name"],
        opened=parse_time(document["opened"]),
        tags=tuple(document.get("tags") or ()),
        launches_seen=tuple(document.get("launches_seen") or ()),
        beat_seconds=float(document.get("beat_seconds") or 30.0),
        beat=_beat(found.beat),
        end=_end(found.end),
        **optional,
    )


def _beat(document: dict[str, Any] | None) -> Beat | None:
    if document is None:
        return None
    return Beat(
        time=parse_time(document["time"]),
        step=document.get("step"),
        idle_seconds=document.get("idle_seconds"),
        open_timers=tuple(document.get("open_timers") or ()),
        rows_at_risk=document.get("rows_at_risk") or 0,
        rows_lost=document.get("rows_lost") or 0,
    )


def _end(document: dict[str, Any] | None) -> End | None:
    if document is None:
        return None
    return End(
        ended=parse_time(document["ended"]),
        reason=str(document["reason"]),
        last_seq={str(table): int(last) for table, last in document["last_seq"].items()},
        rows_lost=document.get("rows_lost") or {},
        counters=document.get("counters") or {},
    )


def latest(writers: Iterable[WriterFacts]) -> Iterator[WriterFacts]:
    """Writers, the last opened first."""
    yield from sorted(writers, key=lambda facts: (facts.opened, facts.writer), reverse=True)
