"""The disks of `tests.support.disks` do what they say: a plain `os.write` meets what the writer will meet."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.disks import (
    EVERYTHING,
    FuseDisk,
    break_ext4,
    ext4_image,
    filled,
    fuse,
    open_mounts,
    small_tmpfs,
    until,
)

pytestmark = pytest.mark.crash

CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FuseDisk]:
    with fuse(tmp_path) as made:
        yield made
    assert not open_mounts(tmp_path)


@pytest.mark.needs_fuse
class TestFuse:
    def test_it_passes_everything_on(self, disk: FuseDisk) -> None:
        folder = disk.path / "a" / "b"
        folder.mkdir(parents=True)
        (folder / "one").write_bytes(b"1" * 300_000)
        (folder / "one").rename(folder / "two")
        os.link(folder / "two", folder / "three")
        (folder / "two").unlink()
        assert [path.name for path in folder.iterdir()] == ["three"]
        assert (disk.backing / "a" / "b" / "three").read_bytes() == b"1" * 300_000
        os.truncate(folder / "three", 5)
        assert (folder / "three").read_bytes() == b"11111"
        with pytest.raises(FileExistsError):
            os.open(folder / "three", CREATE)

    def test_a_write_waits_for_the_end_of_the_stall_and_other_calls_do_not(self, disk: FuseDisk) -> None:
        fd = os.open(disk.path / "file", CREATE)
        disk.stall(0.5)
        writing = threading.Thread(target=os.pwrite, args=(fd, b"late", 0))
        started = time.monotonic()
        writing.start()
        until(lambda: disk.waiting() == 1)
        disk.path.stat()
        (disk.path / "other").touch()
        assert time.monotonic() - started < 0.5
        writing.join()
        assert time.monotonic() - started >= 0.5
        assert os.pread(fd, 10, 0) == b"late"
        os.close(fd)

    def test_a_stall_of_everything_holds_everything_until_it_heals(self, disk: FuseDisk) -> None:
        disk.stall(60, *EVERYTHING)
        looking = threading.Thread(target=(disk.path / "file").touch)
        looking.start()
        until(lambda: disk.waiting() == 1)
        disk.heal()
        looking.join(10)
        assert (disk.backing / "file").exists()

    def test_operations_answer_with_the_errno_as_often_as_told(self, disk: FuseDisk) -> None:
        fd = os.open(disk.path / "file", CREATE)
        disk.fail("write", "create", code=errno.EDQUOT, times=1)
        with pytest.raises(OSError, match="quota"):
            os.write(fd, b"1")
        with pytest.raises(OSError, match="quota"):
            os.open(disk.path / "other", CREATE)
        assert disk.answered() == 2
        assert os.write(fd, b"1") == 1
        os.close(os.open(disk.path / "other", CREATE))
        os.close(fd)

    def test_only_files_open_before_are_stale(self, disk: FuseDisk) -> None:
        old = os.open(disk.path / "old", CREATE)
        disk.fail("write", "stat", "fsync", code=errno.ESTALE, only_open=True)
        new = os.open(disk.path / "new", CREATE)
        assert os.write(new, b"1") == 1
        for call in (lambda: os.write(old, b"1"), lambda: os.fsync(old), lambda: os.fstat(old)):
            with pytest.raises(OSError, match="Stale") as caught:
                call()
            assert caught.value.errno == errno.ESTALE
        os.close(old)
        os.close(new)

    def test_a_rule_for_a_folder_spares_the_others(self, disk: FuseDisk) -> None:
        (disk.path / "one").mkdir()
        (disk.path / "two").mkdir()
        disk.fail("create", code=errno.EACCES, under="/one/")
        with pytest.raises(PermissionError):
            (disk.path / "one" / "file").touch()
        (disk.path / "two" / "file").touch()

    def test_short_writes_take_fewer_bytes_than_asked(self, disk: FuseDisk) -> None:
        fd = os.open(disk.path / "file", CREATE)
        disk.short_writes(100)
        assert os.pwrite(fd, b"x" * 1000, 0) == 100
        os.close(fd)

    def test_a_failed_fsync_succeeds_the_next_time_and_what_it_dropped_reads_as_zeros(self, disk: FuseDisk) -> None:
        fd = os.open(disk.path / "file", CREATE)
        os.pwrite(fd, b"kept", 0)
        os.fsync(fd)
        os.pwrite(fd, b"lost", 4)
        disk.fail("fsync", code=errno.EIO, times=1)
        with pytest.raises(OSError, match="Input/output"):
            os.fsync(fd)
        os.fsync(fd)
        assert os.pread(fd, 8, 0) == b"keptlost", "cached"
        os.pwrite(fd, b"next", 8)
        os.fsync(fd)
        os.close(fd)
        assert disk.evict() == 4
        assert (disk.path / "file").read_bytes() == b"kept\0\0\0\0next"
        assert disk.evict() == 0

    def test_calls_on_a_dead_one_fail(self, disk: FuseDisk) -> None:
        fd = os.open(disk.path / "file", CREATE)
        disk.stall(60)
        failures: list[OSError] = []

        def write() -> None:
            try:
                os.write(fd, b"1")
            except OSError as error:
                failures.append(error)

        writing = threading.Thread(target=write)
        writing.start()
        until(lambda: disk.waiting() == 1)
        disk.kill()
        writing.join(10)
        assert failures[0].errno in (errno.ENOTCONN, errno.ECONNABORTED)
        with pytest.raises(OSError, match="not connected"):
            (disk.path / "file").stat()
        with pytest.raises(OSError, match="not connected"):
            os.close(fd)


class TestMounts:
    def test_a_small_tmpfs_is_full_and_space_returns(self, tmp_path: Path) -> None:
        with small_tmpfs(tmp_path / "disk", 1 << 20) as disk:
            with filled(disk), pytest.raises(OSError, match="No space"):
                (disk / "file").write_bytes(b"1")
            (disk / "file").write_bytes(b"1")
        assert not open_mounts(tmp_path)

    @pytest.mark.parametrize("journal", [True, False])
    def test_an_ext4_is_full_and_space_returns(self, tmp_path: Path, journal: bool) -> None:
        with ext4_image(tmp_path / "disk", 16 << 20, journal=journal) as disk:
            with filled(disk), pytest.raises(OSError, match="No space"):
                (disk / "file").write_bytes(b"1" * 4096)
            (disk / "file").write_bytes(b"1" * 4096)
        assert not open_mounts(tmp_path)

    def test_a_broken_ext4_is_read_only_also_for_open_files(self, tmp_path: Path) -> None:
        with ext4_image(tmp_path / "disk", 16 << 20, journal=True) as disk, (disk / "file").open("wb", 0) as file:
            file.write(b"1")
            break_ext4(disk)
            with pytest.raises(OSError, match=r"Read-only|Input/output"):
                file.write(b"1")
            with pytest.raises(OSError, match="Read-only"):
                (disk / "other").touch()
        assert not open_mounts(tmp_path)

    def test_a_thin_disk_takes_writes_and_refuses_the_fsync(self, tmp_path: Path) -> None:
        with (
            small_tmpfs(tmp_path / "below", 4 << 20) as below,
            ext4_image(tmp_path / "disk", 64 << 20, journal=False, image=below / "image") as disk,
            filled(below),
        ):
            fd = os.open(disk / "file", CREATE)
            assert os.pwrite(fd, b"x" * (1 << 20), 0) == 1 << 20
            with pytest.raises(OSError, match=r"No space|Input/output"):
                os.fsync(fd)
            os.fsync(fd)
            os.close(fd)
        assert not open_mounts(tmp_path)
