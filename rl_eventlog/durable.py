"""Files that are whole or not there, also after a power loss.

`write_durably` writes under a temporary name in the same folder, fsyncs, renames and fsyncs the
folder. `publish_exclusively` does the same and never replaces a file. A crash leaves at most a file
whose name starts with ``.tmp-``.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from .ids import new_ulid
from .layout import TEMPORARY_PREFIX

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
_NO_FOLDER_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES}

#: Folders whose entries, and those of the folders above, this process has put on the disk.
_on_disk: set[Path] = set()


def temporary_path(folder: Path) -> Path:
    """A new temporary name in `folder`."""
    return folder / f"{TEMPORARY_PREFIX}{new_ulid()}"


def file_system_time(folder: Path) -> float:
    """The time by which the file system dates new files of a folder, in seconds since 1970.

    One server's clock, whoever asks, but for file systems that let the machines date their files, such as Lustre.
    """
    path = temporary_path(folder)
    with path.open("xb") as file:
        try:
            return os.fstat(file.fileno()).st_mtime
        finally:
            path.unlink()


def fsync_file(path: Path) -> None:
    """Fsync a file that someone else wrote."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_folder(folder: Path) -> None:
    """Fsync the entries of a folder, where the file system can and the folder may be read."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_FSYNC:
            raise
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and put the entry of each on the disk, also where another process made it.

    That one may have been killed, or may still be on its way to the fsync. What is above the mount point, or was
    seen to before, is left alone.
    """
    missing = []
    existing = folder
    while not existing.is_dir():
        missing.append(existing)
        existing = existing.parent
    for path in _not_yet_on_disk(existing):
        fsync_folder(path.parent)
        _on_disk.add(path)
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        fsync_folder(path.parent)
        _on_disk.add(path)


def _not_yet_on_disk(folder: Path) -> list[Path]:
    """It and the folders above it whose entries this process has not put on the disk, the highest first."""
    found: list[Path] = []
    while folder not in _on_disk and folder.parent.stat().st_dev == folder.stat().st_dev and folder != folder.parent:
        found.insert(0, folder)
        folder = folder.parent
    return found


def _write_new(path: Path, data: bytes) -> None:
    """Create a file exclusively, write and fsync it; one that could not be written whole is removed."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def rename_durably(temporary: Path, path: Path) -> None:
    """Give a temporary file, already fsynced, its name."""
    temporary.replace(path)
    fsync_folder(path.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Make or replace `path`; readers see the old content or the new, never a part."""
    temporary = temporary_path(path.parent)
    _write_new(temporary, data)
    try:
        rename_durably(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def publish_exclusively(path: Path, data: bytes) -> bool:
    """Make `path` unless it is there.

    Returns:
        True if this call made it, False if it was there.
    """
    temporary = temporary_path(path.parent)
    _write_new(temporary, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_in_place(path, data)
    finally:
        temporary.unlink()
    fsync_folder(path.parent)
    return True


def _create_in_place(path: Path, data: bytes) -> bool:
    """For file systems without hard links: exclusive, and whole unless a crash falls into the write."""
    try:
        _write_new(path, data)
    except FileExistsError:
        return False
    fsync_folder(path.parent)
    return True
