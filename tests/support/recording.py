"""A FUSE file system that records what changes on it, in order: what a disk is told.

Run as a module it is the file system's process, as `tests.support.passthrough` is: `FOLDER MOUNTPOINT RECORDING`.
A write to the file `/said` is recorded as a word of the writer: it is how a process says what had returned.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.support.passthrough import Behaviour, Passthrough, main

SAID = "/said"
T = TypeVar("T")


class Change(NamedTuple):
    """One thing that was done, whole, before the next began."""

    kind: str
    """`mkdir`, `rmdir`, `create`, `write`, `truncate`, `rename`, `link`, `unlink`, `fsync`, `fsync folder`, `said`."""
    path: str = ""
    file: int = 0
    """Number of the file, whatever its names are."""
    target: str = ""
    """New name, of `rename` and `link`."""
    offset: int = 0
    """Of `write`; new size, of `truncate`."""
    data: bytes = b""


def read_recording(path: Path) -> Iterator[Change]:
    """What was recorded."""
    with path.open("rb") as file:
        while True:
            try:
                yield Change(*pickle.load(file))
            except EOFError:
                return


class Recorder(Passthrough):
    """Passes everything on and records it. One change at a time."""

    def __init__(self, folder: Path, behaviour: Behaviour, recording: Path) -> None:
        super().__init__(folder, behaviour)
        self._one = threading.RLock()
        self._file = recording.open("xb", buffering=0)
        self._numbers: dict[str, int] = {}
        self._open_numbers: dict[int, int] = {}
        self._last = 0

    def _record(self, change: Callable[[], T], *facts: Any, **named: Any) -> T:
        with self._one:
            result = change()
            self._file.write(pickle.dumps(tuple(Change(*facts, **named))))
            return result

    def mkdir(self, path: str, mode: int) -> int:
        return self._record(lambda: super(Recorder, self).mkdir(path, mode), "mkdir", path)

    def rmdir(self, path: str) -> int:
        return self._record(lambda: super(Recorder, self).rmdir(path), "rmdir", path)

    def unlink(self, path: str) -> int:
        with self._one:
            done = self._record(lambda: super(Recorder, self).unlink(path), "unlink", path)
            del self._numbers[path]
            return done

    def rename(self, old: str, new: str) -> int:
        with self._one:
            number = self._numbers[old]
            done = self._record(lambda: super(Recorder, self).rename(old, new), "rename", old, number, new)
            self._numbers[new] = self._numbers.pop(old)
            return done

    def link(self, target: str, source: str) -> int:
        with self._one:
            number = self._numbers[source]
            done = self._record(lambda: super(Recorder, self).link(target, source), "link", source, number, target)
            self._numbers[target] = number
            return done

    def create(self, path: str, mode: int, flags: int) -> int:
        with self._one:
            number = self._last + 1
            handle = self._record(lambda: super(Recorder, self).create(path, mode, flags), "create", path, number)
            self._last = self._numbers[path] = self._open_numbers[handle] = number
            return handle

    def open(self, path: str, flags: int) -> int:
        with self._one:
            handle = super().open(path, flags)
            self._open_numbers[handle] = self._numbers[path]
            return handle

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        if path == SAID:
            return self._record(lambda: super(Recorder, self).write(path, data, offset, fh), "said", data=data)
        number = self._open_numbers[fh]
        with self._one:
            written = super().write(path, data, offset, fh)
            self._record(lambda: None, "write", path, number, offset=offset, data=data[:written])
            return written

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        number = self._open_numbers[fh] if fh else self._numbers[path]
        return self._record(
            lambda: super(Recorder, self).truncate(path, length, fh), "truncate", path, number, offset=length
        )

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        number = self._open_numbers[fh]
        return self._record(lambda: super(Recorder, self).fsync(path, datasync, fh), "fsync", path, number)

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        return self._record(lambda: super(Recorder, self).fsyncdir(path, datasync, fh), "fsync folder", path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], lambda folder, behaviour: Recorder(folder, behaviour, Path(sys.argv[3])))
