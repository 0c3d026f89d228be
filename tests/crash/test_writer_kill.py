"""SIGKILL at any moment: every row whose call had returned is on disk exactly once, as it was logged.

The judge reads the raw files with pyarrow alone, in a process that never imports rl_eventlog. Most kills are
aimed at a phase and come from within it; the others come from outside, at a random time.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rl_eventlog.reader import RunFiles
from tests.support.judge import Judge, Verdict
from tests.support.killed_writers import Killed, KilledWriters, Trial
from tests.support.phases import BASES, CALLS, Aim
from tests.support.planned import ROWS_A_CALL, TABLES

pytestmark = pytest.mark.crash

SEGMENT_BYTES = (1, 6_000, 20_000)
ENTRIES = {"document named": 3, "document fsync": 3, "folder fsync": 8}


@pytest.fixture(scope="module")
def writers() -> Iterator[KilledWriters]:
    server = KilledWriters()
    yield server
    server.close()


@dataclass(slots=True)
class Tally:
    """What many kills came to."""

    kills: int = 0
    calls: int = 0
    rows: int = 0
    unacknowledged: int = 0
    files: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)

    def add(self, killed: Killed, verdict: Verdict) -> None:
        self.kills += 1
        self.calls += sum(killed.calls.values())
        self.rows += sum(verdict.rows(table) for table in TABLES)
        self.files.update(verdict.files)
        self.phases.update({phase for phase in killed.phases if phase != "idle"})

    def __str__(self) -> str:
        phases = ", ".join(f"{phase} {self.phases[phase]}" for phase in BASES[1:] + CALLS)
        return (
            f"{self.kills} kills, {self.calls} acknowledged calls, {self.rows} rows, "
            f"{self.unacknowledged} calls on disk that had not returned, files {dict(self.files)}\n"
            f"kills by what a thread was doing: {phases}"
        )


def planned(generator: random.Random, number: int, root: Path, mode: str) -> Trial:
    """Three of four kills are aimed, at one phase after the other."""
    segment_bytes = SEGMENT_BYTES[number % 3]
    options = {
        "segment_bytes": segment_bytes,
        "fsync_interval_seconds": generator.choice([0.001, 0.01]),
        "beat_interval_seconds": 0.005,
        "write": mode,
        "stall_budget_ms": 60_000,
    }
    steps = generator.randrange(4, 12 if segment_bytes == 1 else 60)
    trial = Trial(str(root), options, steps)
    if number % 4 == 3:
        trial.after = generator.randrange(2 * steps)
        trial.seconds = generator.choice([0.0, 0.001, 0.02]) * generator.random()
        return trial
    phase = CALLS[(number - number // 4) % len(CALLS)]
    most = ENTRIES.get(phase, 4)
    trial.aim = Aim(phase, generator.randrange(1, most), "during", 0.002 * generator.random())
    hows = ["before", "after", "during"] + ["torn"] * (phase in ("batch write", "rotate"))
    trial.aim.when = generator.choice(hows)
    return trial


def check(trial: Trial, killed: Killed, verdict: Verdict) -> int:
    """The promise. Returns the calls that are on disk and had not returned."""
    about = f"{trial} {killed} {verdict}"
    assert not verdict.wrong, about
    assert not verdict.damage, about
    assert not verdict.holes(), about
    # a file that was begun and has no whole schema message yet: it covers nothing, and nothing is missing
    assert all(".arrows" in name for name in verdict.unusable), about
    unacknowledged = 0
    for table in TABLES:
        extra = verdict.rows(table) - ROWS_A_CALL[table] * killed.calls[table]
        assert extra in (0, ROWS_A_CALL[table]), about
        unacknowledged += extra > 0
    assert unacknowledged <= 1, about
    return unacknowledged


def check_reader(run: Path, verdict: Verdict) -> None:
    """Our own reader reads the same."""
    files = RunFiles.open(run)
    for table in TABLES:
        read = files.rows(table).select("seq").sort("seq").collect()["seq"].to_list()
        assert read == list(range(verdict.rows(table)))
        assert files.gaps(table) == {}


def kill_many(
    writers: KilledWriters, judge: Judge, folder: Path, kills: int, mode: str, *, read_each: int = 1
) -> Tally:
    generator = random.Random(kills)
    tally = Tally()
    for number in range(kills):
        root = folder / str(number)
        trial = planned(generator, number, root, mode)
        killed = writers.run(trial)
        verdict = judge.look(root / "r")
        tally.add(killed, verdict)
        tally.unacknowledged += check(trial, killed, verdict)
        if number % read_each == 0 and verdict.rows("metrics"):
            check_reader(root / "r", verdict)
        shutil.rmtree(root, ignore_errors=True)
    print(f"{mode}: {tally}")
    return tally


@pytest.mark.parametrize("mode", ["direct", "queued"])
def test_every_acknowledged_row_is_on_disk_exactly_once(
    writers: KilledWriters, judge: Judge, tmp_path: Path, mode: str
) -> None:
    tally = kill_many(writers, judge, tmp_path, 100, mode)
    assert [phase for phase in CALLS if not tally.phases[phase]] == []
    assert tally.files["sealed"] > 100
    assert tally.files["torn"] > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode", ["direct", "queued"])
def test_thousands_of_kills_lose_and_double_nothing(
    writers: KilledWriters, judge: Judge, tmp_path: Path, mode: str
) -> None:
    tally = kill_many(writers, judge, tmp_path, 5_000, mode, read_each=25)
    assert [phase for phase in BASES[1:] + CALLS if not tally.phases[phase]] == []
