"""`cp`, `tar` and `rsync` out of a run while it seals: a copy is whole or says that it is not, and copying again
completes it.

A copy that was overtaken by `close` may lack rows that were logged before it began: they are named as a gap, or,
at the end of a table, the copy shows a run that has not ended.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rl_eventlog.maintain import verify
from rl_eventlog.reader import RunFiles
from tests.support.judge import Judge, Verdict
from tests.support.planned import TABLES
from tests.support.sealing_writer import acknowledged

pytestmark = pytest.mark.integration

CHECKOUT = Path(__file__).parents[2]
STEPS = 136
"""With three tables: 201 segments."""


def cp(source: Path, target: Path) -> None:
    run_copy(["cp", "-r", f"{source}/.", str(target)], {0, 1})


def tar(source: Path, target: Path) -> None:
    run_copy(["sh", "-c", 'tar -C "$1" -cf - . | tar -C "$2" -xf -', "sh", str(source), str(target)], {0})


def rsync(source: Path, target: Path) -> None:
    run_copy(["rsync", "-a", f"{source}/", f"{target}/"], {0, 24})


def run_copy(command: list[str], allowed: set[int]) -> None:
    """A file that vanished meanwhile is no error of the copy."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in allowed, done.stderr


@dataclass(slots=True)
class Tally:
    """What the copies of a live run had."""

    copies: int = 0
    judged: int = 0
    rows: int = 0
    lacking: int = 0
    """Copies without some row that was logged before they began."""
    named: int = 0
    """Rows missing in them that are named as a gap."""
    unnamed: int = 0
    """Rows missing at the end of a copy that has no end record."""


def check_copy(copy: Path, verdict: Verdict, before: dict[str, int], tally: Tally) -> None:
    assert not verdict.wrong
    assert not [name for name in verdict.unusable if ".parquet" in name], verdict.unusable
    tally.judged += 1
    tally.rows += sum(verdict.rows(table) for table in TABLES)
    lacking = False
    for table in TABLES:
        there = {
            seq for spans in verdict.spans[table].values() for first, last in spans for seq in range(first, last + 1)
        }
        missing = set(range(before[table])) - there
        if not missing:
            continue
        lacking = True
        files = RunFiles.open(copy)
        named = {seq for gaps in files.gaps(table).values() for gap in gaps for seq in range(gap.first, gap.last + 1)}
        tally.named += len(missing & named)
        if not missing <= named:  # its end is missing: it is a copy of a run that has not ended
            assert min(missing - named) > max(there, default=-1)
            assert [facts.end for facts in files.writers.values()] == [None]
            tally.unnamed += len(missing - named)
    tally.lacking += lacking


def copy_while_it_seals(
    copy: Callable[[Path, Path], None], judge: Judge, folder: Path, tally: Tally, interval: float
) -> None:
    """Copy after copy until the writer has ended, then some once more."""
    counts, run = folder / "acknowledged", folder / "runs" / "r"
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.sealing_writer", *map(str, (run.parent, counts, STEPS, interval))],
        cwd=CHECKOUT,
    )
    copies: list[tuple[Path, dict[str, int]]] = []
    while child.poll() is None:
        before = acknowledged(counts)
        if sum(before.values()):
            target = folder / f"copy-{len(copies)}"
            target.mkdir()
            copy(run, target)
            copies.append((target, before))
    assert child.wait() == 0
    sealed = list(run.glob("events/*/*/*.parquet"))
    assert len(sealed) > 200
    tally.copies += len(copies)
    judged = copies[:-5:12] + copies[-5:]  # at the end the open forms go
    for target, before in judged:
        check_copy(target, judge.look(target), before, tally)
    for target, _ in judged[::4]:
        copy(run, target)
        verdict = judge.look(target)
        assert {table: verdict.rows(table) for table in TABLES} == acknowledged(counts)
        assert not verdict.holes()
        assert not verdict.wrong
        report = verify(target)
        assert report.ok, report.findings


@pytest.mark.parametrize("interval", [0.001, 3600.0], ids=["all the time", "at close"])
@pytest.mark.parametrize("copy", [cp, tar, pytest.param(rsync, marks=pytest.mark.needs_rsync)])
def test_a_copy_of_a_run_that_seals_is_whole_or_says_what_is_missing(
    copy: Callable[[Path, Path], None], judge: Judge, tmp_path: Path, interval: float
) -> None:
    tally = Tally()
    copy_while_it_seals(copy, judge, tmp_path, tally, interval)
    print(tally)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval", [0.001, 3600.0], ids=["all the time", "at close"])
@pytest.mark.parametrize("copy", [cp, tar, pytest.param(rsync, marks=pytest.mark.needs_rsync)])
def test_copies_of_many_runs_that_seal_are_whole_or_say_what_is_missing(
    copy: Callable[[Path, Path], None], judge: Judge, tmp_path: Path, interval: float
) -> None:
    tally = Tally()
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        copy_while_it_seals(copy, judge, folder, tally, interval)
    print(tally)
