"""A sync in a process of its own that kills itself at a given moment.

Moments are counted: each file that is opened for writing, made, renamed, linked or removed below
`<folder>`, and each row the target takes. So every state the disk can be in comes up, and none twice.

Usage: `python -m tests.support.sync_child <folder> <moment>`; the run is `<folder>/runs/grpo`, the
target `<folder>/target`. Moment 0 never comes; at the end the number of moments is printed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rl_eventlog.sync import plan, replay
from tests.support.memory_sink import MemorySink

ADDRESS = "target"
"""The same wherever the folder is copied to."""
MAX_POINTS = 8
"""Small, so that a small run takes several commits."""

_CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir"}


class Moments:
    """Counts moments and kills this process with SIGKILL before number `last`."""

    def __init__(self, last: int) -> None:
        self._last = last
        self.count = 0

    def next(self) -> None:
        """One more."""
        self.count += 1
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, moment: str) -> None:
    """Sync, or die."""
    moments = Moments(int(moment))

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (event in _CHANGES or written) and str(arguments[0]).startswith(folder):
            moments.next()

    sys.addaudithook(watch)
    plan.MAX_POINTS = MAX_POINTS
    sink = MemorySink(Path(folder, "target"), address=ADDRESS, before_row=moments.next)
    replay(Path(folder, "runs", "grpo"), sink)
    print(moments.count)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
