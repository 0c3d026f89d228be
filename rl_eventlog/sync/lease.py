"""One sync of a run to a target at a time.

- A lease is a file ``lease/<n>.json`` in the ledger's folder; the highest number counts. Taking one
  makes the next number exclusively, so that of two takers one gets it.
- A lease is free once its holder wrote its release, or is provably dead: it ran on this host and
  boot, and its process is gone. Silence is no proof, nor is a host of the same name.
- `check` raises in a holder whose lease was taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rl_eventlog.documents import encode_document, now_utc, read_document, time_text
from rl_eventlog.durable import make_folder, publish_exclusively, write_durably
from rl_eventlog.errors import LeaseHeldError
from rl_eventlog.host import is_provably_dead, process_facts
from rl_eventlog.ids import new_ulid

from .ledger_folder import writing

_NAME = re.compile(r"(\d{8})\.json")


class Lease:
    """A lease that was taken."""

    def __init__(self, folder: Path, number: int, token: str) -> None:
        self._folder = folder
        self._number = number
        self._token = token

    @classmethod
    def acquire(cls, folder: Path) -> Lease:
        """Take the lease of a ledger.

        Args:
            folder: folder of the ledger; it need not be there yet.

        Raises:
            LeaseHeldError: another process holds it.
            SyncError: the folder cannot be written.
        """
        with writing(folder):
            return cls._acquire(folder / "lease")

    @classmethod
    def _acquire(cls, folder: Path) -> Lease:
        make_folder(folder)
        number = max(_numbers(folder), default=0)
        if number:
            _require_free(_path(folder, number))
        token = new_ulid()
        holder = {
            "token": token,
            **process_facts(),
            "taken": time_text(now_utc()),
            "released": None,
        }
        mine = _path(folder, number + 1)
        if not publish_exclusively(mine, encode_document(holder)):
            raise LeaseHeldError(f"{mine}: another sync took the lease this very moment: try again when it is done")
        for older in sorted(_numbers(folder) - {number + 1}):
            with suppress(FileNotFoundError):
                _path(folder, older).unlink()
        return cls(folder, number + 1, token)

    def check(self) -> None:
        """Make sure that the lease is still ours.

        Raises:
            LeaseHeldError: someone took it.
        """
        path = _path(self._folder, self._number)
        if max(_numbers(self._folder), default=0) != self._number or read_document(path)["token"] != self._token:
            raise LeaseHeldError(f"{path}: another sync took over this lease; this one stops and sends nothing more")

    def release(self) -> None:
        """Let others take it."""
        path = _path(self._folder, self._number)
        with suppress(OSError, ValueError):  # then the end of this process frees it
            holder = read_document(path)
            if holder["token"] == self._token:
                write_durably(path, encode_document(holder | {"released": time_text(now_utc())}))


@contextmanager
def hold_lease(folder: Path) -> Iterator[Lease]:
    """Hold the lease of the ledger in `folder` for the length of a ``with`` block; raises as `Lease.acquire`."""
    lease = Lease.acquire(folder)
    try:
        yield lease
    finally:
        lease.release()


def _numbers(folder: Path) -> set[int]:
    return {int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.json"


def _require_free(path: Path) -> None:
    try:
        holder = read_document(path)
    except FileNotFoundError:  # taken over and cleared meanwhile: making the next one decides
        return
    except ValueError as error:
        raise LeaseHeldError(f"{path}: unreadable ({error}): if no sync is running, remove it") from error
    if holder.get("released") is None and not is_provably_dead(holder):
        raise LeaseHeldError(
            f"process {holder.get('pid')} on {holder.get('host')} is syncing this run to this target since "
            f"{holder.get('taken')}: wait for it; if it is gone for good, remove {path}"
        )
