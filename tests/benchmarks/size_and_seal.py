"""Bytes a point, open and sealed, and how fast a segment is sealed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rl_eventlog import EventWriter

_KEYS = [f"metric_{index}" for index in range(20)]


@dataclass(frozen=True, slots=True)
class Size:
    """A run of one kind of values."""

    values: str
    points: int
    open_bytes: float
    """Bytes a point while open."""
    sealed_bytes: float
    """Bytes a point once sealed, identity columns included."""
    seal_points: float
    """Points sealed in a second, reading back included."""


def sizes(folder: Path, *, steps: int = 10_000) -> list[Size]:
    """Random doubles, constants, and a slow ramp."""
    numbers = random.Random(7)
    kinds: dict[str, Callable[[int], float]] = {
        "random doubles": lambda _: numbers.random(),
        "constant": lambda _: 0.25,
        "slowly growing": lambda step: 1.0 + step // 100,
    }
    found = []
    for name, value in kinds.items():
        log = EventWriter.open(folder, run=name, rank=0, capture_diff=False)
        for step in range(steps):
            log.log_metrics({key: value(step) for key in _KEYS}, step)
        points = steps * len(_KEYS)
        open_bytes = sum(path.stat().st_size for path in log.path.glob("events/metrics/*/*.arrows"))
        before = time.perf_counter()
        log.close(timeout=300)
        seconds = time.perf_counter() - before
        sealed = sum(path.stat().st_size for path in log.path.glob("events/metrics/*/*.parquet"))
        found.append(Size(name, points, open_bytes / points, sealed / points, points / seconds))
    return found
