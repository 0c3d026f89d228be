"""SIGKILL at any moment of a sync: what the target holds in the end is what one clean sync leaves."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_eventlog import EventWriter
from rl_eventlog.sync import plan, replay
from tests.support.memory_sink import MemorySink
from tests.support.remote_writer import log_steps
from tests.support.sync_child import ADDRESS, MAX_POINTS

pytestmark = pytest.mark.crash

CHECKOUT = Path(__file__).parents[2]
STEPS = 12


def sync_child(folder: Path, moment: int = 0) -> subprocess.CompletedProcess[str]:
    """Sync elsewhere; dead at `moment`."""
    return subprocess.run(
        [sys.executable, "-m", "tests.support.sync_child", str(folder), str(moment)],
        cwd=CHECKOUT,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def log(folder: Path, start: int, stop: int, *, offset: float = 0.0, launch: str = "first") -> None:
    with EventWriter.open(folder / "runs", run="grpo", rank=0, launch_id=launch, capture_diff=False) as writer:
        writer.log_hyperparams({"launch": launch})
        log_steps(writer, start, stop, offset=offset)
        writer.log_samples([{"prompt": f"of {launch}"}] * 3, step=start)


def grow(folder: Path) -> None:
    """New rows, and a restart that logs two sent steps again with other values."""
    log(folder, STEPS - 2, STEPS + 3, offset=0.5, launch="second")


def kinds(folder: Path) -> list[dict[str, object]]:
    """What arrived, without the commit it came in, in an order that no kill changes."""
    rows = [{**row, "commit": None} for row in MemorySink(folder / "target").rows()]
    return sorted(rows, key=str)


@pytest.fixture
def clean(tmp_path: Path) -> tuple[Path, int]:
    """A folder with a run that was never synced, and how many moments a clean sync of it has."""
    log(tmp_path / "origin", 0, STEPS)
    shutil.copytree(tmp_path / "origin", tmp_path / "clean")
    done = sync_child(tmp_path / "clean")
    assert done.returncode == 0
    return tmp_path, int(done.stdout)


def check_kills(folder: Path, moments: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill at each moment, sync again, let the run grow, sync again; compare with no kill at all."""
    monkeypatch.setattr(plan, "MAX_POINTS", MAX_POINTS)

    def finish(case: Path) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(case / "state"))
        replay(case / "runs" / "grpo", MemorySink(case / "target", address=ADDRESS))

    after_first = kinds(folder / "clean")
    grow(folder / "clean")
    finish(folder / "clean")
    after_growth = kinds(folder / "clean")
    assert MemorySink(folder / "clean" / "target").doubled() == []
    for moment in moments:
        case = shutil.copytree(folder / "origin", folder / f"killed at {moment}")
        assert sync_child(case, moment).returncode == -signal.SIGKILL, f"moment {moment} never came"
        finish(case)
        assert kinds(case) == after_first, f"killed at {moment}"
        finish(case)
        assert kinds(case) == after_first, f"killed at {moment}, synced twice"
        grow_like(folder / "clean", case)
        finish(case)
        assert kinds(case) == after_growth, f"killed at {moment}, grown"
        shutil.rmtree(case)


def grow_like(grown: Path, case: Path) -> None:
    """Let the run grow by the very files by which the other one did."""
    shutil.copytree(grown / "runs", case / "runs", ignore=shutil.ignore_patterns(".sync"), dirs_exist_ok=True)


def test_killed_anywhere_and_run_again_everything_arrives_once(
    clean: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, count = clean
    assert count > 60
    # one in each eighth of the sync, so that planning, sending and confirming all come up
    draw = random.Random(0)
    moments = [draw.randint(1 + count * part // 8, count * (part + 1) // 8) for part in range(8)]
    check_kills(folder, moments, monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_at_every_single_moment(clean: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, count = clean
    check_kills(folder, list(range(1, count + 1)), monkeypatch)


def test_killed_while_sending_what_grew_everything_arrives_once(
    clean: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = clean
    monkeypatch.setattr(plan, "MAX_POINTS", MAX_POINTS)
    base = folder / "clean"
    grow(base)
    shutil.copytree(base, folder / "whole")
    done = sync_child(folder / "whole")
    whole, count = kinds(folder / "whole"), int(done.stdout)
    versions = MemorySink(folder / "whole" / "target").versions()
    corrected = {position for (series, _, position), values in versions.items() if series == "loss" and len(values) > 1}
    assert corrected == {STEPS - 2, STEPS - 1}
    draw = random.Random(1)
    for moment in (draw.randint(1 + count * part // 3, count * (part + 1) // 3) for part in range(3)):
        case = shutil.copytree(base, folder / f"killed at {moment}")
        assert sync_child(case, moment).returncode == -signal.SIGKILL
        assert sync_child(case, moment // 2 + 1).returncode in (0, -signal.SIGKILL)  # and the second try, too
        assert sync_child(case).returncode == 0
        assert kinds(case) == whole, f"killed at {moment}"
