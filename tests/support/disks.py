"""Disks that fail for real, each until the end of a `with`: small, full, read-only, stalled, lying.

Where root, a device or a tool is missing the test is skipped with the reason. Nothing stays mounted, also
where the test failed or a call on the disk hangs.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_CHECKOUT = Path(__file__).parents[2]

#: Every operation that changes the disk, or that a change needs first.
CHANGES = ("write", "create", "mkdir", "rename", "link", "unlink", "truncate")
EVERYTHING = (*CHANGES, "open", "read", "stat", "list", "fsync", "fsync_folder", "close", "chmod")


def _mount(arguments: Sequence[str], mountpoint: Path) -> None:
    """Mount, or skip the test with the reason."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a file system")
    mountpoint.mkdir()
    done = subprocess.run(["mount", *arguments, str(mountpoint)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")


def _unmount(mountpoint: Path) -> None:
    if subprocess.run(["umount", str(mountpoint)], capture_output=True, check=False).returncode:
        subprocess.run(["umount", "--lazy", str(mountpoint)], capture_output=True, check=False)


@contextmanager
def small_tmpfs(mountpoint: Path, size: int, *, files: int = 0) -> Iterator[Path]:
    """A tmpfs of `size` bytes, and room for so many files and folders, 0 for any number."""
    _mount(["-t", "tmpfs", "-o", f"size={size},nr_inodes={files}", "tmpfs"], mountpoint)
    try:
        yield mountpoint
    finally:
        _unmount(mountpoint)


@contextmanager
def ext4_image(mountpoint: Path, size: int, *, journal: bool, image: Path | None = None) -> Iterator[Path]:
    """An ext4 of `size` bytes in a sparse file, by default beside the mount point, through a loop device.

    An error of its own makes it read-only, as Debian sets it up for the root file system. On an image that cannot
    grow, or that fails, writes succeed and the write-back does not: fsync tells, and the kernel drops the data.
    """
    if not shutil.which("mkfs.ext4"):
        pytest.skip("e2fsprogs is not installed")
    image = image or mountpoint.with_suffix(".image")
    with image.open("xb") as file:
        file.truncate(size)
    features = "has_journal" if journal else "^has_journal"
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", "-O", features, str(image)], check=True)
    with mounted_image(image, mountpoint):
        yield mountpoint


@contextmanager
def mounted_image(image: Path, mountpoint: Path) -> Iterator[Path]:
    """An image that `ext4_image` left: what is read has come from the disk."""
    _mount(["-t", "ext4", "-o", "loop,errors=remount-ro", str(image)], mountpoint)
    try:
        yield mountpoint
    finally:
        _unmount(mountpoint)


def break_ext4(mountpoint: Path) -> None:
    """Let the kernel find an error in the mounted ext4: it is read-only from here on, open files too."""
    device = mountpoint.stat().st_dev
    name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
    trigger = Path("/sys/fs/ext4") / name / "trigger_fs_error"
    if not trigger.exists():
        pytest.skip("this kernel cannot be told of an error in an ext4")
    trigger.write_text("test")


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """No free byte within; the space returns at the end."""
    ballast = disk / "ballast"
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        size = 1 << 20
        while size:
            try:
                os.write(fd, bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
        yield
    finally:
        os.close(fd)
        ballast.unlink()


@contextmanager
def no_more_files(disk: Path) -> Iterator[None]:
    """No file can be made within; room for them returns at the end."""
    ballast: list[Path] = []
    try:
        while True:
            path = disk / f"ballast-{len(ballast)}"
            path.touch()
            ballast.append(path)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    try:
        yield
    finally:
        for path in ballast:
            path.unlink()


class FuseDisk:
    """A mounted passthrough whose behaviour the test changes while it is used.

    Attributes:
        path: the mount point.
        backing: the folder it passes everything to; looking there disturbs nothing, also during a stall.
    """

    def __init__(self, path: Path, backing: Path, process: subprocess.Popen[str]) -> None:
        self.path = path
        self.backing = backing
        self._process = process

    def fail(
        self,
        *operations: str,
        code: int,
        times: int | None = None,
        only_open: bool = False,
        under: str = "",
    ) -> None:
        """Answer `operations` with the errno `code`, `times` times or until `heal`.

        Args:
            operations: of `EVERYTHING`.
            code: the errno.
            times: for each of them.
            only_open: only on files that are open now.
            under: only on paths (from the mount point, with a leading slash) that begin so.
        """
        self._ask("fail", operations=operations, errno=code, times=times, only_open=only_open, under=under)

    def stall(self, seconds: float, *operations: str, under: str = "") -> None:
        """Let `operations`, or writes, wait until so many seconds from now, or `heal`; `under` as in `fail`."""
        self._ask("stall", seconds=seconds, operations=operations or ("write",), under=under)

    def short_writes(self, most: int) -> None:
        """Take at most so many bytes a write."""
        self._ask("short", most=most)

    def heal(self) -> None:
        """Behave from here on."""
        self._ask("heal")

    def evict(self) -> int:
        """Drop from the cache what failed fsyncs and closes left in it alone. Returns the bytes that are zeros now."""
        return int(self._ask("evict"))

    def waiting(self) -> int:
        """Operations that the stall holds now."""
        return int(self._ask("waiting"))

    def answered(self) -> int:
        """Operations that failed as told, so far."""
        return int(self._ask("answered"))

    def kill(self) -> None:
        """SIGKILL the file system: whatever is done with its files from here on fails with ENOTCONN."""
        self._process.kill()
        self._process.wait(30)

    def _ask(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": command} | arguments) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def fuse(folder: Path, *, recording: Path | None = None) -> Iterator[FuseDisk]:
    """A `FuseDisk` in `folder`; mark the test with `needs_fuse`.

    Args:
        folder: for the mount point and what is below it.
        recording: file for everything that is done on the disk; see `tests.support.recording`.
    """
    mountpoint, backing = folder / "fuse", folder / "fuse-backing"
    mountpoint.mkdir()
    backing.mkdir()
    places = [str(backing), str(mountpoint)]
    command = (
        ["tests.support.recording", *places, str(recording)] if recording else ["tests.support.passthrough", *places]
    )
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=_CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if process.stdout.readline() != "mounted\n":
            pytest.skip("cannot mount a FUSE file system here")
        yield FuseDisk(mountpoint, backing, process)
    finally:
        process.kill()  # ends calls that hang in it, with ENOTCONN
        process.communicate()
        subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], capture_output=True, check=False)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Look again and again until it holds; fail when it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.005)


def open_mounts(folder: Path) -> list[str]:
    """Mount points under `folder`, as the kernel lists them."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(str(folder))]
