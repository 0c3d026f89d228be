"""One folder of a ledger: which commits in it count, and the writing of its files.

Files: ``target.json``, and of commit n ``<n>.json`` (record), ``<n>.arrow`` (payload, until the
commit is done) and ``<n>.done``, n in 8 digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from rl_eventlog.documents import encode_document, now_utc, read_document, time_text
from rl_eventlog.durable import make_folder, write_durably
from rl_eventlog.errors import LedgerError, SyncError
from rl_eventlog.layout import TEMPORARY_PREFIX

from .record import PlanState, Record

_NAME = re.compile(r"(\d{8})\.(json|arrow|done)")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say what a failed write to a ledger means.

    Raises:
        SyncError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise SyncError(f"{folder}: cannot keep the record of what is sent, so nothing more is: {error}") from error


class LedgerFolder:
    """The commits in one folder, which may be missing.

    Attributes:
        path: the folder.
        last: record of the last commit that counts; None before the first.
        state: what the plan of `last` was made from.
        done: number of the last confirmed commit; 0 for none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: Record | None
        self.state: PlanState | None
        self.done: int
        self._numbers: Mapping[str, set[int]]
        self.reload()

    def reload(self) -> None:
        """Look again at what is on disk.

        Raises:
            LedgerError: a record is damaged or missing.
        """
        self._numbers = {"json": set(), "arrow": set(), "done": set()}
        names = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        for match in filter(None, map(_NAME.fullmatch, names)):
            self._numbers[match[2]].add(int(match[1]))
        self.last, self.state = self._find_last()
        self.done = max(self._numbers["done"], default=0) if self.last else 0

    def _find_last(self) -> tuple[Record | None, PlanState | None]:
        """The newest plan with its first record; records above it are of a plan that was never finished."""
        records = self._numbers["json"]
        for number in sorted(records, reverse=True):
            first = self.record(number).plan_first
            if first not in records:
                continue
            head = self.record(first)
            if head.plan_first == first and first <= number <= head.plan_last:
                return self.record(head.plan_last), head.state
        return None, None

    def record(self, number: int) -> Record:
        """The record of a commit.

        Raises:
            LedgerError: it is damaged or missing.
        """
        path = self._path(number, "json")
        try:
            return Record.read(path)
        except FileNotFoundError as error:
            raise LedgerError(
                f"{path}: this record of what was sent is missing: restore it from a copy of the run"
            ) from error

    def position(self, number: int) -> dict[str, Any]:
        """What the sink reported with a confirmed commit; empty where nothing is known."""
        if number not in self._numbers["done"]:
            return {}
        position = self._read(self._path(number, "done"))["position"]
        return dict(position)

    def has_payload(self, number: int) -> bool:
        """Whether the payload of a commit is stored."""
        return self._path(number, "arrow").exists()

    def read_payload(self, number: int) -> bytes:
        """The stored payload of a commit.

        Raises:
            FileNotFoundError: it is not there.
        """
        return self._path(number, "arrow").read_bytes()

    def read_target(self) -> dict[str, Any]:
        """What ``target.json`` says; empty where there is none."""
        path = self.path / "target.json"
        return self._read(path) if path.exists() else {}

    def write_target(self, facts: dict[str, Any]) -> None:
        """Make or replace ``target.json``."""
        make_folder(self.path)
        write_durably(self.path / "target.json", encode_document(facts))

    def write_payload(self, number: int, data: bytes) -> None:
        """Store a payload; it means nothing before its record counts."""
        write_durably(self._path(number, "arrow"), data)

    def write_records(self, records: Sequence[Record]) -> None:
        """Write the records of one plan, its first at last."""
        for record in reversed(records):
            write_durably(self._path(record.commit, "json"), encode_document(record.to_json()))

    def write_done(self, number: int, position: Mapping[str, Any]) -> None:
        """Note that the target confirmed a commit."""
        done = {"time": time_text(now_utc()), "position": dict(position)}
        write_durably(self._path(number, "done"), encode_document(done))

    def remove_payload(self, number: int) -> None:
        """Remove the payload of a confirmed commit."""
        self._path(number, "arrow").unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove what kills left: temporary files, payloads of confirmed commits, plans that do not count."""
        last = self.last.commit if self.last else 0
        for number in self._numbers["arrow"]:
            if number <= self.done or number > last:
                self.remove_payload(number)
        for number in self._numbers["json"]:
            if number > last:
                self._path(number, "json").unlink(missing_ok=True)
        for path in self.path.glob(f"{TEMPORARY_PREFIX}*"):
            path.unlink(missing_ok=True)

    def complete_from(self, other: LedgerFolder) -> None:
        """Copy the records that `other` has and this folder lacks, plan by plan."""
        make_folder(self.path)
        last = other.last.commit if other.last else 0
        missing = [other.record(n) for n in sorted(other._numbers["json"] - self._numbers["json"]) if n <= last]
        for _, plan in groupby(missing, key=lambda record: record.plan_first):
            self.write_records(list(plan))
        for number in sorted(other._numbers["done"] - self._numbers["done"]):
            self.write_done(number, other.position(number))
        if not self.read_target():
            self.write_target(other.read_target())

    def _path(self, number: int, ending: str) -> Path:
        return self.path / f"{number:08d}.{ending}"

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            return read_document(path)
        except ValueError as error:
            raise LedgerError(f"{path}: damaged ({error}): restore it from a copy of the run") from error
