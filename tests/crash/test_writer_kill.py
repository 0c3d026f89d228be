"""SIGKILL at any moment: every row whose call had returned is on disk exactly once.

The child writes a byte into a pipe after each call returns; a pipe outlives its writer, so what the
parent reads is what was acknowledged. The judge reads the raw files with pyarrow alone.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rl_eventlog.reader import RunFiles
from tests.support.raw import assert_dense, raw_rows

pytestmark = pytest.mark.crash

KILLS = 30

CHILD = """
import os, signal, sys, threading
from rl_eventlog import EventWriter

root, fd, segment_bytes, close_after = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
log = EventWriter.open(
    root, run="r", rank=0, capture_diff=False, segment_bytes=segment_bytes, fsync_interval_seconds=0.002
)
os.write(1, b"open")
number = 0
while number < close_after:
    log.log_metrics({"a": number, "b": -number, "c": 0.1}, step=number)
    os.write(fd, b"m")
    number += 1
    if number % 3 == 0:
        log.log_timing("t", 0.5, step=number)
        os.write(fd, b"t")
os.write(1, b"close")
log.close()
os.write(1, b"end")
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(
    root: Path, after_calls: int, delay: float, segment_bytes: int, close_after: int
) -> tuple[Counter[str], str]:
    """Acknowledged calls by kind, and the last words of the child.

    Args:
        after_calls: calls to wait for before the kill.
        delay: seconds to wait then.
        segment_bytes: of the child.
        close_after: calls after which the child closes.
    """
    read, write = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), str(write), str(segment_bytes), str(close_after)],
        stdout=subprocess.PIPE,
        pass_fds=[write],
    )
    os.close(write)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        acknowledged = b""
        while len(acknowledged) < after_calls and (more := pipe.read(4096)):
            acknowledged += more
        try:
            child.wait(delay)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
        while more := pipe.read(4096):
            acknowledged += more
    words = child.communicate(timeout=60)[0].decode().removeprefix("open")
    assert child.returncode == -signal.SIGKILL
    return Counter(acknowledged.decode()), words or "logging"


def test_every_acknowledged_row_is_on_disk_exactly_once(tmp_path: Path) -> None:
    generator = random.Random(0)
    phases: Counter[str] = Counter()
    calls = rows = segments = sealed = 0
    for trial in range(KILLS):
        root = tmp_path / str(trial)
        closes = trial % 3 == 0
        segment_bytes = generator.choice([1, 8_000, 40_000, 64 << 20])
        steps = generator.randrange(1, 120)
        calls_before, close_after = steps + steps // 3, steps if closes else 10**9
        acknowledged, phase = killed(root, calls_before, generator.uniform(0.0, 0.02), segment_bytes, close_after)
        phases[phase] += 1

        metrics, timings = raw_rows(root / "r", "metrics"), raw_rows(root / "r", "timings")
        assert_dense(metrics)
        assert_dense(timings)
        # one call may have been whole on disk and killed before it could say so
        assert len(metrics) - 3 * acknowledged["m"] in (0, 3)
        assert len(timings) - acknowledged["t"] in (0, 1)
        for index, row in enumerate(metrics):
            number = index // 3
            expected = [("a", number), ("b", -number), ("c", 0.1)][index % 3]
            assert (row["name"], row["value"], row["step"]) == (*expected, number)
        assert [row["step"] for row in timings] == [3 * (index + 1) for index in range(len(timings))]

        files = RunFiles.open(root / "r")
        for table, raw in (("metrics", metrics), ("timings", timings)):
            read = files.rows(table).select("writer", "seq").sort("seq").collect()
            assert read.rows() == [(row["writer"], row["seq"]) for row in raw]
            assert files.gaps(table) == {}
        calls += acknowledged.total()
        rows += len(metrics) + len(timings)
        segments += len({path.name.partition(".")[0] for path in root.glob("r/events/*/*/*")})
        sealed += len(list(root.rglob("*.parquet")))
    print(f"{KILLS} kills, {calls} acknowledged calls, {rows} rows, {segments} segments,")
    print(f"{sealed} sealed, phases {dict(phases)}")
    assert phases["logging"] == KILLS * 2 // 3
    assert phases["close"] > 0
    assert segments > 10 * KILLS
    assert sealed > 0
    assert calls > KILLS * 30
