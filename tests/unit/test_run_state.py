"""The state of a rank: finished, running, waiting, stalled or lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from rl_eventlog.host import process_facts, process_start
from rl_eventlog.reader import Beat, End, WriterFacts
from rl_eventlog.run import Thresholds, is_provably_dead
from rl_eventlog.run.state import SEVERITY, judge, worst
from rl_eventlog.types import Identity

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
STEP_SECONDS = 20.0


def rank(
    number: int = 0, *, age: float = 1.0, step: int | None = 5, idle: float = 0.0, ended: bool = False, **more: Any
) -> WriterFacts:
    """A rank whose last beat is `age` seconds old."""
    return WriterFacts(
        identity=Identity("uid", f"w{number}", "launch", "trainer", number, None, "node"),
        name="run",
        opened=NOW - timedelta(hours=1),
        beat=Beat(NOW - timedelta(seconds=age), step, idle, (), 0, 0),
        end=End(NOW, "finished", {}, {}, {}) if ended else None,
        **more,
    )


def states(ranks: Sequence[WriterFacts], *, step_seconds: float | None = STEP_SECONDS, **thresholds: Any) -> list[str]:
    found = judge(ranks, now=NOW, thresholds=Thresholds(**thresholds), step_seconds=lambda: step_seconds)
    return [judgement.state for judgement in found]


def test_an_end_record_means_finished_however_old_the_beat() -> None:
    assert states([rank(ended=True, age=9999)]) == ["finished"]


@pytest.mark.parametrize(
    ("age", "expected"), [(0.0, "running"), (90.0, "running"), (91.0, "stalled"), (600.0, "stalled"), (601.0, "lost")]
)
def test_a_silent_rank_is_stalled_after_three_intervals_and_lost_after_ten_minutes(age: float, expected: str) -> None:
    assert states([rank(age=age)]) == [expected]


def test_the_interval_of_the_beat_and_the_thresholds_are_what_counts() -> None:
    assert states([rank(age=11.0, beat_seconds=2.0)], missed_beats=5) == ["stalled"]
    assert states([rank(age=11.0, beat_seconds=2.0)], missed_beats=6) == ["running"]
    assert states([rank(age=11.0)], lost_after=timedelta(seconds=10)) == ["lost"]


def test_a_rank_that_never_beat_counts_from_when_it_was_opened() -> None:
    identity = Identity("uid", "w0", "launch", "trainer", 0, None, "node")
    fresh = WriterFacts(identity=identity, name="run", opened=NOW - timedelta(seconds=20))
    old = WriterFacts(identity=identity, name="run", opened=NOW - timedelta(hours=20))
    assert states([fresh, old]) == ["running", "lost"]


def test_a_rank_that_makes_no_call_while_none_is_behind_is_stalled() -> None:
    assert states([rank(0, step=5, idle=201.0), rank(1, step=6, idle=1.0)]) == ["stalled", "running"]


def test_a_rank_that_makes_no_call_while_another_is_behind_is_waiting_and_the_one_behind_is_stalled() -> None:
    assert states([rank(0, step=6, idle=250.0), rank(1, step=5, idle=250.0)]) == ["waiting", "stalled"]


@pytest.mark.parametrize("age", [100.0, 700.0])
def test_ranks_that_wait_for_a_silent_one_are_waiting(age: float) -> None:
    found = states([rank(0, idle=250.0), rank(1, idle=250.0), rank(2, age=age)])
    assert found[:2] == ["waiting", "waiting"]


def test_a_rank_that_logged_no_step_yet_is_behind_all_others() -> None:
    assert states([rank(0, idle=250.0), rank(1, step=None, idle=10.0)]) == ["waiting", "running"]


def test_a_finished_rank_is_not_behind() -> None:
    assert states([rank(0, step=9, idle=250.0), rank(1, step=2, ended=True)]) == ["stalled", "finished"]


@pytest.mark.parametrize("idle", [0.0, 29.0, 199.0])
def test_calls_within_ten_steps_or_one_interval_are_no_finding(idle: float) -> None:
    assert states([rank(idle=idle)]) == ["running"]
    assert states([rank(idle=29.0)], step_seconds=0.01) == ["running"]


def test_without_a_known_step_time_only_the_beat_counts() -> None:
    assert states([rank(idle=9999.0)], step_seconds=None) == ["running"]


def test_the_step_time_is_not_asked_for_where_all_ranks_log() -> None:
    def never() -> float:
        raise AssertionError

    found = judge([rank(), rank(1, ended=True)], now=NOW, thresholds=Thresholds(), step_seconds=never)
    assert [judgement.state for judgement in found] == ["running", "finished"]


def test_the_worst_state_counts() -> None:
    assert worst(["running", "finished"]) == "running"
    assert worst(SEVERITY) == "lost"
    assert worst([]) is None


def here(process: int, start: int | None, **other: Any) -> WriterFacts:
    return rank(**(process_facts() | {"pid": process, "process_start": start} | other))


def test_a_live_process_is_not_dead_and_a_reused_pid_is() -> None:
    start = process_start(os.getpid())
    assert start is not None
    assert not is_provably_dead(here(os.getpid(), start))
    assert is_provably_dead(here(os.getpid(), start - 1))
    assert states([here(os.getpid(), start - 1)]) == ["lost"]


def test_a_killed_process_is_dead_also_while_its_parent_has_not_asked_for_it() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        facts = here(child.pid, process_start(child.pid))
        assert not is_provably_dead(facts)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
        assert is_provably_dead(facts)
    assert is_provably_dead(facts)


@pytest.mark.parametrize(
    "other",
    [{"boot_id": "another"}, {"boot_id": None}, {"host": "another"}, {"pid_namespace": "pid:[1]"}, {"pid": None}],
)
def test_on_another_host_or_boot_nothing_is_proven(other: dict[str, Any]) -> None:
    assert not is_provably_dead(here(os.getpid(), 1, **other))
    assert not is_provably_dead(here(os.getpid(), None))


@pytest.mark.parametrize(
    ("seconds", "words"), [(599.4, "599 s"), (601.0, "10 min"), (7000.0, "117 min"), (86_400.0, "24.0 h")]
)
def test_silence_is_told_in_a_unit_that_can_be_read_and_with_what_the_rank_was_timing(
    seconds: float, words: str
) -> None:
    silent = rank(age=seconds)
    beat = Beat(NOW - timedelta(seconds=seconds), 5, 0.0, ("generation", "step"), 0, 0)
    for facts, end in ((silent, ""), (replace(silent, beat=beat), "; it was timing generation, step")):
        (found,) = judge([facts], now=NOW, thresholds=Thresholds(), step_seconds=lambda: None)
        assert found.reason == f"no heartbeat for {words}{end}"


def test_a_silent_rank_does_not_go_on_since_its_last_sign_and_one_that_only_beats_since_its_last_call() -> None:
    silent, idle = rank(0, age=100.0), rank(1, age=2.0, idle=250.0)
    found = judge([silent, idle], now=NOW, thresholds=Thresholds(), step_seconds=lambda: STEP_SECONDS)
    assert [(one.state, (NOW - one.since).total_seconds()) for one in found] == [("stalled", 100.0), ("waiting", 252.0)]
