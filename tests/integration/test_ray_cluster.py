"""Ray on two nodes: actors that die and come back, dicts of actors merged, runs looked after in tasks, Ray Data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_eventlog import Run
from tests.reference_job.environments import raylet_inside_slurm
from tests.support.cli import Result, rleventlog, rleventlog_process
from tests.support.small_runs import of_newer_version, two_ranks

pytestmark = pytest.mark.integration

NODES = ("one", "two")
STEPS = 6
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

#: Lives until its stdin is closed.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
head = {"num_cpus": 2, "resources": {"one": 9}, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=2, resources={"two": 9})
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""

DRIVER = """
import json, os, sys, time
import ray
from rl_eventlog import EventWriter, Mean, Sum, merge_ranks

@ray.remote(num_cpus=0.1, max_restarts=1, max_task_retries=0)
class Worker:
    def __init__(self, root, rank):
        self.rank = rank
        self.log = EventWriter.open(root, run="r", rank=rank, world_size=4, data_rank=rank // 2, capture_diff=False)

    def who(self):
        return self.log.writer_id, ray.get_runtime_context().get_node_id()

    def step(self, step):
        replica = self.rank // 2
        metrics = {"loss": step + replica / 3, "tokens": 10 + replica}
        if self.rank != 1:
            metrics["grad"] = float(self.rank)
        kinds = {"tokens": "sum", "grad": "max"}
        self.log.log_metrics(metrics, step=step, weight={"loss": 1 + replica}, reduce=kinds, step_finished=True)
        return {**metrics, "loss": Mean(metrics["loss"], weight=1 + replica), "tokens": Sum(metrics["tokens"])}

    def die(self):
        os._exit(7)

    def close(self):
        return self.log.close(60).ok

root, steps = sys.argv[1], int(sys.argv[2])
ray.init(log_to_driver=False)
actors = [Worker.options(resources={("one", "two")[rank % 2]: 1}).remote(root, rank) for rank in range(4)]
lives = [ray.get([actor.who.remote() for actor in actors])]
with EventWriter.open(root, run="r", role="controller", rank=0, world_size=1, capture_diff=False) as log:
    for step in range(steps):
        if step == steps // 2:
            ray.kill(actors[0], no_restart=False)
            actors[3].die.remote()
            for rank in (0, 3):
                again = lives[0][rank]
                while again == lives[0][rank]:
                    try:
                        again = ray.get(actors[rank].who.remote())
                    except ray.exceptions.RayError:  # between two lives
                        time.sleep(0.1)
            lives.append(ray.get([actor.who.remote() for actor in actors]))
        dicts = ray.get([actor.step.remote(step) for actor in actors])
        merged = merge_ranks(dicts, reduce={"grad": "max"}, data_ranks=[0, 0, 1, 1])
        log.log_metrics(merged, step=step, step_finished=True)
assert all(ray.get([actor.close.remote() for actor in actors]))
print(json.dumps(lives))
"""

#: Logs steps FIRST to LAST of two actors that nobody gives a rank.
AGAIN = """
import os, sys
import ray
from rl_eventlog import EventWriter

@ray.remote(num_cpus=0.1)
class Trainer:
    def __init__(self, root):
        assert os.environ["SLURM_PROCID"] and os.environ["PMI_RANK"], "of the raylet"
        self.log = EventWriter.open(root, run="again", capture_diff=False)

    def step(self, step, tokens):
        self.log.log_metrics({"tokens": tokens}, step=step, reduce={"tokens": "sum"}, step_finished=True)

    def close(self):
        return self.log.close(60).ok

root, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ray.init(log_to_driver=False)
actors = [Trainer.options(resources={node: 1}).remote(root) for node in ("one", "two")]
for step in range(first, last):
    ray.get([actor.step.remote(step, 100 + 10 * number + step) for number, actor in enumerate(actors)])
assert all(ray.get([actor.close.remote() for actor in actors]))
print("done")
"""

RAY_DATA = """
import sys
import ray
ray.init(log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
rows = ray.data.read_parquet(sys.argv[1:], columns=["role", "rank", "name", "step", "value"])
frame = rows.to_pandas()
losses = frame[frame["name"] == "train/loss"]
print(losses.sort_values(["rank", "step"])["value"].tolist())
"""


def python(code: str, *arguments: object, address: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **QUIET, "RAY_ADDRESS": address},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster of two nodes on this machine, whose raylets Slurm started."""
    pytest.importorskip("ray")
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **QUIET, **raylet_inside_slurm()},
    ) as cluster:
        assert cluster.stdout is not None
        yield next(line.split()[1] for line in cluster.stdout if line.startswith("address "))
        cluster.communicate(timeout=60)


@pytest.fixture(scope="module")
def job(address: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[list[str]]]]:
    """A run of four actors, and of each life of the group (writer, node) by rank."""
    root = tmp_path_factory.mktemp("ray")
    return root / "r", json.loads(python(DRIVER, root, STEPS, address=address))


def test_actors_that_died_and_came_back_are_the_same_ranks(job: tuple[Path, list[list[list[str]]]]) -> None:
    path, (before, after) = job
    assert len({node for _, node in before}) == len(NODES)
    writers = [{life[rank][0] for life in (before, after)} for rank in range(4)]
    assert [len(lives) for lives in writers] == [2, 1, 1, 2]
    info = Run(path).info
    assert len(info.attempts) == 1
    workers = [rank for rank in info.ranks if rank.role == "Worker"]
    assert {rank.rank: (rank.writer, rank.state) for rank in workers} == {
        number: (after[number][0], "finished") for number in range(4)
    }
    rows = Run(path).metrics("loss", ranks="each", role="Worker").collect()
    for number, lives in enumerate(writers):
        mine = rows.filter(rows["rank"] == number).sort("step")
        assert mine["step"].to_list() == list(range(STEPS))
        assert set(mine["writer"]) == lives


def test_a_driver_restarted_on_a_living_cluster_is_a_second_attempt(address: str, tmp_path: Path) -> None:
    python(AGAIN, tmp_path, 0, 4, address=address)
    python(AGAIN, tmp_path, 2, 6, address=address)
    run = Run(tmp_path / "again")
    columns = ["step", "attempt", "ranks", "value"]
    rows = run.metrics("tokens", role="Trainer").select(columns).collect().rows()
    assert rows == [(step, 1 if step < 2 else 2, 2, 210.0 + 2 * step) for step in range(6)]
    every = run.metrics("tokens", attempts="all").select("step", "attempt").collect().rows()
    assert every == sorted([(step, 1) for step in range(4)] + [(step, 2) for step in range(2, 6)])
    assert {(rank.rank, rank.role) for rank in run.info.ranks} == {(None, "Trainer")}
    assert run.warnings().is_empty()


def test_what_a_controller_merged_is_what_reading_merges(job: tuple[Path, list[list[list[str]]]]) -> None:
    run = Run(job[0])
    columns = ["name", "step", "value"]
    merged, read = (
        run.metrics(role=role).select(columns).sort("name", "step").collect() for role in ("controller", "Worker")
    )
    assert merged.equals(read)
    assert merged.height == 3 * STEPS
    assert merged.filter(merged["name"] == "tokens")["value"].to_list() == [21.0] * STEPS


def ray_engine(*arguments: object, address: str, cwd: Path) -> Result:
    return rleventlog_process(*arguments, "--engine", "ray", cwd=cwd, env={**QUIET, "RAY_ADDRESS": address})


def several_runs(root: Path) -> Path:
    for name in ("a", "c"):
        two_ranks(root, name)
    of_newer_version(root, "b")
    return root


def without_files(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**run, "compacted": len(run.get("compacted", ()))} for run in document["runs"]]


def test_compact_in_ray_says_and_does_what_it_does_here(address: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    several_runs(here / "runs")
    shutil.copytree(here, there)
    result = ray_engine("compact", "runs", "--json", address=address, cwd=there)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        expected = rleventlog("compact", "runs", "--json")
    assert (result.status, expected.status) == (1, 1)
    assert without_files(result.json()) == without_files(expected.json())
    assert result.json()["runs"][0]["sources"] == 4
    assert expected.err in result.err


def test_sync_in_ray_sends_each_run_once(address: str, tmp_path: Path) -> None:
    several_runs(tmp_path / "runs")
    command = ("sync", "runs", "--to", "tensorboard", "--log-dir", "tb", "--json")
    first = ray_engine(*command, address=address, cwd=tmp_path)
    assert first.status == 1, first.err
    outcomes = {sync["path"]: (sync["outcome"], sync.get("points")) for sync in first.json()["syncs"]}
    assert outcomes == {"runs/a": ("done", 12), "runs/b": ("failed", None), "runs/c": ("done", 12)}
    assert "runs/b to tensorboard: " in first.err
    assert sorted(path.name for path in (tmp_path / "tb").iterdir() if path.is_dir()) == ["a", "c"]
    with pytest.MonkeyPatch.context() as patch:  # the record is where a sync of this process has it
        patch.chdir(tmp_path)
        again = rleventlog(*command)
    assert [sync["path"] for sync in again.json()["syncs"]] == ["runs/b"]


def test_ray_data_reads_the_sealed_files(address: str, tmp_path: Path) -> None:
    path = two_ranks(tmp_path)
    files = sorted(path.glob("events/metrics/*/*.parquet"))
    losses = [rank / (step + 1) for rank in (1, 2) for step in range(4)]
    assert json.loads(python(RAY_DATA, *files, address=address)) == losses


def test_without_ray_the_message_names_the_extra(tmp_path: Path) -> None:
    run = two_ranks(tmp_path)
    (tmp_path / "ray.py").write_text("raise ImportError('not here')\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = rleventlog_process("compact", run, "--engine", "ray", env={"PYTHONPATH": paths})
    assert (result.status, result.out) == (1, "")
    assert result.err == 'rleventlog: ray is not installed: pip install "rl-eventlog[ray]"\n'
