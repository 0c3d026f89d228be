"""A notebook whose kernel is killed, restarted or used on: it opens its run again, and nothing is lost or summed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_eventlog import Run
from rl_eventlog.maintain import verify
from rl_eventlog.run import RunInfo
from tests.support.kernel import Kernel
from tests.support.raw import assert_dense, raw_rows

pytestmark = pytest.mark.integration

OPEN = "log = rle.EventWriter.open({root!r}, run='r', capture_diff=False)"
LOG = """
for step in range({first}, {last}):
    log.log_metrics({{"loss": step}}, step=step)
step
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    with Kernel(tmp_path / "home") as kernel:
        kernel.run("import rl_eventlog as rle")
        yield kernel


def begin(kernel: Kernel, root: Path, first: int, last: int) -> None:
    kernel.run(OPEN.format(root=str(root)))
    assert kernel.run(LOG.format(first=first, last=last)) == str(last - 1)


def states(info: RunInfo) -> list[tuple[int, str]]:
    return [(rank.attempt, rank.state) for rank in info.ranks]


def losses(root: Path) -> list[float]:
    rows = raw_rows(root / "r", "metrics")
    assert_dense(rows)
    return sorted(row["value"] for row in rows)


@pytest.mark.parametrize("now", [True, False], ids=["killed", "asked to end"])
def test_a_kernel_that_is_restarted_opens_its_run_as_a_new_attempt(tmp_path: Path, kernel: Kernel, now: bool) -> None:
    begin(kernel, tmp_path, 0, 30)
    assert states(Run(tmp_path / "r").info) == [(1, "running")]
    kernel.restart(now=now)
    assert states(Run(tmp_path / "r").info) == [(1, "lost")]
    kernel.run("import rl_eventlog as rle")
    begin(kernel, tmp_path, 20, 50)
    info = Run(tmp_path / "r").info
    assert states(info) == [(2, "running")]
    assert [attempt.rows for attempt in info.attempts] == [30, 30]
    assert losses(tmp_path) == sorted([*range(30), *range(20, 50)])
    read = Run(tmp_path / "r").metrics("loss").collect()
    assert read["value"].to_list() == read["step"].to_list() == list(range(50))
    assert read["attempt"].to_list() == [1] * 20 + [2] * 30
    assert verify(tmp_path / "r").ok
    kernel.run("print(log.close().ok)")
    assert states(Run(tmp_path / "r").info) == [(2, "finished")]


def test_a_cell_that_opens_the_run_once_more_is_the_same_rank(tmp_path: Path, kernel: Kernel) -> None:
    """Nobody closes: the first writer is forgotten, and stays open until the kernel ends."""
    begin(kernel, tmp_path, 0, 30)
    begin(kernel, tmp_path, 20, 50)
    run = Run(tmp_path / "r")
    assert states(run.info) == [(1, "running")]
    assert len(run.files.writers) == 2
    read = run.metrics("loss").collect()
    assert read["value"].to_list() == list(range(50))
    assert set(read["ranks"]) == {1}
    assert losses(tmp_path) == sorted([*range(30), *range(20, 50)])
    assert verify(tmp_path / "r").ok


def test_a_cell_that_is_interrupted_leaves_whole_rows_and_the_next_one_goes_on(tmp_path: Path, kernel: Kernel) -> None:
    kernel.run(OPEN.format(root=str(tmp_path)))
    ready = tmp_path / "ready"
    kernel.interrupt_when(
        ready,
        f"""
import pathlib
step = 0
while True:
    log.log_metrics({{"loss": step}}, step=step)
    step += 1
    if step == 100:
        pathlib.Path({str(ready)!r}).touch()
""",
    )
    returned = int(kernel.run("step"))
    kernel.run('log.log_metrics({"loss": -1.0}, step=0)')
    logged = losses(tmp_path)
    assert logged[0] == -1
    assert logged[1:] == list(range(len(logged) - 1))
    assert returned <= len(logged) - 1 <= returned + 1
    assert states(Run(tmp_path / "r").info) == [(1, "running")]


def test_a_kernel_that_is_shut_down_leaves_its_rank_lost(tmp_path: Path, kernel: Kernel) -> None:
    begin(kernel, tmp_path, 0, 30)
    kernel.shutdown()
    assert losses(tmp_path) == list(range(30))
    info = Run(tmp_path / "r").info
    assert states(info) == [(1, "lost")]
    assert info.ranks[0].reason == f"process {kernel.pid} is gone and wrote no end"
