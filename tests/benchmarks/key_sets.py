"""Many different sets of keys in rotation: what a call costs, and what is kept in memory for it."""

from __future__ import annotations

import gc
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

from rl_eventlog import EventWriter

from .measure import Times, in_process, summary
from .report import Section, Verdict, at_most, prose, table

_KEYS = 20
_CACHE_LIMIT = 16 << 20
_FEW, _MANY = (1_000, 20_000), (20_000, 2_000)
"""Sets, and calls that are timed: where no set is found, each call builds one."""


@dataclass(frozen=True, slots=True)
class KeySets:
    """One number of key sets."""

    sets: int
    times: Times
    """Of calls after each set was logged once."""
    evictions: int
    """As the writer counts them."""
    memory_bytes: int
    """Python memory that the writer holds more of, after each set was logged once."""
    rows: int
    """Written, as the writer says."""


def key_sets(folder: Path) -> Section:
    """Measure."""
    return section([measured(folder / str(sets), sets, _KEYS, calls) for sets, calls in (_FEW, _MANY)])


def measured(folder: Path, sets: int, keys: int, calls: int) -> KeySets:
    """Times in one process; memory in another, where tracing it slows the calls."""
    times, evictions, rows = in_process(timed, folder / "timed", _metrics(sets, keys), calls)
    return KeySets(sets, times, evictions, in_process(held, folder / "held", _metrics(sets, keys)), rows)


def section(found: list[KeySets]) -> Section:
    """Table and targets."""
    heads = ("key sets", "median us", "p99", "p99.9", "highest", "evictions", "memory held, MB")
    rows = [
        (f"{one.sets:,}", *one.times.cells(), f"{one.evictions:,}", f"{one.memory_bytes / 1e6:.1f}") for one in found
    ]
    few, *_, many = found
    calls = many.sets + many.times.calls
    return Section(
        "Many key sets in rotation",
        [
            *prose(
                f"Sets of {_KEYS} keys; the first call with each is not in the times. More sets than the cache holds,",
                "in rotation, are its worst case: no call finds its set.",
            ),
            "",
            *table(heads, rows),
        ],
        (
            at_most(f"{few.sets:,} key sets in rotation, median of a call", few.times.median, 60, "us"),
            at_most("cache of key sets", max(one.memory_bytes for one in found) / 2**20, _CACHE_LIMIT / 2**20, "MiB"),
            Verdict(
                f"{many.sets:,} key sets: evictions are counted",
                f"{many.evictions:,} in {calls:,} calls",
                0 < many.evictions <= calls,
            ),
        ),
    )


def timed(folder: Path, metrics: list[dict[str, float]], calls: int) -> tuple[Times, int, int]:
    """Times of calls, evictions and rows.

    Raises:
        RuntimeError: not all was written.
    """
    writer = EventWriter.open(folder, run="sets", rank=0, capture_diff=False)
    for call in metrics:
        writer.log_metrics(call, 0)
    clock = time.perf_counter_ns
    times = []
    for step in range(1, calls + 1):
        call = metrics[step % len(metrics)]
        before = clock()
        writer.log_metrics(call, step)
        times.append(clock() - before)
    report = writer.close(timeout=300)
    if not report.ok:
        raise RuntimeError(f"not all was written: {report}")
    return summary(times), report.counters.get("plans evicted", 0), report.rows["metrics"]


def held(folder: Path, metrics: list[dict[str, float]]) -> int:
    """Bytes of Python memory more, after one call with each set."""
    with EventWriter.open(folder, run="sets", rank=0, capture_diff=False) as writer:
        writer.log_metrics({"first": 0.5}, 0)
        writer.flush()
        gc.collect()
        tracemalloc.start()
        for call in metrics:
            writer.log_metrics(call, 1)
        writer.flush()
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return grown


def _metrics(sets: int, keys: int) -> list[dict[str, float]]:
    return [{f"set_{number}/metric_{index}": 0.5 for index in range(keys)} for number in range(sets)]
