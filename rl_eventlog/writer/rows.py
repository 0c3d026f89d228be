"""All tables of one writer.

- Rows handed to `append` are, when the call returns, with the kernel, or in memory and on their way,
  or counted in `rows_lost`. In memory are those that the file system did not take within the stall
  budget (``write="queued"``) or refused, and big ones.
- Sealing and fsync happen on the callers of `seal` and `fsync`: the background thread, never the training.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from rl_eventlog.errors import WriteError, WriterClosedError
from rl_eventlog.host import host_name

from .batches import row_batch
from .deferred import Deferred, Job
from .places import Places
from .row_queue import RowQueue, count
from .sealing import Sealing
from .table import Limits, Rows, Table
from .text import to_json

logger = logging.getLogger("rl_eventlog")


class RowStore:
    """Writes rows of all tables of one writer.

    Attributes:
        rows_lost: rows that were dropped, or could not be written, by table.
        queued: whether a thread writes.
        slow_writes: writes that took very long.
    """

    def __init__(
        self, places: Places, limits: Limits, *, budget_seconds: float | None = None, raise_errors: bool = False
    ) -> None:
        """Start without rows.

        Args:
            places: where the files lie.
            limits: when segments rotate.
            budget_seconds: how long a call waits for a thread to write its rows; None: the caller writes.
            raise_errors: let `append` raise where the file system refuses.
        """
        self.places = places
        self.rows_lost: Counter[str] = Counter()
        self.slow_writes = 0
        self._limits = limits
        self.queued = budget_seconds is not None
        self._raise_errors = raise_errors
        self._tables: dict[str, Table] = {}
        self._finished = False
        self._warned = False
        self._making = threading.RLock()
        self._sealing = Sealing(places, limits.grace_seconds, self._lose)
        self._queue = RowQueue(budget_seconds or 0.0, lost=self._lose, refused=self._warn)
        if self.queued:
            self._queue.start()
        self._deferred = Deferred(dropped=self._drop, failed=self._lose, refused=self._warn)

    def append(self, table: str, rows: Rows) -> None:
        """Write the rows of one call.

        Args:
            table: name of the table.
            rows: a record batch with the columns of its open form, or rows of a template; at least one row.

        Raises:
            WriteError: they could not be written, with ``on_error="raise"``.
            WriterClosedError: `finish` was called.
        """
        state = self._tables.get(table)
        if state is None:
            self._check_open()
            state = self._table(table)
        if self.queued:
            self._append_queued(state, rows)
        else:
            state.append(rows)

    def defer(
        self,
        table: str,
        encode: Callable[[], Iterable[pa.RecordBatch]],
        *,
        rows: int,
        size: int,
        may_be_dropped: bool = False,
    ) -> None:
        """Encode and write the rows of a call on a thread.

        Args:
            table: name of the table.
            encode: makes their record batches.
            rows: how many there will be.
            size: bytes they hold in memory until then, roughly.
            may_be_dropped: drop them where too much waits.

        Raises:
            WriterClosedError: `finish` was called.
        """
        self._check_open()
        job = Job(self._table(table), encode, rows=rows, size=size, may_be_dropped=may_be_dropped)
        try:
            self._deferred.put(job)
        except RuntimeError:  # the interpreter is shutting down: now or never
            job.write()

    def waiting(self) -> dict[str, int]:
        """Rows in memory that are not written yet, by table."""
        return dict(self._queue.waiting() + self._deferred.waiting())

    def last_seqs(self) -> dict[str, int]:
        """Last seq of every table that has rows. Waits for nobody."""
        counts = {name: table.count for name, table in list(self._tables.items())}
        return {name: rows - 1 for name, rows in counts.items() if rows}

    def flush(self) -> None:
        """Wait until every row is with the kernel.

        Raises:
            OSError: the file system refuses; the rows wait in memory and are tried again.
        """
        for queue in (self._deferred, self._queue):
            if not queue.join(None, patient=False) and (error := queue.error):
                raise OSError(error.errno, f"{sum(self.waiting().values())} rows wait in memory: {error.strerror}")

    def fsync(self, *, again: bool = False) -> None:
        """Put every row that is with the kernel on the disk, in files that are still where they belong.

        Args:
            again: try once more what failed and costs much to try.

        Raises:
            OSError: the disk refused; the rows stay with the kernel.
        """
        failed: OSError | None = None
        for table in list(self._tables.values()):
            try:
                table.fsync()
            except OSError as error:  # the others' rows are as dear
                failed = error
        self._sealing.fsync(again=again)
        if failed:
            raise failed

    def rotate_old(self) -> None:
        """End segments that are too old, or lie under the fallback folder without need; say which lay there."""
        for table in list(self._tables.values()):
            table.rotate_if_old()
        self._mark_moved()

    def seal(self) -> None:
        """Seal what was rotated; remove open forms whose grace time is over."""
        self._sealing.seal()

    def finish(self, timeout_seconds: float | None) -> bool:
        """Take no more rows, wait for those in memory, and end all segments so that `seal` finds them.

        Returns:
            False where not all came to its end in time, or where this very call interrupted another,
            from a signal handler: the segments then stay open, a valid end.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._finished = True
        if not self._deferred.join(deadline) or not self._queue.join(deadline):
            return False
        self._mark_moved()
        with self._making:
            tables = list(self._tables.values())
        ended = [table.close(60.0 if deadline is None else deadline - time.monotonic()) for table in tables]
        return all(ended)

    def seal_all(self) -> None:
        """Seal what `finish` ended, those once more whose seal failed, and remove their open forms."""
        self._sealing.seal(again=True)

    def remove_open_forms(self) -> None:
        """Remove open forms whose sealed files were read back, without waiting for the grace time."""
        self._sealing.remove_open_forms()

    def left_open(self) -> list[Path]:
        """Segments that are not sealed."""
        current = [table.segment for table in list(self._tables.values())]
        return self._sealing.left_open() + [segment.path for segment in current if segment]

    def fallback(self) -> list[Path]:
        """Segments that lie under the fallback folder still."""
        return [path for table in list(self._tables.values()) for path, _ in table.moved if path.exists()]

    def abandon(self) -> None:
        """Drop files without writing: they belong to the parent of this forked process."""
        for table in self._tables.values():
            table.abandon()
        self._tables.clear()

    def _table(self, name: str) -> Table:
        with self._making:
            if name not in self._tables:
                self._tables[name] = Table(
                    name,
                    self.places,
                    self._limits,
                    rotated=self._sealing.add,
                    distrusted=self._sealing.distrust,
                    slow=self._note_slow,
                    refused=self._refused,
                )
            return self._tables[name]

    def _check_open(self) -> None:
        if self._finished:
            raise WriterClosedError(f"the writer of {self.places.home.path} is closed: open a new one to log more")

    def _append_queued(self, table: Table, rows: Rows) -> None:
        self._check_open()
        if sys.is_finalizing():  # the thread does not run any more, and may have stopped with the table's lock
            if not table.append_at_exit(rows):
                self._drop(table.name, count(rows))
            return
        try:
            if not self._queue.put(table, rows, wait=True):
                self._drop(table.name, count(rows))
        except RuntimeError:  # the interpreter is shutting down: no thread will do it
            table.append(rows)
        if self._raise_errors and (error := self._queue.error):
            waiting = sum(self.waiting().values())
            raise WriteError(f"{waiting} rows wait in memory, {self.places.home.path} refuses them: {error}") from error

    def _refused(self, table: Table, rows: Rows, error: OSError | None) -> None:
        """What a direct writer does with rows that the file system does not take, or that must follow such rows."""
        number = count(rows)
        if self._raise_errors:
            self._lose(table.name, number, error)
            raise WriteError(
                f"{number} {table.name} rows could not be written under {self.places.home.path}: {error}"
            ) from error
        if error:
            self._warn(error)
        try:
            if not self._queue.put(table, rows, wait=False, held=True):
                self._drop(table.name, number)
        except RuntimeError as shutdown:
            self._lose(table.name, number, error or shutdown)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "rl-eventlog keeps rows in memory and tries again: %s refuses them: %s", self.places.home.path, error
            )

    def _note_slow(self, seconds: float) -> None:
        self.slow_writes += 1
        if self.slow_writes == 1:
            home = self.places.home.path
            logger.warning("rl-eventlog waited %.2f s for a write under %s (further ones are counted)", seconds, home)

    def _drop(self, table: str, rows: int) -> None:
        self._lose(table, rows, None)

    def _lose(self, table: str, rows: int, error: Exception | None) -> None:
        if table not in self.rows_lost:
            why = error or "too many rows wait in memory for the file system"
            logger.warning("rl-eventlog loses %s rows of %s: %s", table, self.places.home.path, why)
        self.rows_lost[table] += rows

    def _mark_moved(self) -> None:
        """A marker for each segment under the fallback folder, so that its rows are found and brought home."""
        for table in list(self._tables.values()):
            for moved in table.moved[table.marked :]:
                text = f"{table.name} rows from seq {moved.first_seq} on lie on {host_name()}: {moved.path}"
                fields: dict[str, Any] = {"host": host_name(), "path": str(moved.path)}
                fields |= {"table": table.name, "first_seq": moved.first_seq}
                row = {"time": time.time_ns() // 1000, "name": "fallback", "level": "warning", "text": text}
                if self._table("markers").try_append(row_batch("markers", row | {"fields": to_json(fields)})):
                    return  # next time
                table.marked += 1
