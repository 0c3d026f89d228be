"""What the demo found, from the files and from the targets, and whether it all agrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from rl_eventlog import Run
from rl_eventlog.reader import RunFiles
from rl_eventlog.schema import TABLES
from rl_eventlog_cli.demo.config import Role
from rl_eventlog_cli.demo.witness import acknowledged

EVALUATIONS = 10
"""Evaluations in the first and in the last mean."""
LEAST_ACCURACY = 0.5
LEAST_GAIN = 3.0
"""The last mean over the first."""
# waits are left out: there the quick rank takes longest
_WORK: dict[Role, str] = {"trainer": "training", "rollout": "generation"}


class Rows(NamedTuple):
    """Rows of the run, over all tables and writers."""

    acknowledged: int
    """Counted by the processes themselves, one killed included, in the tables that the witness knows."""
    kept: int
    """Of those, in the files."""
    stored: int
    """In the files, of all tables."""
    doubled: int
    """In the files more than once."""
    missing: int
    """Not in the files although a later one of the same writer and table is."""


class SlowRank(NamedTuple):
    """The rank that takes longest for its work, against the mean of its role."""

    role: str
    rank: int
    name: str
    mean_seconds: float
    role_mean_seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the demo prints."""

    run: Path
    run_uid: str
    seed: int
    killed: str
    """Process and step, as `trainer:1@55`."""
    training_seconds: float
    attempts: int
    rows: Rows
    points: int
    """Reduced points of the run: metrics and timings."""
    points_at: Mapping[str, int]
    """Points found at each target."""
    accuracy_first: float
    accuracy_last: float
    slowest: SlowRank
    must_learn: bool
    """Whether the training was long enough to ask for its accuracy."""

    def failures(self) -> Iterator[str]:
        """What is not as it must be, one sentence each."""
        rows = self.rows
        if rows.kept != rows.acknowledged:
            yield f"{rows.acknowledged - rows.kept} of {rows.acknowledged} acknowledged rows are not in the files"
        if rows.doubled:
            yield f"{rows.doubled} rows are in the run more than once"
        if rows.missing:
            yield f"{rows.missing} rows are missing before later ones"
        for target, points in self.points_at.items():
            if points != self.points:
                yield f"{target} holds {points} points, the run has {self.points}"
        if self.attempts != 2:
            yield f"the run has {self.attempts} attempts, not the 2 that were started"
        if self.must_learn and self.accuracy_last < max(LEAST_ACCURACY, LEAST_GAIN * self.accuracy_first):
            yield f"the accuracy went from {self.accuracy_first:.2f} to {self.accuracy_last:.2f} only"

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        document = asdict(self)
        document["rows"] = self.rows._asdict()
        document["slowest"] = self.slowest._asdict()
        return document | {"failures": list(self.failures())}


def count_rows(path: Path, witnesses: Path) -> Rows:
    """Count the rows of the run at `path` and compare with what was acknowledged in `witnesses`."""
    files = RunFiles.open(path)
    stored = doubled = missing = 0
    found: dict[tuple[str, str], int] = {}
    for table in TABLES:
        by_writer = (
            files.rows(table)
            .group_by("writer")
            .agg(rows=pl.len(), seqs=pl.col("seq").n_unique(), last=pl.col("seq").max())
        )
        for writer, rows, seqs, last in by_writer.collect().iter_rows():
            found[writer, table] = seqs
            stored += rows
            doubled += rows - seqs
            missing += last + 1 - seqs
    counts = [
        (count, found.get((writer, table), 0))
        for writer, tables in acknowledged(witnesses).items()
        for table, count in tables.items()
    ]
    return Rows(
        acknowledged=sum(promised for promised, _ in counts),
        kept=sum(min(promised, there) for promised, there in counts),
        stored=stored,
        doubled=doubled,
        missing=missing,
    )


def count_points(run: Run) -> int:
    """Reduced points of a run that have a value: what every target must hold."""
    return sum(
        frame.filter(pl.col(column).is_not_null()).select(pl.len()).collect().item()
        for frame, column in ((run.metrics(), "value"), (run.timings(), "duration_seconds"))
    )


def accuracies(run: Run) -> tuple[float, float]:
    """Mean validation accuracy of the first and of the last evaluations."""
    values = run.metrics("validation/accuracy").sort("position").collect()["value"]
    return float(values.head(EVALUATIONS).to_numpy().mean()), float(values.tail(EVALUATIONS).to_numpy().mean())


def slowest_rank(run: Run) -> SlowRank:
    """The rank furthest above the mean of its role, each in the work of its role."""
    means = (
        run.timings(ranks="each")
        .filter(pl.struct("role", "name").is_in([{"role": role, "name": name} for role, name in _WORK.items()]))
        .group_by("role", "name", "rank")
        .agg(mean=pl.col("duration_seconds").mean())
        .with_columns(of_role=pl.col("mean").mean().over("role"))
        .sort(pl.col("mean") / pl.col("of_role"), descending=True)
        .collect()
    )
    return SlowRank(*means.select("role", "rank", "name", "mean", "of_role").row(0))
