"""`rleventlog verify`: is everything there?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rl_eventlog_cli import output
from rl_eventlog_cli.options import FAILED, Json, RunPath

if TYPE_CHECKING:
    from rl_eventlog.maintain import VerifyReport, WriterTable


def command(run: RunPath, as_json: Json = False) -> None:
    """Check that every row of a run is there and whole.

    Reads everything: the checksum of every batch, the digest of every file. Shown are the rows of each writer and
    table, and what was found: gaps, damage, torn tails, ranks that are missing, silent or lost, clocks that went back,
    sums of values that look replicated.

    Exit status 0 only where all is well, which notes do not change; else 1.
    """
    from rl_eventlog.maintain import verify

    report = verify(run)
    if as_json:
        output.print_json(_document(report))
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(FAILED)


def _show(report: VerifyReport) -> None:
    output.line(f"{report.info.name}  {_verdict(report)}", style="bold")
    output.table(
        ["attempt", "rank", "writer", "state", "table", "rows", "seqs", "missing"],
        [
            (
                one.attempt,
                one.role if one.rank is None else f"{one.role} {one.rank}",
                one.writer,
                one.state,
                one.table,
                f"{one.rows:,}",
                _seqs(one),
                one.missing or None,
            )
            for one in report.writers
        ],
        right=["attempt", "rows", "missing"],
    )
    if report.findings:
        output.line()
        output.table(
            ["", "found", "where", "what"],
            [(one.severity, one.kind, one.place, one.detail) for one in report.findings],
        )


def _verdict(report: VerifyReport) -> str:
    if report.ok:
        return "all is well"
    return ", ".join(
        f"{count} {severity}{'' if count == 1 else 's'}"
        for severity in ("error", "warning")
        if (count := sum(finding.severity == severity for finding in report.findings))
    )


def _seqs(one: WriterTable) -> str:
    return "" if one.first_seq is None else f"{one.first_seq} to {one.last_seq}"


def _document(report: VerifyReport) -> dict[str, object]:
    return {
        "name": report.info.name,
        "path": report.path,
        "run_uid": report.info.run_uid,
        "ok": report.ok,
        "state": report.info.state,
        "rows": report.info.rows,
        "rows_at_risk": report.info.rows_at_risk,
        "rows_lost": report.info.rows_lost,
        "writers": [output.fields(one) for one in report.writers],
        "findings": [output.fields(one) for one in report.findings],
    }
