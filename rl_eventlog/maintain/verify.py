"""Is everything there? Every finding is named with its place; nothing is changed.

- Reads the whole run: the CRC of every batch, the digest of every sealed, compacted and folded file, and
  of every file that the artifacts table refers to.
- `VerifyReport.ok` only where all is well: no row missing, nothing damaged, no rank silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rl_eventlog.errors import RunNotFoundError
from rl_eventlog.layout import sha16
from rl_eventlog.reader import RunFiles
from rl_eventlog.run import Run, RunInfo, Thresholds
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.sealed import file_digest

from .findings import Finding, Severity
from .gone import is_gone
from .ranks import find_in_clocks, find_in_ranks, name_of
from .replicas import find_replicas

_LOOKS = 4
_ONLY_WORDS = frozenset({"hparam_changed", "hparam_differs"})


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


def verify(path: Path, *, thresholds: Thresholds | None = None) -> VerifyReport:
    """Check a run.

    Args:
        path: its folder.
        thresholds: when silence of a rank becomes a finding.

    Raises:
        RunNotFoundError: the path holds no run.
        SchemaVersionError: a newer major version wrote it.
        OSError: a folder cannot be read.
    """
    for looks_left in reversed(range(_LOOKS)):
        try:
            return _verify(Run(path, check="digest", thresholds=thresholds))
        except FileNotFoundError as error:  # what was looked at was sealed, compacted or reclaimed since
            if isinstance(error, RunNotFoundError) or not looks_left:
                raise
    raise AssertionError("the last look returns or raises")


def _verify(run: Run) -> VerifyReport:
    info = run.info
    findings = [
        *_files(info, run.files),
        *_artifacts(run),
        *find_in_ranks(run, info),
        *find_in_clocks(run.files, info.read),
        *_merging(run),
        *find_replicas(run),
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
        yield Finding("error", "gap", f"{gap.table} of {name_of(files, gap.writer)}", detail)
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
    for sha256, of in rows.sort("sha256").collect().iter_rows():
        path = run.files.layout.artifact(sha256)
        try:
            if file_digest(path) != sha256:
                yield Finding("error", "artifact", str(path), f"{of}: its content is not what was logged")
        except OSError as error:
            yield Finding("error", "artifact", str(path), f"{of}: it cannot be read: {error.strerror}")


def _merging(run: Run) -> Iterator[Finding]:
    for kind, role, of, detail in run.warnings().iter_rows():
        severity: Severity = "note" if kind in _ONLY_WORDS else "warning"
        yield Finding(severity, kind.replace("_", " "), " ".join(filter(None, (role, of))), detail)
