"""Timers for the training loop, usable with a writer or alone.

- A writer's timer logs each span when it ends, as a row of the timings table, and each mark as a marker. What
  goes wrong in logging a block never takes the place of the exception that ended the block.
- A timer also remembers what it measured, for `get_elapsed`, `reduce` and their like: of each label the
  last 10,000 spans and marks since `reset`, so that its memory is bounded where nobody resets.
- Labels are free text with ``/`` for nesting. No span disturbs another's: neither in another thread, also one
  that ended and left spans running, nor in another coroutine. Every method may be called from any thread,
  and from a signal handler.
- In the child of a fork a timer begins anew: spans that run are the parent's, which logs them when they end.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from .durations import OPERATIONS, reduced
from .text import text_of
from .values import number_of

MAX_KEPT = 10_000
"""Spans and marks that are remembered of a label: beyond it the oldest are forgotten (not in the log)."""

LogSpan = Callable[[str, float, "float | None"], None]
LogMark = Callable[[str, Any], None]
Marker = tuple[float, Any]
Kept = TypeVar("Kept")


class _Span(NamedTuple):
    """A span that runs."""

    label: str
    wall: float
    begin: float
    should_log: bool


def _begin(label: str, should_log: bool) -> _Span:
    return _Span(text_of(label), time.time(), time.perf_counter(), should_log)


class _Started:
    """The spans that one thread started, by label. It goes with the thread, they with it."""

    __slots__ = ("__weakref__", "spans")

    def __init__(self) -> None:
        self.spans: dict[str, _Span] = {}


class Timer:
    """Times labelled spans and remembers them: ``with timer.time("generation"): ...``.

    The methods are those of NeMo RL's `Timer` and `ThreadSafeTimer`, with three differences: each
    thread may time the same label, blocks of `time` may overlap, and what is remembered is bounded.

    Args:
        log_span: called with each span as (label, seconds, start in seconds since 1970, None where
            unknown). None: spans are only remembered.
        log_mark: called with each mark as (label, metadata). None: marks are only remembered.
    """

    def __init__(self, *, log_span: LogSpan | None = None, log_mark: LogMark | None = None) -> None:
        self._log_span = log_span
        self._log_mark = log_mark
        self._begin_anew()
        _timers.add(self)

    def _begin_anew(self) -> None:
        # re-entrant, for a signal handler that times; never held while something is logged
        self._lock = threading.RLock()
        self._this_thread = threading.local()
        self._started: weakref.WeakSet[_Started] = weakref.WeakSet()
        self._blocks: dict[object, _Span] = {}
        self._elapsed: dict[str, deque[float]] = {}
        self._markers: dict[str, deque[Marker]] = {}

    def start(self, label: str, should_log: bool = True) -> None:
        """Start a span; this thread's `stop` of the same label ends it.

        Args:
            label: name of the span.
            should_log: False: remember the span and leave it out of the log.

        Raises:
            ValueError: this thread is timing that label already.
        """
        span = _begin(label, should_log)
        with self._lock:
            spans = self._spans_of_this_thread()
            if span.label in spans:
                raise ValueError(f"timer {span.label!r} is running already: stop it first")
            spans[span.label] = span

    def stop(self, label: str, should_log: bool = True) -> float:
        """End a span and return its length in seconds.

        Args:
            label: as for `start`.
            should_log: the span is logged where both `start` and `stop` say so.

        Raises:
            ValueError: this thread is not timing that label.
        """
        now, label = time.perf_counter(), text_of(label)
        with self._lock:
            span = self._spans_of_this_thread().pop(label, None)
        if span is None:
            raise ValueError(f"timer {label!r} is not running: start it first")
        self._remember(self._elapsed, label, now - span.begin)
        self._log(span, now, should_log)
        return now - span.begin

    @contextmanager
    def time(self, label: str, should_log: bool = True) -> Iterator[None]:
        """Time a block, also when it raises. Blocks of one label may overlap, say in coroutines."""
        key, span = object(), _begin(label, should_log)
        with self._lock:
            blocks = self._blocks
            blocks[key] = span
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the block's own exception is the one to be seen
                self._end_block(key, span, blocks)
            raise
        self._end_block(key, span, blocks)

    def record(self, label: str, elapsed: float, should_log: bool = True) -> None:
        """Record a duration in seconds, measured elsewhere."""
        label = text_of(label)
        seconds = number_of(elapsed)
        if seconds is not None:
            self._remember(self._elapsed, label, seconds)
        if should_log and self._log_span is not None:
            self._log_span(label, elapsed, None)

    def mark(self, label: str, metadata: Any = None) -> float:
        """Note that something happened now, in the log as a marker.

        Args:
            label: what happened.
            metadata: a mapping of what belongs to it.

        Returns:
            Seconds since 1970.
        """
        label, now = text_of(label), time.time()
        self._remember(self._markers, label, (now, metadata))
        if self._log_mark is not None:
            self._log_mark(label, metadata)
        return now

    def get_markers(self, label: str | None = None) -> dict[str, list[Marker]]:
        """The marks by label as (seconds since 1970, metadata); an unknown label has none."""
        with self._lock:
            if label is not None:
                return {label: list(self._markers.get(text_of(label), ()))}
            return {name: list(marks) for name, marks in list(self._markers.items())}

    def get_elapsed(self, label: str) -> list[float]:
        """The lengths of the label's spans in seconds, the oldest first.

        Raises:
            KeyError: no span of that label has ended.
        """
        with self._lock:
            return list(self._spans_of(label))

    def get_latest_elapsed(self, label: str) -> float:
        """The length of the label's latest span in seconds.

        Raises:
            KeyError: no span of that label has ended.
        """
        with self._lock:
            return self._spans_of(label)[-1]

    def reduce(self, label: str, operation: str = "mean") -> float:
        """One number of the label's spans.

        Args:
            label: name of the spans.
            operation: mean, median, min, max, std (of the population), sum or count. NaN if a span is.

        Raises:
            ValueError: there is no such operation.
            KeyError: no span of that label has ended.
        """
        if operation not in OPERATIONS:
            raise ValueError(f"operation={operation!r}: give one of {', '.join(OPERATIONS)}")
        return reduced(self.get_elapsed(label), operation)

    def get_timing_metrics(self, reduction_op: str | Mapping[str, str] = "mean") -> dict[str, float | list[float]]:
        """The spans of all labels.

        Args:
            reduction_op: operation for all labels, or by label, see `reduce`. A label without one, or
                with an unknown one, is given as the list of its spans; one that has no span is left out.
        """
        with self._lock:
            spans = {label: list(seconds) for label, seconds in list(self._elapsed.items())}
        operations = dict.fromkeys(spans, reduction_op) if isinstance(reduction_op, str) else reduction_op
        return {
            label: reduced(seconds, operations[label]) if operations.get(label) in OPERATIONS else seconds
            for label, seconds in spans.items()
        }

    def reset(self, label: str | None = None) -> None:
        """Forget spans and marks, of one label or all, and spans that run: `stop` then raises.

        What is logged stays; a block of `time` that runs is logged when it ends, and not remembered.
        """
        name = None if label is None else text_of(label)
        with self._lock:
            for kept in (self._elapsed, self._markers):
                for known in list(kept) if name is None else [name]:
                    kept.pop(known, None)
            for spans in self._running():
                for key, span in list(spans.items()):
                    if name in (None, span.label):
                        spans.pop(key, None)

    def open_labels(self) -> list[str]:
        """Labels running now, in any thread."""
        with self._lock:
            return sorted({span.label for spans in self._running() for span in list(spans.values())})

    def _running(self) -> list[dict[Any, _Span]]:
        """All spans that run, in dicts of which each may be changed."""
        return [self._blocks, *(started.spans for started in self._started)]

    def _spans_of_this_thread(self) -> dict[str, _Span]:
        started: _Started | None = getattr(self._this_thread, "started", None)
        if started is None:
            started = self._this_thread.started = _Started()
            self._started.add(started)
        return started.spans

    def _end_block(self, key: object, span: _Span, blocks: dict[object, _Span]) -> None:
        now = time.perf_counter()
        if blocks is not self._blocks:  # this is the child of a fork in the block
            return
        with self._lock:
            if blocks.pop(key, None) is not None:  # no `reset` in between
                self._remember(self._elapsed, span.label, now - span.begin)
        self._log(span, now, should_log=True)

    def _spans_of(self, label: str) -> deque[float]:
        try:
            return self._elapsed[text_of(label)]
        except KeyError:
            raise KeyError(f"no span of {label!r} has ended") from None

    def _remember(self, kept: dict[str, deque[Kept]], label: str, what: Kept) -> None:
        with self._lock:
            if label not in kept:
                kept.setdefault(label, deque(maxlen=MAX_KEPT))  # a signal handler may have come first
            kept[label].append(what)

    def _log(self, span: _Span, now: float, should_log: bool) -> None:
        if should_log and span.should_log and self._log_span is not None:
            self._log_span(span.label, now - span.begin, span.wall)


_timers: weakref.WeakSet[Timer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for timer in list(_timers):
        timer._begin_anew()  # noqa: SLF001 -- the same module


os.register_at_fork(after_in_child=_after_fork_in_child)
