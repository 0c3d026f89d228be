"""Rows that wait for the file system, written by one thread in the order they came.

- A caller that waits is held for the stall budget at most, and not at all while the thread is known
  to be stalled.
- At most `LIMIT_BYTES` wait. What does not fit is refused before it has a seq; metrics come last.
- Rows that the file system does not take are tried again until it does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from .inbox import Inbox
from .table import Rows, Table, kept

LIMIT_BYTES = 64 << 20
_SHARE_OF_OTHERS = 0.75
"""Of the limit, for other tables than metrics."""


class _Waiting:
    """Rows of one call. Compared by identity."""

    __slots__ = ("held", "left", "rows", "size", "table", "written")

    def __init__(self, table: Table, rows: Rows, size: int, *, held: bool) -> None:
        self.table = table
        self.rows = rows
        self.size = size
        self.held = held
        self.left = False  # whether its call has returned, or raised
        self.written = threading.Lock()
        self.written.acquire()


class RowQueue:
    """The rows of one writer that are not written yet."""

    def __init__(
        self,
        budget_seconds: float,
        *,
        lost: Callable[[str, int, Exception], None],
        refused: Callable[[OSError], None],
    ) -> None:
        """Make it empty.

        Args:
            budget_seconds: how long a caller waits.
            lost: told of rows that can never be written: their table, number, and why.
            refused: told why the file system does not take rows now.
        """
        self._budget = budget_seconds
        self._lost = lost
        self._bytes = 0
        self._stalled = False
        self._inbox: Inbox[_Waiting] = Inbox("rl-eventlog-write", self._write, refused)

    @property
    def error(self) -> OSError | None:
        """Why the file system does not take the oldest rows."""
        return self._inbox.error

    def put(self, table: Table, rows: Rows, *, wait: bool, held: bool = False) -> bool:
        """Hand over the rows of one call.

        Args:
            table: where they belong.
            rows: the rows.
            wait: give the thread the stall budget to write them.
            held: count them in the table's `held` until they are written; the caller has its lock.

        Returns:
            Whether there was room for them.

        Raises:
            RuntimeError: the interpreter is shutting down.
        """
        rows = kept(rows)
        size = rows[0].size if isinstance(rows, tuple) else rows.nbytes
        limit = LIMIT_BYTES if table.name == "metrics" else LIMIT_BYTES * _SHARE_OF_OTHERS
        if self._bytes + size > limit:
            return False
        waiting = _Waiting(table, rows, size, held=held)
        self._bytes += size
        table.held += held
        try:
            self._inbox.put(waiting)
        except RuntimeError:
            table.held -= held
            raise
        try:
            if wait and not self._stalled and not self._inbox.on_its_thread:
                self._stalled = not waiting.written.acquire(timeout=self._budget)
        finally:
            waiting.left = True
        return True

    def start(self) -> None:
        """Start the thread."""
        self._inbox.start()

    def waiting(self) -> Counter[str]:
        """Rows that are not written and whose calls have returned, by table."""
        counts: Counter[str] = Counter()
        for item in self._inbox.waiting():
            if item.left:
                counts[item.table.name] += count(item.rows)
        return counts

    def join(self, deadline: float | None, *, patient: bool = True) -> bool:
        """Wait until all rows are written; see `Inbox.join`."""
        return self._inbox.join(deadline, patient=patient)

    def _write(self, item: _Waiting) -> None:
        try:
            self._inbox.insist(lambda: item.table.try_append(item.rows))
        except Exception as error:  # noqa: BLE001 -- not the file system's doing: another try would end alike
            self._lost(item.table.name, count(item.rows), error)
        self._bytes -= item.size
        if item.held:
            item.table.release(1)
        if self._inbox.is_last:
            self._bytes, self._stalled = 0, False
        item.written.release()


def count(rows: Rows) -> int:
    """Rows of one call."""
    return rows[0].rows if isinstance(rows, tuple) else int(rows.num_rows)
