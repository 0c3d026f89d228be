"""A writer on a recording disk that says there what had returned: run as a module with `MOUNTPOINT OPTIONS`.

OPTIONS is JSON: `open` (keywords of `EventWriter.open`), `steps`, and `seed`, of the steps after which it
flushes with fsync. What it says is in the recording, in its place between the changes.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rl_eventlog import EventWriter
from tests.support.planned import ROWS_A_CALL, log_step


def main(mountpoint: str, options: dict[str, Any]) -> None:
    generator = random.Random(options["seed"])
    said = os.open(Path(mountpoint, "said"), os.O_WRONLY | os.O_CREAT)
    log = EventWriter.open(Path(mountpoint, "runs"), run="r", capture_diff=False, **options["open"])
    rows: Counter[str] = Counter()

    def say(event: str) -> None:
        os.write(said, json.dumps({"event": event, "writer": log.writer_id, "rows": rows}).encode())

    def acknowledge(table: str) -> None:
        rows[table] += ROWS_A_CALL[table]

    for number in range(options["steps"]):
        log_step(log, number, acknowledge)
        if generator.random() < 0.2:
            log.flush(fsync=True)
            say("flushed")
    report = log.close(60)
    assert report.ok, report
    say("closed")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
