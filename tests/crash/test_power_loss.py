"""Power loss at any moment: every row that a returned `flush(fsync=True)` covered can be read, once, as it was logged.

A FUSE file system records what writers tell the disk. From each of many cuts of the recording a folder is made as
a disk may be found after the power loss: with little, some or all of what no fsync had made safe.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rl_eventlog.errors import RunNotFoundError
from rl_eventlog.host import host_name
from rl_eventlog.maintain import verify
from rl_eventlog.reader import RunFiles
from tests.support.disks import fuse
from tests.support.judge import Judge, Verdict
from tests.support.planned import TABLES
from tests.support.power_loss import DATA, NAMES, PoweredOff
from tests.support.recording import Change, read_recording

pytestmark = [pytest.mark.crash, pytest.mark.needs_fuse]

CHECKOUT = Path(__file__).parents[2]


@dataclass(slots=True)
class Tally:
    """What was checked."""

    changes: int = 0
    states: int = 0
    rows_promised: int = 0
    rows_found: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    damaged: int = 0
    not_a_run: int = 0
    findings: Counter[str] = field(default_factory=Counter)


def record(folder: Path, writers: int, seed: int, *, steps: int = 40, made: str = "", **options: Any) -> list[Change]:
    """What some writers of one run tell the disk, all at once; every second one leaves much of it to the flushes.

    Args:
        folder: for the disk.
        writers: how many.
        seed: of the first.
        steps: to log.
        made: a folder that is there before.
        options: of `EventWriter.open`.
    """
    busy = {"segment_bytes": 6_000, "fsync_interval_seconds": 0.01, "beat_interval_seconds": 0.02}
    lazy = {"segment_bytes": 30_000, "fsync_interval_seconds": 1.0, "beat_interval_seconds": 1.0}
    with fuse(folder, recording=folder / "recording") as disk:
        (disk.path / made).mkdir(parents=True, exist_ok=True)
        processes = []
        for rank in range(writers):
            opened = {"rank": rank + 1} | (lazy if rank % 2 else busy) | options
            given = json.dumps({"open": opened, "steps": steps, "seed": seed + rank})
            command = [sys.executable, "-m", "tests.support.flushing_writer", str(disk.path), given]
            processes.append(subprocess.Popen(command, cwd=CHECKOUT))
        assert [process.wait(120) for process in processes] == [0] * writers
    return list(read_recording(folder / "recording"))


def promised(changes: list[Change]) -> dict[str, dict[str, int]]:
    """Rows by writer and table that a returned flush, or close, covered."""
    found = {}
    for change in changes:
        if change.kind == "said":
            said = json.loads(change.data)
            found[said["writer"]] = said["rows"]
    return found


def check(run: Path, verdict: Verdict, promise: dict[str, dict[str, int]], about: str, tally: Tally) -> None:
    assert not verdict.wrong, f"{about}: {verdict.wrong}"
    assert not [name for name in verdict.unusable if ".parquet" in name], f"{about}: {verdict.unusable}"
    for writer, rows in promise.items():
        for table, count in rows.items():
            assert verdict.has(table, writer, count), f"{about}: {count} {table} of {writer}, found {verdict.spans}"
            tally.rows_promised += count
    tally.rows_found += sum(verdict.rows(table) for table in TABLES)
    tally.files.update(verdict.files)
    tally.damaged += bool(verdict.damage)


def check_ours(run: Path, verdict: Verdict, about: str, tally: Tally) -> None:
    """Our reader reads the same, names what is missing between, and `verify` comes to its end."""
    try:
        files = RunFiles.open(run)
    except RunNotFoundError:
        tally.not_a_run += 1
        assert not any(verdict.rows(table) for table in TABLES), about
        return
    for table in TABLES:
        read = files.rows(table).select("writer", "seq").sort("writer", "seq").collect().rows()
        spans = [(writer, first, last) for writer, found in verdict.spans[table].items() for first, last in found]
        assert read == [(writer, seq) for writer, first, last in spans for seq in range(first, last + 1)], about
        gaps = files.gaps(table)
        holed = {writer for writer, found in verdict.spans[table].items() if len(found) > 1 or found[0][0] > 0}
        assert holed <= gaps.keys(), about
    tally.findings.update({finding.kind for finding in verify(run).findings})


def check_states(
    changes: list[Change], judge: Judge, folder: Path, states: int, seed: int, tally: Tally, *, verify_each: int
) -> None:
    """Half of the cuts follow a word of a writer at once, where the promise is the youngest."""
    generator = random.Random(seed)
    words = [index + 1 for index, change in enumerate(changes) if change.kind == "said"]
    tally.changes += len(changes)
    tally.kinds.update(change.kind for change in changes)
    for number in range(states):
        cut = generator.choice(words) if number % 2 else generator.randrange(len(changes) + 1)
        data, names = generator.choice(DATA), generator.choice(NAMES)
        about = f"seed {seed}, state {number}: cut at {cut} of {len(changes)}, data {data}, names {names}"
        target = folder / f"{seed}-{number}"
        PoweredOff(changes[:cut]).remains(target, generator, data, names)
        run = target / "runs" / "r"
        verdict = judge.look(run)
        check(run, verdict, promised(changes[:cut]), about, tally)
        if number % verify_each == 0:
            check_ours(run, verdict, about, tally)
        shutil.rmtree(target)
        tally.states += 1


@pytest.mark.parametrize("mode", ["direct", "queued"])
def test_what_was_flushed_survives_a_power_loss(tmp_path: Path, judge: Judge, mode: str) -> None:
    changes = record(tmp_path, 2, 1, write=mode)
    tally = Tally()
    check_states(changes, judge, tmp_path, 120, 1, tally, verify_each=6)
    print(tally)
    assert tally.kinds.keys() >= {"mkdir", "create", "write", "rename", "link", "unlink", "fsync", "fsync folder"}
    assert tally.files["sealed"] > 100
    assert tally.files["torn"] + tally.damaged > 0


def test_folders_that_another_process_made_a_moment_ago_survive_with_what_was_flushed(
    tmp_path: Path, judge: Judge
) -> None:
    """Two ranks start at once: the one that finds the folders must not rely on the other to make them safe."""
    node = hashlib.sha256(host_name().encode()).hexdigest()[:2]
    changes = record(tmp_path, 1, 7, made=f"runs/r/events/metrics/{node}", write="direct")
    for word in (index + 1 for index, change in enumerate(changes) if change.kind == "said"):
        target = tmp_path / str(word)
        PoweredOff(changes[:word]).remains(target, random.Random(word), "none", "none")
        run = target / "runs" / "r"
        check(run, judge.look(run), promised(changes[:word]), f"cut at {word} of {len(changes)}", Tally())


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode", ["direct", "queued"])
def test_what_was_flushed_survives_thousands_of_power_losses(tmp_path: Path, judge: Judge, mode: str) -> None:
    tally = Tally()
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        changes = record(folder, 1 + seed % 3, seed, write=mode, segment_bytes=(1, 3_000, 20_000)[seed % 3])
        check_states(changes, judge, folder, 500, seed, tally, verify_each=10)
    print(tally)
