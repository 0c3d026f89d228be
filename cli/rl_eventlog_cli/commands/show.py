"""`rleventlog show`: one run, how it fares and what is damaged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_eventlog_cli import output, states
from rl_eventlog_cli.options import FAILED, Json, RunPath, Utc, open_run, read_around_damage

if TYPE_CHECKING:
    import polars as pl

    from rl_eventlog import Run
    from rl_eventlog.run import RoleInfo, RunInfo


_NAMES_LISTED = 10


def command(
    run: RunPath,
    names: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="GLOB", help="Last values of these metrics only; may be repeated."),
    ] = None,
    ranks: Annotated[bool, typer.Option("--ranks", help="Also show every rank.")] = False,
    as_json: Json = False,
    utc: Utc = False,
) -> None:
    """Show one run: how it fares, and what is damaged.

    Shown are ranks that hold the run up, attempts, roles and ranks with their states, hyperparameters, and the last
    value of each metric.
    What is good is shown on stdout. Gaps, damaged files and lost rows are named on stderr, with exit status 1; else it
    is 0. What merging the shown values had to decide, or differs where it should not, is a warning on stderr and
    changes no status. Whether every byte and row of the run is as it was written, `verify` tells.
    """
    loaded, (hparams, last, info) = read_around_damage(
        open_run(run), lambda run: (run.hparams().collect(), run.last_values(names or None), run.info)
    )
    metrics, warnings = last.values, last.warnings.to_dicts()
    findings = list(_findings(info))
    if as_json:
        output.print_json(_document(info, hparams, metrics, findings) | {"warnings": warnings})
    else:
        _show(info, hparams, metrics, show_ranks=ranks, utc=utc)
    for name in _unmatched(loaded, names or (), metrics):
        output.words(name)
    for warning in warnings:
        about = " ".join(filter(None, (warning["role"], warning["name"])))
        output.words(f"warning: {warning['kind'].replace('_', ' ')}: {about}: {warning['detail']}")
    for finding in findings:
        output.words(finding)
    if findings:
        raise typer.Exit(FAILED)


def _unmatched(run: Run, names: Iterable[str], metrics: pl.DataFrame) -> Iterator[str]:
    """What to say of each name or glob that no shown metric matches."""
    from rl_eventlog.reduce import NamePatterns

    for name in names:
        if metrics.filter(NamePatterns(name).expression("name")).is_empty():
            there = run.last_values().values["name"].unique().sort().to_list()
            more = f" and {len(there) - _NAMES_LISTED} more" if len(there) > _NAMES_LISTED else ""
            yield f"no metric matches {name!r}: there are {', '.join(there[:_NAMES_LISTED]) or 'none'}{more}"


def _findings(info: RunInfo) -> Iterator[str]:
    for problem in info.problems:
        yield f"damaged: {problem.path}: {problem.reason}"
    for gap in info.gaps:
        yield f"gap: {gap.table} of writer {gap.writer}: seqs {gap.first} to {gap.last} are in no usable file"
    if info.rows_lost:
        yield f"lost: {info.rows_lost} rows could not be written while the run went on"


def _show(info: RunInfo, hparams: pl.DataFrame, metrics: pl.DataFrame, *, show_ranks: bool, utc: bool) -> None:
    output.line(f"{info.name}  {states.in_words(info.state, info.ranks) or 'nobody wrote yet'}", style="bold")
    for sentence in states.stalls_in_words(info, utc=utc):
        output.line(sentence)
    output.table(["", ""], _facts(info, utc=utc), heading=False)
    output.line()
    output.table(
        ["attempt", "started", "last row", "last step", "rows"],
        [
            (
                one.attempt,
                output.clock(one.started, utc=utc),
                output.clock(one.last_row, utc=utc),
                one.last_step,
                one.rows,
            )
            for one in info.attempts
        ],
        right=["attempt", "last step", "rows"],
    )
    output.line()
    output.table(
        ["role", "state", "ranks", "nodes", "attempt", "last step"],
        [
            (one.role, _state_of(one, info), _ranks_of(one), len(one.nodes), one.attempt, one.last_step)
            for one in info.roles
        ],
        right=["nodes", "attempt", "last step"],
    )
    if show_ranks:
        output.line()
        output.table(
            ["rank", "state", "why", "node", "last sign"],
            [
                (
                    one.role if one.rank is None else f"{one.role} {one.rank}",
                    one.state,
                    one.reason,
                    one.node,
                    output.clock(one.last_sign, utc=utc),
                )
                for one in info.ranks
            ],
        )
    if hparams.height:
        output.line()
        output.table(["role", "hyperparameter", "value"], hparams.select("role", "key", "value").iter_rows())
    if metrics.height:
        output.line()
        output.table(
            ["role", "metric", "value", "step", "axis", "ranks"],
            [
                (row["role"], row["name"], output.number(row["value"]), row["step"], _axis(row), _ranks_in(row))
                for row in metrics.iter_rows(named=True)
            ],
            right=["value", "step", "ranks"],
        )


def _facts(info: RunInfo, *, utc: bool) -> Iterator[tuple[str, str]]:
    yield "path", str(info.path)
    yield "run uid", info.run_uid
    for label, text in (("project", info.project), ("group", info.group), ("notes", info.notes)):
        if text:
            yield label, text
    if info.tags:
        yield "tags", ", ".join(info.tags)
    yield "started", output.clock(info.started, utc=utc)
    seconds = None if info.last_seen is None else (info.read - info.last_seen).total_seconds()
    yield (
        "last sign",
        f"{output.clock(info.last_seen, utc=utc)}, {output.duration(seconds)} ago" if seconds is not None else "",
    )
    yield "nodes", ", ".join(info.nodes)
    yield "rows", ", ".join(f"{table} {rows:,}" for table, rows in info.rows.items())
    if info.rows_at_risk:
        yield "rows at risk", f"{info.rows_at_risk:,} accepted and not yet written"
    yield "states", states.limits(info.thresholds)


def _state_of(role: RoleInfo, info: RunInfo) -> str:
    return states.in_words(role.state, (rank for rank in info.ranks if rank.role == role.role))


def _ranks_of(role: RoleInfo) -> str:
    if role.ranks_expected is None:
        return str(role.ranks_seen)
    missing = f", missing {', '.join(map(str, role.ranks_missing))}" if role.ranks_missing else ""
    return f"{role.ranks_seen} of {role.ranks_expected}{missing}"


def _axis(row: dict[str, Any]) -> str:
    return "" if row["axis"] is None else f"{row['axis']} = {output.number(row['position'])}"


def _ranks_in(row: dict[str, Any]) -> str:
    return f"{row['ranks']}, {row['ranks_nan']} NaN" if row["ranks_nan"] else str(row["ranks"])


def _document(info: RunInfo, hparams: pl.DataFrame, metrics: pl.DataFrame, findings: list[str]) -> dict[str, object]:
    return {
        "name": info.name,
        "path": info.path,
        "run_uid": info.run_uid,
        "project": info.project,
        "group": info.group,
        "tags": info.tags,
        "notes": info.notes,
        "state": info.state,
        "ended_by": states.ended_by(info.ranks),
        "started": info.started,
        "last_seen": info.last_seen,
        "nodes": info.nodes,
        "rows": info.rows,
        "rows_at_risk": info.rows_at_risk,
        "rows_lost": info.rows_lost,
        "attempts": [output.fields(one) for one in info.attempts],
        "roles": [output.fields(one) for one in info.roles],
        "ranks": [output.fields(one) for one in info.ranks],
        "stalls": [output.fields(one) for one in info.stalls],
        "hparams": hparams.to_dicts(),
        "metrics": metrics.to_dicts(),
        "gaps": [output.fields(one) for one in info.gaps],
        "damaged_files": [{"path": problem.path, "reason": problem.reason} for problem in info.problems],
        "findings": findings,
        "thresholds": states.limits_document(info.thresholds),
    }
