"""Timers for the training loop: each span becomes a row of the timings table when it ends.

Labels are free text with ``/`` for nesting. No span disturbs another's: neither in another thread nor
in another coroutine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .text import text_of

Record = Callable[[str, float, "float | None"], None]


class Timer:
    """Times labelled spans and hands each to `record` as (label, seconds, start in seconds since 1970)."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._running: dict[object, tuple[str, float, float]] = {}

    def start(self, label: str) -> None:
        """Start a span; this thread's `stop` of the same label ends it.

        Raises:
            ValueError: this thread is timing that label already.
        """
        key = (threading.get_ident(), label)
        if key in self._running:
            raise ValueError(f"timer {label!r} is running already: stop it first")
        self._begin(key, label)

    def stop(self, label: str) -> float:
        """End a span and return its length in seconds.

        Raises:
            ValueError: this thread is not timing that label.
        """
        key = (threading.get_ident(), label)
        if key not in self._running:
            raise ValueError(f"timer {label!r} is not running: start it first")
        return self._end(key)

    @contextmanager
    def time(self, label: str) -> Iterator[None]:
        """Time a block, also when it raises. Blocks of one label may overlap, say in coroutines."""
        key = object()
        self._begin(key, label)
        try:
            yield
        finally:
            self._end(key)

    def record(self, label: str, seconds: float) -> None:
        """Record a duration measured elsewhere."""
        self._record(label, seconds, None)

    def open_labels(self) -> list[str]:
        """Labels running now, in any thread."""
        return sorted({label for label, _, _ in list(self._running.values())})

    def _begin(self, key: object, label: str) -> None:
        self._running[key] = (text_of(label), time.time(), time.perf_counter())

    def _end(self, key: object) -> float:
        now = time.perf_counter()
        label, wall, begin = self._running.pop(key)
        self._record(label, now - begin, wall)
        return now - begin
