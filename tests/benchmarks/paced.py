"""A training that logs every 2 ms, beside a bare write of the same bytes in the same process.

Values of four kinds, `prefix=` and `reduce=` given, an fsync each second, two rotations and seals on the way.
Our call and the bare write take turns in going first, since the first one after the pause finds cold caches.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from rl_eventlog import EventWriter
from rl_eventlog.layout import SegmentName

from .contestants import message_of
from .measure import Times, in_process, summary
from .report import Section, at_most, prose, table

Write = Literal["direct", "queued"]

_PAUSE_SECONDS = 0.002
_EACH_KIND = 5
_ROTATE_AT_SHARE = 0.4
"""Of the run's bytes: with the writer's jitter of a tenth, the second rotation comes at 72 to 88 %."""
_SEAL_LIMIT_SECONDS = 120.0
_REDUCE = {"int_0": "sum", "float_0": "max", "float32_0": "min"}


@dataclass(frozen=True, slots=True)
class Paced:
    """One run."""

    seconds: float
    ours: Times
    bare: Times
    seals: int
    """Segments that were rotated and sealed before the writer was closed."""
    during_seals: Times
    """Our calls between a rotation and the end of its seal."""
    last_values: Mapping[str, float]
    """Of the last step, as they are in the sealed files; by name."""
    rows: int
    """In the sealed files."""


def paced(folder: Path) -> Section:
    """Measure, direct and queued."""
    return section(
        in_process(run_paced, folder / "direct", "direct", 60.0),
        in_process(run_paced, folder / "queued", "queued", 20.0),
    )


def section(direct: Paced, queued: Paced) -> Section:
    """Table and targets."""
    ratio = direct.ours.p999 / direct.bare.p999
    rows = []
    for name, run in (("direct", direct), ("queued", queued)):
        rows.append((f"{name}, {run.seconds:.0f} s", f"{run.ours.calls:,}", *run.ours.cells()))
        rows.append(("bare pwrite of the same bytes, same process", f"{run.bare.calls:,}", *run.bare.cells()))
        rows.append((f"{name}, while a seal goes on", f"{run.during_seals.calls:,}", *run.during_seals.cells()))
    lines = [
        *prose(
            f"{_EACH_KIND} floats, ints, numpy float32 and 0-d CPU tensors each, `prefix=` and `reduce=` given, an",
            "fsync each second; the bare file is not fsynced.",
            f"Segments sealed on the way: {direct.seals} (direct), {queued.seals} (queued). Longest pause of a caller",
            f"while a seal goes on: {_highest(direct.during_seals)}, queued {_highest(queued.during_seals)}.",
        ),
        "",
        *table(("", "calls", "median us", "p99", "p99.9", "highest"), rows),
    ]
    return Section(
        f"One call each {_PAUSE_SECONDS * 1000:g} ms",
        lines,
        (
            at_most("60 s run, p99.9 over that of the bare write", ratio, 5, "times"),
            at_most("60 s run, p99.9 of a call", direct.ours.p999 / 1000, 1, "ms", 3),
            at_most("60 s run, highest of a call", direct.ours.highest / 1000, 10, "ms", 2),
            at_most("queued, one call each 2 ms, median", queued.ours.median, 150, "us"),
        ),
    )


def _highest(times: Times) -> str:
    return f"{times.highest / 1000:.2f} ms"


def run_paced(folder: Path, write: Write, seconds: float) -> Paced:
    """One run.

    Raises:
        RuntimeError: rows were lost, or not sealed.
    """
    calls = int(seconds / _PAUSE_SECONDS)
    metrics = _metrics()
    head, message = message_of(folder / "message", lambda log: _log(log, metrics[0], 1))
    writer = EventWriter.open(
        folder,
        run="paced",
        rank=0,
        capture_diff=False,
        write=write,
        fsync_interval_seconds=1.0,
        segment_bytes=int(_ROTATE_AT_SHARE * calls * len(message)),
    )
    fd = os.open(folder / "bare.arrows", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.pwrite(fd, head, 0)
        _log(writer, metrics[0], 0)  # makes the segment
        began, ours, bare = _calls(writer, metrics, (fd, len(head), message), calls)
    finally:
        os.close(fd)
    windows = _seal_windows(writer.path, 2)
    report = writer.close(timeout=_SEAL_LIMIT_SECONDS)
    if not report.ok:
        raise RuntimeError(f"not all was written and sealed: {report}")
    meanwhile = [
        nanoseconds
        for start, nanoseconds in zip(began, ours, strict=True)
        if any(first <= start + nanoseconds and start <= last for first, last in windows)
    ]
    rows, last_values = _read_back(writer.path, calls)
    return Paced(seconds, summary(ours), summary(bare), len(windows), summary(meanwhile), last_values, rows)


def _metrics() -> list[dict[str, Any]]:
    """Calls with the same keys and changing values, made before the clock runs."""
    import numpy as np
    import torch

    numbers = random.Random(11)
    found: list[dict[str, Any]] = []
    for _ in range(64):
        call: dict[str, Any] = {}
        for index in range(_EACH_KIND):
            call[f"float_{index}"] = numbers.random()
            call[f"int_{index}"] = numbers.randrange(1 << 30)
            call[f"float32_{index}"] = np.float32(numbers.random())
            call[f"tensor_{index}"] = torch.tensor(numbers.random())
        found.append(call)
    return found


def _log(writer: EventWriter, metrics: Mapping[str, Any], step: int) -> None:
    writer.log_metrics(metrics, step, prefix="train", reduce=_REDUCE)


def _calls(
    writer: EventWriter, metrics: list[dict[str, Any]], file: tuple[int, int, bytes], calls: int
) -> tuple[list[int], list[int], list[int]]:
    """When each call of ours began (Unix time), how long it took, and the bare writes; nanoseconds."""
    fd, place, message = file
    began, ours, bare = [0] * calls, [0] * calls, [0] * calls
    clock, pwrite, log_metrics = time.perf_counter_ns, os.pwrite, writer.log_metrics
    start = clock()
    unix = time.time_ns() - start

    def log_ours(index: int, call: Mapping[str, Any]) -> None:
        before = clock()
        log_metrics(call, index + 1, prefix="train", reduce=_REDUCE)
        ours[index] = clock() - before
        began[index] = before + unix

    def write_bare(index: int) -> None:
        before = clock()
        pwrite(fd, message, place + index * len(message))
        bare[index] = clock() - before

    for index, call in zip(range(calls), cycle(metrics), strict=False):
        if index % 2:
            write_bare(index)
            log_ours(index, call)
        else:
            log_ours(index, call)
            write_bare(index)
        left = (index + 1) * _PAUSE_SECONDS - (clock() - start) / 1e9
        if left > 0:
            time.sleep(left)
    return began, ours, bare


def _seal_windows(run: Path, seals: int) -> list[tuple[int, int]]:
    """From the last write to a segment until its sealed file got its name; Unix time, nanoseconds.

    Raises:
        RuntimeError: the segments are not sealed in time.
    """
    deadline = time.monotonic() + _SEAL_LIMIT_SECONDS
    while len(sealed := [*run.glob("events/metrics/*/*.parquet")]) < seals:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(sealed)} segments sealed, {seals} expected")
        time.sleep(0.05)
    names = [(path, SegmentName.parse(path.name)) for path in sealed]
    return [
        (path.with_name(f"{name.writer}-{name.number}.arrows").stat().st_mtime_ns, path.stat().st_ctime_ns)
        for path, name in names
        if name is not None
    ]


def _read_back(run: Path, last_step: int) -> tuple[int, dict[str, float]]:
    rows = 0
    values: dict[str, float] = {}
    for path in run.glob("events/metrics/*/*.parquet"):
        rows += pq.read_metadata(path).num_rows
        found = pq.read_table(path, columns=["name", "value"], filters=[("step", "=", last_step)])
        values |= dict(zip(found["name"].to_pylist(), found["value"].to_pylist(), strict=True))
    return rows, values
