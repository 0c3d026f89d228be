"""One look at a run, as sync needs it.

- Everything is read at a frontier: rows beyond it, and writers that are not in it, do not exist. What
  was seen once can be computed again, whatever was logged since.
- Progress is read before the rows that are judged by it, so that no step counts as complete whose
  rows were not there yet.
"""

from __future__ import annotations

from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

import polars as pl

from rl_eventlog.documents import now_utc
from rl_eventlog.reader import WriterFacts
from rl_eventlog.reader.segments import look
from rl_eventlog.reduce import with_position
from rl_eventlog.run import Run
from rl_eventlog.run.info import Gap
from rl_eventlog.run.state import Thresholds, is_provably_dead, last_sign
from rl_eventlog.sinks.base import RunDescription, Status

from .completeness import Checkpoint, Progress, WriterState
from .record import Frontier
from .view import SCHEMA

TABLES = ("metrics", "timings", "hparams", "samples")
"""What is sent."""
UNSENT_TABLES = ("distributions", "artifacts", "gpu_samples")
"""What no target gets yet and sync does not read: only their footers are looked at, to count."""


class Source:
    """A run as it is now.

    Args:
        path: folder of the run.
        digests: compare sealed files with the digests in their names, so that nothing damaged is sent.

    Attributes:
        path: folder of the run.
        run_uid: its id.
        writers: what completeness needs to know of each writer.
        progress: how far each writer is on each axis, no later than the rows.

    Raises:
        RunNotFoundError: the path holds no run.
        SchemaVersionError: a newer major version wrote it.
    """

    def __init__(self, path: Path, *, digests: bool = True) -> None:
        self._run = Run(path, check="digest" if digests else "footer")
        self._files = self._run.files
        self.path = path
        self.run_uid = self._files.run_uid
        identities = self._files.identities().select("writer", "role", "launch", "attempt", "resume_step")
        self.writers = [
            WriterState(alive=not _is_gone(self._files.writers[row["writer"]]), **row) for row in identities.to_dicts()
        ]
        self.progress: list[Progress] = []
        if self.is_alive:
            self.progress = _find_progress(self._run)
            self._files = self._run.refresh().files

    @property
    def is_alive(self) -> bool:
        """Whether anybody writes the run."""
        return any(state.alive for state in self.writers)

    @property
    def attempts(self) -> dict[str, int]:
        """Number of the attempt by launch id."""
        return {launch.id: launch.attempt for launch in self._files.launches}

    @property
    def problems(self) -> list[str]:
        """Files that could not be used, as far as tables were looked at."""
        return [f"{problem.path}: {problem.reason}" for problem in self._files.problems]

    def frontier(self, before: Frontier) -> dict[str, dict[str, int]]:
        """The last seq to use of every table and writer, stopping before gaps.

        Args:
            before: the frontier of the last plan: rows up to it are sent, even if they are damaged now.
        """
        frontier = {}
        for table in TABLES:
            last = self._files.last_seqs(table)
            known = {state.writer: last.get(state.writer, -1) for state in self.writers}
            sent = before.get(table, {})
            frontier[table] = {
                writer: max(known.get(writer, -1), sent.get(writer, -1)) for writer in sorted({*known, *sent})
            }
        return frontier

    def gaps(self) -> tuple[Gap, ...]:
        """What the frontier stops before."""
        return tuple(
            Gap(table, writer, span.first, span.last)
            for table in TABLES
            for writer, spans in sorted(self._files.gaps(table).items())
            for span in spans
        )

    def points(self, frontier: Frontier) -> pl.DataFrame:
        """Reduced metrics and timings, the latest view: columns as in `view.SCHEMA`; positions may be null."""
        metrics = self._run.metrics(frontier=frontier).with_columns(table=pl.lit("metrics"))
        timings = self._run.timings(frontier=frontier).with_columns(
            table=pl.lit("timings"),
            axis=pl.lit(None, pl.String),
            position=pl.col("step").cast(pl.Float64),
            value=pl.col("duration_seconds"),
        )
        return pl.concat([metrics.select(SCHEMA.names()), timings.select(SCHEMA.names())]).collect()

    def params(self, frontier: Frontier) -> pl.DataFrame:
        """The latest value of each hyperparameter over all roles: `key, value, time, attempt`."""
        latest = self._run.hparams(frontier=frontier).collect().sort("attempt", "time", "role")
        return latest.unique("key", keep="last", maintain_order=True).drop("role")

    def samples(self, frontier: Frontier) -> pl.LazyFrame:
        """Validation samples, the latest view: the columns of the table and its writers', and `attempt`."""
        return self._run.samples(frontier=frontier).filter(pl.col("split") == "validation")

    def checkpoints(self) -> list[Checkpoint]:
        """All ``checkpoint`` markers that name a step."""
        markers = self._run.markers("checkpoint").filter(pl.col("step").is_not_null())
        rows = markers.select("role", "attempt", "step").unique().collect()
        return [Checkpoint(**row) for row in rows.to_dicts()]

    def not_sent(self) -> dict[str, int]:
        """Rows as they were logged that no target gets yet, by what they are; what there is none of is left out."""
        counts = {
            table: sum(map(len, look(self._files.layout, table, self.run_uid).coverage.covered.values()))
            for table in UNSENT_TABLES
        }
        # the writer's own note that a step is done is for us alone
        markers = self._files.rows("markers").filter(pl.col("name") != "step_closed")
        rollouts = self._files.rows("samples").filter(pl.col("split") != "validation")
        counts["markers"], counts["rollout_samples"] = (
            frame.item() for frame in pl.collect_all([markers.select(pl.len()), rollouts.select(pl.len())])
        )
        return {what: rows for what, rows in counts.items() if rows}

    @cached_property
    def description(self) -> RunDescription:
        """What a target is told of the run as a whole."""
        files = self._files
        started = min((launch.started for launch in files.launches), default=None)
        status = self._status()
        return RunDescription(
            run_uid=files.run_uid,
            name=files.name,
            started=started or datetime.fromtimestamp(0, timezone.utc),
            status=status,
            ended=None if status == "running" else self._last_time(),
            project=files.project,
            group=files.group,
            tags=files.tags,
            notes=files.notes,
            roles=tuple(sorted({state.role for state in self.writers})),
            attempts=max(len(files.launches), 1),
        )

    def _status(self) -> Status:
        """Of the newest attempt: failed unless every writer of it finished."""
        if self.is_alive:
            return "running"
        newest = max((state.attempt for state in self.writers), default=0)
        ends = [self._files.writers[state.writer].end for state in self.writers if state.attempt == newest]
        return "finished" if all(end is not None and end.reason == "finished" for end in ends) else "failed"

    def _last_time(self) -> datetime | None:
        """Time of the last end record, else of the last row."""
        times = [facts.end.ended for facts in self._files.writers.values() if facts.end]
        for table in TABLES:
            times += self._files.rows(table).select(pl.col("time").max()).collect()["time"].drop_nulls().to_list()
        return max(times, default=None)


def _is_gone(facts: WriterFacts) -> bool:
    """Whether a writer wrote its end, is provably dead, or is lost."""
    silence = now_utc() - last_sign(facts)
    return facts.end is not None or is_provably_dead(facts) or silence > Thresholds().lost_after


def _find_progress(run: Run) -> list[Progress]:
    """The highest position of every writer and axis; the training step counts from every table with steps."""
    metrics = with_position(run.files.rows("metrics")).filter(pl.col("position").is_finite())
    # a call that closes a step and has no metrics leaves a marker
    closing = run.files.rows("markers").filter(pl.col("name") == "step_closed")
    frames = [
        metrics.select("writer", "axis", "position", "closes_step"),
        _steps_of(run.files.rows("timings"), closes=False),
        _steps_of(run.files.rows("samples"), closes=False),
        _steps_of(closing, closes=True),
    ]
    closed = pl.col("position").filter(pl.col("closes_step")).max()
    found = pl.concat(frames).group_by("writer", "axis").agg(last=pl.col("position").max(), closed=closed)
    return [Progress(**row) for row in found.collect().to_dicts()]


def _steps_of(rows: pl.LazyFrame, *, closes: bool) -> pl.LazyFrame:
    return rows.filter(pl.col("step").is_not_null()).select(
        "writer",
        axis=pl.lit(None, pl.String),
        position=pl.col("step").cast(pl.Float64),
        closes_step=pl.lit(closes, pl.Boolean),
    )
