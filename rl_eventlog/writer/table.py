"""One table of a writer: its seqs and the segment it is writing.

- Rows that were taken are with the kernel when the call returns; an OSError leaves nothing of them.
- Seqs are dense from 0. A seq moves only after its row was written whole; rows of a failed write go,
  with the same seqs, to a new segment, in the run's folder or else under the fallback folder.
- A signal handler that logs while this very thread is writing does not deadlock: its rows wait in
  memory and are written before the interrupted call returns.
- Rows that an fsync could not put on the disk are written again elsewhere, with the same seqs.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from rl_eventlog.durable import make_folder
from rl_eventlog.errors import WriterClosedError
from rl_eventlog.layout import GRACE_SECONDS, open_name
from rl_eventlog.segment.open_segment import OpenSegment
from rl_eventlog.types import Span

from .places import Places

if TYPE_CHECKING:
    from rl_eventlog.segment.template import TemplateRows

#: The rows of one call.
Rows: TypeAlias = "pa.RecordBatch | TemplateRows"

logger = logging.getLogger("rl_eventlog")
T = TypeVar("T")

SLOW_SECONDS = 0.1
"""A write that takes longer is counted and named."""
_EXIT_SECONDS = 0.5


@dataclass(slots=True)
class Limits:
    """When a segment is rotated and when a sealed one's open form goes."""

    segment_bytes: int = 64 << 20
    segment_seconds: float = 6 * 3600.0
    grace_seconds: float = GRACE_SECONDS
    jitter: float = field(default_factory=lambda: random.uniform(0.9, 1.1))  # noqa: S311 -- spreads seals, no secret


@dataclass(frozen=True, slots=True)
class Rotated:
    """A finished open segment that waits for its seal, or for the end of its grace time."""

    table: str
    number: int
    path: Path
    span: Span
    """Seqs that were written to it."""
    on_disk: bool
    """Whether all of it is on the disk, here or in a later segment."""


class Moved(NamedTuple):
    """A segment that could not be made in the run's folder."""

    path: Path
    first_seq: int


class Table:
    """The rows of one table.

    Attributes:
        name: of the table.
        held: rows that wait in the row queue of a direct writer. While there are some, new ones join them.
        moved: segments under the fallback folder, oldest first.
        marked: how many of them have a marker.
    """

    def __init__(
        self,
        name: str,
        places: Places,
        limits: Limits,
        *,
        rotated: Callable[[Rotated], None],
        distrusted: Callable[[Path, OSError], None],
        slow: Callable[[float], None],
        refused: Callable[[Table, Rows, OSError | None], None],
    ) -> None:
        """Make a table without rows.

        Args:
            name: of the table.
            places: where its segments lie.
            limits: when they are rotated.
            rotated: told each segment that ended with rows in it.
            distrusted: told of such a segment that an fsync of it failed.
            slow: told the seconds of a write that took longer than `SLOW_SECONDS`.
            refused: given rows that the file system does not take, and why; None where rows before them wait.
        """
        self.name = name
        self.held = 0
        self.moved: list[Moved] = []
        self.marked = 0
        self._places = places
        self._limits = limits
        self._rotation_bytes = limits.segment_bytes * limits.jitter
        self._rotated = rotated
        self._distrusted = distrusted
        self._slow = slow
        self._refused = refused
        self._segment: OpenSegment | None = None
        self._opened = 0.0
        self._number = 0  # `n` of the next segment
        self._next_seq = 0  # of the next segment; within one, the segment counts
        self._on_disk = (0, 0)  # size and next seq of the segment at its last good fsync
        self._unsafe: OSError | None = None  # of an fsync, whose rows could not be written elsewhere either
        self._closed = False
        # An RLock, so that a signal handler on this thread gets in, sees `_busy`, and leaves its row.
        self._lock = threading.RLock()
        self._busy = False
        self._left_by_handlers: deque[Rows] = deque()

    @property
    def segment(self) -> OpenSegment | None:
        """The segment it is writing."""
        return self._segment

    @property
    def count(self) -> int:
        """Rows written. Waits for nobody."""
        segment = self._segment  # `_next_seq` is set before this goes
        return segment.next_seq if segment else self._next_seq

    def append(self, rows: Rows) -> None:
        """Write the rows of one call, or hand them to `refused`.

        Raises:
            WriterClosedError: `close` was called.
        """
        with self._lock:
            if self._busy:  # this very thread is writing: the signal handler's row is written when it goes on
                self._left_by_handlers.append(kept(rows))
                return
            if self._closed:
                raise WriterClosedError(f"the writer of {self._places.home.path} is closed: open a new one to log more")
            self._busy = True
            try:
                self._write_or_refuse(rows)
                if self._left_by_handlers:
                    self._write_left()
            except BaseException:  # a signal handler raised; what it logged before is owed all the same
                self._write_left()
                raise
            finally:
                self._busy = False
        if self._left_by_handlers:  # a signal came between the last look and the end of `_busy`
            self._append_left()

    def try_append(self, rows: Rows) -> OSError | None:
        """Write rows that waited in a queue; the reason where the file system does not take them."""
        with self._at_work():
            try:
                self._write(rows)
            except OSError as error:
                return error
        return None

    def append_at_exit(self, rows: Rows) -> bool:
        """The same while the interpreter goes down, when nobody may be left to free the table."""
        if not self._lock.acquire(timeout=_EXIT_SECONDS):
            return False
        try:
            return self.try_append(rows) is None
        finally:
            self._lock.release()

    def release(self, held: int) -> None:
        """Rows that `refused` kept are written, or dropped."""
        with self._lock:
            self.held -= held

    def fsync(self) -> None:
        """Put every row on the disk, in files that are still where they belong.

        Raises:
            OSError: the disk refused and so did every other place; the rows stay with the kernel.
        """
        segment = self._segment
        if segment is not None and not self._is_there(segment):
            self._go_on_elsewhere(segment, FileNotFoundError(errno.ENOENT, "it was removed"))
        with self._lock:  # on a descriptor of our own: a rotation may close the segment's meanwhile
            segment = self._segment
            if segment is None or (segment.size == self._on_disk[0] and not self._unsafe):
                return
            reached, fd = (segment.size, segment.next_seq), os.dup(segment.fd)
        # after a failure the kernel has forgotten what it could not write: another fsync would say all is well
        error = self._unsafe
        try:
            if error is None:
                segment.fsync(fd)
        except OSError as caught:
            error = caught
        finally:
            os.close(fd)
        if error is not None:
            self._go_on_elsewhere(segment, error)
            return
        with self._lock:
            if self._segment is segment:
                self._on_disk = reached

    def rotate_if_old(self) -> None:
        """End a segment that is older than the age limit, or lies under the fallback folder without need."""
        with self._at_work():
            segment = self._segment
            if segment is None:
                return
            if time.monotonic() - self._opened > self._limits.segment_seconds * self._limits.jitter:
                self._end_segment()
            elif not self._places.is_home(segment.path):
                with suppress(OSError):
                    fresh = self._open_at(self._home(), segment.next_seq)
                    self._end_segment()
                    self._begin(fresh)

    def close(self, timeout_seconds: float) -> bool:
        """Take no more rows and end the segment.

        Returns:
            False where a call of another thread did not come to its end in time, or where this very
            call interrupted one, from a signal handler: the segment then stays open, a valid end.
        """
        if not self._lock.acquire(timeout=max(0.0, timeout_seconds)):
            self._closed = True
            return False
        try:
            self._closed = True
            if self._busy:
                return False
            with self._at_work():
                self._end_segment()
        finally:
            self._lock.release()
        return True

    def abandon(self) -> None:
        """Drop the file without writing: it belongs to the parent of this forked process."""
        if self._segment:
            with suppress(OSError):
                self._segment.close()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Hold the table; what this very thread logs meanwhile, in a `__del__` for one, is written at the end."""
        with self._lock:
            self._busy = True
            try:
                yield
                self._write_left()
            finally:
                self._busy = False

    def _write_or_refuse(self, rows: Rows) -> None:
        if self.held:
            self._refused(self, rows, None)
            return
        try:
            self._write(rows)
        except OSError as error:
            if error.errno is None:  # not the disk's: a signal handler raised it, a TimeoutError for one
                raise
            self._refused(self, rows, error)

    def _append_left(self) -> None:
        with self._lock:
            if not self._busy:
                self._write_left()

    def _write_left(self) -> None:
        while self._left_by_handlers:
            self._write_or_refuse(self._left_by_handlers.popleft())

    def _write(self, rows: Rows) -> None:
        """Write to the segment, else to a new one, with the same seqs.

        Raises:
            OSError: no place takes them; nothing of them stays.
        """
        began = time.monotonic()
        segment = self._segment
        if segment is None:
            self._begin_with(rows)
        else:
            try:
                size = segment.append(rows)
            except OSError as error:
                if error.errno is None:
                    raise
                self._end_segment()
                try:
                    self._begin_with(rows)
                except OSError:
                    raise error from None  # the cause; the rest follows from it
            else:
                if size > self._rotation_bytes:
                    self._end_segment()
        if time.monotonic() - began > SLOW_SECONDS:
            self._slow(time.monotonic() - began)

    def _begin_with(self, rows: Rows) -> None:
        """Write the first rows of a new segment, in the run's folder or else under the fallback folder."""

        def begin(folder: Path) -> None:
            # registered before it has rows: an exception from a signal handler must not leave rows that nobody counts
            self._begin(segment := self._open_at(folder, self._next_seq))
            try:
                size = segment.append(rows)
            except OSError:
                self._segment = None
                self._discard(segment)
                raise
            if size > self._rotation_bytes:
                self._end_segment()

        self._somewhere(begin)

    def _somewhere(self, make: Callable[[Path], T]) -> T:
        """Make something in the run's folder for this table, or else under the fallback folder.

        Raises:
            OSError: neither takes it.
        """
        try:
            return make(self._home())
        except OSError as error:
            if self._places.fallback is None or error.errno is None:
                raise
            if not self.moved:
                logger.warning("rl-eventlog cannot write %s rows where the run lies: %s", self.name, error)
            try:
                return make(self._places.enter_fallback(self.name))
            except OSError:
                raise error from None

    def _home(self) -> Path:
        folder = self._places.shard(self.name)
        make_folder(folder)
        return folder

    def _open_at(self, folder: Path, first_seq: int) -> OpenSegment:
        number = self._number
        self._number += 1
        path = folder / open_name(self._places.identity.writer, number)
        return OpenSegment(path, self.name, self._places.identity, first_seq)

    def _begin(self, segment: OpenSegment) -> None:
        if not self._places.is_home(segment.path):
            self.moved.append(Moved(segment.path, segment.first_seq))
        self._on_disk = (0, segment.first_seq)
        self._unsafe = None
        self._opened = time.monotonic()
        self._segment = segment

    def _end_segment(self) -> None:
        segment = self._segment
        if segment is None:
            return
        self._next_seq = segment.next_seq
        self._segment = None
        there = self._is_there(segment)
        problem = self._close(segment) if there else FileNotFoundError(errno.ENOENT, "it was removed")
        saved = problem is not None and self._save(segment, problem, there=there)
        if there or not saved:
            self._hand_over(segment, on_disk=saved or segment.size == self._on_disk[0])

    def _close(self, segment: OpenSegment) -> OSError | None:
        """Close the file; what went wrong, as NFS says here what it could not write."""
        try:
            segment.close()
        except OSError as error:
            return error
        return None

    def _hand_over(self, segment: OpenSegment, *, on_disk: bool) -> None:
        if not segment.rows:
            with suppress(OSError):
                segment.path.unlink()
            return
        number = int(segment.path.stem.rpartition("-")[2])
        span = Span(segment.first_seq, segment.next_seq - 1)
        self._rotated(Rotated(self.name, number, segment.path, span, on_disk))

    def _discard(self, segment: OpenSegment) -> None:
        with suppress(OSError):
            segment.close()
        with suppress(OSError):
            segment.path.unlink()

    def _is_there(self, segment: OpenSegment) -> bool:
        """Whether its path leads to it; one that cannot be asked is gone."""
        try:
            return segment.in_place()
        except OSError:
            return False

    def _go_on_elsewhere(self, segment: OpenSegment, problem: OSError) -> None:
        """Go on in a new segment, that begins with the rows of this one that may be lost.

        Raises:
            OSError: the problem; no place takes them.
        """
        with self._at_work():
            if self._segment is not segment:  # rotated meanwhile
                self._distrusted(segment.path, problem)
                return
            there = self._is_there(segment)
            copy = self._saved(segment, problem, there=there)
            if copy is None:
                self._unsafe = problem
                raise problem
            self._begin(copy)
            self._on_disk = (copy.size, copy.next_seq)
            self._close(segment)
            if there:
                self._hand_over(segment, on_disk=True)

    def _save(self, segment: OpenSegment, problem: OSError, *, there: bool) -> bool:
        """Write the rows of an ended segment that may be lost elsewhere; whether a place took them."""
        copy = self._saved(segment, problem, there=there)
        self._close(segment)
        if copy is None:
            return False
        self._close(copy)
        self._hand_over(copy, on_disk=True)
        return True

    def _saved(self, segment: OpenSegment, problem: OSError, *, there: bool) -> OpenSegment | None:
        """A new segment, on the disk, with the rows that may be lost; None where no place takes them.

        All where the file is gone, else what came after the last good fsync.
        """
        logger.warning("rl-eventlog writes rows of %s anew: %s", segment.path, problem)
        offset, first_seq = self._on_disk if there else (0, segment.first_seq)
        try:
            return self._somewhere(lambda folder: self._copy(folder, segment, offset, first_seq))
        except OSError:
            return None

    def _copy(self, folder: Path, segment: OpenSegment, offset: int, first_seq: int) -> OpenSegment:
        """A new segment, on the disk, with the rows of another from an offset on.

        Raises:
            OSError: they could not be read or written; nothing of it stays.
        """
        copy = self._open_at(folder, first_seq)
        try:
            copy.take_over(segment, offset)
            copy.fsync()
        except OSError:
            self._discard(copy)
            raise
        return copy


def kept(rows: Rows) -> Rows:
    """Rows that may wait: the values of a template's may be a view of the caller's own mapping."""
    if not isinstance(rows, tuple):
        return rows
    template, step, time_us, axis_value, values, weights = rows
    return template, step, time_us, axis_value, tuple(values), weights
