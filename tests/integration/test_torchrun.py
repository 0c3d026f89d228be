"""Real torchrun, whose ranks die and nodes come and go: each start is one attempt that holds all its ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rl_eventlog import Run
from tests.reference_job.launcher import CHECKOUT, wait_until
from tests.reference_job.trainer import Plan, expected

pytestmark = pytest.mark.integration

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
RANK = ["-m", "tests.reference_job.trainer"]


def agent(*options: str, plan: Plan) -> subprocess.Popen[bytes]:
    """One node's torchrun."""
    return subprocess.Popen(
        [*TORCHRUN, *options, *RANK, json.dumps(asdict(plan))],
        cwd=CHECKOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def curve(run: Run, name: str) -> list[tuple[int, float, int, int]]:
    """(step, value, ranks, attempt) of a merged metric."""
    return run.metrics(name).select("step", "value", "ranks", "attempt").collect().rows()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def writers(run: Path) -> list[dict[str, Any]]:
    paths = sorted(path for path in (run / "writers").glob("*.json") if not path.name.endswith(".end.json"))
    return [json.loads(path.read_bytes()) for path in paths]


def make_old(run: Path) -> None:
    """Let an hour pass since the launches began."""
    for path in (run / "launches").iterdir():
        os.utime(path, (time.time() - 3600,) * 2)


def test_a_killed_rank_an_elastic_restart_and_a_checkpoint_give_one_run_with_the_right_curves(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path), steps=10, every=3, die=(2, 7))
    with agent("--standalone", "--nproc-per-node", "4", "--max-restarts", "1", plan=plan) as job:
        assert job.wait(120) == 0
    run = Run(tmp_path / "job")
    attempts = run.info.attempts
    assert [attempt.attempt for attempt in attempts] == [1, 2]
    assert [run.files.writers[w].resume_step for w in run.files.writers].count(6) == 4
    for name in ("tokens", "loss"):
        assert curve(run, name) == [(step, expected(4, step)[name], 4, 1 if step < 6 else 2) for step in range(10)]
    total = run.metrics("tokens").select(pl.col("value").sum()).collect().item()
    assert total == sum(expected(4, step)["tokens"] for step in range(10))
    both = run.metrics("tokens", attempts="all").filter(pl.col("step") == 6).collect()
    assert both["attempt"].to_list() == [1, 2]
    assert both["value"].to_list() == [expected(4, 6)["tokens"]] * 2
    assert run.warnings().is_empty()


def rendezvous(port: int, nodes: str) -> list[str]:
    """Options of each of several nodes on this machine."""
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job7"]
    quickly = ["--rdzv-conf", "last_call_timeout=1,keep_alive_interval=1"]
    return [*meet, *quickly, "--nnodes", nodes, "--nproc-per-node", "2", "--max-restarts", "3"]


def test_a_rank_killed_on_one_of_two_nodes_gives_one_second_attempt_with_all_ranks(tmp_path: Path) -> None:
    plan, path = Plan(str(tmp_path), steps=6, every=2, die=(3, 4), wait_at=4), tmp_path / "job"
    options = rendezvous(free_port(), "2")
    with agent(*options, plan=plan) as one, agent(*options, plan=plan) as two:
        wait_until(lambda: len(list(tmp_path.glob("waits.4.*"))) == 4)
        make_old(path)
        (tmp_path / "go").touch()
        assert (one.wait(120), two.wait(120)) == (0, 0)
    counts = {(d["launch"], d["restart_count"], d["restart_source"]) for d in writers(path)}
    assert sorted((launch[-6:], *rest) for launch, *rest in counts) == [
        ("-w4-r0", 0, "launches"),
        ("-w4-r1", 1, "launches"),
    ]
    assert curve(Run(path), "tokens") == [
        (step, expected(4, step)["tokens"], 4, 1 if step < 4 else 2) for step in range(6)
    ]


def test_a_node_that_joins_and_leaves_begins_an_attempt_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # with it, agents of torch 2.13 lose a late node
    plan, path = Plan(str(tmp_path), steps=6, every=2, die=(0, 4), wait_at=4), tmp_path / "job"
    options = rendezvous(free_port(), "1:2")
    with agent(*options, plan=plan) as one:
        wait_until(lambda: len(list(tmp_path.glob("waits.2.*"))) == 2)
        with agent(*options, plan=plan) as two:
            wait_until(lambda: len(list(tmp_path.glob("waits.4.*"))) == 4)
            two.send_signal(signal.SIGTERM)  # as a preempted node
        (tmp_path / "go").touch()
        assert one.wait(120) == 0
    run = Run(path)
    ranks = [sorted(d["rank"] for d in writers(path) if d["launch"] == attempt.launch) for attempt in run.info.attempts]
    assert ranks == [[0, 1], [0, 1, 2, 3], [0, 1]]
    assert curve(run, "tokens") == [(step, expected(2, step)["tokens"], 2, 1 if step < 4 else 3) for step in range(6)]
    seen = (
        run.metrics("tokens", attempts="all").filter(pl.col("step") == 4).select("attempt", "ranks", "value").collect()
    )
    assert seen.rows() == [(n, k, expected(k, 4)["tokens"]) for n, k in ((1, 2), (2, 4), (3, 2))]
