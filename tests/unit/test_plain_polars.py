"""Sealed files need nothing of ours: Polars alone reads them, in a process that never imports rl_eventlog."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from rl_eventlog import EventWriter
from rl_eventlog.reader import RunFiles
from rl_eventlog.schema import TABLES

READ = """
import sys
import polars as pl
run, table, target = sys.argv[1:]
pl.scan_parquet(f"{run}/events/{table}/**/*.parquet").collect().write_parquet(target)
assert not [name for name in sys.modules if name.startswith("rl_eventlog")]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed run of three writers in two roles, every table, several segments each."""
    root = tmp_path_factory.mktemp("runs")
    artifact = root / "notes.txt"
    artifact.write_text("hello")
    for role, rank in (("trainer", 0), ("trainer", 1), ("rollout", None)):
        with EventWriter.open(
            root, run="r", role=role, rank=rank, launch_id="l", capture_diff=False, segment_bytes=4000
        ) as log:
            for step in range(20):
                log.log_metrics(
                    {"loss": 1.0 / (step + 1), "nan": float("nan"), "null": None}, step=step, prefix="train"
                )
                log.log_metrics({"reward": float(step), "n": step * 10}, step=step, step_metric="n", reduce="sum")
                log.log_timing("generate", 0.5, step, start=1_700_000_000.0)
                log.log_samples([{"prompt": "é", "rewards": {"a": 1.0}, "token_ids": [1, 2], "x": step}], step)
                log.log_histogram([1.0, -2.0, 0.0], step, "lengths")
                log.mark("checkpoint", step=step, path="/ckpt")
            log.log_hyperparams({"lr": 0.1})
            log.log_gpu_samples([{"gpu_index": 0, "utilization_ratio": 0.5}])
            log.log_artifact(artifact)
    # what a crash in the middle of a seal leaves must not disturb the glob
    shard = next((root / "r" / "events" / "metrics").iterdir())
    (shard / ".tmp-01hzzzzzzzzzzzzzzzzzzzzzzz").write_bytes(b"PAR1 half a file")
    return root / "r"


@pytest.mark.parametrize("table", TABLES)
def test_the_recipe_gives_the_rows_of_the_reader(run: Path, table: str, tmp_path: Path) -> None:
    target = tmp_path / "plain.parquet"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", READ, str(run), table, str(target)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    plain = pl.read_parquet(target).sort("writer", "seq")
    ours = RunFiles.open(run).rows(table).collect().sort("writer", "seq")
    assert plain.height == ours.height > 0
    assert plain.columns == ours.columns
    assert plain.equals(ours, null_equal=True)


def test_many_files_lie_behind_one_glob(run: Path) -> None:
    assert len(list(run.glob("events/metrics/**/*.parquet"))) > 3
    assert list(run.rglob("*.arrows")) == []


def test_all_identity_is_in_the_rows(run: Path) -> None:
    rows = pl.read_parquet(f"{run}/events/metrics/**/*.parquet")
    found = rows.group_by("role", "rank", "launch").agg(pl.col("writer").n_unique(), pl.col("node").n_unique())
    assert sorted(found.rows(), key=str) == [
        ("rollout", None, "l", 1, 1),
        ("trainer", 0, "l", 1, 1),
        ("trainer", 1, "l", 1, 1),
    ]
    assert set(rows["node"]) == {os.uname().nodename}
