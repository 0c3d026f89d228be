"""The record of what was sent to one target: commits, in the run's ``.sync`` folder.

- A plan counts once the record of its first commit is there. Payloads are written first, then the
  records from the last to the first: a kill while planning leaves nothing that counts.
- A payload stays until its commit is done; it is read back bit for bit as it was planned, or refused.
- Records are copied to the user's state folder, where they survive the loss of ``.sync``. A run that
  cannot be written has its whole ledger there.
- Opening a ledger only reads. Who writes holds the lease of its folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from rl_eventlog.documents import now_utc, time_text
from rl_eventlog.durable import make_folder
from rl_eventlog.errors import LedgerError, SyncError
from rl_eventlog.layout import RunLayout
from rl_eventlog.sinks.base import Payload

from .ledger_folder import LedgerFolder, writing
from .payload import NO_DIGEST, chain, decode, encode
from .record import PlanState, Record


def target_name(kind: str, address: str) -> str:
    """The folder name of a target: its kind and 12 hex digits of the SHA-256 of its address."""
    return f"{kind}-{sha256(address.encode()).hexdigest()[:12]}"


def state_folder(run_uid: str, target: str) -> Path:
    """Where the user's copy lies.

    Raises:
        SyncError: this user has no home folder, as in many containers.
    """
    home = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        base = home if home.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise SyncError(
            f"no place for the copy of the record of what is sent: {error}: set XDG_STATE_HOME to a folder that stays"
        ) from error
    return base / "rl-eventlog" / "sync" / run_uid / target


class Ledger:
    """All commits of one run to one target.

    Attributes:
        folder: where it is written.
        last: record of the last commit that counts; None before the first.
        state: what the last plan was made from; None before the first.
        done: number of the last commit that the target confirmed; 0 for none.
        position: what the sink reported with it.
        warnings: what went wrong with the copy.

    Raises:
        LedgerError: a record is damaged, or the copy tells another history.
        SyncError: there is no place for the copy.
    """

    def __init__(self, run_path: Path, run_uid: str, kind: str, address: str) -> None:
        target = target_name(kind, address)
        beside, state = RunLayout(run_path).sync / target, state_folder(run_uid, target)
        self._beside_run = _is_writable(beside)
        self.folder = beside if self._beside_run else state
        self._main = LedgerFolder(self.folder)
        self._other = LedgerFolder(state if self._beside_run else beside)
        self._identity = {"kind": kind, "address": address, "run_uid": run_uid}
        self.warnings: list[str] = []
        self.reload()

    def reload(self) -> None:
        """Look again at what is on disk."""
        self._main.reload()
        self._other.reload()
        self._source = _longer(self._main, self._other)
        self.last = self._source.last
        self.state = self._source.state
        self.done = self._source.done
        self.position: Mapping[str, Any] = self._source.position(self.done)

    @property
    def commits(self) -> int:
        """Number of the last commit that counts; 0 before the first."""
        return self.last.commit if self.last else 0

    @property
    def target(self) -> dict[str, Any]:
        """What ``target.json`` says; empty where there is none."""
        return self._source.read_target()

    @property
    def remedy(self) -> str:
        """What a user can do when ledger and target do not agree."""
        folders = [str(folder.path) for folder in (self._main, self._other) if folder.path.is_dir()]
        places = " and ".join(folders) or "its ledger"
        return f"to send everything anew, remove the run at the target and {places}, then sync again"

    def record(self, number: int) -> Record:
        """The record of a commit that counts."""
        return self._source.record(number)

    def pending(self) -> list[Record]:
        """Commits that are planned and not confirmed, in order."""
        return [self.record(number) for number in range(self.done + 1, self.commits + 1)]

    def has_payload(self, number: int) -> bool:
        """Whether the payload of a commit is still stored."""
        return self._main.has_payload(number)

    def payload(self, record: Record) -> Payload:
        """The stored payload of a pending commit.

        Raises:
            LedgerError: it is gone or damaged.
        """
        try:
            data = self._main.read_payload(record.commit)
        except FileNotFoundError as error:
            raise LedgerError(
                f"{error.filename}: the payload of a commit that was not confirmed is gone: {self.remedy}"
            ) from error
        if chain(record.previous, data) != record.digest:
            raise LedgerError(
                f"{self.folder}: the payload of commit {record.commit} is not what was planned: {self.remedy}"
            )
        return decode(data)

    def prepare(self) -> None:
        """Complete the folder from the copy and remove what kills left; the caller holds the lease.

        Raises:
            SyncError: the folder cannot be written; so with all methods that write.
        """
        self.reload()
        with writing(self.folder):
            if self._source is not self._main:
                self._main.complete_from(self._source)
                self.reload()
            self._main.remove_leftovers()
        self.note({})

    def note(self, facts: Mapping[str, Any]) -> None:
        """Keep facts on the target in ``target.json``."""
        known = self._main.read_target()
        wanted = {**self._identity, **known, **facts}
        if wanted != known:
            self._write(lambda folder: folder.write_target(wanted))

    def write_plan(self, payloads: Iterable[Payload], state: PlanState) -> None:
        """Write a plan, one payload a commit and at least one; it counts when this returns."""
        records: list[Record] = []
        with writing(self.folder):
            self._main.remove_leftovers()
            for record, data in plan_records(payloads, self.last):
                self._main.write_payload(record.commit, data)
                records.append(record)
        records = [replace(record, plan_commits=len(records)) for record in records]
        records[0] = replace(records[0], state=state)
        self._write(lambda folder: folder.write_records(records))
        self.reload()

    def confirm(self, record: Record, position: Mapping[str, Any]) -> None:
        """Note that the target has a commit, and let its payload go."""
        self._write(lambda folder: folder.write_done(record.commit, position))
        self.done, self.position = record.commit, position
        self._main.remove_payload(record.commit)

    def _write(self, action: Callable[[LedgerFolder], None]) -> None:
        """Write to the folder, then to the copy, without which a sync goes on."""
        with writing(self.folder):
            action(self._main)
        if self._beside_run:
            try:
                make_folder(self._other.path)
                action(self._other)
            except OSError as error:
                warning = f"{self._other.path}: no copy of the record of what was sent: {error}"
                if warning not in self.warnings:
                    self.warnings.append(warning)


def plan_records(payloads: Iterable[Payload], last: Record | None) -> Iterator[tuple[Record, bytes]]:
    """The records of a plan that follows `last`, with the stored form of each payload.

    The number of commits in the plan is not known yet: 0 in each record.
    """
    number = last.commit if last else 0
    so_far = last.points_so_far if last else 0
    digest = last.digest if last else NO_DIGEST
    first, created = number + 1, time_text(now_utc())
    for payload in payloads:
        data = encode(payload)
        number, so_far, previous, digest = number + 1, so_far + payload.points.num_rows, digest, chain(digest, data)
        record = Record(
            commit=number,
            plan_first=first,
            plan_commits=0,
            points=payload.points.num_rows,
            corrections=pc.sum(payload.points["correction"], min_count=0).as_py(),
            params=payload.params.num_rows,
            samples=payload.samples.num_rows,
            points_so_far=so_far,
            previous=previous,
            digest=digest,
            created=created,
            library_version=version("rl-eventlog"),
        )
        yield record, data


def _is_writable(folder: Path) -> bool:
    """Whether a folder is there and can be written, or could be made."""
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _longer(main: LedgerFolder, other: LedgerFolder) -> LedgerFolder:
    """The folder that knows more, after a check that both tell one history."""
    shorter, longer = sorted((other, main), key=lambda folder: (folder.last.commit if folder.last else 0, folder.done))
    if shorter.last and longer.record(shorter.last.commit).digest != shorter.last.digest:
        raise LedgerError(
            f"{main.path} and {other.path} tell different histories of what was sent: remove the one that is wrong; "
            "if both may be, remove them and the run at the target, then sync again"
        )
    return longer
