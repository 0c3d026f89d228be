"""The event files of one run, changed one commit at a time.

- ``rleventlog.json`` records the cursor and, for each file, how many of its bytes count. It is
  replaced as the last act of a commit: a kill before it leaves bytes that do not count.
- The same commit on the same record writes the same bytes, in the same file where a kill left one: a
  TensorBoard that follows the file keeps its place.
- Each tag's steps rise within a file. What would break that, or change an entry, makes a new file
  under the next number; the old one goes once the new one is recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rl_eventlog.durable import fsync_folder, make_folder, publish_exclusively, write_durably
from rl_eventlog.errors import SinkRejectedError

from .base import Cursor

if TYPE_CHECKING:
    from ._event_file import Entry

    Changes = Mapping[tuple[str, int], Entry | None]

RECORD_NAME = "rleventlog.json"
"""Without `tfevents`, which makes TensorBoard read a file."""

_OURS = re.compile(r"(events\.out\.tfevents\.\d+\.rleventlog)\.(\d+)")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EventFile:
    """What counts of one event file."""

    name: str
    """Its name within its folder."""
    size: int
    """Bytes from the start."""
    digest: str
    """SHA-256 of these bytes."""
    last: Mapping[str, int]
    """Highest step of each tag in them."""


@dataclass(frozen=True, slots=True)
class Record:
    """Content of ``rleventlog.json``."""

    run_uid: str
    cursor: Cursor | None = None
    end: tuple[str, float] | None = None
    """Status, and seconds since 1970, of the end in the run's own file."""
    files: Mapping[str, EventFile] = field(default_factory=dict)
    """Sub-folder ("" for the run's own folder) to its file."""

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read a record.

        Raises:
            SinkRejectedError: the file is no record.
        """
        try:
            data = json.loads(path.read_bytes())
            return cls(
                run_uid=data["run_uid"],
                cursor=Cursor(**data["cursor"]) if data["cursor"] else None,
                end=(data["end"][0], data["end"][1]) if data["end"] else None,
                files={folder: EventFile(**file) for folder, file in data["files"].items()},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SinkRejectedError(f"{path}: not a record of rl-eventlog ({error!r}): move it away") from error

    def to_json(self) -> bytes:
        """The bytes of the file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode()


class EventFolder:
    """The folder of one run, held by one sync at a time.

    Args:
        path: the folder, claimed by `claim`.
        run_uid: the run.
        started: start of the run, for the names of new files.
    """

    def __init__(self, path: Path, run_uid: str, started: datetime) -> None:
        self.path = path
        self._first_name = f"events.out.tfevents.{int(started.timestamp()):010d}.rleventlog"
        self._started = started.timestamp()
        self._hashers: dict[str, hashlib._Hash] = {}
        self.record = Record.read(path / RECORD_NAME)
        if not all(self._verify(folder, file) for folder, file in self.record.files.items()):
            # what the cursor vouches for is not there any more
            self.record = Record(run_uid)
        self._remove_replaced()

    @staticmethod
    def claim(path: Path, run_uid: str) -> bool:
        """Make the folder this run's, unless it is another's or holds event files of someone else."""
        record = path / RECORD_NAME
        make_folder(path)
        if not record.exists():
            if any(path.glob("*tfevents*")):
                return False
            publish_exclusively(record, Record(run_uid).to_json())
        return Record.read(record).run_uid == run_uid

    def entries(self, folder: str) -> dict[tuple[str, int], Entry]:
        """What the file of a sub-folder holds, by tag and step."""
        from ._event_file import decode

        file = self.record.files.get(folder)
        if file is None:
            return {}
        with (self.path / folder / file.name).open("rb") as stream:
            return {(entry.tag, entry.step): entry for entry in decode(stream.read(file.size))}

    def holds(self, folder: str, tag: str) -> bool:
        """Whether the file of a sub-folder has this tag."""
        file = self.record.files.get(folder)
        return file is not None and tag in file.last

    def commit(self, changes: Mapping[str, Changes], *, cursor: Cursor | None, end: tuple[str, float] | None) -> None:
        """Bring entries into the files, durably, and then the record.

        Args:
            changes: per sub-folder, (tag, step) to its new entry, or to None to remove it.
            cursor: for the record.
            end: for the record.
        """
        files, hashers = dict(self.record.files), dict(self._hashers)
        for folder, entries in changes.items():
            if entries:
                files[folder], hashers[folder] = self._change(folder, entries)
        record = Record(self.record.run_uid, cursor, end, files)
        write_durably(self.path / RECORD_NAME, record.to_json())
        self.record, self._hashers = record, hashers
        self._remove_unrecorded()

    def _change(self, folder: str, changes: Changes) -> tuple[EventFile, hashlib._Hash]:
        from ._event_file import encode, header

        old = self.record.files.get(folder)
        new = {at: entry for at, entry in changes.items() if entry is not None}
        if old is not None and len(new) == len(changes) and _in_order(old, new):
            hasher = self._hashers[folder].copy()
            name, size, last, data = old.name, old.size, dict(old.last), encode(new.values())
        else:
            hasher = hashlib.sha256()
            new = _merged(self.entries(folder), changes)
            name, size, last = self._next_name(old), 0, {}
            data = header(self._started) + encode(new.values())
        _put(self.path / folder / name, size, data)
        hasher.update(data)
        for tag, step in new:
            last[tag] = max(step, last.get(tag, step))
        return EventFile(name, size + len(data), hasher.hexdigest(), last), hasher

    def _next_name(self, old: EventFile | None) -> str:
        match = _OURS.fullmatch(old.name) if old else None
        return f"{match[1]}.{int(match[2]) + 1:06d}" if match else f"{self._first_name}.{1:06d}"

    def _verify(self, folder: str, file: EventFile) -> bool:
        hasher, left = hashlib.sha256(), file.size
        try:
            with (self.path / folder / file.name).open("rb") as stream:
                while left and (block := stream.read(min(left, _BLOCK_BYTES))):
                    hasher.update(block)
                    left -= len(block)
        except FileNotFoundError:
            return False
        self._hashers[folder] = hasher
        return hasher.hexdigest() == file.digest

    def _remove_replaced(self) -> None:
        """Remove what a kill left after the record named the file's successor.

        A file that the record does not reach yet stays: the same commit will write it again, and a
        TensorBoard that follows it would not notice another of that name.
        """
        for path, recorded in self._unrecorded():
            if recorded is not None and path.name < recorded.name:
                path.unlink()

    def _remove_unrecorded(self) -> None:
        for path, _ in self._unrecorded():
            path.unlink()

    def _unrecorded(self) -> Iterator[tuple[Path, EventFile | None]]:
        """Our event files that do not count, each with the one that counts in its folder."""
        for path in (*self.path.glob("*tfevents*"), *self.path.glob("*/*tfevents*")):
            folder = "" if path.parent == self.path else path.parent.name
            recorded = self.record.files.get(folder)
            if _OURS.fullmatch(path.name) and (recorded is None or path.name != recorded.name):
                yield path, recorded


def _in_order(file: EventFile, entries: Mapping[tuple[str, int], Entry]) -> bool:
    return all(tag not in file.last or step > file.last[tag] for tag, step in entries)


def _merged(old: dict[tuple[str, int], Entry], changes: Changes) -> dict[tuple[str, int], Entry]:
    from ._event_file import joined_texts

    merged = dict(old)
    for at, entry in changes.items():
        if entry is None:
            merged.pop(at, None)
        elif entry.is_text and at in merged and merged[at].is_text:
            merged[at] = joined_texts(merged[at], entry)
        else:
            merged[at] = entry
    return merged


def _put(path: Path, offset: int, data: bytes) -> None:
    """Write from an offset on, cutting off what was there, and wait for the disk."""
    make_folder(path.parent)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        if os.fstat(file.fileno()).st_size < offset:
            raise SinkRejectedError(f"{path}: shorter than it was after the last commit")
        file.truncate(offset)
        file.seek(offset)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(path.parent)
