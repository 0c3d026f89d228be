"""After an fsync or a close that failed, what it did not put on the disk is written again elsewhere.

Linux marks the pages clean and reports once; the next fsync succeeds. After `evict`, or another mount, a reader
sees what the disk has.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.bad_disk_runs import MODES, Mode, assert_calls, log_calls, opened
from tests.support.disks import FuseDisk, ext4_image, filled, fuse, mounted_image, small_tmpfs, until

pytestmark = pytest.mark.crash


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FuseDisk]:
    with fuse(tmp_path) as made:
        yield made


@pytest.mark.needs_fuse
@pytest.mark.parametrize("mode", MODES)
class TestInjected:
    def test_the_rows_since_the_last_good_one_are_written_anew(self, disk: FuseDisk, mode: Mode) -> None:
        log = opened(disk.path, mode, fsync_interval_seconds=3600)
        log_calls(log, 0, 50)
        log.flush(fsync=True)
        log_calls(log, 50, 100)
        log.flush()
        disk.fail("fsync", code=errno.EIO, times=1)
        log.flush(fsync=True)
        assert disk.evict() > 0, "the disk has lost rows"
        assert_calls(log.path, 100)
        log_calls(log, 100, 150)
        report = log.close(30)
        assert not any(report.rows_lost.values())
        assert not any(report.rows_at_risk.values())
        assert_calls(log.path, 150)

    def test_the_background_sees_to_it_by_itself(self, disk: FuseDisk, mode: Mode) -> None:
        log = opened(disk.path, mode, fsync_interval_seconds=0.05)
        log_calls(log, 0, 50)
        disk.fail("fsync", code=errno.EIO, times=1)
        log_calls(log, 50, 100)
        until(lambda: disk.answered() == 1)
        log_calls(log, 100, 150)
        log.flush(fsync=True)
        disk.evict()
        assert_calls(log.path, 150)
        report = log.close(30)
        assert not any(report.rows_lost.values())
        assert_calls(log.path, 150)

    def test_as_long_as_no_fsync_succeeds_flush_says_so_and_then_nothing_is_lost(
        self, disk: FuseDisk, mode: Mode
    ) -> None:
        log = opened(disk.path, mode, fsync_interval_seconds=3600)
        log_calls(log, 0, 50)
        disk.fail("fsync", code=errno.EIO)
        for _ in range(3):
            with pytest.raises(OSError, match=r"Input/output error|fsync failed"):
                log.flush(fsync=True)
        log_calls(log, 50, 100)
        disk.heal()
        log.flush(fsync=True)
        disk.evict()
        assert_calls(log.path, 100)
        assert not any(log.close(30).rows_lost.values())
        assert_calls(log.path, 100)

    def test_rows_of_segments_that_were_rotated_and_wait_for_their_seal_are_as_safe(
        self, disk: FuseDisk, mode: Mode
    ) -> None:
        log = opened(disk.path, mode, fsync_interval_seconds=3600, segment_bytes=20_000)
        log_calls(log, 0, 200)
        log.flush()
        (first,) = disk.backing.glob("r/events/metrics/*/*-0.arrows")
        disk.fail("fsync", code=errno.EIO, times=1, under=f"/{first.relative_to(disk.backing)}")
        with suppress(OSError):
            log.flush(fsync=True)
        log.flush(fsync=True)
        assert disk.answered() == 1
        assert disk.evict() > 0, "the disk has lost rows"
        assert_calls(disk.backing / "r", 200)
        assert not any(log.close(30).rows_lost.values())
        assert_calls(log.path, 200)

    def test_rows_whose_file_could_not_be_closed_are_written_anew(self, disk: FuseDisk, mode: Mode) -> None:
        """On NFS it is close that tells of a full disk or a quota."""
        log = opened(disk.path, mode, fsync_interval_seconds=3600, segment_bytes=20_000)
        log_calls(log, 0, 10)
        log.flush(fsync=True)
        disk.fail("close", code=errno.EDQUOT, times=1, under="/r/events")
        log_calls(log, 10, 200)
        log.flush()
        assert disk.answered() == 1
        assert disk.evict() > 0, "the disk has lost rows"
        assert_calls(disk.backing / "r", 200)
        assert not any(log.close(30).rows_lost.values())
        assert_calls(log.path, 200)

    def test_a_disk_that_takes_nothing_any_more_leaves_them_to_the_fallback(
        self, disk: FuseDisk, mode: Mode, tmp_path: Path
    ) -> None:
        spare = tmp_path / "spare"
        log = opened(disk.path, mode, fsync_interval_seconds=3600, fallback_dir=spare)
        log_calls(log, 0, 50)
        log.flush(fsync=True)
        log_calls(log, 50, 100)
        log.flush()
        disk.fail("fsync", "create", "mkdir", code=errno.EIO)
        log.flush(fsync=True)
        disk.evict()
        assert_calls([disk.backing / "r", spare / "r"], 100)


def after_power_loss(image: Path, run: Path, tmp_path: Path, calls: int) -> None:
    """What the device holds at this moment, and no cache, has every call."""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
    with mounted_image(copy, tmp_path / "again") as path:
        assert_calls(path / run, calls)


class TestReal:
    """The kernel takes the writes, and drops them when it cannot write them back."""

    def test_a_thin_disk_that_ran_out_loses_nothing_that_was_promised(self, tmp_path: Path) -> None:
        with (
            small_tmpfs(tmp_path / "below", 6 << 20) as below,
            ext4_image(tmp_path / "disk", 64 << 20, journal=False, image=below / "image") as path,
        ):
            log = opened(path, fsync_interval_seconds=3600)
            log_calls(log, 0, 50)
            log.flush(fsync=True)
            with filled(below):
                log_calls(log, 50, 1000)
                with pytest.raises(OSError, match=r"No space left|Input/output error|fsync failed"):
                    log.flush(fsync=True)
            log.flush(fsync=True)
            after_power_loss(below / "image", log.path.relative_to(path), tmp_path, 1000)
            log_calls(log, 1000, 1050)
            report = log.close(30)
            assert not any(report.rows_lost.values())
            assert_calls(log.path, 1050)

    @pytest.mark.needs_fuse
    def test_a_device_that_fails_for_a_while_loses_nothing_that_was_promised(
        self, disk: FuseDisk, tmp_path: Path
    ) -> None:
        """An ext4 on a device that answers EIO: what device-mapper's error target would do."""
        with ext4_image(tmp_path / "disk", 64 << 20, journal=False, image=disk.path / "image") as path:
            log = opened(path, fsync_interval_seconds=3600)
            log_calls(log, 0, 50)
            log.flush(fsync=True)
            log_calls(log, 50, 1000)
            disk.fail("write", code=errno.EIO)
            with pytest.raises(OSError, match=r"Input/output error|fsync failed"):
                log.flush(fsync=True)
            disk.heal()
            log.flush(fsync=True)
            after_power_loss(disk.backing / "image", log.path.relative_to(path), tmp_path, 1000)
            log_calls(log, 1000, 1050)
            report = log.close(30)
            assert not any(report.rows_lost.values())
            assert_calls(log.path, 1050)
