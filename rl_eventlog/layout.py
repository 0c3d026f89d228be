"""Names and places: where each file of a run lies, and what a file name says.

Pure functions over paths; nothing here touches the disk. The names are specified in
``schemas/README.md``.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from .ids import ULID
from .types import Level

GRACE_SECONDS = 15 * 60.0
"""How long what is covered stays beside its cover, so that a copy that runs meanwhile finds one of the two."""
LAYOUT_VERSION = "1.0"
MAX_RUN_NAME_BYTES = 128
TEMPORARY_PREFIX = ".tmp-"

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_NUMBER = r"(?:0|[1-9][0-9]*)"
_OPEN = re.compile(rf"({ULID.pattern})-({_NUMBER})\.arrows")
_SEALED = re.compile(rf"({ULID.pattern})-({_NUMBER})\.({_NUMBER})-({_NUMBER})\.([0-9a-f]{{16}})\.parquet")
_COMPACTED = re.compile(rf"([0-9a-f]{{16}})\.c({_NUMBER})\.parquet")


def escape_run_name(name: str) -> str:
    """The folder name of a run: bytes outside ``[A-Za-z0-9._-]`` and a leading dot become %XX.

    Raises:
        ValueError: the name is empty, or longer than 128 bytes once escaped.
    """
    raw = name.encode()
    escaped = "".join(
        chr(byte) if byte in _SAFE and not (index == 0 and byte == 0x2E) else f"%{byte:02X}"
        for index, byte in enumerate(raw)
    )
    if not escaped:
        raise ValueError("the run name is empty: give the run a name")
    if len(escaped) > MAX_RUN_NAME_BYTES:
        raise ValueError(f"the run name {name!r} takes {len(escaped)} bytes; at most {MAX_RUN_NAME_BYTES} are allowed")
    return escaped


def sha16(data: bytes) -> str:
    """First 16 lower-case hex digits of the SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class SegmentName:
    """What the name of an event file says."""

    level: Level
    writer: str | None
    """None in compacted files, which hold several writers."""
    number: int | None
    """`n` of the segment; None in compacted files."""
    first: int | None = None
    """First seq; None where the name does not say."""
    last: int | None = None
    """Last seq, inclusive."""
    digest: str | None = None
    """First 16 hex digits of the file's SHA-256; None in open segments."""
    compactions: int = 0
    """How often the rows were compacted: the level of a compacted file, else 0."""

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        """Read a file name; None where it is no event file (a temporary name, a stray file)."""
        if match := _OPEN.fullmatch(name):
            return cls("open", match[1], int(match[2]))
        if (match := _SEALED.fullmatch(name)) and int(match[3]) <= int(match[4]):
            return cls("sealed", match[1], int(match[2]), int(match[3]), int(match[4]), match[5])
        if match := _COMPACTED.fullmatch(name):
            return cls("compacted", None, None, digest=match[1], compactions=int(match[2]))
        return None


def open_name(writer: str, number: int) -> str:
    """Name of an open segment."""
    return f"{writer}-{number}.arrows"


def sealed_name(writer: str, number: int, first: int, last: int, digest: str) -> str:
    """Name of a sealed segment."""
    return f"{writer}-{number}.{first}-{last}.{digest}.parquet"


def compacted_name(digest: str, compactions: int) -> str:
    """Name of a compacted file."""
    return f"{digest}.c{compactions}.parquet"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The places of one run."""

    path: Path

    @property
    def run_json(self) -> Path:
        """What is known of the run; a convenience."""
        return self.path / "run.json"

    @property
    def launches(self) -> Path:
        """Folder of the launches."""
        return self.path / "launches"

    @property
    def writers(self) -> Path:
        """Folder of what the writers say about themselves."""
        return self.path / "writers"

    @property
    def events(self) -> Path:
        """Folder of the tables."""
        return self.path / "events"

    @property
    def sync(self) -> Path:
        """Folder of the commits of all targets."""
        return self.path / ".sync"

    def launch(self, launch_id: str) -> Path:
        """File of a launch."""
        return self.launches / f"{sha16(launch_id.encode())}.json"

    def writer(self, writer: str) -> Path:
        """What a writer knew at open."""
        return self.writers / f"{writer}.json"

    def beat(self, writer: str) -> Path:
        """Heartbeat of a writer."""
        return self.writers / f"{writer}.beat"

    def end(self, writer: str) -> Path:
        """What a writer left at close."""
        return self.writers / f"{writer}.end.json"

    def shard(self, table: str, node: str) -> Path:
        """Folder of one node's segments of a table."""
        return self.events / table / hashlib.sha256(node.encode()).hexdigest()[:2]

    def artifact(self, sha256: str) -> Path:
        """File of that content."""
        return self.path / "artifacts" / sha256[:2] / sha256
