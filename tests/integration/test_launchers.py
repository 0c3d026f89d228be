"""Real launchers: what processes find out about themselves under torchrun and in Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

LOG = """
import sys
from rl_eventlog import EventWriter
with EventWriter.open(sys.argv[1], run="r", capture_diff=False) as log:
    log.log_metrics({"a": 1}, step=1)
"""

RAY = """
import os, sys
os.environ.update(SLURM_JOB_ID="4711", SLURM_STEP_ID="0", SLURM_PROCID="6", SLURM_NTASKS="8")
os.environ.update(PMI_RANK="1", PMI_SIZE="2")
import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=0.5)
class RolloutWorker:
    def __init__(self, root):
        from rl_eventlog import EventWriter
        self.log = EventWriter.open(root, capture_diff=False)
    def step(self, number):
        self.log.log_metrics({"a": number}, step=number)
        return str(self.log.path)
    def close(self):
        return self.log.close().ok

workers = [RolloutWorker.remote(sys.argv[1]) for _ in range(2)]
paths = set(ray.get([worker.step.remote(number) for number, worker in enumerate(workers)]))
assert all(ray.get([worker.close.remote() for worker in workers]))
from rl_eventlog import EventWriter
with EventWriter.open(sys.argv[1], role="driver", capture_diff=False) as log:
    paths.add(str(log.path))
assert len(paths) == 1, paths
print(paths.pop())
ray.shutdown()
"""


def run(command: list[str], **env: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def writers(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(path for path in (folder / "writers").glob("*.json") if not path.name.endswith(".end.json"))
    return [json.loads(path.read_bytes()) for path in paths]


def test_torchrun_twice_with_its_default_id_is_two_launches_of_two_ranks(tmp_path: Path) -> None:
    script, wrapper = tmp_path / "log.py", tmp_path / "wrapper.sh"
    script.write_text(LOG)
    wrapper.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nexit $?\n')  # a shell between agent and rank
    wrapper.chmod(0o755)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    for _ in range(2):
        run([*torchrun, "--no-python", str(wrapper), str(script), str(tmp_path)])
    documents = writers(tmp_path / "r")
    assert [d["launch_source"] for d in documents] == ["torchelastic"] * 4
    launches = [d["launch"] for d in documents]
    assert launches[0] == launches[1] != launches[2] == launches[3]
    for pair in (documents[:2], documents[2:]):
        assert sorted(d["rank"] for d in pair) == [0, 1]
        assert {(d["world_size"], d["rank_source"]) for d in pair} == {(2, "torchrun")}
    assert len(list((tmp_path / "r" / "launches").iterdir())) == 2


def test_ray_actors_inside_slurm(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = Path(run([sys.executable, "-c", RAY, str(tmp_path)], RAY_USAGE_STATS_ENABLED="0").split()[-1])
    documents = writers(folder)
    actors = [d for d in documents if d["role"] == "RolloutWorker"]
    assert len(actors) == 2
    assert len({d["actor"] for d in actors}) == 2
    assert len(documents) == 3
    assert {(d["rank"], d["world_size"], d["rank_source"]) for d in documents} == {(None, None, "ray")}
    (launch,) = {d["launch"] for d in documents}
    assert launch.startswith("ray-session_")
    assert folder.name == launch
