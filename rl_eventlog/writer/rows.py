"""All tables of one writer: seqs, segments, rotation, sealing.

- A row handed to `append` is with the kernel when the call returns, or counted in `rows_lost`.
- Seqs of a table are dense from 0. A seq moves only after its row was written whole; rows of a
  failed write go, with the same seqs, to a new segment.
- A signal handler that logs while this very thread is writing does not deadlock: its rows wait in
  memory and are written before the interrupted call returns.
- Sealing and fsync happen on the callers of `seal_rotated` and `fsync`, outside the lock that `append`
  needs: the background thread, never the training.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from rl_eventlog.durable import fsync_file, make_folder
from rl_eventlog.errors import WriteError, WriterClosedError
from rl_eventlog.layout import RunLayout, SegmentName, open_name
from rl_eventlog.segment.open_segment import OpenSegment
from rl_eventlog.types import Identity, Span

if TYPE_CHECKING:
    from rl_eventlog.segment.template import TemplateRows

    Rows: TypeAlias = pa.RecordBatch | TemplateRows

logger = logging.getLogger("rl_eventlog")


@dataclass(slots=True)
class _TableState:
    """One table of this writer."""

    next_seq: int = 0
    """Of the next segment; within one, the segment counts."""
    number: int = 0
    """`n` of the next segment."""
    segment: OpenSegment | None = None
    opened: float = 0.0
    """Monotonic time at which the segment was made."""
    fsynced_size: int = 0


@dataclass(frozen=True, slots=True)
class _Rotated:
    """A finished open segment that waits for its seal, or for the end of its grace time."""

    table: str
    number: int
    path: Path
    span: Span
    """Seqs that were written to it."""


@dataclass(slots=True)
class Limits:
    """When a segment is rotated and when a sealed one's open form goes."""

    segment_bytes: int = 64 << 20
    segment_seconds: float = 6 * 3600.0
    grace_seconds: float = 15 * 60.0
    jitter: float = field(default_factory=lambda: random.uniform(0.9, 1.1))  # noqa: S311 -- spreads seals, no secret


class RowStore:
    """Writes rows of all tables of one writer.

    Attributes:
        rows_lost: rows that could not be written, by table.
    """

    def __init__(self, layout: RunLayout, identity: Identity, limits: Limits, *, raise_errors: bool = False) -> None:
        self.layout = layout
        self.identity = identity
        self.rows_lost: dict[str, int] = {}
        self._limits = limits
        self._rotation_bytes = limits.segment_bytes * limits.jitter
        self._raise_errors = raise_errors
        self._tables: dict[str, _TableState] = {}
        self._finished = False
        self._to_seal: deque[_Rotated] = deque()
        self._unsealed: list[_Rotated] = []  # their seal failed
        self._sealed: deque[tuple[float, Path]] = deque()
        self._sealing = threading.Lock()
        # An RLock, so that a signal handler on this thread gets in, sees `_busy`, and leaves its row.
        self._lock = threading.RLock()
        self._busy = False
        self._waiting: deque[tuple[str, Rows]] = deque()

    def append(self, table: str, rows: Rows) -> None:
        """Write the rows of one call.

        Args:
            table: name of the table.
            rows: a record batch with the columns of its open form, or rows of a template; at least one row.

        Raises:
            WriteError: they could not be written, with ``on_error="raise"``.
            WriterClosedError: `finish` was called.
        """
        with self._lock:
            if self._finished:
                raise WriterClosedError(f"the writer of {self.layout.path} is closed: open a new one to log more")
            if self._busy:  # this very thread is writing: the signal handler's row is written when it goes on
                self._waiting.append((table, rows))
                return
            self._busy = True
            try:
                self._write(table, rows)
                if self._waiting:
                    self._drain()
            except BaseException:  # a signal handler raised; what it logged before is owed all the same
                self._drain()
                raise
            finally:
                self._busy = False
        if self._waiting:  # a signal came between the last look and the end of `_busy`
            self.append(*self._waiting.popleft())

    def _drain(self) -> None:
        while self._waiting:
            self._write(*self._waiting.popleft())

    def last_seqs(self) -> dict[str, int]:
        """Last seq of every table that has rows. Waits for nobody."""
        counts = {}
        for name, state in list(self._tables.items()):
            segment = state.segment  # `next_seq` is set before this goes
            counts[name] = segment.next_seq if segment else state.next_seq
        return {name: count - 1 for name, count in counts.items() if count}

    def fsync(self) -> None:
        """Put every row written so far on the disk, in files that are still where they belong.

        Raises:
            OSError: the disk refused; the rows stay with the kernel.
        """
        self._restore_removed()
        for rotated in (*self._to_seal, *self._unsealed):
            with suppress(FileNotFoundError):  # sealed and removed meanwhile
                fsync_file(rotated.path)
        with self._lock:
            states = list(self._tables.values())
        for state in states:
            self._fsync_segment(state)

    def _fsync_segment(self, state: _TableState) -> None:
        """On a descriptor of our own: a rotation may close the segment's meanwhile."""
        with self._lock:
            segment = state.segment
            if segment is None or segment.size == state.fsynced_size:
                return
            size, fd = segment.size, os.dup(segment.fd)
        try:
            segment.fsync(fd)
        finally:
            os.close(fd)
        with self._lock:
            if state.segment is segment:
                state.fsynced_size = size

    def _restore_removed(self) -> None:
        """Rows of a segment whose file was removed go to a new one, with the same seqs."""
        for name, state in list(self._tables.items()):
            segment = state.segment
            try:
                if segment is None or segment.in_place():
                    continue
            except OSError:
                if state.segment is not segment:  # rotated meanwhile
                    continue
                raise
            with self._lock:
                if state.segment is segment and not self._busy:
                    logger.warning("rl-eventlog writes %s anew: it was removed", segment.path)
                    self._replace_segment(name, state, segment)

    def _replace_segment(self, table: str, state: _TableState, removed: OpenSegment) -> None:
        state.segment, state.next_seq = None, removed.first_seq
        copy: OpenSegment | None = None
        try:
            copy = self._new_segment(table, state)
            copy.take_over(removed)
        except OSError:
            state.segment = removed
            if copy:
                copy.close()
                with suppress(OSError):
                    copy.path.unlink()
            raise
        removed.close()

    def rotate_old(self) -> None:
        """End segments that are older than the age limit."""
        now = time.monotonic()
        with self._lock:
            for name, state in self._tables.items():
                if state.segment and now - state.opened > self._limits.segment_seconds * self._limits.jitter:
                    self._end_segment(name, state)

    def seal_rotated(self) -> None:
        """Seal what was rotated; remove open forms whose grace time is over."""
        with self._sealing:
            while self._to_seal:
                rotated = self._to_seal[0]
                if self._seal(rotated):
                    self._sealed.append((time.monotonic(), rotated.path))
                else:
                    self._unsealed.append(rotated)
                self._to_seal.popleft()
            self._remove_sealed(self._limits.grace_seconds)

    def finish(self, timeout_seconds: float) -> bool:
        """Take no more rows, and end all segments so that `seal_rotated` finds them.

        Returns:
            False where a call of another thread did not come to its end in time, or where this very
            call interrupted one, from a signal handler: the segments then stay open, a valid end.
        """
        if not self._lock.acquire(timeout=max(0.0, timeout_seconds)):
            self._finished = True
            return False
        try:
            self._finished = True
            if self._busy:
                return False
            with suppress(OSError):
                self._restore_removed()
            for name, state in self._tables.items():
                self._end_segment(name, state)
            self._to_seal.extend(self._unsealed)  # space may have returned
            self._unsealed.clear()
        finally:
            self._lock.release()
        return True

    def remove_sealed(self) -> None:
        """Remove open forms whose sealed files were read back, without waiting for the grace time."""
        with self._sealing:
            self._remove_sealed(0.0)

    def left_open(self) -> list[Path]:
        """Open segments that are not sealed."""
        rotated = [entry.path for entry in (*self._unsealed, *self._to_seal)]
        current = [state.segment for state in list(self._tables.values())]
        return rotated + [segment.path for segment in current if segment]

    def _remove_sealed(self, grace_seconds: float) -> None:
        while self._sealed and time.monotonic() - self._sealed[0][0] >= grace_seconds:
            with suppress(OSError):
                self._sealed[0][1].unlink()
            self._sealed.popleft()

    def abandon(self) -> None:
        """Drop files without writing: they belong to the parent of this forked process."""
        for state in self._tables.values():
            if state.segment:
                state.segment.close()
        self._tables.clear()

    def _write(self, table: str, rows: Rows) -> None:
        state = self._tables.get(table)
        if state is None:
            state = self._tables[table] = _TableState()
        error: OSError | None = None
        if state.segment is not None:
            try:
                if state.segment.append(rows) > self._rotation_bytes:
                    self._end_segment(table, state)
            except OSError as caught:
                error = caught
                self._end_segment(table, state)
            else:
                return
        try:  # in a new segment, with the same seqs
            if self._new_segment(table, state).append(rows) > self._rotation_bytes:
                self._end_segment(table, state)
        except OSError as caught:
            self._end_segment(table, state)
            self._lose(table, rows[0].rows if isinstance(rows, tuple) else rows.num_rows, error or caught)

    def _lose(self, table: str, rows: int, error: OSError | None) -> None:
        if table not in self.rows_lost:
            logger.warning("rl-eventlog cannot write %s rows under %s: %s", table, self.layout.path, error)
        self.rows_lost[table] = self.rows_lost.get(table, 0) + rows
        if self._raise_errors:
            raise WriteError(f"{rows} {table} rows could not be written under {self.layout.path}: {error}") from error

    def _new_segment(self, table: str, state: _TableState) -> OpenSegment:
        folder = self.layout.shard(table, self.identity.node)
        make_folder(folder)
        number = state.number
        state.number += 1
        path = folder / open_name(self.identity.writer, number)
        state.segment = OpenSegment(path, table, self.identity, state.next_seq)
        state.opened = time.monotonic()
        state.fsynced_size = 0
        return state.segment

    def _end_segment(self, table: str, state: _TableState) -> None:
        segment = state.segment
        if segment is None:
            return
        state.next_seq = segment.next_seq
        state.segment = None
        with suppress(OSError):  # a failed close loses nothing that the kernel has acknowledged
            segment.close()
        if segment.rows:
            span = Span(segment.first_seq, segment.next_seq - 1)
            self._to_seal.append(_Rotated(table, state.number - 1, segment.path, span))
        else:
            with suppress(OSError):
                segment.path.unlink()

    def _seal(self, rotated: _Rotated) -> bool:
        # Here, not above: it loads pyarrow.parquet, which the training's import should not pay for.
        from rl_eventlog.segment.seal import seal_open

        try:
            sealed = seal_open(rotated.path, rotated.number, rotated.table)
        except FileNotFoundError as error:
            logger.warning("rl-eventlog lost %s rows of %s: %s", len(rotated.span), rotated.path, error)
            self.rows_lost[rotated.table] = self.rows_lost.get(rotated.table, 0) + len(rotated.span)
            return True
        except Exception as error:  # noqa: BLE001 -- one that cannot be sealed must not stop the others
            logger.warning("rl-eventlog leaves %s open: %s", rotated.path, error)
            return False
        names = [SegmentName.parse(path.name) for path in sealed]
        if [(name.first, name.last) for name in names if name] != [(rotated.span.first, rotated.span.last)]:
            logger.warning("rl-eventlog keeps %s: it is damaged, what is whole in it was sealed", rotated.path)
            return False
        return True
