"""SIGKILL while sealing, compacting, folding and removing: every row is there exactly once, and a later call goes on.

The judge reads the raw files with pyarrow alone.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from rl_eventlog import EventWriter, Run
from rl_eventlog.maintain import compact, seal, verify
from rl_eventlog.reader import RunFiles
from tests.support.raw import every_row
from tests.support.upkeep import event_files, killed_writer, results

pytestmark = pytest.mark.crash

TABLES = ("metrics", "timings", "samples")
STEPS = ("seal", "compact", "reclaim", "end")

CHILD = """
import sys
from pathlib import Path
from rl_eventlog.maintain import compact, seal
path = Path(sys.argv[1])
sys.stdin.readline()
print("seal", flush=True)
seal(path)
print("compact", flush=True)
compact(path)
print("reclaim", flush=True)
compact(path, reclaim_covered=True, grace_seconds=0)
print("end", flush=True)
sys.stdin.readline()
"""


def start(path: Path) -> subprocess.Popen[str]:
    """A process that has imported everything and waits for a line."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def begin(child: subprocess.Popen[str]) -> None:
    assert child.stdin
    assert child.stdout
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "seal\n"


def kill(child: subprocess.Popen[str]) -> str:
    """Kill it.

    Returns:
        The step it had begun last.
    """
    child.send_signal(signal.SIGKILL)
    said = child.communicate(timeout=60)[0].split()
    assert child.returncode == -signal.SIGKILL
    return said[-1] if said else "seal"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of writers that ended, each with many segments, and two that were killed."""
    root = tmp_path_factory.mktemp("original")
    for rank in range(3):
        with EventWriter.open(
            root, run="r", role="trainer", rank=rank, launch_id="one", capture_diff=False, segment_bytes=1
        ) as log:
            for step in range(8):
                log.log_metrics({"loss": step / (rank + 1)}, step=step)
                log.log_timing("training", 0.5, step=step)
    for rank in (3, 4):
        killed_writer(root, rank=rank, steps=40)
    return root / "r"


@pytest.fixture(scope="module")
def rows(original: Path) -> dict[str, str]:
    return {table: repr(sorted(every_row(original, table))) for table in TABLES}


def check(path: Path, rows: dict[str, str]) -> None:
    for table in TABLES:
        assert repr(sorted(every_row(path, table))) == rows[table]
    files = RunFiles.open(path)
    for table in TABLES:
        read = files.rows(table).select("writer", "seq").sort("writer", "seq").collect().rows()
        assert repr(read) == rows[table]
        assert files.gaps(table) == {}


def kills(original: Path, rows: dict[str, str], tmp_path: Path, trials: int) -> Counter[str]:
    generator = random.Random(1)
    before = results(original)
    phases: Counter[str] = Counter()
    path = shutil.copytree(original, tmp_path / "timed" / "r")
    with start(path) as child:
        begin(child)
        began = time.monotonic()
        assert child.stdout
        while child.stdout.readline() != "end\n":
            pass
        takes = time.monotonic() - began
        kill(child)
    check(path, rows)
    leftovers = 0
    for trial in range(trials):
        path = shutil.copytree(original, tmp_path / str(trial) / "r")
        with start(path) as child:
            begin(child)
            time.sleep(generator.uniform(0, takes))
            phases[kill(child)] += 1
        check(path, rows)
        leftovers += len(list(path.rglob(".tmp-*")))
        seal(path)
        compact(path)
        compact(path, reclaim_covered=True, grace_seconds=0)
        check(path, rows)
        assert len(event_files(path)) == 3
        after = results(path)
        assert {key: after[key] for key in after if key != "info"} == {
            key: before[key] for key in before if key != "info"
        }
        shutil.rmtree(path)
    print(f"{trials} kills within {takes:.2f} s, phases {dict(phases)}, {leftovers} temporary files left")
    return phases


def test_a_kill_at_any_moment_loses_and_doubles_nothing(original: Path, rows: dict[str, str], tmp_path: Path) -> None:
    assert set(kills(original, rows, tmp_path, 12)) <= set(STEPS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_kills_at_any_moment_lose_and_double_nothing(original: Path, rows: dict[str, str], tmp_path: Path) -> None:
    assert set(kills(original, rows, tmp_path, 300)) >= set(STEPS[:3])


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.soak)])
def test_three_processes_at_once_are_harmless(
    original: Path, rows: dict[str, str], tmp_path: Path, rounds: int
) -> None:
    for trial in range(rounds):
        path = shutil.copytree(original, tmp_path / str(trial) / "r")
        with start(path) as one, start(path) as two, start(path) as three:
            for child in (one, two, three):
                begin(child)
            for child in (one, two, three):
                assert child.stdout
                while (line := child.stdout.readline()) != "end\n":
                    assert line, "it failed"
                kill(child)
        check(path, rows)
        compact(path, reclaim_covered=True, grace_seconds=0)
        assert len(event_files(path)) == 3
        check(path, rows)


LIVE = """
import select, sys, time
from rl_eventlog import EventWriter
log = EventWriter.open(sys.argv[1], run="r", role="trainer", rank=9, capture_diff=False, segment_bytes=20_000)
step = 0
while not select.select([sys.stdin], [], [], 0.005)[0]:
    log.log_metrics({"loss": float(step), "tokens": 1.0}, step=step)
    log.log_timing("training", 0.5, step=step)
    log.log_samples([{"prompt": f"{step}", "reward": 1.0}], step=step)
    if step == 0:
        print(log.writer_id, flush=True)
    step += 1
print(step, log.close(60).ok, flush=True)
"""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rounds", [5, pytest.param(40, marks=pytest.mark.soak)])
def test_beside_a_live_run_nothing_is_lost_and_verify_is_content_all_the_time(
    original: Path, rows: dict[str, str], tmp_path: Path, rounds: int
) -> None:
    """A process logs, rotates and seals; all three commands run beside it, with no grace time and a careless user."""
    path = shutil.copytree(original, tmp_path / "r")
    with subprocess.Popen(
        [sys.executable, "-c", LIVE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        writer = child.stdout.readline().strip()
        assert child.stdin
        for left in reversed(range(rounds)):
            if left == 1:  # it closes meanwhile
                child.stdin.write("end\n")
                child.stdin.flush()
            for command in (seal, compact):
                command(path, reclaim_covered=True, assume_dead=True, grace_seconds=0)
            report = verify(path)
            assert report.ok, report.findings
            assert {finding.kind for finding in report.findings} <= {"no end", "torn tail"}
        steps, ok = child.communicate()[0].split()
    assert (ok, int(steps) > 50) == ("True", True)
    for command in (seal, compact):
        command(path, reclaim_covered=True, grace_seconds=0)
    assert {finding.kind for finding in verify(path).findings} == {"no end"}
    assert len(event_files(path)) == len(TABLES)
    live = Run(path).metrics("loss", ranks="each").filter(rank=9).sort("step").collect()
    assert live["value"].to_list() == live["step"].to_list() == list(range(int(steps)))
    for table in TABLES:
        others = sorted(key for key in every_row(path, table) if key[0] != writer)
        assert repr(others) == rows[table]


CLOSE = """
import sys
from rl_eventlog import EventWriter
log = EventWriter.open(sys.argv[1], run="r", rank=0, capture_diff=False, segment_bytes=1)
for step in range(60):
    log.log_metrics({"loss": float(step)}, step=step)
    log.log_timing("training", 0.5, step=step)
print(log.writer_id, flush=True)
sys.stdin.readline()
report = log.close(60)
print(report.ok, len(report.left_open), flush=True)
"""


def test_a_writer_that_has_ended_and_still_seals_is_not_disturbed(tmp_path: Path) -> None:
    """Its end record comes before its seals: everybody may seal what it left from then on, and remove it later."""
    with subprocess.Popen(
        [sys.executable, "-c", CLOSE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        assert child.stdout
        path = tmp_path / "r"
        end = path / "writers" / f"{child.stdout.readline().strip()}.end.json"
        child.stdin.write("close\n")
        child.stdin.flush()
        while not end.exists():
            assert child.poll() is None
        for command in (seal, compact, compact):
            command(path, reclaim_covered=True, grace_seconds=0)
            report = verify(path)
            assert report.ok, report.findings
        said = child.communicate()[0]
    assert said == "True 0\n"
    compact(path, reclaim_covered=True, grace_seconds=0)
    assert verify(path).findings == ()
    assert len(event_files(path)) == 2
    assert Run(path).metrics("loss").collect()["value"].to_list() == list(range(60))
