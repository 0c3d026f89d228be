"""Files that are whole or not there: replaced at once, made exclusively, no temporary file left."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl_eventlog.durable import fsync_file, fsync_folder, make_folder, publish_exclusively, write_durably


@pytest.fixture(params=["links", "no links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system with hard links, and one without."""
    if request.param == "no links":

        def refuse(src: Path, dst: Path) -> None:
            raise OSError(errno.ENOTSUP, "no hard links", str(dst))

        monkeypatch.setattr(os, "link", refuse)
    return str(request.param)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_file_has_its_content_and_leaves_no_temporary_one(tmp_path: Path) -> None:
    write_durably(tmp_path / "a.json", b"one")
    write_durably(tmp_path / "a.json", b"two")
    assert (tmp_path / "a.json").read_bytes() == b"two"
    assert names(tmp_path) == ["a.json"]


def test_who_holds_the_old_file_open_goes_on_reading_it(tmp_path: Path) -> None:
    write_durably(tmp_path / "a.json", b"one")
    with (tmp_path / "a.json").open("rb") as old:
        write_durably(tmp_path / "a.json", b"two")
        assert old.read() == b"one"


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_durably(tmp_path / "a.json", b"one")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_durably(tmp_path / "a.json", b"two")
    assert (tmp_path / "a.json").read_bytes() == b"one"
    assert names(tmp_path) == ["a.json"]


def test_a_rename_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(OSError, match=r"a\.json"):
        write_durably(tmp_path / "a.json", b"one")
    assert names(tmp_path) == ["a.json"]


def test_only_the_first_publishes(tmp_path: Path, links: str) -> None:
    assert publish_exclusively(tmp_path / "run.json", b"first") is True
    assert publish_exclusively(tmp_path / "run.json", b"second") is False
    assert (tmp_path / "run.json").read_bytes() == b"first"
    assert names(tmp_path) == ["run.json"]


def test_of_many_at_once_one_publishes(tmp_path: Path, links: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        contents = [b"%d" % number for number in range(64)]
        made = list(pool.map(lambda content: publish_exclusively(tmp_path / "run.json", content), contents))
    assert made.count(True) == 1
    assert (tmp_path / "run.json").read_bytes() == contents[made.index(True)]
    assert names(tmp_path) == ["run.json"]


def test_what_could_not_be_published_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(src: Path, dst: Path) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, "link", broken)
    with pytest.raises(OSError, match="broken disk"):
        publish_exclusively(tmp_path / "run.json", b"first")
    assert names(tmp_path) == []


def test_without_links_a_failed_write_leaves_nothing_to_be_mistaken_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def refuse(src: Path, dst: Path) -> None:
        raise OSError(errno.EPERM, "no hard links")

    def full_the_second_time(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fsync", full_the_second_time)
    with pytest.raises(OSError, match="disk full"):
        publish_exclusively(tmp_path / "run.json", b"first")
    assert names(tmp_path) == []


def test_modes_are_those_of_the_umask(tmp_path: Path, umask: None) -> None:
    make_folder(tmp_path / "a" / "b")
    write_durably(tmp_path / "a" / "b" / "c", b"")
    publish_exclusively(tmp_path / "a" / "d", b"")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")}
    assert modes == {"b": 0o750, "c": 0o640, "d": 0o640}


def test_a_folder_and_its_parents_are_made_and_made_again(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_many_may_make_one_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: make_folder(tmp_path / "a" / "b" / "c" / "d"), range(64)))
    assert (tmp_path / "a" / "b" / "c" / "d").is_dir()


@pytest.fixture
def fsynced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths that were fsynced since."""
    paths = []
    real = os.fsync

    def fsync(fd: int) -> None:
        paths.append(Path(f"/proc/self/fd/{fd}").readlink())
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_each_parent_with_a_new_entry_is_fsynced(tmp_path: Path, fsynced: list[Path]) -> None:
    make_folder(tmp_path)
    fsynced.clear()
    make_folder(tmp_path / "a" / "b")
    assert fsynced == [tmp_path, tmp_path / "a"]
    fsynced.clear()
    write_durably(tmp_path / "a" / "b" / "c", b"")
    assert [path.parent if path.name.startswith(".tmp-") else path for path in fsynced] == [tmp_path / "a" / "b"] * 2


def test_a_folder_that_another_process_made_is_put_on_the_disk_once(tmp_path: Path, fsynced: list[Path]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    make_folder(tmp_path / "a" / "b")
    assert fsynced[-2:] == [tmp_path, tmp_path / "a"]
    fsynced.clear()
    make_folder(tmp_path / "a" / "b")
    assert fsynced == []


def test_a_file_where_a_folder_must_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(OSError, match="a"):
        make_folder(tmp_path / "a" / "b")


def test_a_file_system_that_cannot_fsync_folders_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EINVAL, "not for folders")

    monkeypatch.setattr(os, "fsync", refuse)
    fsync_folder(tmp_path)
    with pytest.raises(OSError, match="not for folders"):
        fsync_file(Path(__file__))
