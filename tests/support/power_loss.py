"""What a disk may hold after a power loss, by what POSIX promises and nothing more.

- Data of a file is safe up to its last fsync. Of what came later there may be nothing, all of it, the first
  writes with the last of them torn, or any pages, the others as they were, zeros where nothing was.
- A name is safe as its folder was at the folder's last fsync. Of what was made, renamed, linked and removed
  later any part may have happened; each rename has happened or has not.
- A folder that has no name yet is lost with all that is in it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.support.recording import Change

DATA = ("none", "all", "prefix", "pages", "mixed")
NAMES = ("none", "all", "prefix", "some", "mixed")
PAGE = 4096

Node = int | str
"""A file's number, or a folder's path when it was made."""


@dataclass(slots=True)
class _File:
    safe: bytes = b""
    later: list[Change] = field(default_factory=list)


@dataclass(slots=True)
class _Folder:
    safe: dict[str, Node] = field(default_factory=dict)
    later: list[Change] = field(default_factory=list)


class PoweredOff:
    """A disk that was told some changes and then lost power."""

    def __init__(self, changes: Sequence[Change]) -> None:
        """Take the changes up to the power loss."""
        self._files: dict[int, _File] = {}
        self._folders: dict[str, _Folder] = {"/": _Folder()}
        for change in changes:
            self._take(change)

    def _take(self, change: Change) -> None:
        if change.kind in ("write", "truncate"):
            self._files[change.file].later.append(change)
        elif change.kind == "fsync":
            file = self._files[change.file]
            file.safe = _written(file.safe, file.later)
            file.later = []
        elif change.kind == "fsync folder":
            folder = self._folders[change.path]
            folder.safe = _named(folder.safe, folder.later)
            folder.later = []
        elif change.kind != "said":
            if change.kind == "mkdir":
                self._folders[change.path] = _Folder()
            elif change.kind == "create":
                self._files[change.file] = _File()
            where = PurePosixPath(change.target or change.path).parent
            assert change.kind != "rename" or where == PurePosixPath(change.path).parent, "renamed to another folder"
            self._folders[str(where)].later.append(change)

    def remains(self, target: Path, generator: random.Random, data: str, names: str) -> None:
        """Make what is left of it in the new folder `target`."""
        self._make("/", target, generator, data, names)

    def _make(self, path: str, target: Path, generator: random.Random, data: str, names: str) -> None:
        target.mkdir()
        for name, node in _names_left(self._folders[path], generator, names).items():
            if isinstance(node, str):
                self._make(node, target / name, generator, data, names)
            else:
                (target / name).write_bytes(_data_left(self._files[node], generator, data))


def _names_left(folder: _Folder, generator: random.Random, how: str) -> dict[str, Node]:
    if how == "mixed":
        how = generator.choice(NAMES[:-1])
    happened = folder.later
    if how == "none":
        happened = []
    elif how == "prefix":
        happened = happened[: generator.randrange(len(happened) + 1)]
    elif how == "some":
        happened = [change for change in happened if generator.random() < 0.5]
    return _named(folder.safe, happened)


def _named(names: dict[str, Node], changes: Sequence[Change]) -> dict[str, Node]:
    """Names of a folder after some of its changes."""
    names = dict(names)
    for change in changes:
        name = PurePosixPath(change.path).name
        if change.kind == "mkdir":
            names[name] = change.path
        elif change.kind == "create":
            names[name] = change.file
        elif change.kind in ("rename", "link"):
            names[PurePosixPath(change.target).name] = change.file
        if change.kind in ("rename", "unlink", "rmdir"):
            names.pop(name, None)
    return names


def _data_left(file: _File, generator: random.Random, how: str) -> bytes:
    if how == "mixed":
        how = generator.choice(DATA[:-1])
    if not file.later or how == "none":
        return file.safe
    if how == "all":
        return _written(file.safe, file.later)
    if how == "prefix":
        count = generator.randrange(len(file.later))
        last = file.later[count]
        torn = last._replace(data=last.data[: generator.randrange(len(last.data) + 1)])
        return _written(file.safe, [*file.later[:count], torn])
    return _pages(file.safe, _written(file.safe, file.later), generator)


def _pages(old: bytes, new: bytes, generator: random.Random) -> bytes:
    """A page that was on the disk is old or new, any other is new or zeros; the size may be ahead of the data."""
    least, most = sorted((len(old), len(new)))
    size = generator.choice([least, most, generator.randrange(least, most + 1)])
    pages = []
    for start in range(0, size, PAGE):
        before, after = (data[start : start + PAGE].ljust(PAGE, b"\0") for data in (old, new))
        pages.append(generator.choice([before, after]))
    return b"".join(pages)[:size]


def _written(data: bytes, changes: Sequence[Change]) -> bytes:
    """Data of a file after some writes."""
    content = bytearray(data)
    for change in changes:
        if change.kind == "truncate":
            del content[change.offset :]
            content.extend(bytes(change.offset - len(content)))
        else:
            end = change.offset + len(change.data)
            content.extend(bytes(max(0, end - len(content))))
            content[change.offset : end] = change.data
    return bytes(content)
