"""A FUSE file system that passes every call on to a folder, and misbehaves as it is told.

Run as a module it is the file system's process: `FOLDER MOUNTPOINT`. It says "mounted" on stdout,
then answers each line of stdin, a JSON command, with a line of JSON. At the end of stdin it unmounts and ends:
its mount does not outlive the test. `tests.support.disks.fuse` starts it.

What a failed fsync does is what Linux does: the next one succeeds, and what was written between the last good
one and the failed one can be read as long as it is cached; `evict` ends that, and it reads as zeros. A failed close
does the same, as on NFS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mfusepy

_STAT = ("st_atime_ns", "st_ctime_ns", "st_mtime_ns", "st_gid", "st_mode", "st_nlink", "st_size", "st_uid", "st_ino")
_STATFS = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_flag", "f_frsize")


@dataclass(slots=True)
class Rule:
    """What an operation answers in place of doing its work."""

    errno: int
    times: int | None
    """How often; None: until `heal`."""
    paths: frozenset[str] | None
    """Only on these; None: on all."""
    under: str
    """Only on paths that begin so."""


@dataclass(slots=True)
class Behaviour:
    """What the test asked for, and what happened since."""

    lock: threading.Condition = field(default_factory=threading.Condition)
    rules: dict[str, Rule] = field(default_factory=dict)
    stalled: frozenset[str] = frozenset()
    stalled_under: str = ""
    """Only on paths that begin so."""
    stall_ends: float = 0.0
    """Monotonic time, seconds."""
    short: int | None = None
    """Most bytes that a write takes."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Operations that wait for the end of the stall, by name."""
    answered: Counter[str] = field(default_factory=Counter)
    """Operations that a rule answered, by name."""

    def enter(self, operation: str, path: str) -> None:
        """Wait while the operation is stalled, then fail if a rule says so."""
        with self.lock:
            if operation in self.stalled and path.startswith(self.stalled_under):
                self.waiting[operation] += 1
                try:
                    while operation in self.stalled and (left := self.stall_ends - time.monotonic()) > 0:
                        self.lock.wait(left)
                finally:
                    self.waiting[operation] -= 1
            rule = self.rules.get(operation)
            if rule is None or not path.startswith(rule.under) or (rule.paths is not None and path not in rule.paths):
                return
            if rule.times is not None:
                rule.times -= 1
                if rule.times <= 0:
                    del self.rules[operation]
            self.answered[operation] += 1
            raise OSError(rule.errno, os.strerror(rule.errno))


@dataclass(slots=True)
class _Handle:
    path: str
    fd: int
    inode: int


class Passthrough(mfusepy.Operations):  # type: ignore[misc]
    """The operations; each enters `behaviour` first."""

    use_ns = True

    def __init__(self, folder: Path, behaviour: Behaviour) -> None:
        self._folder = str(folder)
        self._behaviour = behaviour
        self._handles: dict[int, _Handle] = {}
        self._last_handle = 0
        self._dirty: dict[int, list[tuple[int, int]]] = {}  # (offset, size) by inode, since its last fsync
        self._lost: list[tuple[int, list[tuple[int, int]]]] = []  # a descriptor, what a failed fsync dropped

    def _at(self, operation: str, path: str) -> Path:
        self._behaviour.enter(operation, path)
        return Path(self._folder + path)

    def init(self, path: str) -> None:
        print("mounted", flush=True)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        here = self._at("stat", path)
        found = os.fstat(self._handles[fh].fd) if fh else os.lstat(here)
        return {name.removesuffix("_ns"): getattr(found, name) for name in _STAT}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *(entry.name for entry in self._at("list", path).iterdir())]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._folder + path)
        return {name: getattr(found, name) for name in _STATFS}

    def access(self, path: str, amode: int) -> int:
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self._at("mkdir", path).mkdir(mode)
        return 0

    def rmdir(self, path: str) -> int:
        self._at("unlink", path).rmdir()
        return 0

    def unlink(self, path: str) -> int:
        self._at("unlink", path).unlink()
        return 0

    def rename(self, old: str, new: str) -> int:
        self._at("rename", old).rename(self._folder + new)
        return 0

    def link(self, target: str, source: str) -> int:
        os.link(self._folder + source, self._at("link", target))
        return 0

    def chmod(self, path: str, mode: int) -> int:
        self._at("chmod", path).chmod(mode)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        here = self._at("chmod", path)
        if times:
            os.utime(here, ns=times)
        else:
            os.utime(here)
        return 0

    def create(self, path: str, mode: int, flags: int) -> int:
        return self._opened(path, os.open(self._at("create", path), flags | os.O_CREAT, mode))

    def open(self, path: str, flags: int) -> int:
        return self._opened(path, os.open(self._at("open", path), flags))

    def _opened(self, path: str, fd: int) -> int:
        with self._behaviour.lock:
            self._last_handle += 1
            self._handles[self._last_handle] = _Handle(path, fd, os.fstat(fd).st_ino)
            return self._last_handle

    def open_paths(self) -> frozenset[str]:
        """Where the files lie that are open now."""
        return frozenset(handle.path for handle in self._handles.values())

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._at("read", path)
        return os.pread(self._handles[fh].fd, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._at("write", path)
        handle = self._handles[fh]
        written = os.pwrite(handle.fd, data[: self._behaviour.short], offset)
        with self._behaviour.lock:
            self._dirty.setdefault(handle.inode, []).append((offset, written))
        return written

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        here = self._at("truncate", path)
        os.truncate(self._handles[fh].fd if fh else here, length)
        return 0

    def flush(self, path: str, fh: int) -> int:
        with self._dropping(fh):
            self._at("close", path)
        return 0

    def release(self, path: str, fh: int) -> int:
        with self._behaviour.lock:
            handle = self._handles.pop(fh)
        os.close(handle.fd)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        with self._dropping(fh):
            self._at("fsync", path)
        with self._behaviour.lock:  # the data of a process that lives needs no disk: the tests cut no power
            self._dirty.pop(self._handles[fh].inode, None)
        return 0

    @contextmanager
    def _dropping(self, fh: int) -> Iterator[None]:
        """Where it fails, what was written since the last good fsync is in the cache alone."""
        try:
            yield
        except OSError:
            handle = self._handles[fh]
            with self._behaviour.lock:
                ranges = self._dirty.pop(handle.inode, [])
                self._lost.append((os.open(f"/proc/self/fd/{handle.fd}", os.O_RDWR), ranges))
            raise

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._at("fsync_folder", path)
        return 0

    def evict(self) -> int:
        """Drop from the cache what failed fsyncs left in it alone; the bytes that are zeros now."""
        dropped = 0
        with self._behaviour.lock:
            for fd, ranges in self._lost:
                for offset, size in ranges:
                    end = min(offset + size, os.fstat(fd).st_size)
                    dropped += os.pwrite(fd, bytes(max(0, end - offset)), offset)
                os.close(fd)
            self._lost.clear()
        return dropped


def _obey(command: dict[str, Any], behaviour: Behaviour, disk: Passthrough) -> Any:
    """Do what a line of stdin asks."""
    name = command.pop("do")
    with behaviour.lock:
        if name == "fail":
            paths = disk.open_paths() if command.pop("only_open") else None
            for operation in command.pop("operations"):
                behaviour.rules[operation] = Rule(paths=paths, **command)
        elif name == "stall":
            behaviour.stalled, behaviour.stalled_under = frozenset(command["operations"]), command["under"]
            behaviour.stall_ends = time.monotonic() + command["seconds"]
        elif name == "short":
            behaviour.short = command["most"]
        elif name == "heal":
            behaviour.rules.clear()
            behaviour.stalled, behaviour.short = frozenset(), None
            behaviour.lock.notify_all()
        elif name == "evict":
            return disk.evict()
        elif name == "waiting":
            return sum(behaviour.waiting.values())
        elif name == "answered":
            return sum(behaviour.answered.values())
    return None


def _listen(behaviour: Behaviour, disk: Passthrough, unmount: Callable[[], None]) -> None:
    for line in sys.stdin:
        print(json.dumps(_obey(json.loads(line), behaviour, disk)), flush=True)
    unmount()
    os._exit(0)


def main(folder: str, mountpoint: str, make: Callable[[Path, Behaviour], Passthrough] = Passthrough) -> None:
    behaviour = Behaviour()
    disk = make(Path(folder), behaviour)

    def unmount() -> None:
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False)

    threading.Thread(target=_listen, args=(behaviour, disk, unmount), daemon=True).start()
    # nothing is remembered: what the file system answers now is what the caller gets
    mfusepy.FUSE(disk, mountpoint, foreground=True, attr_timeout=0, entry_timeout=0, negative_timeout=0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
