"""The sentence that says who holds a run up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rl_eventlog import EventWriter, Run
from rl_eventlog.run import RankInfo, RunInfo, State, Thresholds
from rl_eventlog.run.stalls import find_stalls, numbers
from rl_eventlog_cli.states import stalls_in_words

NOW = datetime(2026, 3, 1, 12, 10, tzinfo=timezone.utc)
SINCE = NOW - timedelta(minutes=7)


def rank(number: int | None, state: State = "stalled", **more: Any) -> RankInfo:
    given: dict[str, Any] = {
        "role": "trainer",
        "rank": number,
        "data_rank": None,
        "node": "node-0",
        "writer": f"w{number}",
        "attempt": 1,
        "state": state,
        "reason": "",
        "last_step": 183,
        "last_sign": SINCE,
        "beat_seconds": 30.0,
        "since": SINCE,
        "open_timers": ("policy_training",),
        "pid": 77,
        "actor": None,
    }
    return RankInfo(**given | more)


def words(ranks: Sequence[RankInfo], *, utc: bool = True) -> list[str]:
    """The sentences about a run of these ranks."""
    info = SimpleNamespace(stalls=find_stalls(ranks), roles={one.role for one in ranks}, read=NOW)
    return stalls_in_words(cast(RunInfo, info), utc=utc)


def test_one_rank_is_told_with_node_timer_time_step_and_those_that_wait() -> None:
    waiting = [rank(number, "waiting") for number in range(7)]
    assert words([*waiting, rank(7)]) == [
        "rank 7 (node-0) stalled in `policy_training` since 12:03 UTC, step 183; 7 ranks waiting"
    ]
    assert words([rank(0, "waiting"), rank(1, "lost")])[0].endswith(
        "(node-0) lost in `policy_training` since 12:03 UTC, step 183; 1 rank waiting"
    )


def test_what_is_not_known_is_left_out() -> None:
    assert words([rank(5, open_timers=(), last_step=None)]) == ["rank 5 (node-0) stalled since 12:03 UTC"]


def test_who_runs_waits_or_finished_is_no_stall() -> None:
    states: list[State] = ["running", "waiting", "finished"]
    assert words([rank(number, state) for number, state in enumerate(states)]) == []


def test_two_hundred_ranks_lost_on_a_node_are_one_line() -> None:
    lost = [
        rank(number, "lost", last_step=183 + number % 2, open_timers=("generation",) if number % 3 else ("step",))
        for number in range(200)
    ]
    assert words(lost) == ["ranks 0 to 199 (node-0) lost in `generation` and `step` since 12:03 UTC, steps 183 to 184"]


def test_ranks_of_several_nodes_are_listed_and_many_are_counted() -> None:
    few = [rank(number, node=f"node-{number}") for number in (3, 5, 7)]
    assert words(few)[0].startswith("ranks 3, 5 and 7 (3 nodes) stalled")
    assert words([rank(number) for number in range(0, 60, 2)])[0].startswith("30 ranks (node-0) stalled")


def test_stalled_and_lost_ranks_and_roles_have_a_line_each() -> None:
    found = words([rank(0), rank(1, "lost"), rank(0, role="rollout"), rank(1, "waiting", role="rollout")])
    assert [line.partition(" since")[0] for line in found] == [
        "rollout rank 0 (node-0) stalled in `policy_training`",
        "trainer rank 0 (node-0) stalled in `policy_training`",
        "trainer rank 1 (node-0) lost in `policy_training`",
    ]
    assert [line.partition("; ")[2] for line in found] == ["1 rank waiting", "", ""]


def test_processes_without_a_rank_are_named_by_actor_and_pid() -> None:
    assert words([rank(None, actor="a1b2")])[0].startswith("trainer actor a1b2 pid 77 (node-0) stalled")
    assert words([rank(None), rank(None, pid=None, writer="w9")])[0].startswith("trainer pid 77 and writer w9 (node-0)")
    many = [rank(None, pid=number) for number in range(20)] + [rank(None, "waiting")] * 2
    (line,) = words(many)
    assert line.startswith("trainer 20 processes (node-0) stalled")
    assert line.endswith("; 2 processes waiting")


def test_the_earliest_time_counts_with_its_day_where_it_is_another() -> None:
    yesterday = rank(1, since=SINCE - timedelta(days=1))
    assert " since 2026-02-28 12:03 UTC," in words([rank(0), yesterday])[0]
    local = f"{SINCE.astimezone():%H:%M}"
    assert f" since {local}, step" in words([rank(0)], utc=False)[0]


@pytest.mark.parametrize(
    ("given", "said"), [([0], "0"), ([3, 5, 7], "3, 5 and 7"), ([0, 4, 5, 6, 9], "0, 4 to 6 and 9")]
)
def test_rank_numbers_in_words(given: list[int], said: str) -> None:
    assert numbers(given) == said


def test_a_run_tells_since_when_a_rank_is_lost_and_what_it_was_timing(tmp_path: Path) -> None:
    log = EventWriter.open(tmp_path, run="r", rank=0, capture_diff=False, beat_interval_seconds=0.01)
    log.log_metrics({"a": 1.0}, step=3)
    with log.timer.time("generation"):
        info = Run(log.path, thresholds=Thresholds(lost_after=timedelta(0))).info
        while not info.ranks[0].open_timers or info.ranks[0].last_step is None:
            info = Run(log.path, thresholds=Thresholds(lost_after=timedelta(0))).info
        (stall,) = info.stalls
        assert (stall.state, stall.ranks, stall.timers, stall.last_step) == ("lost", (0,), ("generation",), 3)
        assert stall.since == info.ranks[0].last_sign <= info.read
    log.close()
    assert Run(log.path).info.stalls == ()
