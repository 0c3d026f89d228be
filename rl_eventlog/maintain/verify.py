"""Is everything there? Every finding is named with its place; nothing is changed.

Reads the whole run: the CRC of every batch, the digest of every sealed file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import polars as pl

from rl_eventlog.reader import RunFiles
from rl_eventlog.run import Run, RunInfo
from rl_eventlog.schema import TABLES

Level = Literal["note", "warning", "error"]

CLOCK_JUMP = timedelta(minutes=1)
MIN_REPLICATED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a person should know."""

    level: Level
    """`error`: rows are missing or damaged. `warning`: something is not as it should be. `note`: all is well."""
    kind: str
    place: str
    """File, writer, rank or series."""
    detail: str


@dataclass(frozen=True, slots=True)
class WriterTable:
    """What one writer has in one table."""

    writer: str
    role: str
    rank: int | None
    attempt: int
    table: str
    rows: int
    first_seq: int
    last_seq: int
    missing: int
    """Seqs in gaps."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found."""

    path: Path
    info: RunInfo
    writers: tuple[WriterTable, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether all is well: nothing but notes."""
        return all(finding.level == "note" for finding in self.findings)


def verify(path: Path) -> VerifyReport:
    """Check a run.

    Raises:
        RunNotFoundError: the path holds no run.
        SchemaVersionError: a newer major version wrote it.
    """
    run = Run(path, check="digest")
    findings = [
        *_files(run.info, run.files),
        *_ranks(run.info),
        *_clocks(run.files),
        *_merging(run),
        *_replicas(run),
    ]
    return VerifyReport(run.path, run.info, tuple(_writer_tables(run.files)), tuple(findings))


def _writer_tables(files: RunFiles) -> Iterator[WriterTable]:
    attempts = {launch.id: launch.attempt for launch in files.launches}
    for table in TABLES:
        gaps = files.gaps(table)
        for writer, spans in sorted(files.table(table).coverage.covered.items()):
            facts = files.writers[writer]
            yield WriterTable(
                writer=writer,
                role=facts.role,
                rank=facts.rank,
                attempt=attempts[facts.launch],
                table=table,
                rows=len(spans),
                first_seq=next(iter(spans)).first,
                last_seq=spans.last,
                missing=sum(len(span) for span in gaps.get(writer, ())),
            )


def _files(info: RunInfo, files: RunFiles) -> Iterator[Finding]:
    for problem in info.problems:
        yield Finding("error", "damaged", str(problem.path), problem.reason)
    for gap in info.gaps:
        yield Finding("error", "gap", f"{gap.table} of writer {gap.writer}", f"seqs {gap.first} to {gap.last} are gone")
    for table in TABLES:
        for path, size in files.table(table).torn_tails.items():
            yield Finding("warning", "torn tail", str(path), f"{size} bytes of a write that was cut off")


def _ranks(info: RunInfo) -> Iterator[Finding]:
    if info.rows_lost:
        yield Finding("error", "rows lost", info.name, f"{info.rows_lost} rows could not be written")
    if info.rows_at_risk:
        yield Finding("warning", "rows at risk", info.name, f"{info.rows_at_risk} rows wait in memory")
    for role in info.roles:
        if role.ranks_missing:
            missing = ", ".join(map(str, role.ranks_missing))
            yield Finding("warning", "never wrote", role.role, f"of {role.ranks_expected} ranks, not {missing}")
    for rank in info.ranks:
        level: Level = "note" if rank.state in ("finished", "running") else "warning"
        name = rank.role if rank.rank is None else f"{rank.role} rank {rank.rank}"
        yield Finding(level, rank.state, f"{name} ({rank.writer})", rank.reason)


def _clocks(files: RunFiles) -> Iterator[Finding]:
    """Rows of a writer whose time goes back, and launches whose clocks contradict their order on disk."""
    for table in ("metrics", "timings"):
        jumps = (
            files.rows(table)
            .sort("writer", "seq")
            .with_columns(back=pl.col("time").cum_max().over("writer") - pl.col("time"))
            .group_by("writer")
            .agg(pl.col("back").max())
            .filter(pl.col("back") > CLOCK_JUMP)
            .collect()
        )
        for writer, back in jumps.iter_rows():
            yield Finding("warning", "clock", f"{table} of writer {writer}", f"its clock went back by {back}")
    for earlier, later in zip(files.launches, files.launches[1:], strict=False):
        if later.started < earlier.started:
            detail = f"began at {later.started}, before attempt {earlier.attempt}; the order on disk counts"
            yield Finding("warning", "clock", f"attempt {later.attempt}", detail)


def _merging(run: Run) -> Iterator[Finding]:
    for kind, role, name, detail in run.warnings().iter_rows():
        yield Finding("warning", kind.replace("_", " "), f"{role} {name}", detail)


def _replicas(run: Run) -> Iterator[Finding]:
    """Sums whose ranks all log the same: probably replicas that no `data_rank` tells apart."""
    series = ["role", "name"]
    found = (
        run.metrics(ranks="each")
        .filter((pl.col("reduction") == "sum") & pl.col("data_rank").is_null() & (pl.col("value") != 0))
        .group_by(*series, "axis", "position", "attempt")
        .agg(ranks=pl.len(), values=pl.col("value").n_unique())
        .group_by(series)
        .agg(
            points=pl.len(),
            replicated=((pl.col("ranks") > 1) & (pl.col("values") == 1)).sum(),
            ranks=pl.col("ranks").max(),
        )
        .filter((pl.col("replicated") == pl.col("points")) & (pl.col("points") >= MIN_REPLICATED))
        .sort(series)
        .collect()
    )
    for role, name, points, _, ranks in found.iter_rows():
        detail = f"{ranks} ranks log the same value at all {points} steps, and it is summed: replicas? see data_rank"
        yield Finding("warning", "replicated sum", f"{role} {name}", detail)
