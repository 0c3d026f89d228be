"""Disks that refuse: no row is lost while memory lasts, none is doubled, and nobody's training raises.

The disks are real (`tests.support.disks`); what each of them answers is tested in `test_disks_fixture`. The
judge reads the raw files with pyarrow alone.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from rl_eventlog.errors import OpenError, WriteError
from rl_eventlog.reader import RunFiles
from tests.support.bad_disk_runs import (
    MODES,
    Mode,
    assert_calls,
    log_calls,
    log_for,
    opened,
    rows_in,
    warnings_about,
)
from tests.support.disks import (
    CHANGES,
    FuseDisk,
    break_ext4,
    ext4_image,
    filled,
    fuse,
    no_more_files,
    small_tmpfs,
    until,
)

pytestmark = pytest.mark.crash

SMALL = 4 << 20
EXT4 = 16 << 20


@dataclass(frozen=True)
class BadDisk:
    """A disk, and how to break it for a while."""

    path: Path
    refusing: Callable[[], AbstractContextManager[None]]
    words: str
    """Of the error."""


@contextmanager
def answering(disk: FuseDisk, code: int) -> Iterator[None]:
    disk.fail(*CHANGES, code=code)
    try:
        yield
    finally:
        disk.heal()


FUSE_ERRORS = ("EDQUOT", "ENOSPC", "EROFS", "EACCES", "EIO", "ESTALE")
DISKS = [
    "full tmpfs",
    "full ext4 with journal",
    "full ext4 without journal",
    *(pytest.param(f"fuse {name}", marks=pytest.mark.needs_fuse) for name in FUSE_ERRORS),
]


@pytest.fixture(params=DISKS)
def bad(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BadDisk]:
    kind, name = request.param.split(maxsplit=1)
    with ExitStack() as stack:
        if kind == "fuse":
            disk = stack.enter_context(fuse(tmp_path))
            code = getattr(errno, name)
            yield BadDisk(disk.path, lambda: answering(disk, code), os.strerror(code))
        else:
            path = stack.enter_context(
                small_tmpfs(tmp_path / "disk", SMALL)
                if name == "tmpfs"
                else ext4_image(tmp_path / "disk", EXT4, journal="with journal" in name)
            )
            yield BadDisk(path, lambda: filled(path), os.strerror(errno.ENOSPC))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FuseDisk]:
    with fuse(tmp_path) as made:
        yield made


class TestADiskThatComesBack:
    @pytest.mark.parametrize("mode", MODES)
    def test_no_row_is_lost_or_doubled_and_the_order_is_kept(
        self, bad: BadDisk, mode: Mode, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = opened(bad.path, mode)
        log_calls(log, 0, 50)
        log.flush()
        with bad.refusing():
            log_calls(log, 50, 100)
            log.log_timing("generation", 0.5, 99)
            with pytest.raises(OSError, match=bad.words):
                log.flush()
        log.flush()
        log_calls(log, 100, 150)
        report = log.close(30)
        assert report.ok, report
        assert (report.rows["metrics"], report.rows["timings"]) == (300, 1)
        assert_calls(log.path, 150)
        assert len(rows_in(log.path, "timings")) == 1
        files = RunFiles.open(log.path)
        assert not files.gaps("metrics")
        assert not files.problems
        assert not list(log.path.rglob(".tmp-*"))
        assert len(warnings_about(caplog, log.path, "keeps rows in memory")) == 1
        assert len(warnings_about(caplog, log.path, bad.words)) <= 2, (
            "and one for the segment that could not be sealed meanwhile"
        )

    @pytest.mark.parametrize("mode", MODES)
    def test_big_rows_and_files_are_there_whole_or_counted(self, bad: BadDisk, tmp_path: Path, mode: Mode) -> None:
        log = opened(bad.path, mode)
        log_calls(log, 0, 10)
        log.flush()
        big, after = tmp_path / "big", tmp_path / "after"
        big.write_bytes(os.urandom(100_000))
        after.write_bytes(b"after")
        with bad.refusing():
            log.log_artifact(big)
            log.log_samples({"prompt": ["x" * 100_000] * 2, "response": ["y"] * 2}, step=1)
            with suppress(OSError):
                log.flush()
        log.log_artifact(after)
        log.flush()
        report = log.close(30)
        assert not any(report.rows_at_risk.values())
        artifacts = rows_in(log.path, "artifacts").values()
        assert len(artifacts) == 2 - report.counters.get("artifacts not stored", 0)
        for row in artifacts:
            content = (log.path / "artifacts" / row["sha256"][:2] / row["sha256"]).read_bytes()
            assert len(content) == row["bytes"]
            assert hashlib.sha256(content).hexdigest() == row["sha256"]
        assert len(rows_in(log.path, "samples")) == 2 - report.rows_lost.get("samples", 0)
        assert not list(log.path.rglob(".tmp-*"))

    def test_open_fails_at_once_and_says_why(self, bad: BadDisk) -> None:
        with bad.refusing(), pytest.raises(OpenError, match=bad.words) as caught:
            opened(bad.path)
        assert str(bad.path / "r") in str(caught.value)
        assert opened(bad.path).close(30).ok

    @pytest.mark.parametrize("mode", MODES)
    def test_rows_in_memory_are_at_risk_and_close_says_how_many(self, bad: BadDisk, mode: Mode) -> None:
        log = opened(bad.path, mode)
        log_calls(log, 0, 10)
        log.flush()
        with bad.refusing():
            log_calls(log, 10, 35)
            began = time.monotonic()
            report = log.close(timeout=0.5)
            assert time.monotonic() - began < 1.0
            rows = len(rows_in(log.path, "metrics"))  # the last page of a full disk may take some
            assert 20 <= rows < 70
            assert dict(report.rows_at_risk) == {"metrics": 70 - rows}
            assert report.rows == {"metrics": rows}
            assert not report.ok
            assert not any(report.rows_lost.values())
            assert_calls(log.path, rows // 2)

    def test_on_error_raise_raises_and_counts_the_rows_as_lost(self, bad: BadDisk) -> None:
        log = opened(bad.path, "direct", on_error="raise")
        log_calls(log, 0, 10)
        with bad.refusing(), pytest.raises(WriteError, match=bad.words):
            log_calls(log, 10, 100)  # the last page of a full disk may take some of them
        log.log_metrics({"c": 1.0})
        with pytest.raises(WriteError, match=r"closed without .*metrics"):
            log.close(30)
        assert log.close().rows_lost == {"metrics": 2}
        rows = rows_in(log.path, "metrics")
        assert [seq for _, seq in sorted(rows)] == list(range(len(rows)))
        assert len(rows) >= 21
        assert rows[max(rows)]["name"] == "c"

    def test_on_error_raise_raises_also_where_a_thread_writes(self, bad: BadDisk) -> None:
        log = opened(bad.path, "queued", on_error="raise")
        log_calls(log, 0, 10)
        log.flush()
        with bad.refusing():
            with pytest.raises(WriteError, match=bad.words):  # once the thread has met the error
                log_for(log, 20)
            with pytest.raises(WriteError, match=r"closed without .*metrics"):
                log.close(timeout=0.5)
            assert log.close().rows_at_risk["metrics"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_nothing_masks_the_exception_of_the_training(tmp_path: Path, mode: Mode) -> None:
    with small_tmpfs(tmp_path / "disk", SMALL) as path:
        for on_error in ("warn", "raise"):
            log = opened(path, mode, run=on_error, on_error=on_error)
            log_calls(log, 0, 10)
            with filled(path), pytest.raises(KeyError, match="the training's own"), log:
                raise KeyError("the training's own")


@pytest.mark.needs_fuse
class TestStale:
    @pytest.mark.parametrize("mode", MODES)
    def test_files_that_went_stale_are_left_and_new_ones_go_on(self, disk: FuseDisk, mode: Mode) -> None:
        log = opened(disk.path, mode)
        log_calls(log, 0, 50)
        log.flush()
        disk.fail("write", "stat", "fsync", "close", "read", "truncate", code=errno.ESTALE, only_open=True)
        log_calls(log, 50, 100)
        log.flush()
        assert_calls(disk.backing / "r", 100)
        disk.heal()
        report = log.close(30)
        assert not any(report.rows_lost.values())
        assert not any(report.rows_at_risk.values())
        assert_calls(log.path, 100)


@pytest.mark.needs_fuse
@pytest.mark.parametrize("mode", MODES)
def test_short_writes_are_completed(disk: FuseDisk, mode: Mode) -> None:
    log = opened(disk.path, mode)
    disk.short_writes(100)
    log_calls(log, 0, 50)
    log.flush()
    disk.heal()
    log_calls(log, 50, 100)
    assert log.close(30).ok
    assert_calls(log.path, 100)


@pytest.mark.needs_fuse
def test_a_writers_folder_that_takes_nothing_costs_no_row(disk: FuseDisk) -> None:
    log = opened(disk.path, beat_interval_seconds=0.02)
    log_calls(log, 0, 50)
    disk.fail(*CHANGES, code=errno.EACCES, under="/r/writers")
    log_calls(log, 50, 100)
    until(lambda: disk.answered() > 3)
    report = log.close(30)
    assert not report.ended
    assert not report.left_open
    assert not report.missing
    assert_calls(log.path, 100)


@pytest.mark.needs_fuse
@pytest.mark.parametrize("mode", MODES)
def test_a_file_system_that_died_holds_nobody(disk: FuseDisk, mode: Mode) -> None:
    log = opened(disk.path, mode)
    log_calls(log, 0, 50)
    log.flush()
    disk.kill()
    log_calls(log, 50, 60)
    began = time.monotonic()
    report = log.close(timeout=0.5)
    assert time.monotonic() - began < 1.0
    assert dict(report.rows_at_risk) == {"metrics": 20}
    assert not report.ended
    assert_calls(disk.backing / "r", 50)


class TestLimits:
    @pytest.mark.parametrize("mode", MODES)
    def test_a_disk_that_has_no_room_for_files_takes_rows_of_those_it_has(self, tmp_path: Path, mode: Mode) -> None:
        with small_tmpfs(tmp_path / "disk", SMALL, files=200) as path:
            log = opened(path, mode)
            log_calls(log, 0, 50)
            log.flush()
            with no_more_files(path):
                log_calls(log, 50, 100)
                until(lambda: len(rows_in(log.path, "metrics")) == 200)
                log.log_timing("generation", 0.5, 1)
                with pytest.raises(OSError, match="No space left"):
                    log.flush()
            log.flush()
            assert log.close(30).ok
            assert_calls(log.path, 100)
            assert len(rows_in(log.path, "timings")) == 1

    @pytest.mark.parametrize("mode", MODES)
    def test_a_disk_that_stays_full_costs_64_mib_of_memory_and_all_is_counted(self, tmp_path: Path, mode: Mode) -> None:
        with small_tmpfs(tmp_path / "disk", SMALL) as path:
            log = opened(path, mode)
            log_calls(log, 0, 10)
            log.flush()
            text = "x" * 60_000
            with filled(path):
                for number in range(1_400):  # 84 MB
                    log.mark("long", text=text, step=number)
                log_calls(log, 10, 20)
                report = log.close(timeout=0.5)
            assert report.rows_lost.keys() == {"markers"}
            counted = report.rows.get("markers", 0) + report.rows_at_risk["markers"] + report.rows_lost["markers"]
            assert counted == 1_400
            assert report.rows_at_risk["markers"] * len(text) < 48 << 20
            assert report.rows["metrics"] + report.rows_at_risk["metrics"] == 40


class TestReadOnly:
    def test_an_ext4_that_turned_read_only_keeps_what_it_has(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with ext4_image(tmp_path / "disk", EXT4, journal=True) as path:
            log = opened(path)
            log_calls(log, 0, 50)
            log.flush(fsync=True)
            break_ext4(path)
            log_calls(log, 50, 60)
            report = log.close(timeout=0.5)
            assert dict(report.rows_at_risk) == {"metrics": 20}
            assert not report.ended
            assert_calls(log.path, 50)
        assert (
            len(warnings_about(caplog, log.path, "Read-only")) + len(warnings_about(caplog, log.path, "Input/output"))
            >= 1
        )

    def test_with_a_fallback_it_costs_no_row(self, tmp_path: Path) -> None:
        spare = tmp_path / "spare"
        with ext4_image(tmp_path / "disk", EXT4, journal=True) as path:
            log = opened(path, fallback_dir=spare)
            log_calls(log, 0, 50)
            log.flush(fsync=True)
            break_ext4(path)
            log_calls(log, 50, 100)
            report = log.close(30)
            assert not any(report.rows_at_risk.values())
            assert not report.ok
            assert_calls([log.path, spare / "r"], 100)


class TestPermissions:
    def test_folders_that_may_not_be_written_cost_no_row(self, tmp_path: Path) -> None:
        """Root without the right to pass over modes, as a user of a cluster."""
        if os.geteuid() != 0 or not shutil.which("setpriv"):
            pytest.skip("needs root and setpriv: drops CAP_DAC_OVERRIDE")
        child = """
        import pathlib, sys
        from tests.support.bad_disk_runs import log_calls, opened

        log = opened(sys.argv[1])
        log_calls(log, 0, 50)
        folder = pathlib.Path(sys.argv[1]) / "r" / "events"
        folder.chmod(0o555)
        log_calls(log, 50, 100)  # the file is open: it goes on
        log.log_timing("generation", 0.5, 1)  # a new table needs a new folder
        try:
            log.flush()
        except PermissionError:
            print("refused")
        folder.chmod(0o755)
        log.flush()
        print(log.close(30).ok)
        """
        done = subprocess.run(
            [
                "setpriv",
                "--bounding-set=-dac_override,-dac_read_search",
                sys.executable,
                "-c",
                textwrap.dedent(child),
                str(tmp_path),
            ],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == "refused\nTrue\n", done.stderr
        assert done.stderr.count("Permission denied") == 1
        assert_calls(tmp_path / "r", 100)
        assert len(rows_in(tmp_path / "r", "timings")) == 1


class TestRemoved:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("what", ["file", "table", "events", "run", "root"])
    def test_what_was_removed_under_the_writer_is_written_anew(self, tmp_path: Path, what: str, mode: Mode) -> None:
        root = tmp_path / "root"
        log = opened(root, mode)
        log_calls(log, 0, 50)
        log.flush()
        (segment,) = log.path.glob("events/metrics/*/*.arrows")
        gone = {
            "file": segment,
            "table": log.path / "events" / "metrics",
            "events": log.path / "events",
            "run": log.path,
            "root": root,
        }[what]
        gone.rename(tmp_path / "trash")  # at once: the writer is at work
        if what == "file":
            (tmp_path / "trash").unlink()
        else:
            shutil.rmtree(tmp_path / "trash")
        log_calls(log, 50, 100)
        until(lambda: any(log.path.glob("events/metrics/*/*.arrows")))
        log_calls(log, 100, 150)
        report = log.close(30)
        assert report.rows == {"metrics": 300}
        assert not any(report.rows_lost.values())
        assert_calls(log.path, 150)
        (end,) = log.path.glob("writers/*.end.json")
        assert json.loads(end.read_text())["last_seq"] == {"metrics": 299}

    def test_what_was_removed_while_an_fsync_is_under_way_is_written_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = opened(tmp_path, fsync_interval_seconds=3600)
        log_calls(log, 0, 50)
        real = os.fsync

        def fsync(fd: int) -> None:
            monkeypatch.undo()
            (log.path / "events").rename(tmp_path / "trash")
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)
        log.flush(fsync=True)
        log_calls(log, 50, 100)
        report = log.close(30)
        assert report.rows == {"metrics": 200}
        assert not any(report.rows_lost.values())
        assert_calls(log.path, 100)

    @pytest.mark.parametrize("mode", MODES)
    def test_what_was_removed_and_fills_up_before_the_writer_looks_is_written_anew(
        self, tmp_path: Path, mode: Mode
    ) -> None:
        log = opened(tmp_path, mode, fsync_interval_seconds=3600, segment_bytes=20_000)
        log_calls(log, 0, 10)
        log.flush()
        (segment,) = log.path.glob("events/metrics/*/*.arrows")
        segment.unlink()
        log_calls(log, 10, 200)
        report = log.close(30)
        assert report.rows == {"metrics": 400}
        assert not any(report.rows_lost.values())
        assert_calls(log.path, 200)

    def test_a_file_that_another_replaced_is_left_alone(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        log_calls(log, 0, 50)
        (segment,) = log.path.glob("events/metrics/*/*.arrows")
        segment.rename(tmp_path / "moved")
        segment.write_bytes(b"another's")
        until(lambda: len(list(log.path.glob("events/metrics/*/*.arrows"))) == 2)
        log_calls(log, 50, 100)
        assert log.close(30).rows == {"metrics": 200}
        assert segment.read_bytes() == b"another's"
        segment.unlink()
        assert_calls(log.path, 100)
