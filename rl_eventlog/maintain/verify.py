"""Is everything there? Every finding is named with its place; nothing is changed.

- Reads the whole run: the CRC of every batch, the digest of every sealed, compacted and folded file, and
  of every file that the artifacts table refers to.
- `VerifyReport.ok` only where all is well: no row missing, nothing damaged, no rank silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import polars as pl

from rl_eventlog.layout import sha16
from rl_eventlog.reader import RunFiles, WriterFacts
from rl_eventlog.run import Run, RunInfo
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.sealed import file_digest

from .gone import is_gone

Severity = Literal["note", "warning", "error"]

CLOCK_JUMP = timedelta(minutes=1)
"""A clock that goes back by more is named."""
MIN_REPLICATED = 3
"""Different values that agree over all ranks before they are taken for replicas."""
_ONLY_WORDS = frozenset({"hparam_changed", "hparam_differs"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a person should know."""

    severity: Severity
    """`error`: rows or files are missing or damaged. `warning`: not as it should be. `note`: good to know."""
    kind: str
    """`file`, `folded file`, `gap`, `artifact`, `torn tail`, `rows lost`, `rows at risk`, `never wrote`, `no end`,
    `waiting`, `stalled`, `lost`, `clock`, `replicated sum`, or a kind of `Run.warnings`."""
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
    state: str
    """State of the rank in the role's latest attempt; of all other writers `finished` or `no end`."""
    table: str
    rows: int
    first_seq: int | None
    """None where no row is left."""
    last_seq: int | None
    missing: int
    """Seqs in gaps."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found."""

    path: Path
    info: RunInfo
    writers: tuple[WriterTable, ...]
    """One a writer and table with rows, by attempt, role, rank and table."""
    findings: tuple[Finding, ...]
    """The worst first."""

    @property
    def ok(self) -> bool:
        """Whether all is well: nothing but notes."""
        return all(finding.severity == "note" for finding in self.findings)


def verify(path: Path) -> VerifyReport:
    """Check a run.

    Raises:
        RunNotFoundError: the path holds no run.
        SchemaVersionError: a newer major version wrote it.
        OSError: a folder cannot be read.
    """
    run = Run(path, check="digest")
    info = run.info
    findings = [
        *_files(info, run.files),
        *_artifacts(run),
        *_ranks(info),
        *_ends(info, run.files),
        *_clocks(run.files),
        *_merging(run),
        *_replicas(run),
    ]
    order = ("error", "warning", "note")
    findings.sort(key=lambda finding: order.index(finding.severity))
    return VerifyReport(run.path, info, tuple(_writer_tables(info, run.files)), tuple(findings))


def _writer_tables(info: RunInfo, files: RunFiles) -> Iterator[WriterTable]:
    attempts = {launch.id: launch.attempt for launch in files.launches}
    states = {rank.writer: rank.state for rank in info.ranks}
    gaps = {table: files.gaps(table) for table in TABLES}
    ordered = sorted(
        files.writers.values(),
        key=lambda facts: (attempts[facts.launch], facts.role, -1 if facts.rank is None else facts.rank, facts.writer),
    )
    for facts in ordered:
        for table in TABLES:
            spans = files.table(table).coverage.covered.get(facts.writer)
            missing = gaps[table].get(facts.writer, [])
            if not spans and not missing:
                continue
            yield WriterTable(
                writer=facts.writer,
                role=facts.role,
                rank=facts.rank,
                attempt=attempts[facts.launch],
                state=states.get(facts.writer) or ("finished" if facts.end else "no end"),
                table=table,
                rows=len(spans or ()),
                first_seq=next(iter(spans)).first if spans else None,
                last_seq=spans.last if spans else None,
                missing=sum(len(span) for span in missing),
            )


def _files(info: RunInfo, files: RunFiles) -> Iterator[Finding]:
    for problem in info.problems:
        yield Finding("error", "file", str(problem.path), problem.reason)
    for gap in info.gaps:
        detail = f"seqs {gap.first} to {gap.last} are in no usable file"
        yield Finding("error", "gap", f"{gap.table} of writer {gap.writer}", detail)
    for path in sorted((files.layout.writers / "compacted").glob("*.jsonl.zst")):
        if sha16(path.read_bytes()) != path.name.partition(".")[0]:
            yield Finding("error", "folded file", str(path), "its content does not match the digest in its name")
    for table in TABLES:
        for path, size in files.table(table).torn_tails.items():
            facts = files.writers.get(path.name.partition("-")[0])
            if is_gone(facts, assume_dead=False):
                yield Finding("warning", "torn tail", str(path), f"{size} bytes of a write that was cut off")
            else:
                yield Finding("note", "torn tail", str(path), f"{size} bytes of a write that may be going on")


def _artifacts(run: Run) -> Iterator[Finding]:
    """Files under `artifacts/` that rows refer to."""
    rows = run.artifacts().filter(pl.col("sha256").is_not_null()).select("sha256", "name").unique("sha256")
    for sha256, name in rows.sort("sha256").collect().iter_rows():
        path = run.files.layout.artifact(sha256)
        try:
            if file_digest(path) != sha256:
                yield Finding("error", "artifact", str(path), f"{name}: its content is not what was logged")
        except OSError as error:
            yield Finding("error", "artifact", str(path), f"{name}: it cannot be read: {error.strerror}")


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
        if rank.state not in ("finished", "running"):
            name = rank.role if rank.rank is None else f"{rank.role} {rank.rank}"
            yield Finding("warning", rank.state, f"{name} (writer {rank.writer})", rank.reason)


def _ends(info: RunInfo, files: RunFiles) -> Iterator[Finding]:
    """Writers that nobody waits for any more: a later attempt or incarnation took their place."""
    standing = {rank.writer for rank in info.ranks}
    for writer, facts in files.writers.items():
        if writer not in standing and facts.end is None:
            detail = "it wrote no end record: rows missing at its end could not be seen"
            yield Finding("note", "no end", _name(facts), detail)


def _name(facts: WriterFacts) -> str:
    return f"{facts.role if facts.rank is None else f'{facts.role} {facts.rank}'} (writer {facts.writer})"


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
            .sort("writer")
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
        severity: Severity = "note" if kind in _ONLY_WORDS else "warning"
        yield Finding(severity, kind.replace("_", " "), f"{role} {name}", detail)


def _replicas(run: Run) -> Iterator[Finding]:
    """Sums whose ranks all log the same: probably replicas that no `data_rank` tells apart.

    Ranks that count the same constant, a batch size say, are no replicas: the values must differ over steps.
    """
    series = ["role", "name"]
    found = (
        run.metrics(ranks="each")
        .filter((pl.col("reduction") == "sum") & pl.col("data_rank").is_null() & pl.col("value").is_finite())
        .group_by(*series, "axis", "position", "attempt")
        .agg(ranks=pl.len(), values=pl.col("value").n_unique(), value=pl.col("value").first())
        .filter(pl.col("ranks") > 1)
        .group_by(series)
        .agg(
            points=pl.len(),
            same=(pl.col("values") == 1).all(),
            values=pl.col("value").n_unique(),
            ranks=pl.col("ranks").max(),
        )
        .filter(pl.col("same") & (pl.col("values") >= MIN_REPLICATED))
        .sort(series)
        .collect()
    )
    for role, name, points, _, _, ranks in found.iter_rows():
        detail = f"{ranks} ranks log the same at all {points} positions, and it is summed: replicas? see data_rank"
        yield Finding("warning", "replicated sum", f"{role} {name}", detail)
