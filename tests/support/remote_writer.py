"""A writer in a process of its own, which can be told what to log and be killed.

Run as a module it is that process: it reads one JSON list a line, `[method, arguments, keywords]`, and
answers each with a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rl_eventlog import EventWriter

_CHECKOUT = Path(__file__).parents[2]


def log_steps(writer: EventWriter, start: int, stop: int, *, offset: float = 0.0) -> None:
    """Log the steps from `start` up to and excluding `stop`: loss = step + `offset`, and a timing."""
    for step in range(start, stop):
        writer.log_metrics({"loss": step + offset}, step=step)
        writer.log_timing("generation", 0.5, step)


class RemoteWriter:
    """Opens an `EventWriter` elsewhere with the given keywords."""

    def __init__(self, root: Path, **keywords: Any) -> None:
        command = [sys.executable, "-m", "tests.support.remote_writer", str(root), json.dumps(keywords)]
        self._process = subprocess.Popen(
            command, cwd=_CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._read()

    def call(self, method: str, *arguments: Any, **keywords: Any) -> None:
        """Call a method of the writer; it has returned when this returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments, keywords]) + "\n")
        self._read()

    def log_steps(self, start: int, stop: int, *, offset: float = 0.0) -> None:
        """See `log_steps`."""
        self.call("log_steps", start, stop, offset=offset)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """Close the writer and end the process."""
        self.call("close")
        self._process.communicate()

    def _read(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "done\n", "the writer's process failed"


def _serve(root: str, keywords: dict[str, Any]) -> None:
    writer = EventWriter.open(root, capture_diff=False, **keywords)
    print("done", flush=True)
    for line in sys.stdin:
        method, arguments, named = json.loads(line)
        if method == "log_steps":
            log_steps(writer, *arguments, **named)
        else:
            getattr(writer, method)(*arguments, **named)
        print("done", flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
