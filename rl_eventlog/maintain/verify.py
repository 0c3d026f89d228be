"""Is everything there? Every finding is named with its place; nothing is changed.

Reads the whole run: the CRC of every batch, the digest of every sealed file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from rl_eventlog.reader.segments import TableFiles
from rl_eventlog.run import Run
from rl_eventlog.schema import TABLES

Level = Literal["note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a person should know."""

    level: Level
    """`error`: rows are missing or damaged; `warning`: something is not as it should be; `note`: all is well."""
    kind: str
    place: str
    """File, writer or series."""
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
    writers: tuple[WriterTable, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether all is well: nothing but notes."""
        return all(finding.level == "note" for finding in self.findings)
