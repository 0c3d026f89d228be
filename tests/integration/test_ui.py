"""What a user sees: MLflow and TensorBoard started for real, and opened in a headless browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.support.browser import Page, browser
from tests.support.demo_run import DemoRun
from tests.support.servers import free_port, serving

pytestmark = [pytest.mark.integration, pytest.mark.needs_chromium]

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


def test_tensorboard_shows_the_hyperparameters(
    demo_run: DemoRun, tensorboard: str, page: Page, screenshots: Path
) -> None:
    page.open(f"{tensorboard}#hparams")
    # the table has a line for each run, which begins with its id
    text = page.wait_for(f"{DEEP_TEXT}.includes('{demo_run.run_uid}') && {DEEP_TEXT}")
    page.screenshot(screenshots / "tensorboard-hparams.png")
    for name in ("algorithm", "group_size", "grpo", "learning_rate"):
        assert name in text
