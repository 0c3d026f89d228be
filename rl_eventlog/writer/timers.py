"""Timers for the training loop: each span becomes a row of the timings table when it ends.

Labels are free text with ``/`` for nesting. One label may run once a thread at a time; a thread never
disturbs another's spans.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Record = Callable[[str, float, "float | None"], None]


class Timer:
    """Times labelled spans and hands each to `record` as (label, seconds, start in seconds since 1970)."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._running: dict[tuple[int, str], tuple[float, float]] = {}

    def start(self, label: str) -> None:
        """Start a span.

        Raises:
            ValueError: this thread is timing that label already.
        """
        key = (threading.get_ident(), label)
        if key in self._running:
            raise ValueError(f"timer {label!r} is running already: stop it first")
        self._running[key] = (time.time(), time.perf_counter())

    def stop(self, label: str) -> float:
        """End a span and return its length in seconds.

        Raises:
            ValueError: this thread is not timing that label.
        """
        now = time.perf_counter()
        started = self._running.pop((threading.get_ident(), label), None)
        if started is None:
            raise ValueError(f"timer {label!r} is not running: start it first")
        wall, begin = started
        self._record(label, now - begin, wall)
        return now - begin

    @contextmanager
    def time(self, label: str) -> Iterator[None]:
        """Time a block, also when it raises."""
        self.start(label)
        try:
            yield
        finally:
            self.stop(label)

    def record(self, label: str, seconds: float) -> None:
        """Record a duration measured elsewhere."""
        self._record(label, seconds, None)

    def open_labels(self) -> list[str]:
        """Labels running now, in any thread."""
        return sorted({label for _, label in list(self._running)})
