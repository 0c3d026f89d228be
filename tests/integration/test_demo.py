"""`rleventlog demo`: one real demo, and what is found when someone else looks at what it left, in a browser too."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_eventlog import Run
from rl_eventlog_cli.demo.report import Report, Rows, SlowRank
from rl_eventlog_cli.demo.wandb_file import read_offline_runs
from rl_eventlog_cli.demo.witness import acknowledged
from tests.support.browser import Page, browser
from tests.support.cli import rleventlog, rleventlog_process
from tests.support.demo_run import DemoRun
from tests.support.servers import free_port, serving

pytestmark = pytest.mark.integration

Curve = dict[int, float]


def in_log(run: Run, name: str, role: str) -> Curve:
    return dict(run.metrics(name, role=role).select("step", "value").collect().iter_rows())


def in_mlflow(demo: DemoRun, key: str) -> Curve:
    client = MlflowClient(demo.tracking_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (remote,) = client.search_runs(experiments, filter_string=f"tags.`rleventlog.run_uid` = '{demo.run_uid}'")
    return {point.step: point.value for point in client.get_metric_history(remote.info.run_id, key)}


def in_tensorboard(folder: Path, tag: str) -> Curve:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {point.step: point.value for point in events.Scalars(tag)}


def in_wandb(demo: DemoRun, key: str, axis: str) -> Curve:
    rows = [row for commit in read_offline_runs(demo.places.wandb(demo.name)) for row in commit.history]
    return {row[axis]: row[key] for row in rows if key in row}


def test_the_demo_succeeds_and_all_its_numbers_agree(demo_run: DemoRun) -> None:
    report = demo_run.report
    assert demo_run.status == 0, demo_run.err
    assert report["failures"] == []
    assert report["attempts"] == 2
    assert report["rows"]["acknowledged"] == report["rows"]["kept"] > 5000
    assert (report["rows"]["doubled"], report["rows"]["missing"]) == (0, 0)
    assert report["points"] > 2000
    assert report["points_at"] == dict.fromkeys(("mlflow", "tensorboard", "wandb"), report["points"])
    assert report["accuracy_last"] >= max(0.5, 3 * report["accuracy_first"])


def test_every_target_holds_the_curves_of_the_log(demo_run: DemoRun) -> None:
    run = Run(demo_run.path)
    curve = in_log(run, "validation/accuracy", "controller")
    assert len(curve) == 50
    assert in_mlflow(demo_run, "validation/accuracy") == curve
    assert in_tensorboard(demo_run.log_dir / demo_run.name, "validation/accuracy") == pytest.approx(curve)
    assert in_wandb(demo_run, "validation/accuracy", "step") == curve
    tokens = in_log(run, "tokens", "rollout")
    assert in_mlflow(demo_run, "rollout/tokens") == tokens
    assert in_tensorboard(demo_run.log_dir / demo_run.name / "rollout", "rollout/tokens") == tokens
    assert in_wandb(demo_run, "rollout/tokens", "rollout_step") == tokens


def test_the_rank_that_was_killed_kept_every_row_it_was_promised(demo_run: DemoRun) -> None:
    run = Run(demo_run.path)
    killed = {
        writer: facts
        for writer, facts in run.files.writers.items()
        if facts.end is None and (facts.role, facts.rank) == ("trainer", 1)
    }
    (writer,) = killed
    promised = acknowledged(demo_run.places.checkpoints(demo_run.name))[writer]
    rows = run.files.rows("metrics").filter(pl.col("writer") == writer).select("seq", "step").sort("seq").collect()
    assert rows["seq"].to_list() == list(range(promised["metrics"]))
    assert rows["step"].max() == int(demo_run.report["killed"].partition("@")[2])


def test_steps_that_were_trained_twice_are_those_of_the_restart(demo_run: DemoRun) -> None:
    run = Run(demo_run.path)
    seen = run.metrics("train/loss", attempts="all").group_by("step").agg(pl.col("attempt").sort()).collect()
    twice = [step for step, attempts in seen.iter_rows() if attempts == [1, 2]]
    assert len(twice) > 5
    latest = run.metrics("train/loss").filter(pl.col("step").is_in(twice)).collect()
    assert latest["attempt"].to_list() == [2] * len(twice)


def test_show_finds_nothing_wrong_with_it(demo_run: DemoRun) -> None:
    shown = rleventlog("show", demo_run.path, "--json")
    assert (shown.status, shown.err) == (0, "")
    document = shown.json()
    assert document["state"] == "finished"
    assert {(role["role"], role["ranks_seen"], role["ranks_expected"]) for role in document["roles"]} == {
        ("controller", 1, 1),
        ("rollout", 2, 2),
        ("trainer", 2, 2),
    }


def test_a_second_demo_is_a_run_beside_the_first_and_what_it_prints_can_be_pasted(tmp_path: Path) -> None:
    (tmp_path / "demo" / "runs" / "sort-digits-1").mkdir(parents=True)
    result = rleventlog_process("demo", "--small", cwd=tmp_path)
    assert result.status == 0, result.err
    assert "trainer 1 died with status -9" in result.err
    assert "sort-digits-2" in result.out
    commands = [line.strip() for line in result.out.split("open it:\n")[1].splitlines()]
    mlflow, tensorboard, *at_once = commands
    assert shlex.split(mlflow)[1:] == ["ui", "--port", "5000", "--backend-store-uri", "sqlite:///demo/mlflow.db"]
    assert shlex.split(tensorboard)[1:] == ["--logdir", "demo/tensorboard"]
    assert len(at_once) == 4
    for command in at_once:
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout


def test_without_torch_the_demo_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = None")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = rleventlog_process("demo", "--dir", tmp_path / "demo", env={"PYTHONPATH": path})
    assert result.status == 1
    assert 'pip install "rl-eventlog[torch]"' in result.err
    assert "Traceback" not in result.err


GOOD = Report(
    run=Path("runs/x"),
    run_uid="0",
    seed=0,
    killed="trainer:1@5",
    training_seconds=1.0,
    attempts=2,
    rows=Rows(acknowledged=10, kept=10, stored=20, doubled=0, missing=0),
    points=5,
    points_at={"mlflow": 5, "tensorboard": 5, "wandb": 5},
    accuracy_first=0.1,
    accuracy_last=0.9,
    slowest=SlowRank("trainer", 1, "training", 0.2, 0.1),
    must_learn=True,
)


def test_a_report_without_fault_has_no_failures() -> None:
    assert list(GOOD.failures()) == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (replace(GOOD, rows=GOOD.rows._replace(kept=9)), "1 of 10 acknowledged rows are not in the files"),
        (replace(GOOD, rows=GOOD.rows._replace(doubled=2)), "2 rows are in the run more than once"),
        (replace(GOOD, rows=GOOD.rows._replace(missing=3)), "3 rows are missing before later ones"),
        (replace(GOOD, points_at={**GOOD.points_at, "wandb": 6}), "wandb holds 6 points, the run has 5"),
        (replace(GOOD, attempts=1), "1 attempts"),
        (replace(GOOD, accuracy_last=0.49), "from 0.10 to 0.49"),
        (replace(GOOD, accuracy_first=0.4), "from 0.40 to 0.90"),
    ],
    ids=["lost", "doubled", "gap", "target", "attempts", "accuracy", "gain"],
)
def test_each_number_that_is_wrong_is_a_failure(bad: Report, said: str) -> None:
    (failure,) = bad.failures()
    assert said in failure


# What a user sees: MLflow and TensorBoard started for real, and opened in a headless browser.

MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # its workers for background jobs are slow to start, and nothing here needs them
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}

#: All text of the page, also in the shadow trees that innerText does not see.
DEEP_TEXT = """(() => {
    const walk = (node) =>
        node.nodeType === Node.TEXT_NODE ? node.textContent :
        ['STYLE', 'SCRIPT', 'NOSCRIPT'].includes(node.tagName) ? '' :
        [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes].map(walk).join(' ');
    return walk(document.body);
})()"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path) as page:
        yield page


@pytest.fixture
def mlflow_ui(demo_run: DemoRun, tmp_path: Path) -> Iterator[str]:
    """Address of `mlflow ui` as the demo prints it, on another port."""
    port = free_port()
    command = ["mlflow", "ui", "--port", str(port), "--workers", "1", "--backend-store-uri", demo_run.tracking_uri]
    health = f"http://127.0.0.1:{port}/health"
    with serving(command, health=health, log=tmp_path / "mlflow.log", cwd=tmp_path, env=MLFLOW_ENVIRONMENT):
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def tensorboard(demo_run: DemoRun, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = ["tensorboard", "--logdir", str(demo_run.log_dir), "--host", "127.0.0.1", "--port", str(port)]
    with serving(command, health=f"http://127.0.0.1:{port}/", log=tmp_path / "tensorboard.log", cwd=tmp_path):
        yield f"http://127.0.0.1:{port}/"


@pytest.mark.needs_chromium
def test_mlflow_shows_the_hyperparameters_and_the_curves(
    demo_run: DemoRun, mlflow_ui: str, page: Page, screenshots: Path
) -> None:
    client = MlflowClient(demo_run.tracking_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (remote,) = client.search_runs(experiments, filter_string=f"tags.`rleventlog.run_uid` = '{demo_run.run_uid}'")
    address = f"{mlflow_ui}#/experiments/{remote.info.experiment_id}/runs/{remote.info.run_id}"

    page.open(address)
    text = page.wait_for("document.body.innerText.includes('learning_rate') && document.body.innerText")
    shown = "[...document.querySelectorAll('*')].filter((one) => one.innerText === 'learning_rate').pop()"
    page.evaluate(f"{shown}.scrollIntoView({{block: 'center'}})")
    page.screenshot(screenshots / "mlflow-hyperparameters.png")
    assert demo_run.name in text
    assert re.search(r"algorithm\s+grpo", text)
    assert re.search(r"group_size\s+8", text)
    assert re.search(r"Status\s+Finished", text)

    page.open(f"{address}/model-metrics")
    # plotly draws one .js-line for each curve on screen
    drawn = page.wait_for("document.querySelectorAll('.js-line').length >= 3 && document.body.innerText")
    page.screenshot(screenshots / "mlflow-curves.png")
    assert f"{demo_run.name} (" in drawn
    shapes = page.evaluate("[...document.querySelectorAll('.js-line')].map((line) => line.getAttribute('d').length)")
    assert min(shapes) > 100, "a curve of the demo has many points"


@pytest.mark.needs_chromium
def test_tensorboard_shows_the_curves(demo_run: DemoRun, tensorboard: str, page: Page, screenshots: Path) -> None:
    # its charts need WebGL unless told to draw what the page itself can tell of
    page.open(f"{tensorboard}?forceSVG=true#timeseries")
    curves = (
        "[...document.querySelectorAll('line-chart svg path')].filter((path) => path.getAttribute('d').length > 500)"
    )
    text = page.wait_for(f"{curves}.length >= 3 && document.body.innerText")
    page.screenshot(screenshots / "tensorboard-curves.png")
    assert demo_run.name in text
    assert f"{demo_run.name}/rollout" in text
    for group in ("rollout", "timing", "train", "validation"):
        assert group in text


@pytest.mark.needs_chromium
def test_tensorboard_shows_the_hyperparameters(
    demo_run: DemoRun, tensorboard: str, page: Page, screenshots: Path
) -> None:
    page.open(f"{tensorboard}#hparams")
    # the table has a line for each run, which begins with its id
    text = page.wait_for(f"{DEEP_TEXT}.includes('{demo_run.run_uid}') && {DEEP_TEXT}")
    page.screenshot(screenshots / "tensorboard-hparams.png")
    for name in ("algorithm", "group_size", "grpo", "learning_rate"):
        assert name in text
