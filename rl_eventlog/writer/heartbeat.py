"""The threads behind a writer: heartbeat; fsync, rotation by age, sealing. They never enter the training.

The training's call never waits for it, and it does not have to end for the process to end: what it
did not seal stays open, which is a valid end.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rl_eventlog.documents import encode_beat, now_utc, time_text

logger = logging.getLogger("rl_eventlog")


class Heartbeat:
    """Writes the `.beat` file of a writer in place."""

    def __init__(self, path: Path, describe: Callable[[], dict[str, Any]]) -> None:
        """Remember where and what; `describe` gives the fields besides `time`."""
        self._path = path
        self._describe = describe
        self._fd = -1

    def beat(self) -> None:
        """Write one beat.

        Raises:
            OSError: it could not be written.
        """
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.pwrite(self._fd, encode_beat(self._describe() | {"time": time_text(now_utc())}), 0)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Background:
    """Does some jobs each interval on a daemon thread until it is stopped.

    A job that fails neither stops the others nor the thread.

    Attributes:
        failures: jobs that failed so far; the first is named in the log.
    """

    def __init__(self, name: str, jobs: Sequence[Callable[[], None]], interval_seconds: float) -> None:
        """Start the thread, of that name."""
        self.failures = 0
        self._jobs = jobs
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Ask it to end and wait; True if it did in time."""
        self._stop.set()
        self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            for job in self._jobs:
                try:
                    job()
                except Exception as error:  # noqa: BLE001 -- a thread that dies takes heartbeat and seals with it
                    self.failures += 1
                    if self.failures == 1:
                        logger.warning("rl-eventlog's background work failed, it goes on trying: %r", error)
            if self._stop.wait(self._interval):
                return


def call_within(work: Callable[[], None], timeout_seconds: float) -> bool:
    """Run `work` on a daemon thread for at most so long; True if it came to its end."""
    failure: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 -- whatever it is, the caller's training goes on
            failure.append(error)

    thread = threading.Thread(target=run, name="rl-eventlog-close", daemon=True)
    try:
        thread.start()
        thread.join(max(0.0, timeout_seconds))
    except RuntimeError:  # the interpreter is shutting down and starts no more threads
        run()
    if failure:
        logger.warning("rl-eventlog could not finish closing: %r", failure[0])
    return not thread.is_alive() and not failure
