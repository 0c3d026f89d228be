"""Contestants take turns: each in a process of its own, in short blocks, round after round.

Whatever else the machine does meets all of them alike. A block begins with calls that are not timed, since
the others have emptied the caches. After a block the contestant's background work comes to its end before
the next one starts, so that nobody pays for another.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .contestants import CONTESTANTS, Log, Metrics
from .measure import Times, cpu_nanoseconds, new_process, summary, wait_for_rest

_WARM_UP_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Block:
    """How long a turn lasts: whichever comes first, but at least one call."""

    calls: int
    seconds: float


@dataclass(slots=True)
class Turns:
    """The turns of one contestant with one number of metrics."""

    nanoseconds: list[int] = field(default_factory=list)
    """Times of all single calls."""
    medians: list[float] = field(default_factory=list)
    """Of each round, microseconds."""
    all_calls: int = 0
    """With those that were not timed."""
    cpu_nanoseconds: int = 0
    """Of all calls, in all threads and processes of the contestant."""
    rest_seconds: list[float] = field(default_factory=list)
    """After each turn, until its files changed no more."""

    @property
    def times(self) -> Times:
        """Of single calls."""
        return summary(self.nanoseconds)

    @property
    def cpu(self) -> float:
        """CPU time of a call in all threads and processes, microseconds."""
        return self.cpu_nanoseconds / 1000 / self.all_calls

    def times_of(self, other: Turns) -> float:
        """How many times another's median this one's is: the median over the rounds."""
        return statistics.median(a / b for a, b in zip(self.medians, other.medians, strict=True))


@dataclass(frozen=True, slots=True)
class Race:
    """What came out."""

    turns: Mapping[int, Mapping[str, Turns]]
    """By number of metrics, and contestant."""
    points: Mapping[str, int]
    """That readers found in the files, by contestant; as many as were logged."""


def metrics_of(count: int) -> Metrics:
    """The metrics of a call, the same in every run."""
    numbers = random.Random(count)
    return {f"metric_{count}_{index}": numbers.random() for index in range(count)}


def race(folder: Path, blocks: Mapping[int, Block], rounds: int) -> Race:
    """Let all contestants log.

    Args:
        folder: an empty folder on the disk to be measured.
        blocks: a turn, by the number of metrics in a call.
        rounds: turns of each contestant and number of metrics.

    Raises:
        RuntimeError: a contestant's files do not hold what it logged.
    """
    turns = {count: {name: Turns() for name in CONTESTANTS} for count in blocks}
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(new_process()) for name in CONTESTANTS}
        places = {name: folder / str(index) for index, name in enumerate(CONTESTANTS)}
        starts = [process.submit(_start, name, places[name], list(blocks)) for name, process in processes.items()]
        pids = dict(zip(processes, [start.result() for start in starts], strict=True))
        for _ in range(rounds):
            for count, block in blocks.items():
                for name, process in processes.items():
                    _take_turn(turns[count][name], process, pids[name], (count, block), (name, places[name]))
        points = {name: process.submit(_end).result() for name, process in processes.items()}
    for name, found in points.items():
        logged = sum(count * turns[count][name].all_calls for count in blocks) + sum(blocks)
        if found != logged:
            raise RuntimeError(f"{name}: {logged} points logged, {found} found in its files")
    return Race(turns, points)


def _take_turn(
    turns: Turns, process: ProcessPoolExecutor, pid: int, what: tuple[int, Block], who: tuple[str, Path]
) -> None:
    before = cpu_nanoseconds(pid)
    all_calls, nanoseconds = process.submit(_block, *what).result()
    name, place = who
    if quiet := CONTESTANTS[name].quiet_seconds:
        turns.rest_seconds.append(wait_for_rest(place, quiet))
    turns.cpu_nanoseconds += cpu_nanoseconds(pid) - before
    turns.all_calls += all_calls
    turns.nanoseconds += nanoseconds
    turns.medians.append(statistics.median(nanoseconds) / 1000)


# What follows runs in the contestant's process.


@dataclass(slots=True)
class _Running:
    """The contestant of this process."""

    name: str
    folder: Path
    stack: contextlib.ExitStack
    log: Log
    metrics: Mapping[int, Metrics]
    step: int = 0


_running: list[_Running] = []


def _start(name: str, folder: Path, counts: list[int]) -> int:
    """Set up, and make the first call of each kind, which is not what a call costs."""
    folder.mkdir()
    os.chdir(folder)
    metrics = {count: metrics_of(count) for count in counts}
    stack = contextlib.ExitStack()
    log = stack.enter_context(CONTESTANTS[name].open(folder, list(metrics.values())))
    running = _Running(name, folder, stack, log, metrics)
    _running.append(running)
    for first in metrics.values():
        log(first, running.step)
        running.step += 1
    return os.getpid()


def _block(count: int, block: Block) -> tuple[int, list[int]]:
    """All calls, and the nanoseconds of those that are timed."""
    (running,) = _running
    log, metrics, clock = running.log, running.metrics[count], time.perf_counter_ns
    step = first = running.step
    start = clock()
    warm_up_end = start + int(block.seconds * _WARM_UP_SHARE * 1e9)
    while True:
        log(metrics, step)
        step += 1
        if clock() >= warm_up_end or step - first >= block.calls:
            break
    end = clock() + int(block.seconds * 1e9)
    times: list[int] = []
    while True:
        before = clock()
        log(metrics, step)
        after = clock()
        times.append(after - before)
        step += 1
        if after >= end or len(times) >= block.calls:
            break
    running.step = step
    return step - first, times


def _end() -> int:
    """Close, and count what is in the files."""
    running = _running.pop()
    running.stack.close()
    return CONTESTANTS[running.name].points(running.folder)
