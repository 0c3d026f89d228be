from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rl_eventlog.layout import RunLayout
from rl_eventlog.writer import restarts
from rl_eventlog.writer.restarts import counted_on_disk
from rl_eventlog.writer.whoami import LaunchId

FIRST = LaunchId("torchelastic-job-7-r0", "torchelastic", 0, "launches", rank_pid=os.getpid())


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    found = RunLayout(tmp_path)
    found.launches.mkdir()
    return found


def made(layout: RunLayout, launch: str, *, seconds_ago: float) -> None:
    path = layout.launch(launch)
    path.touch()
    os.utime(path, (time.time() - seconds_ago,) * 2)


def found_by_rank(layout: RunLayout, monkeypatch: pytest.MonkeyPatch, *, age: float, launch: LaunchId = FIRST) -> str:
    """The end of the id that a rank finds whose process is so many seconds old."""
    monkeypatch.setattr(restarts, "process_age", lambda _pid: age)
    found = counted_on_disk(layout, launch)
    assert found.id.endswith(f"-r{found.restart_count}")
    return found.id.removeprefix("torchelastic-job-7-")


def test_the_first_rank_of_a_run_begins_to_count(layout: RunLayout) -> None:
    assert counted_on_disk(layout, FIRST) == FIRST
    assert counted_on_disk(RunLayout(layout.launches / "no such run"), FIRST) == FIRST


@pytest.mark.parametrize("age", [1, 12, 600])
def test_ranks_of_one_start_find_its_file_however_late_they_come(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch, age: float
) -> None:
    made(layout, "torchelastic-job-7-r0", seconds_ago=age)  # as old as their processes: an instant after the start
    for started_later in (-10, 0, 10):
        assert found_by_rank(layout, monkeypatch, age=age + started_later) == "r0"


def test_a_file_older_than_the_rank_is_of_the_start_before(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    made(layout, "torchelastic-job-7-r0", seconds_ago=400)
    assert found_by_rank(layout, monkeypatch, age=5) == "r1"
    made(layout, "torchelastic-job-7-r1", seconds_ago=4)
    assert found_by_rank(layout, monkeypatch, age=5) == "r1"
    made(layout, "torchelastic-job-7-r1", seconds_ago=100)
    assert found_by_rank(layout, monkeypatch, age=5) == "r2"


def test_of_two_starts_close_to_one_another_a_rank_is_of_the_younger(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(layout, "torchelastic-job-7-r0", seconds_ago=20)
    made(layout, "torchelastic-job-7-r1", seconds_ago=5)
    assert found_by_rank(layout, monkeypatch, age=6) == "r1"


def test_counting_goes_on_from_what_the_agent_has_counted(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    second = LaunchId("torchelastic-job-7-r1", "torchelastic", 1, "TORCHELASTIC_RESTART_COUNT", os.getpid())
    made(layout, "torchelastic-job-7-r0", seconds_ago=2)
    assert found_by_rank(layout, monkeypatch, age=1, launch=second) == "r1"
    made(layout, "torchelastic-job-7-r1", seconds_ago=400)  # a node came or left since, which the agent does not count
    assert found_by_rank(layout, monkeypatch, age=1, launch=second) == "r2"


def test_the_age_of_a_file_is_not_taken_from_this_machines_clock(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(layout, "torchelastic-job-7-r0", seconds_ago=400)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert found_by_rank(layout, monkeypatch, age=5) == "r1"
    assert found_by_rank(layout, monkeypatch, age=500) == "r0"
    assert [path.name for path in layout.launches.iterdir()] == [layout.launch(FIRST.id).name]


def test_a_launch_that_its_launcher_has_counted_stays(layout: RunLayout) -> None:
    made(layout, "slurm-4711.0-r0", seconds_ago=400)
    launch = LaunchId("slurm-4711.0-r0", "slurm", 0, "SLURM_RESTART_COUNT")
    assert counted_on_disk(layout, launch) is launch


def test_a_process_that_cannot_be_seen_counts_nothing(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    made(layout, "torchelastic-job-7-r0", seconds_ago=400)
    monkeypatch.setattr(restarts, "process_age", lambda _pid: None)
    assert counted_on_disk(layout, FIRST) == FIRST
