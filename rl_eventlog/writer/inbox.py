"""A queue with one worker thread that any code may put to, signal handlers included.

- `put` holds no lock while it works, so a handler that interrupts it may call it too.
- What the worker has taken and not finished still counts as waiting.
- The thread is a daemon, and starts at the latest with the first item: a process that ends does not wait for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 0.002
_IMPATIENT_SECONDS = 0.2  # one more try, if it is quick
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 5.0


class Inbox(Generic[T]):
    """Items that wait for the worker, oldest first.

    Attributes:
        error: why the item at work cannot be finished now; the worker goes on trying.
    """

    def __init__(self, name: str, work: Callable[[T], None], refused: Callable[[OSError], None]) -> None:
        """Make it empty.

        Args:
            name: of the thread.
            work: done with each item on the thread; must not raise.
            refused: told the first reason why an item cannot be finished now.
        """
        self.error: OSError | None = None
        self._name = name
        self._work = work
        self._refused = refused
        self._items: deque[T] = deque()
        self._at_work: T | None = None
        self._wake = threading.Lock()
        self._wake.acquire()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._alone = threading.Lock()

    def put(self, item: T) -> None:
        """Append an item.

        Raises:
            RuntimeError: the interpreter is shutting down and starts no thread; the item is not taken.
        """
        if self._thread is None:
            self.start()
        self._items.append(item)
        try:
            self._wake.release()
        except RuntimeError:  # it is awake
            return

    def insist(self, attempt: Callable[[], OSError | None]) -> None:
        """On the worker: do something that the file system may refuse, again and again until it does not."""
        pause = _FIRST_PAUSE_SECONDS
        while error := attempt():
            if self.error is None:
                self._refused(error)
            self.error = error
            if self._hurry.wait(pause):
                self._hurry.clear()
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self.error = None

    def take_back(self, item: T) -> bool:
        """Remove an item that the worker has not taken; False where it has."""
        try:
            self._items.remove(item)
        except ValueError:
            return False
        return True

    def waiting(self) -> list[T]:
        """Items that are not finished, oldest first."""
        at_work, items = self._at_work, list(self._items)
        return items if at_work is None or (items and items[0] is at_work) else [at_work, *items]

    @property
    def on_its_thread(self) -> bool:
        """Whether the caller is the worker itself, in an object's `__del__` for one."""
        return threading.current_thread() is self._thread

    def join(self, deadline: float | None, *, patient: bool = True) -> bool:
        """Wait until all is finished. An item that is tried again is tried at once.

        Args:
            deadline: monotonic time to give up at; None for never.
            patient: go on waiting while the file system refuses.

        Returns:
            Whether all is finished.
        """
        self._hurry.set()
        began = time.monotonic()
        while self._items or self._at_work is not None:
            if self.on_its_thread or (deadline is not None and time.monotonic() >= deadline):
                return False
            if not patient and self.error is not None and time.monotonic() - began > _IMPATIENT_SECONDS:
                return False
            time.sleep(_LOOK_SECONDS)
        self._hurry.clear()
        return True

    @property
    def is_last(self) -> bool:
        """On the worker: whether nothing waits behind its item."""
        return not self._items

    def start(self) -> None:
        """Start the thread, so that the first item does not have to."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        if not self._alone.acquire(blocking=False):  # started twice: by two callers, or by an interrupted one again
            return
        self._thread = threading.current_thread()
        while True:
            try:
                self._at_work = self._items[0]
                taken = self.take_back(self._at_work)
            except IndexError:
                self._wake.acquire()
                continue
            if taken:
                self._work(self._at_work)
            self._at_work = None
