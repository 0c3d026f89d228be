"""Timing: medians and tails of single calls, and ratios between contestants measured in turns.

Contestants take turns in slices, so that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: One call of a contestant with the number of the step.
Call = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Times:
    """Times of single calls in microseconds."""

    calls: int
    median: float
    p99: float
    p999: float
    highest: float


def time_calls(contestants: Mapping[str, Call], calls: Mapping[str, int], slices: int = 10) -> dict[str, Times]:
    """Time single calls.

    Args:
        contestants: what to call, by name.
        calls: how often to call each in all.
        slices: turns each contestant gets.
    """
    taken: dict[str, list[int]] = {name: [] for name in contestants}
    clock = time.perf_counter_ns
    for _ in range(slices):
        for name, call in contestants.items():
            times = taken[name]
            first = len(times)
            for step in range(first, first + max(1, calls[name] // slices)):
                before = clock()
                call(step)
                times.append(clock() - before)
    return {name: summary(times) for name, times in taken.items()}


def summary(nanoseconds: list[int]) -> Times:
    """Median and tail."""
    ordered = sorted(nanoseconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000

    return Times(len(ordered), at(0.5), at(0.99), at(0.999), ordered[-1] / 1000)
