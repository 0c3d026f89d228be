"""Writers that are killed, one after the other, cheaply: a process forks each of them.

Run as a module it is that process: it has everything imported and logs nothing itself. Each line of stdin is
a `Trial` in JSON; it answers with a line: what was acknowledged, and what each thread was doing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.phases import Aim, Page, Watch, install, kill_self
from tests.support.planned import TABLES, log_step

_CHECKOUT = Path(__file__).parents[2]


@dataclass(slots=True)
class Trial:
    """A writer, and how it is killed: by itself where it is aimed, else from outside."""

    root: str
    options: dict[str, Any]
    """Of `EventWriter.open`."""
    steps: int
    """To log; then it closes, and is killed at the end at the latest."""
    aim: Aim | None = None
    after: int = 0
    """Acknowledged calls to wait for before the kill from outside."""
    seconds: float = 0.0
    """To wait then."""


@dataclass(slots=True)
class Killed:
    """What is known of a killed writer."""

    calls: dict[str, int]
    """Calls that had returned, by table."""
    phases: list[str]
    """What its threads were doing, the training's first."""


class KilledWriters:
    """The process that forks the writers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed_writers"],
            cwd=_CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, trial: Trial) -> Killed:
        """Let one log and be killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(trial)) + "\n")
        self._process.stdin.flush()
        return Killed(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def _serve() -> None:
    from rl_eventlog.writer.preload import load_all

    load_all()
    page = Page()
    watch = Watch(page)
    install(watch)
    for line in sys.stdin:
        trial = _parse(line)
        page.clear()
        child = os.fork()
        if not child:
            _log_until_killed(trial, watch)
        if trial.aim is None:
            _kill(child, trial, page)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status), "the writer failed"
        assert os.WTERMSIG(status) == signal.SIGKILL
        calls = dict(zip(TABLES, page.counters(), strict=False))
        print(json.dumps(asdict(Killed(calls, page.phases()))), flush=True)


def _parse(line: str) -> Trial:
    given = json.loads(line)
    return Trial(**given | {"aim": Aim(**given["aim"]) if given["aim"] else None})


def _kill(child: int, trial: Trial, page: Page) -> None:
    while sum(page.counters()) < trial.after and not _is_dead(child):
        time.sleep(0.0003)
    time.sleep(trial.seconds)
    os.kill(child, signal.SIGKILL)


def _is_dead(child: int) -> bool:
    """Whether it has ended; it stays there to be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _log_until_killed(trial: Trial, watch: Watch) -> None:
    """In the child of the fork. Does not return."""
    try:
        from rl_eventlog import EventWriter

        watch.aim, watch.watching = trial.aim, True
        watch.base("opening")
        log = EventWriter.open(trial.root, run="r", rank=1, capture_diff=False, **trial.options)
        watch.base("logging")
        for number in range(trial.steps):
            log_step(log, number, lambda table: watch.page.count(TABLES.index(table)))
        watch.base("closing")
        log.close(60)
        watch.base("closed")
        kill_self()
    except BaseException:  # noqa: BLE001 -- nothing of a fork may return into the server's loop
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    _serve()
