"""`rleventlog sync`: send what the targets lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rl_eventlog_cli import output
from rl_eventlog_cli.engine import Engine, EngineOption, work_on
from rl_eventlog_cli.options import FAILED, Json, default_root, hint
from rl_eventlog_cli.target import Target

if TYPE_CHECKING:
    from rl_eventlog.sync import Progress, SyncOptions, SyncReport, SyncResult

Hold = Literal["checkpoint", "none"]
Outcome = Literal["done", "waiting", "damaged", "leased", "failed"]

_WORDS = {"gpu_samples": "GPU samples", "rollout_samples": "rollout samples"}


class Kind(str, Enum):
    """What `--to` takes: Typer knows no list of literals."""

    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"


def command(
    to: Annotated[
        list[Kind],
        typer.Option("--to", metavar="TARGET", help="mlflow, tensorboard or wandb; may be repeated."),
    ],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN|ROOT]...", help="Runs, or folders of runs; default: $RLEVENTLOG_DIR, else ./runs."
        ),
    ] = None,
    tracking_uri: Annotated[str | None, typer.Option(metavar="URI", help="MLflow: default is its own.")] = None,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="MLflow: default is the run's project, else rl-eventlog.")
    ] = None,
    log_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="TensorBoard: default is ./tensorboard.")] = None,
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="W&B: default is the run's project, else rl-eventlog.")
    ] = None,
    entity: Annotated[str | None, typer.Option(metavar="NAME", help="W&B: user or team.")] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="W&B: address of the server.")] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="W&B: write folders below ./wandb for `wandb sync`; needs no server.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be sent.")] = False,
    final: Annotated[bool, typer.Option("--final", help="Also send steps that a writer may still add to.")] = False,
    hold: Annotated[
        Hold, typer.Option(help="checkpoint: of a live run, keep back the steps beyond its newest checkpoint.")
    ] = "checkpoint",
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=1.0, help="Longest wait for a server in one call.")
    ] = None,
    engine: EngineOption = "local",
    as_json: Json = False,
) -> None:
    """Send to each target what it lacks of each run.

    Every point is sent once, at its original step and time, also after a kill. A path that holds many runs, like the
    default, stands for those with something unsent. One bad run does not stop the others.

    Exit statuses: 0 all is sent; 1 something failed, is damaged, waits (the run is still written, or rows are missing),
    or is being sent by another sync; 2 wrong usage. With --dry-run: 0 where it could be told what would be sent.
    """
    places: dict[str, dict[str, Any]] = {
        "mlflow": {"tracking_uri": tracking_uri, "experiment": experiment},
        "tensorboard": {"log_dir": log_dir},
        "wandb": {"project": project, "entity": entity, "base_url": base_url, "offline": offline or None},
    }
    from rl_eventlog.sync import SyncOptions

    targets = _targets([kind.value for kind in to], places, timeout)
    options = SyncOptions(dry_run=dry_run, final=final, hold=hold)
    documents = []
    outcomes: set[Outcome] = set()
    for target in targets:
        for result in _sync(_chosen(paths, target), target, options, engine):
            outcome = _outcome(result, dry_run=dry_run)
            outcomes.add(outcome)
            if as_json:
                documents.append(_document(result, target, outcome))
            else:
                _show(result, target, dry_run=dry_run)
            _explain(result, target)
    if as_json:
        output.print_json({"dry_run": dry_run, "syncs": documents})
    if outcomes - {"done"}:
        raise typer.Exit(FAILED)


def _targets(kinds: Sequence[str], places: dict[str, dict[str, Any]], timeout: float | None) -> list[Target]:
    """The targets in the order given, each once.

    Raises:
        typer.BadParameter: an option of a target that was not asked for.
    """
    for kind, options in places.items():
        for option, value in options.items():
            if value is not None and kind not in kinds:
                raise typer.BadParameter(f"belongs to `--to {kind}`", param_hint=f"--{option.replace('_', '-')}")
    if timeout is not None:
        places["mlflow"]["timeout_seconds"] = places["wandb"]["timeout_seconds"] = timeout
    return [
        Target(kind, {option: value for option, value in places[kind].items() if value is not None})
        for kind in dict.fromkeys(kinds)
    ]


def _chosen(paths: Sequence[Path] | None, target: Target) -> list[Path]:
    """A run stands for itself, a folder of runs for those with something unsent.

    Raises:
        RunNotFoundError: no path is given, and where runs lie by default there is nothing.
    """
    from rl_eventlog.errors import RunNotFoundError
    from rl_eventlog.reader import find_runs
    from rl_eventlog.sync import unsent_runs

    root = default_root()
    if not paths and not root.is_dir():
        raise RunNotFoundError(f"{root}: no such folder; give one that holds runs")
    chosen: list[Path] = []
    for path in paths or [root]:
        found = find_runs(path)
        if found and found != [path]:
            found = unsent_runs(path, target.make_sink)
            if not found:
                output.words(f"nothing unsent below {path} for {target.kind}")
        elif not found:
            found = [path]  # syncing it tells what is wrong
        chosen += found
    return list(dict.fromkeys(chosen))


def _sync(paths: Sequence[Path], target: Target, options: SyncOptions, engine: Engine) -> Iterator[SyncResult]:
    from rl_eventlog.sync import SyncResult, sync_many

    many = partial(sync_many, make_sink=target.make_sink, options=options)
    with _progress(target, shown=engine == "local" and not options.dry_run) as progress:
        if progress is not None:
            many = partial(many, progress=progress)
        yield from work_on(paths, many, lambda path, error: SyncResult(path, error=error), engine=engine)


@contextmanager
def _progress(target: Target, *, shown: bool) -> Iterator[Callable[[Path], Progress] | None]:
    """A bar for the run at work on a terminal; nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bars, TextColumn, TimeRemainingColumn

    console = output.console(stderr=True)
    if not shown or not console.is_terminal or console.is_dumb_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:

        def of_run(path: Path) -> Progress:
            for done in bars.task_ids:
                bars.remove_task(done)
            task = bars.add_task(f"{output.plain(path.name)} to {target.kind}", total=None)
            return lambda sent, total: bars.update(task, completed=sent, total=total)

        yield of_run


def _outcome(result: SyncResult, *, dry_run: bool) -> Outcome:
    from rl_eventlog.errors import LeaseHeldError

    if result.report is None:
        return "leased" if isinstance(result.error, LeaseHeldError) else "failed"
    if dry_run:
        return "done"
    if result.report.held or result.report.gaps:
        return "waiting"
    return "damaged" if result.report.damaged else "done"


def _show(result: SyncResult, target: Target, *, dry_run: bool) -> None:
    report = result.report
    if report is None:
        return
    done = "would send" if dry_run else "sent"
    counts = ", ".join(_counts(report)) or "nothing"
    place = report.address if report.location is None else report.location
    output.line(f"{report.name} to {target.kind}: {done} {counts}; {place}")
    if dry_run and report.series:
        output.table(
            ["series", "role", "axis", "points", "corrections"],
            [(one.series, one.role, one.axis, one.points, one.corrections) for one in report.series],
            right=["points", "corrections"],
        )


def _counts(report: SyncReport) -> Iterator[str]:
    counts = (
        (report.points, "points"),
        (report.corrections, "of them corrections"),
        (report.params, "hyperparameters"),
        (report.samples, "samples"),
    )
    return (f"{count:,} {what}" for count, what in counts if count)


def _explain(result: SyncResult, target: Target) -> None:
    """Say on stderr what did not go, and why."""
    where = f"{result.path} to {target.kind}"
    if result.report is None:
        output.words(f"{where}: {result.error}{hint(result.path, result.error)}")
        return
    for held in result.report.held:
        reason = (
            "beyond the newest checkpoint of a live run; --hold none sends them"
            if held.reason == "checkpoint"
            else "a writer may still add to them; --final sends them"
        )
        output.words(
            f"{where}: {held.points:,} points and {held.samples:,} samples of {held.role} wait"
            f"{'' if held.first_step is None else f' from step {held.first_step}'}: {reason}"
        )
    if result.report.not_sent:
        left = ", ".join(f"{rows:,} {_WORDS.get(what, what)}" for what, rows in result.report.not_sent.items())
        output.words(f"{where}: not sent yet: {left}")
    for gap in result.report.gaps:
        missing = f"{gap.table} of writer {gap.writer}: seqs {gap.first} to {gap.last} are missing"
        output.words(f"{where}: {missing}; what follows waits")
    for damaged in result.report.damaged:
        output.words(f"{where}: damaged: {damaged}")
    for warning in result.report.warnings:
        output.words(f"{where}: {warning}")


def _document(result: SyncResult, target: Target, outcome: Outcome) -> dict[str, object]:
    document: dict[str, object] = {"path": result.path, "target": target.kind, "outcome": outcome}
    if result.report is None:
        return document | {"error": str(result.error), "error_type": type(result.error).__name__}
    report = output.fields(result.report)
    for name in ("series", "held", "gaps"):
        report[name] = [output.fields(one) for one in report[name]]
    for name in ("kind", "dry_run", "path"):
        del report[name]
    return document | report
