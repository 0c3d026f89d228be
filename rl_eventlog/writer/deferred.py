"""Big rows, encoded and written by a thread of their own.

- The call that hands them over returns at once; they are safe when the thread has written them.
- At most `LIMIT_BYTES` wait. Beyond that rollouts are dropped, those that wait longest first, before
  they have seqs; what is no rollout is never dropped.
- The training's other threads get the interpreter back every few milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from .inbox import Inbox
from .table import Table

LIMIT_BYTES = 256 << 20
BIG_BYTES = 64 << 10
"""Rows of one call above this size are deferred."""


class Job:
    """The rows of one call, encoded a batch at a time.

    Attributes:
        table: where they belong.
        rows: how many are not written.
        size: bytes they hold in memory, roughly.
        may_be_dropped: whether they may be dropped where too much waits.
    """

    def __init__(
        self,
        table: Table,
        encode: Callable[[], Iterable[pa.RecordBatch]],
        *,
        rows: int,
        size: int,
        may_be_dropped: bool,
    ) -> None:
        """Take the arguments of `RowStore.defer`."""
        self.table = table
        self.rows = rows
        self.size = size
        self.may_be_dropped = may_be_dropped
        self._encode = encode
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._batch: pa.RecordBatch | None = None

    def write(self) -> OSError | None:
        """Encode and write; the reason where the file system does not take more, to be called again."""
        if self._batches is None:
            self._batches = iter(self._encode())
        while True:
            if self._batch is None:
                self._batch = next(self._batches, None)
            if self._batch is None:
                return None
            if error := self.table.try_append(self._batch):
                return error
            self.rows -= self._batch.num_rows
            self._batch = None


class Deferred:
    """The big rows of one writer that are not written yet."""

    def __init__(
        self,
        *,
        dropped: Callable[[str, int], None],
        failed: Callable[[str, int, Exception], None],
        refused: Callable[[OSError], None],
    ) -> None:
        """Make it empty.

        Args:
            dropped: told table and number of rows that had no room.
            failed: told of rows that can never be written: their table, number, and why.
            refused: told why the file system does not take rows now.
        """
        self._dropped = dropped
        self._failed = failed
        self._inbox: Inbox[Job] = Inbox("rl-eventlog-big", self._work, refused)
        self._inbox.start()

    @property
    def error(self) -> OSError | None:
        """Why the file system does not take the oldest rows."""
        return self._inbox.error

    def put(self, job: Job) -> None:
        """Take the rows of a call, or count them as dropped.

        Raises:
            RuntimeError: the interpreter is shutting down.
        """
        self._make_room(job.size)
        if job.may_be_dropped and self._bytes() and self._bytes() + job.size > LIMIT_BYTES:
            self._dropped(job.table.name, job.rows)
            return
        self._inbox.put(job)

    def waiting(self) -> Counter[str]:
        """Rows that are not written, by table."""
        counts: Counter[str] = Counter()
        for job in self._inbox.waiting():
            counts[job.table.name] += job.rows
        return counts

    def join(self, deadline: float | None, *, patient: bool = True) -> bool:
        """Wait until all rows are written; see `Inbox.join`."""
        return self._inbox.join(deadline, patient=patient)

    def _make_room(self, size: int) -> None:
        for job in self._inbox.waiting():
            if self._bytes() + size <= LIMIT_BYTES:
                return
            if job.may_be_dropped and self._inbox.take_back(job):
                self._dropped(job.table.name, job.rows)

    def _bytes(self) -> int:
        return sum(job.size for job in self._inbox.waiting())

    def _work(self, job: Job) -> None:
        try:
            self._inbox.insist(job.write)
        except Exception as error:  # noqa: BLE001 -- the values are the user's objects: their own code may raise anything
            self._failed(job.table.name, job.rows, error)
