"""The file budget: whatever the number of ranks and attempts, at most 20 event files after `compact`."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import polars as pl
import pytest

from rl_eventlog import Run
from rl_eventlog.maintain import compact, seal, verify
from tests.support.large_runs import METRICS, preempted_job
from tests.support.upkeep import event_files

pytestmark = pytest.mark.integration

MOST_FILES = 20


def check_budget(root: Path, *, ranks: int, attempts: int, steps: int) -> str:
    """Seal, compact and reclaim a preempted job; the rows must stay as they were.

    Returns:
        What it took, for people.
    """
    began = [time.monotonic()]
    path = preempted_job(root, ranks=ranks, attempts=attempts, steps=steps)
    files = len(event_files(path))
    assert files == 2 * ranks * attempts
    began.append(time.monotonic())
    before = reads(path)
    began.append(time.monotonic())
    assert len(seal(path).left_alone) == 2 * ranks * (attempts - 1)  # other machines: silence is no proof
    assert len(seal(path, assume_dead=True).sealed) == 2 * ranks * (attempts - 1)
    began.append(time.monotonic())
    report = compact(path, assume_dead=True)
    assert report.sources == files
    began.append(time.monotonic())
    compact(path, assume_dead=True, reclaim_covered=True, grace_seconds=0)
    began.append(time.monotonic())
    assert len(event_files(path)) <= MOST_FILES
    assert reads(path) == before
    left = verify(path)
    assert left.ok
    assert {finding.kind for finding in left.findings} == {"no end"}
    assert len(left.writers) == files
    assert {(one.rows, one.missing) for one in left.writers} == {(steps, 0), (steps * len(METRICS), 0)}
    began.append(time.monotonic())
    assert len(list(path.glob("writers/*"))) < 5
    names = ("write", "read", "seal", "compact", "reclaim", "read and verify")
    took = ", ".join(f"{name} {b - a:.1f} s" for name, a, b in zip(names, began, began[1:], strict=False))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return f"{ranks} ranks x {attempts} attempts: {files} event files to {len(event_files(path))}; {took}; {memory} MiB"


def reads(path: Path) -> list[object]:
    run = Run(path)
    metrics = run.metrics().collect()
    assert set(metrics["ranks"]) == {run.info.roles[0].ranks_seen}
    rows = run.metrics(ranks="each", attempts="all").select(pl.len(), pl.col("value", "step").sum()).collect()
    return [metrics.rows(), run.timings().collect().rows(), rows.rows(), run.info.attempts, run.info.ranks]


def test_after_compact_a_job_has_a_handful_of_event_files(tmp_path: Path) -> None:
    print(check_budget(tmp_path, ranks=48, attempts=6, steps=4))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_ranks_and_six_attempts_are_at_most_twenty_event_files(tmp_path: Path) -> None:
    print(check_budget(tmp_path, ranks=1024, attempts=6, steps=10))
