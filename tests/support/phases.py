"""What each thread of a writer's process is doing to the file system, kept where a SIGKILL does not reach.

`install` wraps the calls by which files change. The page is shared memory: who made it before a fork reads
there what a killed child was doing. An `Aim` lets the process kill itself within a phase.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

#: What the training's thread does between the calls below.
BASES = ("idle", "opening", "logging", "closing", "closed")
#: What a thread does to the file system.
CALLS = (
    "batch write",
    "rotate",
    "segment fsync",
    "folder fsync",
    "seal write",
    "seal fsync",
    "seal read back",
    "seal rename",
    "open form removed",
    "document fsync",
    "document named",
    "beat",
)
PHASES = BASES + CALLS
THREADS = 6
_COUNTERS = 4


class Page:
    """Numbers that outlive the process: a phase for each thread, and some counters."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def clear(self) -> None:
        """Zero everything."""
        self._memory[: 8 * (THREADS + _COUNTERS)] = bytes(8 * (THREADS + _COUNTERS))

    def enter(self, thread: int, phase: str) -> None:
        """Note what a thread does."""
        struct.pack_into("<q", self._memory, 8 * thread, PHASES.index(phase))

    def phases(self) -> list[str]:
        """What each thread does, the training's first; `idle` where there is none."""
        return [PHASES[number] for number in struct.unpack_from(f"<{THREADS}q", self._memory)]

    def count(self, counter: int, by: int = 1) -> None:
        """Add to a counter."""
        struct.pack_into("<q", self._memory, 8 * (THREADS + counter), self.counters()[counter] + by)

    def counters(self) -> list[int]:
        """The counters."""
        return list(struct.unpack_from(f"<{_COUNTERS}q", self._memory, 8 * THREADS))


@dataclass(slots=True)
class Aim:
    """When the process is to kill itself."""

    phase: str
    count: int
    """At this entry of the phase, from 1."""
    when: str
    """`before`, `after`, `torn` (a write got a part of its bytes down; else as `after`) or `during` (`seconds` on)."""
    seconds: float = 0.0


@dataclass(slots=True)
class Watch:
    """The phases of this process's threads."""

    page: Page
    aim: Aim | None = None
    watching: bool = False
    _entries: int = 0
    _slots: dict[int, int] = field(default_factory=dict)
    _now: threading.local = field(default_factory=threading.local)

    def base(self, phase: str) -> None:
        """What this thread does between its calls from here on."""
        self._now.base = self._now.phase = phase
        self.page.enter(self._slot(), phase)

    def _slot(self) -> int:
        return self._slots.setdefault(threading.get_ident(), len(self._slots) % THREADS)

    @contextmanager
    def inside(self, phase: str) -> Iterator[str | None]:
        """Mark the call; yields how the aim hits it, if it does."""
        slot, outer = self._slot(), getattr(self._now, "phase", "idle")
        if phase == outer:  # one wrapped call is made of another
            yield None
            return
        self._now.phase = phase
        self.page.enter(slot, phase)
        hit = self._hit(phase)
        if hit == "before":
            kill_self()
        if hit == "during" and self.aim:
            threading.Thread(target=_kill_soon, args=(self.aim.seconds,), daemon=True).start()
        try:
            yield hit
            if hit in ("after", "torn"):
                kill_self()
        finally:
            self._now.phase = outer
            self.page.enter(slot, outer)

    def _hit(self, phase: str) -> str | None:
        if self.aim is None or self.aim.phase != phase:
            return None
        self._entries += 1
        return self.aim.when if self._entries == self.aim.count else None


def kill_self() -> None:
    """SIGKILL; does not return."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _kill_soon(seconds: float) -> None:
    time.sleep(seconds)
    kill_self()


def install(watch: Watch) -> None:
    """Wrap the calls. To be called once, before a writer is made; they pass through while nobody watches."""
    _wrap(watch, os, "pwrite", lambda fd, data, offset: _of_write(_path(fd), offset))
    _wrap(watch, os, "fsync", lambda fd: _of_fsync(_path(fd)))
    _wrap(watch, os, "open", lambda path, flags, *rest, **named: _of_open(str(path), flags))
    _wrap(watch, os, "link", lambda source, target, **named: "document named")
    _wrap(watch, Path, "replace", lambda source, target: _of_rename(str(target)))
    _wrap(watch, Path, "unlink", lambda path, **named: "open form removed" if path.suffix == ".arrows" else None)
    _wrap(watch, pq.ParquetWriter, "write_table", lambda writer, rows, **named: "seal write")
    _wrap(watch, pq, "read_metadata", lambda where: "seal read back")


def _wrap(watch: Watch, holder: Any, name: str, classify: Callable[..., str | None]) -> None:
    original = getattr(holder, name)

    def call(*arguments: Any, **named: Any) -> Any:
        phase = classify(*arguments, **named) if watch.watching else None
        if phase is None:
            return original(*arguments, **named)
        with watch.inside(phase) as hit:
            if hit == "torn" and name == "pwrite":
                fd, data, offset = arguments
                original(fd, bytes(data)[: random.randrange(len(data))], offset)
                kill_self()
            return original(*arguments, **named)

    setattr(holder, name, call)


def _path(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def _of_write(path: str, offset: int) -> str | None:
    if path.endswith(".beat"):
        return "beat"
    return ("batch write" if offset else "rotate") if path.endswith(".arrows") else None


def _of_fsync(path: str) -> str:
    if path.endswith(".arrows"):
        return "segment fsync"
    if ".tmp-" in path:
        return "seal fsync" if "/events/" in path else "document fsync"
    return "folder fsync"


def _of_open(path: str, flags: int) -> str | None:
    return "rotate" if flags & os.O_CREAT and path.endswith(".arrows") else None


def _of_rename(target: str) -> str:
    return "seal rename" if target.endswith(".parquet") else "document named"
