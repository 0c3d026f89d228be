"""Reading runs of a thousand ranks, and many runs: points a second, memory, what a person waits for."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rl_eventlog import Run
from rl_eventlog.maintain import compact

from .large_run import LargeRun, write_large_run
from .measure import in_process, memory_bytes
from .report import Section, Verdict, at_most, prose, table

_RANKS, _FEW_RANKS, _RUNS = 1_024, 64, 5_000
_KEYS_CHECKED = 1_000
_ROUNDS = 3
_SPEED, _PEAK_GB, _RATIO, _FILES = 10e6, 1.5, 20, 20


@dataclass(frozen=True, slots=True)
class Reading:
    """Reading one run, in a fresh process."""

    seconds: float
    """From opening the run to the result."""
    points: int
    """Values that count."""
    peak_bytes: int


@dataclass(slots=True)
class Scale:
    """What was measured."""

    large: Reading
    few_ranks: Reading
    naive: Reading
    """Polars alone, without attempts, repeats, replicas and declared reductions: the mean of all rows."""
    one_metric: float
    show: float
    ls: float
    ls_runs: float
    runs: int
    keys_equal: int
    keys: int
    compact_seconds: float
    files_left: int
    same_after_compact: bool
    compacted: Reading


def scale(folder: Path) -> Section:
    """Measure."""
    return section(measured(folder, ranks=_RANKS, few_ranks=_FEW_RANKS, runs=_RUNS))


def measured(
    folder: Path, *, ranks: int, few_ranks: int, runs: int, metrics: int = 100, steps: int = 500, rounds: int = _ROUNDS
) -> Scale:
    """Write the runs and read them; the best of the rounds counts, of each kind in turns."""
    large = write_large_run(folder / "large", ranks=ranks, metrics=metrics, steps=steps)
    few = write_large_run(folder / "few", ranks=few_ranks, metrics=metrics, steps=steps)
    for number in range(runs):
        write_large_run(folder / "many", ranks=1, metrics=5, steps=4, name=f"run-{number:04d}")
    turns: dict[str, list[Reading]] = {"large": [], "few": [], "naive": []}
    for _ in range(rounds):
        turns["large"].append(in_process(read_all, large))
        turns["few"].append(in_process(read_all, few))
        turns["naive"].append(in_process(read_naively, large))
    best = {name: min(readings, key=lambda reading: reading.seconds) for name, readings in turns.items()}
    one_metric = min(in_process(read_one, large) for _ in range(rounds))
    show, ls, ls_runs = (
        min(command_seconds(*arguments) for _ in range(rounds))
        for arguments in (("show", large.path), ("ls", large.path.parent), ("ls", folder / "many"))
    )
    keys_equal, keys = in_process(equal_keys, large)
    before = in_process(read_file, large, folder / "before.parquet")
    start = time.perf_counter()
    compact(large.path, reclaim_covered=True, assume_dead=True, grace_seconds=0)
    compact_seconds = time.perf_counter() - start
    after = in_process(read_file, large, folder / "after.parquet")
    files = sum(1 for path in large.path.rglob("*") if path.is_file())
    return Scale(
        best["large"], best["few"], best["naive"], one_metric, show, ls, ls_runs, runs, keys_equal, keys,
        compact_seconds, files, before.equals(after), in_process(read_all, large),
    )  # fmt: skip


def read_all(run: LargeRun) -> Reading:
    """All metrics, merged."""
    return _timed(run, lambda: Run(run.path).metrics().collect().height)


def read_naively(run: LargeRun) -> Reading:
    """What a notebook would do without this library: not the truth, but the work of reading every row."""
    files = sorted(run.path.glob("events/metrics/*/*.parquet"))

    def read() -> int:
        rows = pl.scan_parquet(files).group_by("name", "step").agg(pl.col("value").mean())
        return rows.sort("name", "step").collect(engine="streaming").height

    return _timed(run, read)


def _timed(run: LargeRun, read: Callable[[], int]) -> Reading:
    start = time.perf_counter()
    height = read()
    seconds = time.perf_counter() - start
    if height != run.metrics * run.steps:
        raise ValueError(f"{run.path}: {height} points in place of {run.metrics * run.steps}")
    return Reading(seconds, run.points, memory_bytes("VmHWM"))


def read_one(run: LargeRun) -> float:
    """Seconds for one metric."""
    start = time.perf_counter()
    height = Run(run.path).metrics(run.name(3)).collect().height
    seconds = time.perf_counter() - start
    if height != run.steps:
        raise ValueError(f"{height} points in place of {run.steps}")
    return seconds


def read_file(run: LargeRun, path: Path) -> pl.DataFrame:
    """The merged metrics, and where they were put."""
    frame = Run(run.path).metrics().collect()
    frame.write_parquet(path)
    return frame


def equal_keys(run: LargeRun) -> tuple[int, int]:
    """How many of some keys, drawn at random, have the value that the oracle computes, and how many were drawn."""
    draw = random.Random(7)
    every = [(metric, step) for metric in range(run.metrics) for step in range(run.steps)]
    keys = draw.sample(every, min(_KEYS_CHECKED, len(every)))
    merged = Run(run.path).metrics().collect()
    found = {(row["name"], row["step"]): row["value"] for row in merged.iter_rows(named=True)}
    expected = run.expected(keys)
    return sum(_close(found[key], value) for key, value in expected.items()), len(keys)


def _close(found: float | None, expected: float | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)


def command_seconds(*arguments: object) -> float:
    """A command of the shell, from its start to its end."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "rl_eventlog_cli", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise ValueError(f"{arguments}: exit status {done.returncode}: {done.stderr[-500:]}")
    return seconds


def _cells(reading: Reading) -> tuple[str, ...]:
    points, seconds = reading.points, reading.seconds
    return f"{points:,}", f"{seconds:.2f}", f"{points / seconds:,.0f}", f"{reading.peak_bytes / 1e6:.0f}"


def section(found: Scale) -> Section:
    """Tables and targets."""
    large, few = found.large, found.few_ranks
    speed = large.points / large.seconds
    ratio = large.seconds / few.seconds
    readings = {
        "rl-eventlog": large,
        "Polars alone, mean of all rows": found.naive,
        "rl-eventlog, 64 ranks": few,
        "rl-eventlog, compacted": found.compacted,
    }
    waits = {
        "one metric": found.one_metric,
        "`rleventlog show`": found.show,
        "`rleventlog ls`": found.ls,
        f"`rleventlog ls`, {found.runs:,} runs": found.ls_runs,
        "`rleventlog compact --reclaim --assume-dead`": found.compact_seconds,
    }
    return Section(
        "A thousand ranks",
        [
            *prose(
                f"{large.points:,} values that count: two overlapping attempts, one row in twenty of every fiftieth",
                "file twice. Seconds from opening the run to the merged result, in a fresh process with the files in",
                f"the page cache; the best of {_ROUNDS} rounds in turns. Polars alone streams the same files and knows",
                "nothing of attempts, repeats, weights and declared reductions.",
            ),
            "",
            *table(
                ("", "points", "seconds", "points a second", "peak MB"),
                [(name, *_cells(reading)) for name, reading in readings.items()],
            ),
            "",
            *prose("What a person waits for on the run of 1,024 ranks; commands from their start to their end."),
            "",
            *table(("", "seconds"), [(name, f"{seconds:.2f}") for name, seconds in waits.items()]),
        ],
        (
            Verdict(
                f"1,024 ranks: at least {_SPEED / 1e6:g} M points/s", f"{speed / 1e6:.1f} M points/s", speed >= _SPEED
            ),
            at_most("1,024 ranks: peak", large.peak_bytes / 1e9, _PEAK_GB, "GB", digits=2),
            Verdict(
                f"1,024 ranks: equal to the oracle on {found.keys:,} keys",
                f"{found.keys_equal:,}",
                found.keys_equal == found.keys,
            ),
            at_most("1,024 ranks: time over that of 64", ratio, _RATIO, "times"),
            at_most("1,024 ranks: one metric", found.one_metric, 2, "s", digits=2),
            at_most("1,024 ranks: `show`", found.show, 2, "s", digits=2),
            at_most("1,024 ranks: `ls`", found.ls, 2, "s", digits=2),
            at_most(f"`ls` of {found.runs:,} runs", found.ls_runs, 5, "s", digits=2),
            at_most("1,024 ranks: files after `compact`", found.files_left, _FILES, digits=0),
            Verdict(
                "1,024 ranks: every value as before `compact`",
                "yes" if found.same_after_compact else "no",
                found.same_after_compact,
            ),
        ),
    )  # fmt: skip
