"""A disk that refuses and takes writes in turns, many times a second, while several threads log."""

from __future__ import annotations

import errno
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rl_eventlog import EventWriter
from tests.support.bad_disk_runs import MODES, Mode, opened, rows_in
from tests.support.disks import CHANGES, FuseDisk, fuse, small_tmpfs

pytestmark = [pytest.mark.crash, pytest.mark.needs_fuse]

SECONDS = [1.0, pytest.param(20.0, marks=pytest.mark.soak)]
THREADS = 3


@pytest.fixture
def disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[FuseDisk]:
    # A seal's ParquetWriter that failed closes its file when it goes, and complains if the disk is gone by then. The
    # warnings that pytest keeps would keep it.
    caplog.set_level(logging.CRITICAL, "rl_eventlog")
    with fuse(tmp_path) as made:
        yield made
        made.heal()
        gc.collect()


def train_while(log: EventWriter, flap: Callable[[int], None], seconds: float) -> list[int]:
    """Log from `THREADS` threads while `flap` is called again and again; the calls of each thread."""
    calls = [0] * THREADS
    over = threading.Event()

    def train(thread: int) -> None:
        while not over.is_set():
            log.log_metrics({f"thread-{thread}": calls[thread], "both": 0.5}, step=calls[thread])
            calls[thread] += 1
            time.sleep(0.003)  # slow enough that what waits stays within the memory for it

    threads = [threading.Thread(target=train, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    end, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        flap(turn)
        turn += 1
        time.sleep(0.01)
    over.set()
    for thread in threads:
        thread.join()
    return calls


def assert_all(run: Path, calls: list[int]) -> None:
    """Seqs are dense, and the calls of each thread are there once, in its order."""
    rows = rows_in(run, "metrics")
    assert [seq for _, seq in sorted(rows)] == list(range(2 * sum(calls)))
    ordered = [rows[key] for key in sorted(rows)]
    for thread, number in enumerate(calls):
        assert [row["value"] for row in ordered if row["name"] == f"thread-{thread}"] == list(range(number))


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("mode", MODES)
class TestFlapping:
    def test_refused_writes_cost_nothing(self, disk: FuseDisk, mode: Mode, seconds: float) -> None:
        log = opened(disk.path, mode, segment_bytes=200_000)

        def flap(turn: int) -> None:
            if turn % 2:
                disk.heal()
            else:
                disk.fail(*CHANGES, code=errno.ENOSPC)

        calls = train_while(log, flap, seconds)
        disk.heal()
        report = log.close(60)
        assert report.ok, report
        assert disk.answered() > 0
        assert_all(log.path, calls)

    def test_writes_that_fail_now_and_then_cost_nothing(self, disk: FuseDisk, mode: Mode, seconds: float) -> None:
        log = opened(disk.path, mode)
        calls = train_while(log, lambda _: disk.fail("write", code=errno.EIO, times=1, under="/r/events"), seconds)
        disk.heal()
        report = log.close(60)
        assert report.ok, report
        assert disk.answered() > 0
        assert_all(log.path, calls)

    def test_fsyncs_that_drop_what_they_fail_for_cost_nothing(self, disk: FuseDisk, mode: Mode, seconds: float) -> None:
        log = opened(disk.path, mode, fsync_interval_seconds=0.005)
        calls = train_while(
            log,
            lambda turn: disk.fail("fsync", code=errno.EIO, times=1, under="/r/events") if turn % 3 else None,
            seconds,
        )
        disk.heal()
        log.flush(fsync=True)
        assert disk.answered() > 0
        disk.evict()
        assert_all(disk.backing / "r", calls)
        assert not log.close(60).missing
        assert_all(log.path, calls)

    def test_rows_that_went_to_the_fallback_and_back_all_come_home(
        self, disk: FuseDisk, tmp_path: Path, mode: Mode, seconds: float
    ) -> None:
        with small_tmpfs(tmp_path / "spare", 64 << 20) as spare:
            log = opened(disk.path, mode, fallback_dir=spare)

            def flap(turn: int) -> None:
                if turn % 2:
                    disk.heal()
                else:
                    disk.fail(*CHANGES, code=errno.ENOSPC)

            calls = train_while(log, flap, seconds)
            disk.heal()
            report = log.close(60)
            assert list(spare.iterdir()), "the fallback was needed"
            assert report.ok, report
            assert_all(log.path, calls)
