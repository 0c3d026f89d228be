"""What the writers of a run say of themselves: `writers/` and `launches/`.

A document that is missing or torn costs what it said, never the run: the segments carry the identity
of their writer too. Single files win over folded ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from rl_eventlog.documents import decode_beat, parse_time, read_document
from rl_eventlog.errors import SchemaVersionError
from rl_eventlog.ids import ULID, ulid_milliseconds
from rl_eventlog.layout import RunLayout
from rl_eventlog.schema import check_version
from rl_eventlog.types import MAX_SEQ, Identity

_T = TypeVar("_T")
_MALFORMED = (KeyError, TypeError, AttributeError, ValueError, OverflowError)


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
    pid_namespace: str | None = None
    pid: int | None = None
    process_start: int | None = None
    launches_seen: tuple[str, ...] | None = None
    """Launches found on the disk at open; None where its document is gone: then nobody knows."""
    opened_on_disk: datetime | None = None
    """When it was opened by the clock of the file system."""
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
    def moment(self) -> tuple[datetime, datetime]:
        """What orders writers that nothing else does: the file system's clock, then the finer one of the machine."""
        return self.opened_on_disk or self.opened, self.opened

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
class Documents:
    """Raw documents of one writer."""

    open: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    beat: dict[str, Any] | None = None
    paths: dict[str, Path] = field(default_factory=dict)
    """Where each of them lies."""


def read_documents(layout: RunLayout) -> tuple[dict[str, Documents], list[Problem]]:
    """The documents of all writers, by writer id."""
    problems: list[Problem] = []
    documents: dict[str, Documents] = {}
    for path in sorted((layout.writers / "compacted").glob("*.jsonl.zst")):
        _read_folded(path, documents, problems)
    for path in sorted(layout.writers.glob("*")):
        _read_single(path, documents, problems)
    return dict(sorted(documents.items())), problems


def facts_of_documents(writer: str, documents: Documents, problems: list[Problem]) -> WriterFacts | None:
    """What a writer says of itself; None where it said nothing that can be used.

    Raises:
        SchemaVersionError: it wrote a newer major version.
    """
    if documents.open is None:
        return None
    try:
        check_version(_need(documents.open, "format_version", str), documents.paths["open"])
        facts = _facts(writer, documents.open)
    except SchemaVersionError:
        raise
    except _MALFORMED as error:
        problems.append(_not_as_specified(documents.paths["open"], error))
        return None
    return _with_life(facts, documents, problems)


def facts_of_segment(identity: Identity, documents: Documents | None, problems: list[Problem]) -> WriterFacts:
    """What is known of a writer whose own document is gone or cannot be used."""
    opened = datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=ulid_milliseconds(identity.writer))
    facts = WriterFacts(identity=identity, name=None, opened=opened)
    return facts if documents is None else _with_life(facts, documents, problems)


def _with_life(facts: WriterFacts, documents: Documents, problems: list[Problem]) -> WriterFacts:
    """Add heartbeat and end, each where it can be used."""

    def usable(kind: str, read: Callable[[Mapping[str, Any] | None], _T | None]) -> _T | None:
        try:
            return read(getattr(documents, kind))
        except _MALFORMED as error:
            problems.append(_not_as_specified(documents.paths[kind], error))
            return None

    return replace(facts, beat=usable("beat", _beat), end=usable("end", _end))


def _not_as_specified(path: Path, error: Exception) -> Problem:
    return Problem(path, f"not as specified, left out: {error!r}")


def _read_single(path: Path, documents: dict[str, Documents], problems: list[Problem]) -> None:
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
    except FileNotFoundError:  # removed since the listing: a folded file that was listed before says the same
        return
    except (OSError, ValueError) as error:
        problems.append(Problem(path, f"unreadable, left out: {error}"))
        return
    if document is None:  # a torn heartbeat counts as absent
        return
    found = documents.setdefault(writer, Documents())
    name = {"json": "open", "end.json": "end", "beat": "beat"}[kind]
    setattr(found, name, document)
    found.paths[name] = path


def _read_beat(path: Path) -> dict[str, Any] | None:
    """Read twice where the CRC does not hold: the writer may be at it."""
    return decode_beat(path.read_bytes()) or decode_beat(path.read_bytes())


def read_folded(path: Path) -> list[dict[str, Any]]:
    """The entries of a folded file: `writer`, and its documents `open`, `end`, `beat`, each null where it was missing.

    Raises:
        OSError, ValueError: it cannot be read, or is not as specified.
    """
    with path.open("rb") as file, pa.CompressedInputStream(pa.PythonFile(file), "zstd") as stream:
        lines = stream.read().splitlines()
    entries = []
    for line in lines:
        entry = json.loads(line)
        if not isinstance(entry, dict) or not isinstance(entry.get("writer"), str):
            raise ValueError(f"{path}: an entry names no writer")  # noqa: TRY004 -- one error for all that is torn
        found = {kind: entry.get(kind) for kind in ("open", "end", "beat")}
        if not all(document is None or isinstance(document, dict) for document in found.values()):
            raise ValueError(f"{path}: a document of writer {entry['writer']} is no JSON object")
        entries.append({"writer": entry["writer"], **found})
    return entries


def combine_entries(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two entries of one writer as one: the end record that either has, and the later heartbeat."""
    beats = [entry["beat"] for entry in (one, other) if entry["beat"]]
    return {
        "writer": one["writer"],
        "open": one["open"] or other["open"],
        "end": one["end"] or other["end"],
        "beat": max(beats, key=lambda beat: str(beat.get("time")), default=None),
    }


def _read_folded(path: Path, documents: dict[str, Documents], problems: list[Problem]) -> None:
    try:
        entries = read_folded(path)
    except FileNotFoundError:  # removed since the listing: another that was listed with it says the same
        return
    except (OSError, RecursionError, *_MALFORMED) as error:
        problems.append(Problem(path, f"unreadable, left out: {error}"))
        return
    for entry in entries:
        found = documents.setdefault(entry["writer"], Documents())
        known = {"writer": entry["writer"], "open": found.open, "end": found.end, "beat": found.beat}
        both = combine_entries(known, entry)
        found.open, found.end, found.beat = both["open"], both["end"], both["beat"]
        found.paths |= dict.fromkeys(("open", "end", "beat"), path)


def _facts(writer: str, document: Mapping[str, Any]) -> WriterFacts:
    identity = Identity(
        run_uid=_need(document, "run_uid", str),
        writer=_need(document, "writer", str),
        launch=_need(document, "launch", str),
        role=_need(document, "role", str),
        rank=_number(document, "rank", 32),
        data_rank=_number(document, "data_rank", 32),
        node=_need(document, "node", str),
    )
    if identity.writer != writer:
        raise ValueError(f"it is of writer {identity.writer}")
    provenance = document.get("provenance")
    return WriterFacts(
        identity=identity,
        name=_need(document, "name", str),
        opened=parse_time(_need(document, "opened", str)),
        world_size=_number(document, "world_size", 64),
        project=_text(document, "project"),
        group=_text(document, "group"),
        tags=tuple(map(str, document.get("tags") or ())),
        notes=_text(document, "notes"),
        host=_text(document, "host"),
        boot_id=_text(document, "boot_id"),
        pid_namespace=_text(document, "pid_namespace"),
        pid=_number(document, "pid", 64),
        process_start=_number(document, "process_start", 64),
        launches_seen=tuple(map(str, document.get("launches_seen") or ())),
        opened_on_disk=parse_time(on_disk) if (on_disk := _text(document, "opened_on_disk")) else None,
        restart_count=_number(document, "restart_count", 64),
        resume_step=_number(document, "resume_step", 64),
        forked_from=_text(document, "forked_from"),
        parent_run=_text(document, "parent_run"),
        actor=_text(document, "actor"),
        beat_seconds=float(document.get("beat_seconds") or 30.0),
        provenance=provenance if isinstance(provenance, Mapping) else None,
    )


def _beat(document: Mapping[str, Any] | None) -> Beat | None:
    if document is None:
        return None
    idle = document.get("idle_seconds")
    return Beat(
        time=parse_time(_need(document, "time", str)),
        step=_number(document, "step", 64),
        idle_seconds=None if idle is None else float(idle),
        open_timers=tuple(map(str, document.get("open_timers") or ())),
        rows_at_risk=_number(document, "rows_at_risk", 64) or 0,
        rows_lost=_number(document, "rows_lost", 64) or 0,
    )


def _end(document: Mapping[str, Any] | None) -> End | None:
    if document is None:
        return None
    return End(
        ended=parse_time(_need(document, "ended", str)),
        reason=str(document["reason"]),
        last_seq=_counts(document["last_seq"]),
        rows_lost=_counts(document.get("rows_lost") or {}),
        counters=_counts(document.get("counters") or {}),
    )


def _counts(document: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(count) for name, count in document.items() if -1 <= int(count) <= MAX_SEQ}


def _need(document: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    value = document[key]
    if not isinstance(value, kind):
        raise TypeError(f"{key} is {value!r}")
    return value


def _text(document: Mapping[str, Any], key: str) -> str | None:
    return None if document.get(key) is None else _need(document, key, str)


def _number(document: Mapping[str, Any], key: str, bits: int) -> int | None:
    if document.get(key) is None:
        return None
    number = _need(document, key, int)
    if number.bit_length() >= bits:
        raise ValueError(f"{key} is {number}")
    return number


def latest(writers: Iterable[WriterFacts]) -> Iterator[WriterFacts]:
    """Writers, the last opened first."""
    yield from sorted(writers, key=lambda facts: (facts.moment, facts.writer), reverse=True)
