"""Ray actors that are killed: each call that returned is there, and the run says which actors are gone.

One small cluster for all of it, in a process of its own: importing Ray warns, and its workers outlive a failed test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_eventlog import Run
from rl_eventlog.maintain import seal, verify
from tests.support.cli import rleventlog
from tests.support.raw import assert_dense, raw_rows

pytestmark = pytest.mark.integration

STEPS = 50

DRIVER = """
import json, os, sys, time
import ray

@ray.remote(num_cpus=0.1, max_restarts=1, max_task_retries=0)
class RolloutWorker:
    def __init__(self, root, mode):
        from rl_eventlog import EventWriter
        self.log = EventWriter.open(root, run="r", capture_diff=False, write=mode, stall_budget_ms=20_000)
        self.writer = self.log.writer_id

    def who(self):
        return self.writer, os.getpid()

    def steps(self, first, last):
        for step in range(first, last):
            self.log.log_metrics({"reward": step}, step=step)
        return last

    def endlessly(self, path):
        step = 0
        with open(path, "w") as returned:
            while True:
                self.log.log_metrics({"endless": step}, step=step)
                step += 1
                returned.seek(0)
                returned.write(str(step))
                returned.flush()

    def close(self):
        return self.log.close(60).ok

root, steps = sys.argv[1], int(sys.argv[2])
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
actors = {mode: [RolloutWorker.remote(root, mode) for _ in range(3)] for mode in ("direct", "queued")}
found = {}
for mode, (closes, killed, restarted) in actors.items():
    before = ray.get([actor.who.remote() for actor in (closes, killed, restarted)])
    ray.get([actor.steps.remote(0, steps) for actor in (closes, killed, restarted)])
    path = os.path.join(root, f"returned-{mode}")
    killed.endlessly.remote(path)
    while not os.path.exists(path) or not (said := open(path).read()) or int(said) < steps:
        time.sleep(0.01)
    ray.kill(killed)
    ray.kill(restarted, no_restart=False)
    again = before[2]
    while again == before[2]:
        try:
            again = ray.get(restarted.who.remote())
        except ray.exceptions.RayError:  # between two lives
            time.sleep(0.1)
    ray.get(restarted.steps.remote(steps, 2 * steps))
    assert ray.get(closes.close.remote())
    assert ray.get(restarted.close.remote())
    found[mode] = {"closed": before[0], "killed": before[1], "before": before[2], "again": again}
print(json.dumps(found))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """The run, and of each way to write the writers and pids of its actors."""
    pytest.importorskip("ray")
    root = tmp_path_factory.mktemp("ray")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(root), str(STEPS)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return root / "r", json.loads(done.stdout.splitlines()[-1])


def values(path: Path, writer: str, name: str) -> list[Any]:
    rows = [row for row in raw_rows(path, "metrics") if row["writer"] == writer]
    assert_dense(rows)
    return [row["value"] for row in rows if row["name"] == name]


@pytest.mark.parametrize("mode", ["direct", "queued"])
def test_no_call_that_returned_in_a_killed_actor_is_lost(
    job: tuple[Path, dict[str, dict[str, Any]]], mode: str
) -> None:
    path, found = job
    actors = {name: writer for name, (writer, _) in found[mode].items()}
    for name in ("closed", "killed", "before"):
        assert values(path, actors[name], "reward") == list(range(STEPS))
    assert values(path, actors["again"], "reward") == list(range(STEPS, 2 * STEPS))
    endless = values(path, actors["killed"], "endless")
    assert endless == list(range(len(endless)))
    assert len(endless) >= int((path.parent / f"returned-{mode}").read_text())


def test_a_killed_actor_is_lost_and_one_that_was_restarted_is_the_same_rank(
    job: tuple[Path, dict[str, dict[str, Any]]],
) -> None:
    path, found = job
    info = Run(path).info
    states = {rank.writer: (rank.state, rank.reason) for rank in info.ranks}
    expected = {}
    for actors in found.values():
        writer, pid = actors["killed"]
        expected[writer] = ("lost", f"process {pid} is gone and wrote no end")
        expected |= {actors[name][0]: ("finished", "ended: finished") for name in ("closed", "again")}
    assert states == expected
    assert info.state == "lost"
    assert len(info.attempts) == 1
    shown = rleventlog("show", path, "--ranks")
    assert shown.status == 0
    assert shown.out.count("wrote no end") == 2
    kinds = [(finding.severity, finding.kind) for finding in verify(path).findings if finding.kind != "torn tail"]
    assert kinds == [("warning", "lost")] * 2 + [("note", "no end")] * 2
    # of a restarted actor every step counts: the later incarnation has the later ones
    for actors in found.values():
        steps = Run(path).metrics("reward", ranks="each").collect()
        mine = steps.filter(steps["writer"].is_in([actors["before"][0], actors["again"][0]]))
        assert sorted(mine["step"]) == list(range(2 * STEPS))


def test_what_killed_actors_left_is_sealed(job: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    path, _ = job
    before = sorted(map(repr, Run(path).metrics(ranks="each").collect().rows()))
    report = seal(path)
    assert (len(report.sealed), report.left_alone, report.problems) == (4, (), ())
    assert sorted(map(repr, Run(path).metrics(ranks="each").collect().rows())) == before
