"""`rleventlog verify`: is everything there?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rl_eventlog_cli import output, states
from rl_eventlog_cli.options import FAILED, Json, RunPath

if TYPE_CHECKING:
    from rl_eventlog.maintain import Finding, VerifyReport, WriterTable


_WRITERS_LISTED = 40
_OF_A_KIND_LISTED = 10


def command(
    run: RunPath,
    every: Annotated[bool, typer.Option("--all", help="Show every writer and finding, however many.")] = False,
    as_json: Json = False,
) -> None:
    """Check that every row of a run is there and whole.

    Reads everything: the checksum of every batch, the digest of every file. Shown are the rows of each writer and
    table, or of many writers together, and what was found with what to do about it: gaps, damage, torn tails, rows
    lost or at risk, ranks that are missing, silent or lost, clocks that are off, values that look replicated.

    Exit status 0 only where all is well, which notes do not change; else 1.
    """
    from rl_eventlog.maintain import verify

    report = verify(run)
    if as_json:
        output.print_json(_document(report))
    else:
        _show(report, every=every)
    if not report.ok:
        raise typer.Exit(FAILED)


def _show(report: VerifyReport, *, every: bool) -> None:
    output.line(f"{report.info.name}  {_verdict(report)}", style="bold")
    if every or len(report.writers) <= _WRITERS_LISTED:
        _show_writers(report.writers)
    else:
        _show_sums(report.writers)
        output.words(f"{len(report.writers):,} writers and tables together: --all shows each")
    if report.findings:
        output.line()
        _show_findings(report.findings, every=every)
    if any(rank.state not in ("finished", "running") for rank in report.info.ranks):
        output.words(f"states: {states.limits(report.info.thresholds)}")


def _show_writers(writers: Sequence[WriterTable]) -> None:
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
            for one in writers
        ],
        right=["attempt", "rows", "missing"],
    )


def _show_sums(writers: Sequence[WriterTable]) -> None:
    together: dict[tuple[int, str, str, str], list[WriterTable]] = {}
    for one in writers:
        together.setdefault((one.attempt, one.role, one.state, one.table), []).append(one)
    output.table(
        ["attempt", "role", "state", "table", "writers", "rows", "missing"],
        [
            (*key, f"{len(those):,}", f"{sum(one.rows for one in those):,}", sum(one.missing for one in those) or None)
            for key, those in sorted(together.items())
        ],
        right=["attempt", "writers", "rows", "missing"],
    )


def _show_findings(findings: Sequence[Finding], *, every: bool) -> None:
    rows: list[tuple[str, str, str, str]] = []
    for kind, those in _by_kind(findings).items():
        listed = those if every else those[:_OF_A_KIND_LISTED]
        rows += [(one.severity, kind, one.place, one.detail) for one in listed]
        if len(listed) < len(those):
            rows.append(("", kind, f"and {len(those) - len(listed):,} more", "--all shows each"))
    output.table(["", "found", "where", "what"], rows)
    output.line()
    output.table(["found", "what to do"], [(kind, those[0].remedy) for kind, those in _by_kind(findings).items()])


def _by_kind(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """The worst kinds first, as the findings are."""
    kinds: dict[str, list[Finding]] = {}
    for one in findings:
        kinds.setdefault(one.kind, []).append(one)
    return kinds


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
        "findings": [output.fields(one) | {"remedy": one.remedy} for one in report.findings],
        "thresholds": states.limits_document(report.info.thresholds),
    }
