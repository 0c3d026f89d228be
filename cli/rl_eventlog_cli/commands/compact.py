"""`rleventlog compact`: few files in place of many."""

from __future__ import annotations

import typer

from rl_eventlog.layout import GRACE_SECONDS
from rl_eventlog_cli import output
from rl_eventlog_cli.commands._changes import show_files, show_reclaimed
from rl_eventlog_cli.options import FAILED, AssumeDead, Grace, Json, Reclaim, RunPath


def command(
    run: RunPath,
    reclaim: Reclaim = False,
    assume_dead: AssumeDead = False,
    grace: Grace = GRACE_SECONDS,
    as_json: Json = False,
) -> None:
    """Merge the sealed files of each table into few, and the documents of writers that are gone into one.

    Adds files; what was there stays until a later call with --reclaim. No result of reading changes.

    Exit status 0; 1 where a file could not be used and was left as it is.
    """
    from rl_eventlog.maintain import compact

    report = compact(run, reclaim_covered=reclaim, assume_dead=assume_dead, grace_seconds=grace)
    if as_json:
        output.print_json(output.fields(report) | {"problems": [one._asdict() for one in report.problems]})
    else:
        show_files(f"compacted, of {report.sources} files", report.compacted)
        if report.folded_writers:
            output.line(f"folded the documents of {report.folded_writers} writers")
        show_reclaimed(report.removed, report.waiting, reclaim=reclaim, grace_seconds=grace)
    for problem in report.problems:
        output.words(f"left as it is: {problem.path}: {problem.reason}")
    if report.problems:
        raise typer.Exit(FAILED)
