"""`fallback_dir`: rows that the run's folder does not take are safe elsewhere at once, and come home."""

from __future__ import annotations

import platform
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_eventlog import Run
from rl_eventlog.reader import RunFiles
from tests.support.bad_disk_runs import MODES, Mode, assert_calls, log_calls, markers, opened, rows_in
from tests.support.disks import filled, small_tmpfs, until
from tests.support.raw import open_rows

pytestmark = pytest.mark.crash


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path / "disk", 4 << 20) as path:
        yield path


@pytest.fixture
def spare(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path / "spare", 4 << 20) as path:
        yield path


@pytest.mark.parametrize("mode", MODES)
class TestWhileTheDiskIsFull:
    def test_rows_go_to_the_fallback_at_once_and_a_marker_says_where(self, disk: Path, spare: Path, mode: Mode) -> None:
        log = opened(disk, mode, fallback_dir=spare)
        log_calls(log, 0, 50)
        log.flush()

        def fallbacks() -> list[dict[str, Any]]:
            return markers([log.path, spare / "r"], "fallback")

        with filled(disk):
            log_calls(log, 50, 100)
            log.flush()
            assert_calls([log.path, spare / "r"], 100)
            until(lambda: any(fields["table"] == "metrics" for fields in fallbacks()))
            (marker,) = [fields for fields in fallbacks() if fields["table"] == "metrics"]
            path = Path(marker.pop("path"))
            assert path.is_relative_to(spare / "r" / "events" / "metrics")
            first = next(open_rows(path))["seq"]
            assert marker == {"host": platform.node(), "table": "metrics", "first_seq": first}
            assert first >= 100

    def test_the_rows_come_home_when_the_disk_is_back(self, disk: Path, spare: Path, mode: Mode) -> None:
        log = opened(disk, mode, fallback_dir=spare)
        log_calls(log, 0, 50)
        log.flush()
        with filled(disk):
            log_calls(log, 50, 100)
            log.flush()
        log_calls(log, 100, 150)
        report = log.close(30)
        assert report.ok, report
        assert report.fallback == ()
        assert_calls(log.path, 150)
        assert not RunFiles.open(log.path).gaps("metrics")

    def test_a_disk_that_stays_full_leaves_a_run_that_can_be_read_and_copied_home(
        self, disk: Path, spare: Path, mode: Mode
    ) -> None:
        log = opened(disk, mode, fallback_dir=spare)
        log_calls(log, 0, 50)
        log.flush()
        with filled(disk):
            log_calls(log, 50, 100)
            report = log.close(30)
            assert not report.ok
            assert not any(report.rows_at_risk.values())
            assert not any(report.rows_lost.values())
            assert report.fallback
            assert all(path.is_relative_to(spare) and path.exists() for path in report.fallback)
            assert_calls([log.path, spare / "r"], 100)
            away = Run(spare / "r").metrics("a").collect()
            assert away["value"].to_list()[-1] == 99
            assert (spare / "r" / "writers" / f"{log.writer_id}.json").exists()
        shutil.copytree(spare / "r", log.path, dirs_exist_ok=True)
        assert_calls(log.path, 100)
        assert Run(log.path).metrics("a").collect()["value"].to_list() == list(range(100))

    def test_a_full_fallback_leaves_rows_at_risk_until_either_is_back(
        self, disk: Path, spare: Path, mode: Mode
    ) -> None:
        log = opened(disk, mode, fallback_dir=spare)
        log_calls(log, 0, 50)
        log.flush()
        with filled(disk):
            with filled(spare):
                log_calls(log, 50, 100)
                with pytest.raises(OSError, match="No space left"):
                    log.flush()
            log.flush()
            assert_calls([log.path, spare / "r"], 100)
        report = log.close(30)
        assert report.ok, report
        assert_calls(log.path, 100)


def test_a_run_whose_name_has_to_be_escaped_has_one_name(disk: Path, spare: Path) -> None:
    log = opened(disk, run="grpo qwen/7", fallback_dir=spare)
    with filled(disk):
        log_calls(log, 0, 50)
        log.flush()
        assert [path.name for path in spare.iterdir()] == [log.path.name]
        assert_calls([log.path, spare / log.path.name], 50)


def test_rows_in_the_fallback_survive_sigkill(disk: Path, spare: Path) -> None:
    child = """
    import os, pathlib, signal, sys
    from tests.support.bad_disk_runs import log_calls, opened
    from tests.support.disks import filled

    log = opened(pathlib.Path(sys.argv[1]), fallback_dir=sys.argv[2])
    log_calls(log, 0, 50)
    with filled(pathlib.Path(sys.argv[1])):
        log_calls(log, 50, 100)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(child), str(disk), str(spare)],
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert_calls([disk / "r", spare / "r"], 100)


def test_a_fallback_that_is_not_needed_stays_empty(disk: Path, spare: Path) -> None:
    log = opened(disk, fallback_dir=spare)
    log_calls(log, 0, 50)
    assert log.close(30).ok
    assert list(spare.iterdir()) == []
    assert not rows_in(log.path, "markers")
