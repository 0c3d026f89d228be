"""Bytes a point, open and sealed, and how fast a segment is sealed."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rl_eventlog import EventWriter, Run

from .measure import in_process
from .report import Section, at_most, prose, table

_KEYS = [f"metric_{index}" for index in range(20)]
_STEPS, _ROUNDS = 30_000, 3
_LIMITS = {"random doubles": 8.2, "constant": 1.5, "slowly growing": 1.5}


@dataclass(slots=True)
class Size:
    """A run of one kind of values."""

    points: int
    open_bytes: float = 0.0
    """Bytes a point while open."""
    sealed_bytes: float = 0.0
    """Bytes a point once sealed, identity columns included."""
    points_read: int = 0
    """In the sealed files."""
    seal_points: list[float] = field(default_factory=list)
    """Points sealed in a second, reading back included; of each round."""


def size_and_seal(folder: Path) -> Section:
    """Measure."""
    return section(in_process(sizes, folder, _STEPS, _ROUNDS))


def section(found: dict[str, Size]) -> Section:
    """Table and targets."""
    rows = [
        (values, f"{one.points:,}", f"{one.open_bytes:.1f}", f"{one.sealed_bytes:.2f}", f"{_speed(one):,.0f}")
        for values, one in found.items()
    ]
    heads = ("values", "points", "bytes a point open", "sealed", "points sealed a second")
    return Section(
        "Size and sealing",
        [
            *prose(
                "Sealed: identity columns included. Speed: `close()` of a writer with one open segment, reading back",
                f"and fsync included; median of {_ROUNDS} rounds.",
            ),
            "",
            *table(heads, rows),
        ],
        tuple(
            at_most(f"bytes a point sealed, {values}", found[values].sealed_bytes, limit, digits=2)
            for values, limit in _LIMITS.items()
        ),
    )


def _speed(size: Size) -> float:
    return statistics.median(size.seal_points)


def sizes(folder: Path, steps: int, rounds: int) -> dict[str, Size]:
    """Random doubles, constants, and a slow ramp, in turns."""
    numbers = random.Random(7)
    kinds: dict[str, Callable[[int], float]] = {
        "random doubles": lambda _: numbers.random(),
        "constant": lambda _: 0.25,
        "slowly growing": lambda step: 1.0 + step // 100,
    }
    found = {name: Size(steps * len(_KEYS)) for name in kinds}
    for turn in range(rounds):
        for name, value in kinds.items():
            _one(folder / str(turn), name, value, steps, found[name])
    return found


def _one(folder: Path, name: str, value: Callable[[int], float], steps: int, found: Size) -> None:
    writer = EventWriter.open(folder, run=name, rank=0, capture_diff=False)
    for step in range(steps):
        writer.log_metrics({key: value(step) for key in _KEYS}, step)
    writer.flush()
    (segment,) = writer.path.glob("events/metrics/*/*.arrows")
    found.open_bytes = segment.stat().st_size / found.points
    before = time.perf_counter()
    report = writer.close(timeout=300)
    found.seal_points.append(found.points / (time.perf_counter() - before))
    if not report.ok:
        raise RuntimeError(f"not all was written: {report}")
    (sealed,) = writer.path.glob("events/metrics/*/*.parquet")
    found.sealed_bytes = sealed.stat().st_size / found.points
    found.points_read = Run(writer.path).metrics(ranks="each").collect().height
