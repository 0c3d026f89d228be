"""`rleventlog demo`: the whole way, on this machine, in about two minutes."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_eventlog_cli import output
from rl_eventlog_cli.options import FAILED, Json

if TYPE_CHECKING:
    from rl_eventlog_cli.demo.perform import Places
    from rl_eventlog_cli.demo.report import Report, SlowRank


def command(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the demo puts everything.")] = Path(
        "demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
    small: Annotated[bool, typer.Option("--small", help="Train for seconds only: learns nothing, shows the rest.")] = (
        False
    ),
    as_json: Json = False,
) -> None:
    """Train, kill a rank, restart, sync to three targets, compare.

    Five processes train for real: a small policy learns to sort digits, with torch, without any download. One is
    killed with SIGKILL in the middle. The event log goes to a local MLflow database, a TensorBoard folder and W&B
    offline folders. Nothing leaves this machine. Called again, it adds a run.

    Exit status 0 where every row was kept once, every target holds every point once, and the policy learned; else 1.
    """
    from rl_eventlog_cli.demo.config import DemoConfig
    from rl_eventlog_cli.demo.perform import Places, perform

    places = Places(folder)
    config = DemoConfig.small(seed=seed) if small else DemoConfig(seed=seed)
    report = perform(places, config, must_learn=not small, say=output.words)
    if as_json:
        output.print_json(report.to_json())
    else:
        _show(report, places)
    failures = list(report.failures())
    for failure in failures:
        output.words(f"FAILED: {failure}")
    if failures:
        raise typer.Exit(FAILED)


def _show(report: Report, places: Places) -> None:
    rows = report.rows
    output.line()
    output.table(
        ["", ""],
        [
            ("run", f"{report.run}, seed {report.seed}, {report.attempts} attempts, {report.killed} killed"),
            ("training", f"{report.training_seconds:.0f} s on 5 processes"),
            (
                "rows logged",
                f"{rows.acknowledged:,} acknowledged: {rows.kept:,} kept, {rows.acknowledged - rows.kept:,} lost",
            ),
            ("rows stored", f"{rows.stored:,} of all tables: {rows.doubled:,} doubled, {rows.missing:,} missing"),
            ("points", f"{report.points:,} in the log, merged over ranks and attempts"),
            *((f"  in {target}", f"{points:,}") for target, points in report.points_at.items()),
            (
                "accuracy",
                f"{report.accuracy_first:.2f} in the first 10 evaluations, {report.accuracy_last:.2f} in the last 10",
            ),
            ("slowest rank", _describe(report.slowest)),
        ],
        heading=False,
    )
    output.line()
    output.line("open it:")
    for command_line in ways_to_open(report, places):
        output.to_paste(command_line)


def _describe(slowest: SlowRank) -> str:
    excess = slowest.mean_seconds / slowest.role_mean_seconds - 1
    return (
        f"{slowest.role} {slowest.rank}: {slowest.mean_seconds * 1000:.1f} ms for each {slowest.name}, "
        f"{excess:.1%} over the mean of its role"
    )


def ways_to_open(report: Report, places: Places) -> Iterator[str]:
    """Commands that show the run in each tool, to be pasted into a shell in this folder."""
    run = shlex.quote(str(report.run))
    database = shlex.quote(f"sqlite:///{places.folder / 'mlflow.db'}")
    yield f"{_program('mlflow')} ui --port 5000 --backend-store-uri {database}"
    yield f"{_program('tensorboard')} --logdir {shlex.quote(str(places.tensorboard))}"
    # the client's own viewer of offline folders; the shell finds the file of the first commit
    wandb = shlex.quote(str(places.wandb(report.run.name)))
    yield f"{_program('wandb')} leet inspect --summary {wandb}/*-00000001/wandb/*/run-*.wandb"
    yield f"{_program('rleventlog')} show {run}"
    yield f"{_program('rleventlog')} samples {run} --best 3"
    # sealed files hold everything in columns, so Polars alone is enough
    query = f"import polars as pl; print(pl.read_parquet({json.dumps(f'{report.run}/events/metrics/*/*.parquet')}))"
    yield f"{_program('python')} -c {shlex.quote(query)}"


def _program(name: str) -> str:
    """How to call a program of this environment, which need not be on PATH."""
    beside = Path(sys.executable).with_name(name)
    if not beside.is_file() or shutil.which(name) == str(beside):
        return name
    with suppress(ValueError):  # then the absolute path
        beside = beside.relative_to(Path.cwd())
    return shlex.quote(str(beside))
