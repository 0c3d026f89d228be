"""What a writer does when the file system refuses, forgets or does not answer. The refusals are injected."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rl_eventlog import EventWriter
from rl_eventlog.errors import WriteError
from rl_eventlog.writer import row_queue
from tests.support.raw import assert_dense, raw_rows

Row = dict[str, Any]
FULL = OSError(errno.ENOSPC, "No space left on device")


def enter(root: Path, **options: Any) -> EventWriter:
    return EventWriter.open(root, run="run", role="trainer", rank=0, capture_diff=False, **options)


def values(root: Path) -> list[float]:
    rows = raw_rows(root / "run", "metrics")
    assert_dense(rows)
    return [row["value"] for row in rows]


def at_risk(log: EventWriter) -> dict[str, int]:
    assert log._session
    return log._session.rows.waiting()


def lost(log: EventWriter) -> dict[str, int]:
    assert log._session
    return dict(log._session.rows.rows_lost)


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def path_of(fd: int) -> Path:
    return Path(f"/proc/self/fd/{fd}").readlink()


@contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch, error: OSError = FULL, inside: Path | None = None) -> Iterator[None]:
    """Every write of events below `inside` fails."""
    real = os.pwrite

    def pwrite(fd: int, data: Any, offset: int) -> int:
        path = path_of(fd)
        if path.suffix == ".arrows" and (inside is None or path.is_relative_to(inside)):
            raise error
        return real(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        yield


@contextmanager
def stalling(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writes of events do not come back before the event is set."""
    real, answer = os.pwrite, threading.Event()

    def pwrite(fd: int, data: Any, offset: int) -> int:
        if path_of(fd).suffix == ".arrows":
            assert answer.wait(60)
        return real(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        try:
            yield answer
        finally:
            answer.set()


class TestRefusedWrites:
    def test_rows_of_a_failed_write_go_to_a_new_segment_with_the_same_seqs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed: list[int] = []
        real = os.pwrite

        def pwrite(fd: int, data: Any, offset: int) -> int:
            if offset and not failed:
                failed.append(1)
                real(fd, bytes(data)[:100], offset)
                raise OSError(errno.EIO, "Input/output error")
            return real(fd, data, offset)

        log = enter(tmp_path)
        log.log_metrics({"a": 1})
        monkeypatch.setattr(os, "pwrite", pwrite)
        log.log_metrics({"a": 2})
        log.log_metrics({"a": 3})
        monkeypatch.undo()
        assert log.close().ok
        assert values(tmp_path) == [1, 2, 3]

    def test_short_writes_are_completed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = enter(tmp_path)
        real = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data)[:97], offset))
        log.log_metrics({"a": 1, "b": 2})
        assert values(tmp_path) == [1, 2]
        monkeypatch.undo()
        log.close()

    def test_refused_rows_wait_in_memory_and_come_in_order_and_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "rl_eventlog")
        log = enter(tmp_path)
        log.log_metrics({"a": 1})
        metrics = {"a": 2.0, "b": 3.0}
        with refusing(monkeypatch):
            for _ in range(3):
                log.log_metrics(metrics)
            metrics["a"] = 99.0  # the caller's mapping is the caller's
            assert at_risk(log) == {"metrics": 6}
            assert values(tmp_path) == [1]
        log.log_metrics({"a": 4})
        log.flush()
        log.log_metrics({"a": 5})
        assert values(tmp_path) == [1, 2, 3, 2, 3, 2, 3, 4, 5]
        assert log.close().ok
        assert caplog.text.count("No space left on device") == 1

    def test_rows_without_room_are_lost_counted_and_named_once_metrics_last(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "rl_eventlog")
        monkeypatch.setattr(row_queue, "LIMIT_BYTES", 20_000)
        log = enter(tmp_path)
        with refusing(monkeypatch):
            while not lost(log):
                log.log_timing("t", 1.0)
            kept = at_risk(log)["timings"]
            assert lost(log) == {"timings": 1}
            log.log_metrics({"a": 1})
            assert lost(log) == {"timings": 1}, "metrics have room where timings have none"
            while "metrics" not in lost(log):
                log.log_metrics({"a": 2})
            log.log_metrics({"a": 2})
            metrics = at_risk(log)["metrics"]
        log.flush()
        report = log.close()
        assert report.rows_lost == {"timings": 1, "metrics": 2}
        assert not report.ok
        assert len(values(tmp_path)) == metrics
        assert len(raw_rows(tmp_path / "run", "timings")) == kept
        end = json.loads((tmp_path / "run/writers" / f"{log.writer_id}.end.json").read_bytes())
        assert end["rows_lost"] == {"timings": 1, "metrics": 2}
        assert caplog.text.count("loses timings rows") == caplog.text.count("loses metrics rows") == 1

    def test_close_on_a_full_disk_says_what_is_at_risk_and_writes_it_when_it_can(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = enter(tmp_path)
        log.log_metrics({"a": 1})
        with refusing(monkeypatch):
            log.log_metrics({"a": 2})
            began = time.monotonic()
            report = log.close(timeout=0.3)
            assert time.monotonic() - began < 2
        assert report.rows_at_risk == {"metrics": 1}
        assert (report.ok, report.ended, report.missing) == (False, False, {"metrics": 1})
        assert "1 metrics rows are not written yet" in caplog.text
        until(lambda: list(tmp_path.glob("run/writers/*.end.json")))
        assert values(tmp_path) == [1, 2], "the process lives on, so the rows come after all"

    def test_on_error_raise_raises_a_write_error_and_masks_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = enter(tmp_path, on_error="raise")
        with refusing(monkeypatch):
            with pytest.raises(WriteError, match=r"1 metrics rows could not be written under .*No space left"):
                log.log_metrics({"a": 1})
            with pytest.raises(KeyError), log:
                raise KeyError
        assert log.close().rows_lost == {"metrics": 1, "markers": 1}

    def test_on_error_raise_lets_close_raise_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = enter(tmp_path, on_error="raise")
        with refusing(monkeypatch), pytest.raises(WriteError):
            log.log_metrics({"a": 1})
        with pytest.raises(WriteError, match=r"closed without \{'metrics': 1\}"):
            log.close()
        assert log.close().rows_lost == {"metrics": 1}

    def test_an_exception_that_a_signal_handler_raises_is_no_disk_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = enter(tmp_path)
        log.log_metrics({"a": 1})
        real = os.pwrite
        raised: list[int] = []

        def pwrite(fd: int, data: Any, offset: int) -> int:
            if not raised:
                raised.append(1)
                raise TimeoutError("the training's own alarm")
            return real(fd, data, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", pwrite)
            log.log_metrics({"a": 2})
        log.log_metrics({"a": 3})
        assert log.close().counters == {"calls failed": 1}
        assert values(tmp_path) == [1, 3]


class TestFailedFsync:
    @pytest.mark.parametrize("failing", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE])
    def test_rows_since_the_last_good_fsync_are_written_again_with_the_same_seqs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
    ) -> None:
        log = enter(tmp_path, fsync_interval_seconds=3600)
        log.log_metrics({"a": 1})
        log.flush(fsync=True)
        (old,) = tmp_path.rglob("*.arrows")
        safe = old.stat().st_size
        log.log_metrics({"a": 2})
        log.log_metrics({"a": 3})
        real = os.fsync
        failed: list[int] = []

        def fsync(fd: int) -> None:
            if os.path.samestat(os.fstat(fd), old.stat()) and not failed:
                failed.append(1)
                raise OSError(failing, os.strerror(failing))
            real(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            log.flush(fsync=True)
        log.log_metrics({"a": 4})
        os.truncate(old, safe)  # what the disk has of it
        assert values(tmp_path) == [1, 2, 3, 4]
        (new,) = set(tmp_path.rglob("*.arrows")) - {old}
        assert new.stat().st_size < old.stat().st_size + safe, "only the rows at risk were written again"
        log.close()
        assert values(tmp_path) == [1, 2, 3, 4]

    def test_where_no_place_takes_them_they_stay_and_are_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = enter(tmp_path, fsync_interval_seconds=3600)
        log.log_metrics({"a": 1})
        real = os.fsync

        def fsync(fd: int) -> None:
            if path_of(fd).suffix == ".arrows":
                raise OSError(errno.EIO, "Input/output error")
            real(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            with pytest.raises(OSError, match="Input/output error"):
                log.flush(fsync=True)
            log.log_metrics({"a": 2})
        (old,) = tmp_path.rglob("*.arrows")
        log.flush(fsync=True)
        assert len(list(tmp_path.rglob("*.arrows"))) == 2, "a good fsync after a failed one proves nothing"
        old.unlink()
        assert values(tmp_path) == [1, 2]
        log.close()

    def test_a_failed_close_is_a_failed_fsync(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = enter(tmp_path, fsync_interval_seconds=3600, segment_seconds=3600)
        log.log_metrics({"a": 1})
        log.flush(fsync=True)
        (old,) = tmp_path.rglob("*.arrows")
        safe = old.stat().st_size
        log.log_metrics({"a": 2})
        real = os.close

        def close(fd: int) -> None:
            write = os.path.samestat(os.fstat(fd), old.stat()) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_RDWR
            real(fd)
            if write:
                raise OSError(errno.EDQUOT, "Disk quota exceeded")

        assert log._session
        with monkeypatch.context() as patch:
            patch.setattr(os, "close", close)
            patch.setattr(log._session.rows._limits, "segment_seconds", 0.0)
            log._session.rows.rotate_old()
        os.truncate(old, safe)  # what the server has of it
        assert values(tmp_path) == [1, 2]
        assert "anew: [Errno 122] Disk quota exceeded" in caplog.text
        log.log_metrics({"a": 3})
        log.close()
        assert values(tmp_path) == [1, 2, 3]


class TestFallback:
    def test_rows_that_the_run_does_not_take_lie_in_the_fallback_folder_until_they_come_home(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "rl_eventlog")
        log = enter(tmp_path, fallback_dir=tmp_path / "local", fsync_interval_seconds=3600)
        log.log_metrics({"a": 1}, step=1)
        with refusing(monkeypatch, inside=tmp_path / "run"):
            log.log_metrics({"a": 2}, step=2)
            log.log_metrics({"a": 3}, step=3)
            assert at_risk(log) == {}
        (elsewhere,) = (tmp_path / "local/run").rglob("*.arrows")
        assert [row["value"] for row in raw_rows(tmp_path / "local/run", "metrics")] == [2, 3]
        document = tmp_path / "local/run/writers" / f"{log.writer_id}.json"
        assert document.read_bytes() == (tmp_path / "run/writers" / document.name).read_bytes()
        assert log._session
        log._session.rows.rotate_old()  # as the background does
        (marker,) = raw_rows(tmp_path / "run", "markers")
        assert (marker["name"], marker["level"]) == ("fallback", "warning")
        fields = json.loads(marker["fields"])
        assert (fields["path"], fields["table"], fields["first_seq"]) == (str(elsewhere), "metrics", 1)
        assert fields["host"]
        log.log_metrics({"a": 4}, step=4)
        report = log.close()
        assert report.ok, report.problems()
        assert values(tmp_path) == [1, 2, 3, 4]
        assert list((tmp_path / "local").rglob("*.arrows")) == []
        assert caplog.text.count("cannot write metrics rows where the run lies") == 1

    def test_rows_that_cannot_come_home_are_named_at_close(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = enter(tmp_path, fallback_dir=tmp_path / "local")
        with refusing(monkeypatch, inside=tmp_path / "run"):
            log.log_metrics({"a": 1}, step=1)
            monkeypatch.setattr("rl_eventlog.segment.seal.seal_open", lambda *_: (_ for _ in ()).throw(FULL))
            report = log.close()
        assert not report.ok
        assert [path.parts[-3] for path in report.fallback] == ["metrics", "markers"]
        assert all(f"{path} lies outside the run" in caplog.text for path in report.fallback)
        assert [row["value"] for row in raw_rows(tmp_path / "local/run", "metrics")] == [1]

    def test_where_both_refuse_rows_wait_in_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "local").write_text("no folder")
        log = enter(tmp_path, fallback_dir=tmp_path / "local")
        with refusing(monkeypatch):
            log.log_metrics({"a": 1})
            assert at_risk(log) == {"metrics": 1}
        assert log.close().ok
        assert values(tmp_path) == [1]


class TestQueued:
    def test_a_row_is_with_the_kernel_when_the_call_returns(self, tmp_path: Path) -> None:
        log = enter(tmp_path, write="queued", stall_budget_ms=10_000)
        for value in range(100):
            log.log_metrics({"a": value})
            assert values(tmp_path)[-1] == value
        assert log.close().ok
        assert values(tmp_path) == list(range(100))

    def test_a_stall_holds_one_call_for_its_budget_and_the_next_ones_not_at_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = enter(tmp_path, write="queued", stall_budget_ms=200)
        with stalling(monkeypatch) as answer:
            began = time.monotonic()
            log.log_metrics({"a": 0})
            held = time.monotonic() - began
            assert 0.15 < held < 5
            began = time.monotonic()
            for value in range(1, 100):
                log.log_metrics({"a": value})
                log.log_timing("t", 1.0)
            assert time.monotonic() - began < 99 * 0.2
            assert at_risk(log) == {"metrics": 100, "timings": 99}
            answer.set()
            log.flush()
        assert at_risk(log) == {}
        log.log_metrics({"a": 100})
        assert values(tmp_path) == list(range(101))
        assert log.close().ok

    def test_close_during_a_stall_keeps_its_limit_and_says_what_is_at_risk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = enter(tmp_path, write="queued", stall_budget_ms=1)
        with stalling(monkeypatch) as answer:
            log.log_metrics({"a": 0})
            log.log_metrics({"a": 1})
            began = time.monotonic()
            report = log.close(timeout=0.3)
            assert time.monotonic() - began < 3
            assert report.rows_at_risk == {"metrics": 2}
            assert not report.ok
            answer.set()
        until(lambda: list(tmp_path.glob("run/writers/*.end.json")))
        assert values(tmp_path) == [0, 1]

    def test_on_error_raise_tells_of_rows_that_wait(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = enter(tmp_path, write="queued", on_error="raise", stall_budget_ms=500)
        with refusing(monkeypatch), pytest.raises(WriteError, match=r"1 rows wait in memory.*No space left"):
            log.log_metrics({"a": 1})
        assert log.close().ok, "the row was not lost"
        assert values(tmp_path) == [1]

    def test_threads_keep_the_order_of_each(self, tmp_path: Path) -> None:
        log = enter(tmp_path, write="queued")

        def work(thread: int) -> None:
            for value in range(200):
                log.log_metrics({f"t{thread}": value})

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert log.close().ok
        rows = raw_rows(tmp_path / "run", "metrics")
        assert_dense(rows)
        for number in range(4):
            assert [row["value"] for row in rows if row["name"] == f"t{number}"] == list(range(200))

    @pytest.mark.parametrize(
        ("kind", "queued"),
        [
            ("ext4", False),
            ("xfs", False),
            ("tmpfs", False),
            ("nfs4", True),
            ("lustre", True),
            ("fuse.sshfs", True),
            ("ceph", True),
            ("beegfs", True),
            ("gpfs", True),
            ("9p", True),
            ("", False),
        ],
    )
    def test_the_type_of_the_file_system_decides_unless_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, queued: bool
    ) -> None:
        monkeypatch.setattr("rl_eventlog.writer.event_writer.file_system", lambda path: kind)
        for write, expected in ((None, queued), ("direct", False), ("queued", True)):
            log = enter(tmp_path, write=write)
            log.log_metrics({"a": 1})
            log.close()
            assert log._options.queued is expected
