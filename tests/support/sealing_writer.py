"""A writer that seals all the time: run as a module with `ROOT ACKNOWLEDGED STEPS INTERVAL`.

After each step the file ACKNOWLEDGED holds how many rows of each table were logged until then; it outlives
whatever becomes of the process. INTERVAL is how often the background seals, in seconds.
"""

from __future__ import annotations

import os
import struct
import sys
from collections import Counter
from pathlib import Path

from rl_eventlog import EventWriter
from tests.support.planned import ROWS_A_CALL, TABLES, log_step


def acknowledged(path: Path) -> dict[str, int]:
    """Rows that were logged until now, by table."""
    data = path.read_bytes() if path.exists() else b""
    return dict(zip(TABLES, struct.unpack("<3q", data or bytes(24)), strict=True))


def main(root: str, path: str, steps: int, interval: float) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    rows: Counter[str] = Counter()

    def acknowledge(table: str) -> None:
        rows[table] += ROWS_A_CALL[table]

    log = EventWriter.open(
        root, run="r", rank=1, capture_diff=False, write="direct", segment_bytes=1, fsync_interval_seconds=interval
    )
    for number in range(steps):
        log_step(log, number, acknowledge)
        os.pwrite(fd, struct.pack("<3q", *(rows[table] for table in TABLES)), 0)
    report = log.close(120)
    assert report.ok, report


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
