"""What every benchmark measures with: times of single calls, CPU and memory of processes, files coming to rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_POLL_SECONDS = 0.02
_REST_LIMIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Times:
    """Times of single calls in microseconds."""

    calls: int
    median: float
    p99: float
    p999: float
    highest: float

    def cells(self) -> tuple[str, str, str, str]:
        """For a table; a percentile that less than one call lies beyond is left out."""
        p99 = f"{self.p99:.0f}" if self.calls >= 100 else "-"
        p999 = f"{self.p999:.0f}" if self.calls >= 1000 else "-"
        return f"{self.median:.1f}", p99, p999, f"{self.highest:.0f}"


def summary(nanoseconds: Collection[int]) -> Times:
    """Median and tail of single calls."""
    ordered = sorted(nanoseconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000

    return Times(len(ordered), at(0.5), at(0.99), at(0.999), ordered[-1] / 1000)


def new_process() -> ProcessPoolExecutor:
    """A fresh interpreter that takes calls, one at a time."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def in_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a fresh interpreter."""
    with new_process() as process:
        return process.submit(function, *args, **kwargs).result()


def cpu_nanoseconds(pid: int) -> int:
    """CPU time of all live threads of a process and of the processes it started."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            spent += int((task / "schedstat").read_text().split()[0])
            children = (task / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            continue
        spent += sum(cpu_nanoseconds(int(child)) for child in children)
    return spent


def memory_bytes(field: str) -> int:
    """`VmRSS` or `VmHWM`, the highest so far, of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


def wait_for_rest(folder: Path, quiet_seconds: float) -> float:
    """Wait until no file below the folder has changed for so long.

    Returns:
        Seconds until the last change that was seen.

    Raises:
        TimeoutError: the files did not come to rest.
    """
    start = last_change = time.monotonic()
    seen = _state(folder)
    while (now := time.monotonic()) - last_change < quiet_seconds:
        if now - start > _REST_LIMIT_SECONDS:
            raise TimeoutError(f"the files below {folder} do not come to rest")
        time.sleep(_POLL_SECONDS)
        state = _state(folder)
        if state != seen:
            seen, last_change = state, time.monotonic()
    return last_change - start


def _state(folder: Path) -> set[tuple[str, int, int]]:
    return set(_files(folder.rglob("*")))


def _files(paths: Iterable[Path]) -> Iterable[tuple[str, int, int]]:
    for path in paths:
        try:
            found = path.stat()
        except FileNotFoundError:  # removed meanwhile
            continue
        yield str(path), found.st_size, found.st_mtime_ns
