"""A rank that was killed: its rows are read, and it is known to be lost at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_eventlog import EventWriter, Run

RANK = """
import sys
from rl_eventlog import EventWriter
log = EventWriter.open(sys.argv[1], run="r", role="trainer", rank=1, world_size=2, launch_id="one")
for step in range(3):
    log.log_metrics({"loss": float(step)}, step=step)
print("logged", flush=True)
sys.stdin.read()
"""


@pytest.mark.crash
def test_a_killed_rank_is_lost_at_once_and_its_rows_are_merged(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="r", role="trainer", rank=0, world_size=2, launch_id="one") as log:
        for step in range(3):
            log.log_metrics({"loss": step + 1.0}, step=step)
        child = subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == "logged\n"
            run = Run(tmp_path / "r")
            assert [rank.state for rank in run.info.ranks] == ["running", "running"]
            os.kill(child.pid, signal.SIGKILL)
        info = run.refresh().info
        assert [rank.state for rank in info.ranks] == ["running", "lost"]
        assert info.ranks[1].reason == f"process {child.pid} is gone and wrote no end"
        assert (info.state, info.roles[0].state, info.ranks[1].last_step) == ("lost", "lost", 2)
    rows = run.refresh().metrics().sort("step").select("step", "value", "ranks").collect().rows()
    assert rows == [(0, 0.5, 2), (1, 1.5, 2), (2, 2.5, 2)]
    assert run.info.gaps == ()
