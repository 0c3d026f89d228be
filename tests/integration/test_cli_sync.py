"""`rleventlog sync` as a user calls it, with real clients of MLflow and TensorBoard."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_eventlog import EventWriter
from rl_eventlog.ids import new_ulid
from rl_eventlog.reader import RunFiles
from rl_eventlog.sinks import make_sink
from rl_eventlog.sync.lease import hold_lease
from rl_eventlog.sync.ledger import Ledger
from tests.support.cli import rleventlog
from tests.support.servers import free_port
from tests.support.small_runs import damage, of_newer_version, one_rank, two_ranks

pytestmark = pytest.mark.integration

#: train/loss and train/tokens at 4 steps, and timing/training
POINTS = 12


def tensorboard_points(folder: Path) -> dict[tuple[str, int], float]:
    """(tag, step) -> value, as TensorBoard's own reader has it."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {(tag, point.step): point.value for tag in events.Tags()["scalars"] for point in events.Scalars(tag)}


def mlflow_points(database: Path) -> dict[tuple[str, int], float]:
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT key, step, value FROM metrics").fetchall()
    assert len({(key, step) for key, step, _ in rows}) == len(rows)
    return {(key, step): value for key, step, value in rows}


def fingerprint(folder: Path) -> dict[str, str]:
    """Every file below a folder with its digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_every_point_is_sent_once_to_each_target(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "runs")
    places = ["--to", "tensorboard", "--log-dir", tmp_path / "tb", "--to", "mlflow"]
    places += ["--tracking-uri", f"sqlite:///{tmp_path / 'mlflow.db'}"]
    first = rleventlog("sync", run, *places)
    assert first.status == 0, first.err
    assert f"small to tensorboard: sent {POINTS} points, 2 hyperparameters" in first.out
    assert f"small to mlflow: sent {POINTS} points, 2 hyperparameters" in first.out
    again = rleventlog("sync", run, *places)
    assert again.status == 0, again.err
    assert "small to tensorboard: sent nothing" in again.out
    expected = {("train/loss", step): 1.5 / (step + 1) for step in range(4)}
    expected |= {("train/tokens", step): 20.0 for step in range(4)}
    expected |= {("timing/training", step): 0.5 for step in range(4)}
    assert mlflow_points(tmp_path / "mlflow.db") == expected
    assert tensorboard_points(tmp_path / "tb" / "small") == pytest.approx(expected)


def test_json_is_what_the_documentation_says(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "runs")
    result = rleventlog("sync", run, "--to", "tensorboard", "--log-dir", tmp_path / "tb", "--json")
    assert result.status == 0, result.err
    document = result.json()
    (sync,) = document.pop("syncs")
    assert document == {"dry_run": False}
    assert sync.pop("run_uid") == RunFiles.open(run).run_uid
    series = {one["series"]: one for one in sync.pop("series")}
    assert set(series) == {"train/loss", "train/tokens", "timing/training"}
    assert series["train/loss"] == {
        "table": "metrics",
        "role": "trainer",
        "series": "train/loss",
        "axis": None,
        "points": 4,
        "corrections": 0,
    }
    assert sync == {
        "path": str(run),
        "target": "tensorboard",
        "outcome": "done",
        "name": "small",
        "address": str(tmp_path / "tb"),
        "location": str(tmp_path / "tb" / "small"),
        "commits": 1,
        "points": POINTS,
        "corrections": 0,
        "params": 2,
        "samples": 0,
        "resent": 0,
        "held": [],
        "hidden": 0,
        "unplaced": 0,
        "not_sent": {"markers": 1},
        "gaps": [],
        "damaged": [],
        "warnings": [],
    }


def test_without_a_run_everything_unsent_below_the_root_is_sent(tmp_path: Path) -> None:
    os.environ["RLEVENTLOG_DIR"] = str(tmp_path / "runs")
    two_ranks(tmp_path / "runs", "one")
    two_ranks(tmp_path / "runs", "two")
    command = ["sync", "--to", "tensorboard", "--log-dir", tmp_path / "tb", "--json"]
    assert [sync["name"] for sync in rleventlog(*command).json()["syncs"]] == ["one", "two"]
    two_ranks(tmp_path / "runs", "three")
    assert [sync["name"] for sync in rleventlog(*command).json()["syncs"]] == ["three"]
    nothing = rleventlog(*command)
    assert (nothing.status, nothing.json()["syncs"]) == (0, [])
    assert "nothing unsent" in nothing.err


def test_a_dry_run_shows_all_and_writes_nothing(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "runs")
    before = fingerprint(tmp_path)
    command = ["sync", run, "--to", "tensorboard", "--log-dir", tmp_path / "tb", "--dry-run"]
    result = rleventlog(*command)
    assert result.status == 0, result.err
    assert f"would send {POINTS} points" in result.out
    assert ["train/loss", "trainer", "4", "0"] in [line.split() for line in result.out.splitlines()]
    assert rleventlog(*command, "--json").json()["syncs"][0]["location"] is None
    assert fingerprint(tmp_path) == before


def test_one_bad_run_does_not_stop_the_others(tmp_path: Path) -> None:
    bad = of_newer_version(tmp_path / "runs", "bad")
    two_ranks(tmp_path / "runs", "good")
    result = rleventlog("sync", tmp_path / "runs", "--to", "tensorboard", "--log-dir", tmp_path / "tb", "--json")
    assert result.status == 1
    failed, done = result.json()["syncs"]
    assert (failed["outcome"], failed["path"], failed["error_type"]) == ("failed", str(bad), "SchemaVersionError")
    assert (done["outcome"], done["name"], done["points"]) == ("done", "good", POINTS)
    assert f"{bad} to tensorboard: " in result.err


def test_what_a_damaged_segment_leaves_is_sent_and_the_damage_is_named(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "runs")
    broken = min((run / "events" / "timings").rglob("*.parquet"))
    damage(broken)
    result = rleventlog("sync", run, "--to", "tensorboard", "--log-dir", tmp_path / "tb")
    assert result.status == 1
    assert str(broken) in result.err
    assert "timings of writer" in result.err
    assert ("train/loss", 3) in tensorboard_points(tmp_path / "tb" / "small")


def test_a_name_on_two_axes_is_two_curves_at_each_target(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path / "runs", run="axes", role="trainer", rank=0, capture_diff=False) as log:
        for step in range(3):
            log.log_metrics({"loss": float(step)}, step=step)
            log.log_metrics({"loss": 10.0 + step, "tokens": 1000.0 * step}, step=step, step_metric="tokens")
    database = tmp_path / "mlflow.db"
    arguments = ["--to", "tensorboard", "--log-dir", tmp_path / "tb", "--to", "mlflow", "--tracking-uri"]
    assert rleventlog("sync", log.path, *arguments, f"sqlite:///{database}").status == 0
    expected = {("loss", step): float(step) for step in range(3)}
    expected |= {("loss/by_tokens", 1000 * step): 10.0 + step for step in range(3)}
    assert tensorboard_points(tmp_path / "tb" / "axes") == expected
    assert mlflow_points(database) == expected


def test_damage_that_leaves_no_gap_is_told_by_the_status_too(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "runs")
    some = min((run / "events" / "metrics").rglob("*.parquet"))
    broken = some.with_name(f"{new_ulid()}-0.arrows")
    broken.write_bytes(b"no segment any more" * 10)
    result = rleventlog("sync", run, "--to", "tensorboard", "--log-dir", tmp_path / "tb", "--json")
    assert result.status == 1
    (sync,) = result.json()["syncs"]
    assert (sync["outcome"], sync["points"], len(sync["damaged"])) == ("damaged", POINTS, 1)
    assert f"damaged: {broken}: " in result.err


def test_what_no_target_gets_yet_is_counted_and_named(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path / "runs", run="all", role="trainer", rank=0, capture_diff=False) as log:
        log.log_metrics({"loss": 1.0, "lengths": [1.0, 2.0, 3.0]}, step=0)
        log.log_metrics({"lengths": [1.0]}, step=1, step_finished=True)
        log.log_gpu_samples([{"gpu_index": 0, "utilization": 50.0}] * 3)
        log.log_samples([{"prompt": "1 + 1", "response": "2"}], step=0)
        log.log_samples([{"prompt": "1 + 1", "response": "3"}] * 4, step=0, split="rollout")
        log.mark("checkpoint", step=1)
    command = ["sync", log.path, "--to", "tensorboard", "--log-dir", tmp_path / "tb"]
    first = rleventlog(*command)
    assert first.status == 0, first.err
    left = "not sent yet: 2 distributions, 3 GPU samples, 1 markers, 4 rollout samples"
    assert f"{log.path} to tensorboard: {left}" in first.err
    (again,) = rleventlog(*command, "--json").json()["syncs"]
    assert again["not_sent"] == {"distributions": 2, "gpu_samples": 3, "markers": 1, "rollout_samples": 4}


def test_where_no_runs_are_sync_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLEVENTLOG_DIR", raising=False)
    result = rleventlog("sync", "--to", "tensorboard", "--json")
    assert (result.status, result.out) == (1, "")
    assert result.err == "rleventlog: runs: no such folder; give one that holds runs\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "prometheus"], "'prometheus' is not one of 'mlflow', 'tensorboard', 'wandb'"),
        (["--to", "tensorboard", "--tracking-uri", "sqlite:///x.db"], "belongs to `--to mlflow`"),
        (["--to", "mlflow", "--offline"], "belongs to `--to wandb`"),
        ([], "Missing option '--to'. Choose from: mlflow, tensorboard, wandb"),
        (["--to", "tensorboard", "--hold", "sometimes"], "sometimes"),
    ],
)
def test_wrong_usage_is_status_2_and_sends_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    run = two_ranks(tmp_path / "runs")
    before = fingerprint(tmp_path)
    result = rleventlog("sync", run, *arguments)
    assert (result.status, result.out) == (2, "")
    assert said in " ".join(result.err.split())
    assert fingerprint(tmp_path) == before


def test_a_path_that_is_no_run_is_named(tmp_path: Path) -> None:
    result = rleventlog("sync", tmp_path / "missing", "--to", "tensorboard", "--log-dir", tmp_path / "tb")
    assert result.status == 1
    assert f"{tmp_path / 'missing'}: no run" in result.err
    assert not (tmp_path / "tb").exists()


@pytest.mark.parametrize(
    ("target", "module", "extra"),
    [("mlflow", "mlflow", "mlflow"), ("tensorboard", "google_crc32c", "tensorboard"), ("wandb", "wandb", "wandb")],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, module: str, extra: str
) -> None:
    run = two_ranks(tmp_path / "runs")
    for name in [name for name in sys.modules if name.startswith("rl_eventlog.sinks")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # how Python marks what cannot be imported
    result = rleventlog("sync", run, "--to", target)
    assert result.status == 1
    assert f'pip install "rl-eventlog[{extra}]"' in result.err
    assert "Traceback" not in result.err


def test_an_unreachable_server_is_named_in_bounded_time(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "runs")
    address = f"http://127.0.0.1:{free_port()}"
    began = time.monotonic()
    result = rleventlog("sync", run, "--to", "mlflow", "--tracking-uri", address, "--timeout", "3")
    assert result.status == 1
    assert time.monotonic() - began < 30.0
    assert address in result.err
    assert "Traceback" not in result.err


def test_a_run_that_another_sync_holds_is_left_alone(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "runs")
    sink = make_sink("tensorboard", log_dir=tmp_path / "tb")
    ledger = Ledger(run, RunFiles.open(run).run_uid, sink.kind, sink.address)
    ledger.folder.mkdir(parents=True)
    with hold_lease(ledger.folder):
        result = rleventlog("sync", run, "--to", "tensorboard", "--log-dir", tmp_path / "tb", "--json")
    assert result.status == 1
    assert result.json()["syncs"][0]["outcome"] == "leased"
    assert str(os.getpid()) in result.err


def test_steps_of_a_live_run_wait_for_the_checkpoint_unless_told_otherwise(tmp_path: Path) -> None:
    command = ["--to", "tensorboard", "--log-dir", tmp_path / "tb", "--json"]
    with EventWriter.open(tmp_path / "runs", run="live", role="trainer", rank=0, capture_diff=False) as log:
        for step in range(4):
            log.log_metrics({"loss": 1.0}, step=step, step_finished=True)
        log.mark("checkpoint", step=1)
        waiting = rleventlog("sync", log.path, *command)
        assert waiting.status == 1
        (sync,) = waiting.json()["syncs"]
        assert (sync["outcome"], sync["points"]) == ("waiting", 2)
        assert [(one["role"], one["reason"], one["points"]) for one in sync["held"]] == [("trainer", "checkpoint", 2)]
        assert "wait from step 2" in waiting.err
        now = rleventlog("sync", log.path, *command, "--hold", "none")
        assert (now.status, now.json()["syncs"][0]["points"]) == (0, 2)
        log.log_metrics({"loss": 1.0}, step=4)
        assert rleventlog("sync", log.path, *command, "--hold", "none").status == 1
        final = rleventlog("sync", log.path, *command, "--hold", "none", "--final")
        assert (final.status, final.json()["syncs"][0]["points"]) == (0, 1)
    ended = rleventlog("sync", log.path, *command)
    assert (ended.status, ended.json()["syncs"][0]["points"]) == (0, 0)
    assert [step for _, step in sorted(tensorboard_points(tmp_path / "tb" / "live"))] == [0, 1, 2, 3, 4]


def test_mlflow_takes_the_project_of_the_run_as_experiment(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    for run in (two_ranks(tmp_path / "runs"), one_rank(tmp_path / "runs", "without", {"loss": 1.0})):
        assert rleventlog("sync", run, "--to", "mlflow", "--tracking-uri", f"sqlite:///{database}").status == 0
    with closing(sqlite3.connect(database)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM experiments")}
    assert names >= {"tests", "rl-eventlog"}


def test_a_run_that_was_moved_is_not_sent_again(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "runs")
    places = ["--to", "tensorboard", "--log-dir", tmp_path / "tb", "--json"]
    assert rleventlog("sync", run, *places).json()["syncs"][0]["points"] == POINTS
    moved = shutil.move(run, tmp_path / "archive")
    assert rleventlog("sync", moved, *places).json()["syncs"][0]["points"] == 0
