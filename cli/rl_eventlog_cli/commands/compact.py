"""`rleventlog compact`: few files in place of many."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_eventlog.layout import GRACE_SECONDS
from rl_eventlog_cli import output
from rl_eventlog_cli.commands._changes import show_files, show_reclaimed
from rl_eventlog_cli.engine import Engine, EngineOption, work_on
from rl_eventlog_cli.options import FAILED, AssumeDead, Grace, Json, Reclaim

if TYPE_CHECKING:
    from rl_eventlog.maintain import CompactReport, CompactResult


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|ROOT...", help="Runs, or folders of runs.", show_default=False),
    ],
    reclaim: Reclaim = False,
    assume_dead: AssumeDead = False,
    grace: Grace = GRACE_SECONDS,
    engine: EngineOption = "local",
    as_json: Json = False,
) -> None:
    """Merge the sealed files of each table into few, and the documents of writers that are gone into one.

    Adds files; what was there stays until a later call with --reclaim. No result of reading changes. One bad run does
    not stop the others.

    Exit status 0; 1 where a file could not be used and was left as it is, or a run could not be compacted.
    """
    runs = _runs(paths)
    alone = runs == paths and len(runs) == 1
    documents = []
    whole = True
    for result in _compact(runs, reclaim=reclaim, assume_dead=assume_dead, grace=grace, engine=engine):
        if result.error is not None and alone:
            raise result.error
        if as_json:
            documents.append(_document(result))
        elif result.report is not None:
            if not alone:
                output.line(f"{result.path}:")
            _show(result.report, reclaim=reclaim, grace_seconds=grace)
        whole = _explain(result) and whole
    if as_json:
        document = documents[0] if alone else {"runs": documents}
        output.print_json(document)
    if not whole:
        raise typer.Exit(FAILED)


def _runs(paths: list[Path]) -> list[Path]:
    """A run stands for itself, a folder of runs for those in it; what is neither is kept: compacting it tells."""
    from rl_eventlog.reader import find_runs

    return list(dict.fromkeys(run for path in paths for run in find_runs(path) or [path]))


def _compact(
    runs: list[Path], *, reclaim: bool, assume_dead: bool, grace: float, engine: Engine
) -> Iterator[CompactResult]:
    from rl_eventlog.maintain import CompactResult, compact_many

    many = partial(compact_many, reclaim_covered=reclaim, assume_dead=assume_dead, grace_seconds=grace)
    return work_on(runs, many, lambda path, error: CompactResult(path, error=error), engine=engine)


def _show(report: CompactReport, *, reclaim: bool, grace_seconds: float) -> None:
    show_files(f"compacted, of {report.sources} files", report.compacted)
    if report.folded_writers:
        output.line(f"folded the documents of {report.folded_writers} writers")
    show_reclaimed(report.removed, report.waiting, reclaim=reclaim, grace_seconds=grace_seconds)


def _explain(result: CompactResult) -> bool:
    """Say on stderr what could not be compacted, and return whether all could."""
    if result.report is None:
        output.words(f"{result.path}: {result.error}")
        return False
    for problem in result.report.problems:
        output.words(f"left as it is: {problem.path}: {problem.reason}")
    return not result.report.problems


def _document(result: CompactResult) -> dict[str, object]:
    document: dict[str, object] = {"path": result.path}
    if result.report is None:
        return document | {"error": str(result.error), "error_type": type(result.error).__name__}
    problems = [problem._asdict() for problem in result.report.problems]
    return document | output.fields(result.report) | {"problems": problems}
