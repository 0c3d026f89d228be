"""A file system that answers nothing for seconds: the training goes on, and nothing of it is lost.

A FUSE file system is one that the writer takes to be slow: it writes from a thread of its own.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rl_eventlog import EventWriter
from tests.support.bad_disk_runs import assert_calls, beat_at, log_calls, opened, rows_in, warnings_about
from tests.support.disks import EVERYTHING, FuseDisk, fuse, until

pytestmark = [pytest.mark.crash, pytest.mark.needs_fuse]

SECONDS = [3.0, pytest.param(30.0, marks=pytest.mark.soak)]
MOST_SECONDS_A_CALL = 0.060
PERIOD_SECONDS = 0.002
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FuseDisk]:
    with fuse(tmp_path) as made:
        yield made


class HeldError(AssertionError):
    """A call took longer than it may: by the disk each time, by others on these cores now and then."""


class Training:
    """A loop that logs each `PERIOD_SECONDS` and takes the time of every call.

    Attributes:
        calls: so far.
        seconds: what each took.
        late: by how much the sleep after it came back too late: the machine's doing.
    """

    def __init__(self, log: EventWriter) -> None:
        self._log = log
        log_calls(log, 0, 1)  # what only the first call has to do is none of the disk's
        self.calls = 1
        self.seconds: list[float] = []
        self.late: list[float] = []

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            log_calls(self._log, self.calls, self.calls + 1)
            called = time.perf_counter()
            time.sleep(PERIOD_SECONDS)
            self.seconds.append(called - began)
            self.late.append(time.perf_counter() - called - PERIOD_SECONDS)
            self.calls += 1

    def assert_never_held(self) -> None:
        median, longest, late = (
            1e3 * value for value in (statistics.median(self.seconds), max(self.seconds), max(self.late))
        )
        print(
            f"{self.calls} calls, median {median:.3f} ms, longest {longest:.1f} ms, the machine late by {late:.1f} ms"
        )
        if max(self.seconds) >= MOST_SECONDS_A_CALL + max(self.late):
            raise HeldError(f"a call took {longest:.1f} ms")


@pytest.mark.flaky(reruns=2, only_rerun=["HeldError"])
@pytest.mark.parametrize("seconds", SECONDS)
class TestTheTraining:
    def test_it_goes_on_beside_writes_that_stall(
        self, disk: FuseDisk, seconds: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = opened(disk.path, None, beat_interval_seconds=0.1)
        training = Training(log)
        training.run(0.5)
        log.flush()
        disk.stall(seconds, under="/r/events")
        training.run(seconds - 0.5)
        assert disk.waiting() >= 1, "the stall is on"
        training.run(1.5)
        healed = training.calls
        log.flush()
        assert_calls(disk.backing / "r", training.calls)
        training.run(0.5)
        report = log.close(30)
        training.assert_never_held()
        assert report.ok, report
        assert_calls(log.path, training.calls)
        times = [row["time"] for row in rows_in(log.path, "metrics").values() if row["step"] < healed]
        longest = max(later - earlier for earlier, later in pairwise(sorted(times)))
        assert longest.total_seconds() < 0.5, "a row has the time of its call"
        assert report.counters["writes over 100 ms"] >= 1
        assert len(warnings_about(caplog, log.path, "waited")) == 1

    def test_it_goes_on_beside_a_file_system_that_answers_nothing(self, disk: FuseDisk, seconds: float) -> None:
        log = opened(disk.path, None, beat_interval_seconds=0.1)
        training = Training(log)
        training.run(0.5)
        disk.stall(seconds, *EVERYTHING)
        tables: dict[str, Callable[[], None]] = {
            "timings": lambda: log.log_timing("generation", 0.5, 1),
            "markers": lambda: log.mark("checkpoint", step=1),
            "hparams": lambda: log.log_hyperparams({"lr": 0.1}),
            "distributions": lambda: log.log_histogram([1.0, 2.0, 2.5], 1, "lengths"),
            "samples": lambda: log.log_samples([{"prompt": "p", "response": "r"}], step=1),
            "artifacts": lambda: log.log_artifact(__file__),
        }
        for table, call in tables.items():  # none of them has a file, or a folder, yet
            began = time.perf_counter()
            call()
            if time.perf_counter() - began >= MOST_SECONDS_A_CALL:
                raise HeldError(f"the first call of {table} took {time.perf_counter() - began:.3f} s")
        training.run(seconds - 0.5)
        assert disk.waiting() >= 1, "the stall is on"
        disk.heal()
        training.run(0.5)
        report = log.close(30)
        training.assert_never_held()
        assert report.ok, report
        assert_calls(log.path, training.calls)
        for table in tables:
            assert len(rows_in(log.path, table)) == report.rows[table] >= 1

    def test_a_rotation_during_the_stall_holds_nobody(self, disk: FuseDisk, seconds: float) -> None:
        log = opened(disk.path, None, segment_bytes=20_000)
        training = Training(log)
        training.run(0.5)
        disk.stall(seconds, *EVERYTHING)
        training.run(seconds + 0.5)
        report = log.close(60)
        training.assert_never_held()
        assert report.ok, report
        assert_calls(log.path, training.calls)
        assert len(list(log.path.glob("events/metrics/*/*.parquet"))) > 3


def test_the_heartbeat_goes_on_beside_files_that_stall_and_says_what_is_at_risk(disk: FuseDisk) -> None:
    """One server of many that hangs: that of the events does, that of the heartbeat answers."""
    log = opened(disk.path, None, beat_interval_seconds=0.05)
    log_calls(log, 0, 50)
    log.flush(fsync=True)
    disk.stall(60, under="/r/events")
    log_calls(log, 50, 60)
    log.log_timing("generation", 0.5, 1)
    until(lambda: beat_at(disk.backing, log)["rows_at_risk"] == 21, seconds=3)
    time.sleep(0.2)  # the fsync of the background has met the stall
    log_calls(log, 60, 70)
    until(lambda: beat_at(disk.backing, log)["rows_at_risk"] == 41, seconds=3)
    disk.heal()
    until(lambda: beat_at(disk.backing, log)["rows_at_risk"] == 0)
    assert log.close(30).ok


def test_a_fork_during_the_stall_writes_nothing_of_its_parent(disk: FuseDisk) -> None:
    code = """
    import os, pathlib, sys
    from tests.support.bad_disk_runs import log_calls, opened

    log = opened(pathlib.Path(sys.argv[1]), None)
    log_calls(log, 0, 50)
    log.flush()
    print("ready", flush=True)
    sys.stdin.readline()
    log_calls(log, 50, 100)  # they wait in memory, and the thread is in a write
    child = os.fork()
    if child == 0:
        log_calls(log, 0, 10)
        print("logged", flush=True)
        log.flush()
        print(log.close(30).ok, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(log.close(30).ok, flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(disk.path)],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        disk.stall(60, under="/r/events")
        assert parent.stdin is not None
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "logged\n"
        disk.heal()
        assert parent.communicate(timeout=30)[0] == "True\nTrue\n"
    writers = {writer for writer, _ in rows_in(disk.backing / "r", "metrics")}
    assert len(writers) == 2
    by_age = sorted(writers)  # ids begin with their time
    assert_calls(disk.backing / "r", 100, writer=by_age[0])
    assert_calls(disk.backing / "r", 10, writer=by_age[1])


class TestClose:
    @pytest.mark.parametrize("operations", [("write",), EVERYTHING], ids=["writes", "everything"])
    def test_it_keeps_its_limit_and_says_what_is_unsafe(self, disk: FuseDisk, operations: tuple[str, ...]) -> None:
        log = opened(disk.path, None)
        log_calls(log, 0, 50)
        log.flush()
        disk.stall(60, *operations)
        log_calls(log, 50, 100)
        log.log_timing("generation", 0.5, 1)
        began = time.monotonic()
        report = log.close(timeout=1)
        assert 0.5 < time.monotonic() - began < 1.4
        assert dict(report.rows_at_risk) == {"metrics": 100, "timings": 1}
        assert not report.ok
        assert not any(report.rows_lost.values())
        assert_calls(disk.backing / "r", 50)
        disk.heal()  # a process that lives on still writes them
        until(lambda: len(rows_in(disk.backing / "r", "metrics")) == 200)
        assert_calls(disk.backing / "r", 100)

    def test_a_failed_training_is_not_held_and_its_exception_not_masked(self, disk: FuseDisk) -> None:
        log = opened(disk.path, None, on_error="raise")
        log_calls(log, 0, 50)
        log.flush()
        disk.stall(60)
        log_calls(log, 50, 60)
        began = time.monotonic()
        with pytest.raises(KeyError, match="the training's own"), log:
            raise KeyError("the training's own")
        assert time.monotonic() - began < 7

    @pytest.mark.parametrize("leave", ["", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
    def test_a_process_that_ends_without_it_is_held_by_the_disk_alone(self, disk: FuseDisk, leave: str) -> None:
        """The kernel lets a thread go only when its write is answered, also after a SIGKILL."""
        code = f"""
        import os, pathlib, signal, sys
        from tests.support.bad_disk_runs import log_calls, opened

        log = opened(pathlib.Path(sys.argv[1]), None)
        log_calls(log, 0, 50)
        log.flush()
        print("ready", flush=True)
        sys.stdin.readline()
        log_calls(log, 50, 60)
        print("logged", flush=True)
        {leave}
        """
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(disk.path)],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            disk.stall(2)
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "logged\n"
            began = time.monotonic()
            child.wait(30)
            assert time.monotonic() - began < 4
            assert child.returncode == (-signal.SIGKILL if "SIGKILL" in leave else 0)
        rows = rows_in(disk.backing / "r", "metrics")
        assert len(rows) >= 100
        assert_calls(disk.backing / "r", len(rows) // 2)


def test_beyond_64_mib_other_tables_go_before_metrics_and_all_is_counted(
    disk: FuseDisk, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(disk.path, None)
    logged = Counter[str]()
    disk.stall(120, under="/r/events")
    text = "x" * 60_000
    for number in range(1_000):  # 60 MB
        log.mark("long", text=text, step=number)
        log.log_metrics({"a": number}, step=number)
        logged += {"markers": 1, "metrics": 1}
    assert warnings_about(caplog, log.path, "loses markers rows")
    assert not warnings_about(caplog, log.path, "loses metrics rows"), "others go first"
    many = {f"key/{index}": float(index) for index in range(1_000)}
    while not warnings_about(caplog, log.path, "loses metrics rows"):
        assert logged["metrics"] < 1_000_000, "memory has no end"
        log.log_metrics(many)
        logged["metrics"] += len(many)
    disk.heal()
    log.flush()
    written = sum(path.stat().st_size for path in disk.backing.glob("r/events/*/*/*.arrows"))
    assert 60 << 20 < written < 66 << 20, "as much as waited"
    report = log.close(60)
    assert not report.ok
    assert not any(report.rows_at_risk.values())
    assert report.rows_lost == {"markers": logged["markers"] - report.rows["markers"], "metrics": len(many)}
    sealed = {table: pq.read_table(next(log.path.glob(f"events/{table}/*/*.parquet"))) for table in logged}
    for table, rows in sealed.items():
        assert report.rows[table] == rows.num_rows == logged[table] - report.rows_lost[table]
        assert rows["seq"].to_pylist() == list(range(rows.num_rows)), "refused rows have no seq"
    interleaved = sealed["metrics"].filter(pc.field("name") == "a")
    assert interleaved["step"].to_pylist() == list(range(1_000))
    assert len(warnings_about(caplog, log.path, "loses")) == 2


def test_the_choice_can_be_made_by_hand(disk: FuseDisk) -> None:
    direct, queued = opened(disk.path, "direct", run="d"), opened(disk.path, "queued", run="q")
    log_calls(direct, 0, 1)
    log_calls(queued, 0, 1)
    queued.flush()
    disk.stall(0.5)
    threading.Timer(0.4, disk.heal).start()
    began = time.monotonic()
    log_calls(queued, 1, 2)
    assert time.monotonic() - began < 0.2
    log_calls(direct, 1, 2)
    assert time.monotonic() - began >= 0.3, "the caller writes, and waits"
    assert direct.close(30).ok
    assert queued.close(30).ok


def test_the_stall_budget_is_what_a_call_waits_and_only_the_first(disk: FuseDisk) -> None:
    log = opened(disk.path, None, stall_budget_ms=300.0)
    log_calls(log, 0, 1)
    log.flush()
    disk.stall(60)
    began = time.monotonic()
    log_calls(log, 1, 2)
    first = time.monotonic() - began
    log_calls(log, 2, 100)
    rest = time.monotonic() - began - first
    assert 0.29 <= first < 0.5
    assert rest < 0.2
    disk.heal()
    assert log.close(30).ok
    assert_calls(log.path, 100)
