"""A rank that hangs is named, with what it was doing and who waits for it, while all are still there."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_eventlog import Run
from rl_eventlog.run import Stall
from tests.support.cli import rleventlog

pytestmark = pytest.mark.crash

RANKS, HUNG = 8, 5
BEAT_SECONDS = 1.0
INTERVALS = 4
SLACK_SECONDS = 1.5  # other tests on the same two cores
CHECKOUT = Path(__file__).parents[2]

#: Says when it is through with a step and waits for the others, as in a collective.
RANK = f"""
import sys, time
from rl_eventlog import EventWriter
log = EventWriter.open(sys.argv[1], run="r", role="trainer", rank=int(sys.argv[2]), world_size={RANKS},
                       launch_id="one", beat_interval_seconds={BEAT_SECONDS}, capture_diff=False)
for step in range(1_000_000):
    log.set_step(step)
    with log.timer.time("policy_training"):
        time.sleep(0.02)
        log.log_metrics({{"loss": 1.0}})
        print(step, flush=True)
        if not sys.stdin.readline():
            break
log.close()
"""


class Ranks:
    """The processes, and the barrier between them."""

    def __init__(self, root: Path) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(root), str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                cwd=CHECKOUT,
            )
            for rank in range(RANKS)
        ]

    def step(self) -> None:
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline()
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("\n")

    def train(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    started = Ranks(tmp_path)
    yield started
    for process in started.processes:
        process.kill()
        process.communicate()


def stalls(path: Path) -> tuple[Stall, ...]:
    return Run(path).info.stalls


def wait_for(path: Path, *, waiting: int) -> Stall:
    """The stall with so many ranks waiting, found in time."""
    began = time.monotonic()
    while time.monotonic() - began < INTERVALS * BEAT_SECONDS + SLACK_SECONDS:
        found = [stall for stall in stalls(path) if stall.waiting == waiting]
        if found:
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"not told within {INTERVALS} beat intervals: {Run(path).info.ranks}")


def test_a_stopped_rank_is_named_within_four_beats_and_the_others_wait(ranks: Ranks, tmp_path: Path) -> None:
    run = tmp_path / "r"
    ranks.train(2.5)
    assert stalls(run) == ()
    while not Run(run).info.ranks[HUNG].open_timers:  # a beat between two spans says nothing of the hang to come
        ranks.train(0.1)
    ranks.processes[HUNG].send_signal(signal.SIGSTOP)
    stall = wait_for(run, waiting=RANKS - 1)
    assert (stall.state, stall.ranks, stall.timers) == ("stalled", (HUNG,), ("policy_training",))
    shown = rleventlog("show", run).out
    sentence = rf"rank {HUNG} \(\S+\) stalled in `policy_training` since \d\d:\d\d, step \d+; {RANKS - 1} ranks waiting"
    assert re.search(sentence, shown), shown
    ranks.processes[HUNG].send_signal(signal.SIGCONT)
    ranks.train(2.5)
    assert stalls(run) == ()
    assert {rank.state for rank in Run(run).info.ranks} == {"running"}
