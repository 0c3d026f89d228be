"""The reference job, started twice and more: right attempts, no sum doubled, nothing hidden that should be seen."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from rl_eventlog import Run
from rl_eventlog.reader import contradictions
from tests.reference_job.environments import (
    Environment,
    allocation,
    array_task,
    batch,
    interactive_shell,
    mpirun,
    pty_shell,
    srun,
    torchrun,
)
from tests.reference_job.launcher import launch, start, wait_until
from tests.reference_job.trainer import Plan, expected

pytestmark = pytest.mark.integration

NAMES = ("tokens", "loss")


@dataclass(frozen=True, slots=True)
class Start:
    """What one start logs: `ranks` ranks, the steps from `first` up to `steps`."""

    ranks: int
    first: int
    steps: int


def check(run: Run, *starts: Start, role: str = "trainer", attempts: Sequence[int] | None = None) -> None:
    """The starts are the attempts of these numbers, the last that has a step is seen, and all values are exact."""
    numbers = range(1, len(starts) + 1) if attempts is None else attempts
    numbered = list(zip(numbers, starts, strict=True))
    every = [(step, n, one.ranks) for n, one in numbered for step in range(one.first, one.steps)]
    latest = {step: (step, n, ranks) for step, n, ranks in every}
    columns = ["step", "attempt", "ranks", "value"]
    for name in NAMES:
        seen = run.metrics(name, role=role).select(columns).collect().rows()
        assert seen == [(*row, expected(row[2], row[0])[name]) for row in sorted(latest.values())]
        apart = run.metrics(name, role=role, attempts="all").select(columns).collect().rows()
        assert apart == [(*row, expected(row[2], row[0])[name]) for row in sorted(every)]
    total = run.metrics("tokens", role=role).select(pl.col("value").sum()).collect().item()
    assert total == sum(expected(ranks, step)["tokens"] for step, _, ranks in latest.values())


def kinds(run: Run) -> list[tuple[str, str]]:
    return run.warnings().select("kind", "role").rows()


Environments = list[Environment]


def in_job(environments: Environments, **options: int) -> Environments:
    """Ranks that torchrun started from a batch script."""
    return [batch(**options) | environment for environment in environments]


TWICE: dict[str, tuple[Environments, Environments]] = {
    "torchrun twice by hand with its default id": (torchrun(2, local=2), torchrun(2, local=2)),
    "torchrun twice by hand with one id": (torchrun(2, local=2, run_id="a"), torchrun(2, local=2, run_id="a")),
    "torchrun restarted by its agent": (torchrun(2, local=2), torchrun(2, local=2, restarts=(1,))),
    "torchrun on several nodes in a requeued job that gives its id": (
        in_job(torchrun(4, local=2, run_id="4711")),
        in_job(torchrun(4, local=2, run_id="4711"), restarts=1),
    ),
    "torchrun on fewer nodes": (torchrun(6, local=2, run_id="a"), torchrun(4, local=2, run_id="a")),
    "python twice in an allocation": ([allocation()], [allocation()]),
    "python twice in a batch script": ([batch()], [batch()]),
    "python twice in a shell of srun": ([pty_shell()], [pty_shell()]),
    "python twice in a shell of salloc": ([interactive_shell()], [interactive_shell()]),
    "srun twice in an allocation": (srun(2), srun(2, step=1)),
    "srun in a requeued job": (srun(2), srun(2, restarts=1)),
    "mpirun twice": (mpirun(2, job=1), mpirun(2, job=2)),
    "no launcher": ([{}], [{}]),
}


@pytest.mark.parametrize(("first", "second"), TWICE.values(), ids=TWICE)
def test_a_second_start_is_a_second_attempt(tmp_path: Path, first: Environments, second: Environments) -> None:
    plan = Plan(str(tmp_path), steps=4)
    assert launch(first, plan) == [0] * len(first)
    assert launch(second, replace(plan, first=2, steps=6)) == [0] * len(second)
    run = Run(tmp_path / "job")
    check(run, Start(len(first), 0, 4), Start(len(second), 2, 6))
    assert run.warnings().is_empty()


def test_attempts_follow_one_another_though_clocks_are_minutes_apart(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path))
    for number, minutes in enumerate((10, 0, -10)):
        clocked = replace(plan, first=2 * number, steps=2 * number + 4, clock_seconds=60.0 * minutes)
        assert launch(srun(2, restarts=number), clocked) == [0, 0]
    run = Run(tmp_path / "job")
    check(run, Start(2, 0, 4), Start(2, 2, 6), Start(2, 4, 8))
    assert run.warnings().is_empty()


def test_a_rank_restarted_inside_an_attempt_replaces_what_it_logged_before(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path), steps=4)
    environments = srun(3)
    assert launch(environments, plan) == [0] * 3
    behind = replace(plan, first=2, clock_seconds=-600.0)  # it comes back on a machine of another clock
    assert launch(environments[1:2], behind) == [0]
    run = Run(tmp_path / "job")
    check(run, Start(3, 0, 4))
    assert len(run.info.attempts) == 1
    each = run.metrics("tokens", ranks="each").filter(pl.col("rank") == 1).sort("step").collect()
    assert each["step"].to_list() == [0, 1, 2, 3]
    again, before = sorted(set(each["writer"]))  # by that clock
    assert each["writer"].to_list() == [before, before, again, again]


def test_a_job_that_goes_on_with_48_of_64_ranks(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path), steps=4, every=2, die=(50, 3))
    statuses = launch(torchrun(64, local=8, run_id="a"), plan)
    assert statuses[50] == -9
    assert launch(torchrun(48, local=8, run_id="a"), plan) == [0] * 48
    run = Run(tmp_path / "job")
    columns = ["step", "attempt", "ranks", "value"]
    for name in NAMES:
        expect = [(s, *((1, 64) if s < 2 else (2, 48)), expected(64 if s < 2 else 48, s)[name]) for s in range(4)]
        assert run.metrics(name).select(columns).collect().rows() == expect
    assert [attempt.attempt for attempt in run.info.attempts] == [1, 2]
    assert run.warnings().is_empty()


def test_tasks_of_an_array_job_are_attempts_where_they_share_a_name_and_runs_where_they_do_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(str(tmp_path), run="sweep-1.5b", steps=3)
    for task in range(3):
        assert launch([array_task(task)], plan) == [0]
        assert launch([array_task(task)], replace(plan, run=None)) == [0]
    assert capfd.readouterr().err.count("all tasks of the array job write to one run") == 3
    check(Run(tmp_path / "sweep-1.5b"), *[Start(1, 0, 3)] * 3)
    for task in range(3):
        check(Run(tmp_path / f"slurm-4700-{task}"), Start(1, 0, 3))


def segments_there(path: Path) -> int:
    return len(list(path.glob("events/metrics/*/*.arrows")))


def test_two_launches_alive_at_once_are_two_attempts_and_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plan = tmp_path / "job", Plan(str(tmp_path), steps=4, hold=str(tmp_path / "hold"))
    one = start(srun(2), plan)
    wait_until(lambda: segments_there(path) == 2)
    two = start(srun(2, step=1), replace(plan, first=2, steps=6))
    evaluation = start(srun(1, step=2), replace(plan, role="eval"))
    wait_until(lambda: segments_there(path) == 5)
    (tmp_path / "hold").touch()
    assert [one.wait(), two.wait(), evaluation.wait()] == [[0, 0], [0, 0], [0]]
    run = Run(path)
    check(run, Start(2, 0, 4), Start(2, 2, 6), attempts=attempts_of(run, "trainer"))
    check(run, Start(1, 0, 4), role="eval", attempts=attempts_of(run, "eval"))
    monkeypatch.setattr(contradictions, "_LINGER", timedelta(0))  # they live a second here, not hours
    assert kinds(run) == [("launches_overlap", "trainer")]


def attempts_of(run: Run, role: str) -> list[int]:
    return [attempt.attempt for attempt in run.info.attempts if role in attempt.roles]


def make_a_week_older(path: Path) -> None:
    for file in path.rglob("*"):
        os.utime(file, (time.time() - 7 * 86400,) * 2)


@pytest.mark.parametrize("resumes", [False, True])
def test_an_evaluation_a_week_later_hides_nothing_of_the_training(tmp_path: Path, resumes: bool) -> None:
    plan = Plan(str(tmp_path), steps=6)
    assert launch(srun(2), plan) == [0, 0]
    make_a_week_older(tmp_path / "job")
    (tmp_path / "job.eval.checkpoint").write_text("1")  # as it evaluates from there, it says resume_step=2
    evaluation = replace(plan, role="eval", clock_seconds=7 * 86400.0, every=9 if resumes else 0, steps=4)
    assert launch(srun(2, job=5000), evaluation) == [0, 0]
    run = Run(tmp_path / "job")
    check(run, Start(2, 0, 6), attempts=[1])
    check(run, Start(2, 2 if resumes else 0, 4), role="eval", attempts=[2])
    assert run.warnings().is_empty()


def test_an_attempt_without_rows_between_two_others_hides_nothing(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path), steps=4)
    assert launch(srun(2), plan) == [0, 0]
    assert launch(srun(2, restarts=1), replace(plan, first=4)) == [0, 0]
    assert launch(srun(2, restarts=2), replace(plan, first=2, steps=6)) == [0, 0]
    run = Run(tmp_path / "job")
    assert [attempt.rows for attempt in run.info.attempts][1] == provenance_rows(run, 2)
    check(run, Start(2, 0, 4), Start(2, 2, 6), attempts=[1, 3])
    assert run.warnings().is_empty()


def provenance_rows(run: Run, attempt: int) -> int:
    """Rows of an attempt that the library adds by itself."""
    return run.hparams(history=True).filter(pl.col("attempt") == attempt).collect().height


def test_a_launch_id_that_is_used_again_is_reported(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path), steps=4)
    for number, launch_id in enumerate(("monday", "tuesday", "monday")):
        given = [environment | {"RLEVENTLOG_LAUNCH_ID": launch_id} for environment in srun(2)]
        assert launch(given, replace(plan, first=number, steps=number + 4)) == [0, 0]
    run = Run(tmp_path / "job")
    assert len(run.info.attempts) == 2
    assert ("launch_again", "trainer") in kinds(run)
