"""Memory of a process over a million log calls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rl_eventlog import EventWriter

from .measure import in_process, memory_bytes, wait_for_rest
from .report import Section, at_most, prose, table
from .rounds import metrics_of

_KEYS = 5
_EARLY, _LATE = 100_000, 1_000_000
_GROWTH_LIMIT = 0.1
_REST_SECONDS = 5.0  # a seal reads its segment for a second or two before it writes


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of the process."""

    opened: int
    """Once a writer is open."""
    early: int
    """After the first tenth of the calls, background work done."""
    late: int
    """After all calls, background work done."""
    peak: int
    """Highest of all, until the writer was closed."""
    calls: int
    rows: int
    """Written, as the writer says."""


def memory(folder: Path) -> Section:
    """Measure."""
    return section(in_process(measured, folder, _EARLY, _LATE))


def section(found: Memory) -> Section:
    """Table and target."""
    names = {
        "writer open": found.opened,
        f"after {found.calls // 10:,} calls": found.early,
        f"after {found.calls:,} calls": found.late,
        "highest": found.peak,
    }
    rows = [(name, f"{value / 1e6:.0f}") for name, value in names.items()]
    return Section(
        "Memory",
        [
            *prose(
                f"One process, {found.calls:,} calls with {_KEYS} metrics without a pause, segments of the default",
                "size. The highest value is that of seals in the background.",
            ),
            "",
            *table(("", "resident MB"), rows),
        ],
        (
            at_most(
                f"growth of memory from call {found.calls // 10:,} to call {found.calls:,}",
                (found.late / found.early - 1) * 100,
                _GROWTH_LIMIT * 100,
                "%",
            ),
        ),
    )


def measured(folder: Path, early: int, late: int) -> Memory:
    """Log, and look at this process.

    Raises:
        RuntimeError: not all was written.
    """
    metrics = metrics_of(_KEYS)
    writer = EventWriter.open(folder, run="memory", rank=0, capture_diff=False)
    opened = memory_bytes("VmRSS")

    def after(first: int, last: int) -> int:
        for step in range(first, last):
            writer.log_metrics(metrics, step)
        writer.flush()
        wait_for_rest(folder, _REST_SECONDS)
        return memory_bytes("VmRSS")

    seen = after(0, early), after(early, late)
    report = writer.close(timeout=300)
    if not report.ok:
        raise RuntimeError(f"not all was written: {report}")
    return Memory(opened, *seen, memory_bytes("VmHWM"), late, report.rows["metrics"])
