"""Rollouts of a whole step in one call: what the caller pays, and what the encoding costs a Python loop beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rl_eventlog import EventWriter

from .measure import in_process
from .report import Section, at_most, prose, table

_SAMPLES, _TOKENS, _REPEATS = 1_024, 4_000, 3
_ALONE_SECONDS = 1.0
_VOCABULARY = 151_936


@dataclass(frozen=True, slots=True)
class BigRows:
    """One form of columns."""

    form: str
    call_milliseconds: list[float]
    """Of each call of `log_samples`."""
    flushed_seconds: list[float]
    """From the call until `flush` returned."""
    pause_milliseconds: float
    """Longest pause of a pure-Python loop between the calls and the ends of their flushes."""
    alone_milliseconds: float
    """Longest pause of the loop before."""
    slowed_to: float
    """Rounds of the loop in a second while the background works, as a share of those before."""
    rows: int
    """In the files."""
    tokens: int
    """In the files."""
    token_sum: int
    """Of all token ids in the files."""


def big_rows(folder: Path) -> Section:
    """Measure all forms."""
    return section([in_process(measured, folder / form, form, _SAMPLES, _TOKENS, _REPEATS) for form in FORMS])


def section(found: list[BigRows]) -> Section:
    """Table and targets."""
    heads = (
        "handed over as",
        "call ms, median",
        "longest",
        "flushed after s",
        "loop's longest pause ms",
        "alone",
        "speed",
    )
    rows = [
        (
            one.form,
            f"{sorted(one.call_milliseconds)[len(one.call_milliseconds) // 2]:.2f}",
            f"{max(one.call_milliseconds):.2f}",
            f"{max(one.flushed_seconds):.2f}",
            f"{one.pause_milliseconds:.1f}",
            f"{one.alone_milliseconds:.1f}",
            f"{one.slowed_to:.0%}",
        )
        for one in found
    ]
    return Section(
        "Rollouts in one call",
        [
            *prose(
                f"{_SAMPLES:,} samples of {_TOKENS:,} tokens (ids and log-probabilities), {_REPEATS} calls. A loop of",
                "pure Python runs in the calling thread until `flush()` in another thread has returned: its longest",
                "pause, beside the longest one before, and its speed as a share of that before.",
            ),
            "",
            *table(heads, rows),
        ],
        tuple(
            at_most(
                f"{_SAMPLES:,} samples x {_TOKENS:,} tokens as {one.form}, longest call",
                max(one.call_milliseconds),
                1,
                "ms",
                2,
            )
            for one in found
        ),
    )


def columns_of(samples: int, tokens: int) -> dict[str, Any]:
    """Columns as an engine has them: texts in lists, numbers in numpy arrays of [samples] and [samples, tokens]."""
    import numpy as np

    numbers = np.random.default_rng(5)
    return {
        "prompt": [f"What is {index} times 7?" for index in range(samples)],
        "response": [f"{index * 7} " * (tokens // 2) for index in range(samples)],
        "reward": numbers.random(samples),
        "token_ids": numbers.integers(0, _VOCABULARY, (samples, tokens), dtype=np.int32),
        "token_logprobs": -numbers.random((samples, tokens), dtype=np.float32),
    }


def _lists(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: column if isinstance(column, list) else column.tolist() for name, column in columns.items()}


def _arrow(columns: dict[str, Any]) -> pa.Table:
    def array(column: Any) -> Any:
        return pa.array(column if getattr(column, "ndim", 1) == 1 else list(column))

    return pa.table({name: array(column) for name, column in columns.items()})


def _polars(columns: dict[str, Any]) -> Any:
    import polars as pl

    return pl.from_arrow(_arrow(columns))


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a dict of lists": _lists,
    "a dict of numpy arrays": lambda columns: columns,
    "an Arrow table": _arrow,
    "a Polars frame": _polars,
}


def measured(folder: Path, form: str, samples: int, tokens: int, repeats: int) -> BigRows:
    """Log one form.

    Raises:
        RuntimeError: not all was written.
    """
    given = FORMS[form](columns_of(samples, tokens))
    calls, flushed, pause, rounds, seconds = [], [], 0.0, 0, 0.0
    alone_rounds, alone_pause = _loop(threading.Event(), time.perf_counter() + _ALONE_SECONDS)
    writer = EventWriter.open(folder, run="rollouts", rank=0, capture_diff=False)
    for step in range(repeats):
        start = time.perf_counter()
        writer.log_samples(given, step, split="rollout")
        calls.append((time.perf_counter() - start) * 1000)
        flush = _Flush(writer)
        looped, longest = _loop(flush.done)
        flush.join()
        flushed.append(flush.ended - start)
        rounds, seconds, pause = rounds + looped, seconds + flush.ended - start, max(pause, longest)
    report = writer.close(timeout=300)
    if not report.ok:
        raise RuntimeError(f"not all was written: {report}")
    speed = rounds / seconds / (alone_rounds / _ALONE_SECONDS)
    return BigRows(form, calls, flushed, pause, alone_pause, speed, *_read_back(writer.path))


class _Flush(threading.Thread):
    """Waits in `flush`."""

    def __init__(self, writer: EventWriter) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.ended = 0.0
        self._writer = writer
        self.start()

    def run(self) -> None:
        try:
            self._writer.flush()
        finally:
            self.ended = time.perf_counter()
            self.done.set()


def _loop(done: threading.Event, deadline: float = float("inf")) -> tuple[int, float]:
    """Compute something in Python.

    Returns:
        Rounds, and the longest time between two of them in milliseconds.
    """
    clock, rounds, longest = time.perf_counter, 0, 0.0
    last = clock()
    while True:
        sum(range(200))
        now = clock()
        longest = max(longest, now - last)
        last = now
        rounds += 1
        if done.is_set() or now >= deadline:
            return rounds, longest * 1000


def _read_back(run: Path) -> tuple[int, int, int]:
    """Rows, tokens, and the sum of the token ids."""
    rows = tokens = total = 0
    for path in run.glob("events/samples/*/*.parquet"):
        for batch in pq.ParquetFile(path).iter_batches(64, columns=["token_ids"]):
            ids = batch.column(0).flatten()
            rows, tokens, total = rows + batch.num_rows, tokens + len(ids), total + pa.compute.sum(ids).as_py()
    return rows, tokens, total
