"""`rleventlog seal`: make sealed files of what dead writers left open."""

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
    """Seal what writers that are gone left open.

    Adds sealed files beside the open ones, which other tools can read. A writer is gone if it wrote its end record, or
    if its process is seen to be dead from here; the segments of others are left alone and named.

    Exit status 0; 1 where a segment could not be sealed.
    """
    from rl_eventlog.maintain import seal

    report = seal(run, reclaim_covered=reclaim, assume_dead=assume_dead, grace_seconds=grace)
    if as_json:
        output.print_json(output.fields(report) | {"problems": [one._asdict() for one in report.problems]})
    else:
        show_files("sealed", report.sealed)
        show_files("left alone, since its writer may live", report.left_alone)
        show_reclaimed(report.removed, report.waiting, reclaim=reclaim, grace_seconds=grace)
    if report.left_alone and not assume_dead:
        output.words("left alone: if you know that their processes are gone, call again with --assume-dead")
    for problem in report.problems:
        output.words(f"not sealed: {problem.path}: {problem.reason}")
    if report.problems:
        raise typer.Exit(FAILED)
