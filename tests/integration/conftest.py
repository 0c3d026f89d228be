"""What several integration tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.cli import rleventlog_process
from tests.support.demo_run import DemoRun


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """The result of the demo with seed 0: five processes, one killed, three targets. Do not write to it."""
    folder = tmp_path_factory.mktemp("demo")
    state = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("demo-state"))}
    done = rleventlog_process("demo", "--dir", folder, "--json", env=state)
    assert done.out, done.err
    return DemoRun(folder, done.status, done.json(), done.err)


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of the tools go: `$RLEVENTLOG_SCREENSHOTS` where a person wants to look at them."""
    wanted = os.environ.get("RLEVENTLOG_SCREENSHOTS")
    folder = Path(wanted) if wanted else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
