"""One writer's stay in a run: its registration, rows, heartbeat and background work.

A forked child drops the session of its parent and starts its own; nothing of the parent's is written
by the child.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_eventlog.documents import encode_document, now_utc, time_text
from rl_eventlog.durable import make_folder, write_durably
from rl_eventlog.ids import new_ulid
from rl_eventlog.layout import RunLayout

from .heartbeat import Background, Heartbeat, call_within
from .metrics import MetricPlans
from .places import Places
from .reduce_rules import Rule
from .registration import Labels, Resume, register
from .rows import RowStore
from .skips import Skips
from .table import Limits
from .text import text_of
from .whoami import WhoAmI


@dataclass(frozen=True, slots=True)
class CloseReport:
    """What `EventWriter.close` found."""

    rows: Mapping[str, int]
    """Rows written, by table."""
    rows_lost: Mapping[str, int]
    """Rows that were dropped or could not be written, by table."""
    left_open: tuple[Path, ...] = ()
    """Segments not sealed in time: whole and readable, a valid end."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """What was skipped, by reason."""
    ended: bool = True
    """Whether the end record was written in time."""
    rows_at_risk: Mapping[str, int] = field(default_factory=dict)
    """Rows that were in memory still, by table: the process tries to write them for as long as it lives."""
    fallback: tuple[Path, ...] = ()
    """Segments that lie under the fallback folder, not in the run."""

    @property
    def ok(self) -> bool:
        """Whether every row is on the disk and sealed in the run, and the writer known to have ended."""
        return self.ended and not (self.left_open or self.fallback or self.missing)

    @property
    def missing(self) -> dict[str, int]:
        """Rows that are lost or at risk, by table."""
        return dict(Counter(self.rows_lost) + Counter(self.rows_at_risk))

    def problems(self) -> list[str]:
        """What is not as it should be, a line each, for people."""
        lines = [f"{rows} {table} rows are lost" for table, rows in self.rows_lost.items() if rows]
        lines += [f"{rows} {table} rows are not written yet" for table, rows in self.rows_at_risk.items()]
        lines += [f"{path} lies outside the run: copy it there" for path in self.fallback]
        left = [path for path in self.left_open if path not in self.fallback]
        lines += [f"{path} is not sealed, it is readable as it is" for path in left]
        return lines if self.ended else [*lines, "the end record is not written yet"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a writer was opened with; a forked child needs it again."""

    path: Path
    run: str
    who: WhoAmI
    labels: Labels
    resume: Resume
    resume_step: int | None
    parent_run: str | None
    limits: Limits
    raise_errors: bool
    fsync_seconds: float
    beat_seconds: float
    queued: bool
    """Whether a thread writes."""
    stall_budget_seconds: float
    fallback: Path | None
    """Folder of this run on another disk."""
    rule: Rule | None
    """Gives the reductions that calls do not declare."""


class Session:
    """Enters the run and keeps it going.

    Attributes:
        writer: id of the writer.
        rows: its tables.
        plans: how its calls of `log_metrics` are written.
        warnings: what is odd about the place of the run.
    """

    def __init__(
        self,
        options: Options,
        activity: Callable[[], dict[str, Any]],
        skips: Skips,
        *,
        forked_from: str | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        """Register and start the background work.

        Args:
            options: of the writer.
            activity: the heartbeat's fields that only the writer knows.
            skips: where the writer tells what is odd about its calls.
            forked_from: writer of the parent process.
            provenance: of the attempt, from the process that carries it.

        Raises:
            OpenError: nothing can be written there.
        """
        registration = register(
            options.path,
            options.run,
            options.who,
            writer=new_ulid(),
            labels=options.labels,
            resume=options.resume if forked_from is None else "allow",
            resume_step=options.resume_step,
            forked_from=forked_from,
            parent_run=options.parent_run,
            beat_seconds=options.beat_seconds,
            provenance=provenance,
        )
        self.writer = registration.identity.writer
        self.layout = registration.layout
        self.warnings = registration.warnings
        fallback = RunLayout(options.fallback) if options.fallback else None
        self.rows = RowStore(
            Places(self.layout, registration.identity, registration.document, fallback),
            options.limits,
            budget_seconds=options.stall_budget_seconds if options.queued else None,
            raise_errors=options.raise_errors,
        )
        self.plans = MetricPlans(registration.identity, skips, options.rule)
        self._activity = activity
        self._heartbeat = Heartbeat(self.layout.beat(self.writer), self._describe)
        self._background = Background(
            "rl-eventlog", (self.rows.fsync, self.rows.rotate_old, self.rows.seal), options.fsync_seconds
        )
        # of its own: a file system that stalls an fsync may still take a beat
        self._beats = Background("rl-eventlog-beat", (self._heartbeat.beat,), options.beat_seconds)

    def end(self, timeout_seconds: float, reason: str, counters: Mapping[str, int]) -> CloseReport:
        """Take no more rows, seal, write the end record, and say what there is."""
        deadline = time.monotonic() + timeout_seconds
        idle = self.rows.finish(timeout_seconds)
        self._background.stop((deadline - time.monotonic()) / 2 if idle else 0.0)
        self._beats.stop((deadline - time.monotonic()) / 2 if idle else 0.0)
        ended = call_within(lambda: self._complete(reason, counters), max(0.0, deadline - time.monotonic()))
        rows = {table: last + 1 for table, last in self.rows.last_seqs().items()}
        return CloseReport(
            rows,
            dict(self.rows.rows_lost),
            tuple(self.rows.left_open()),
            self._counters(counters),
            ended,
            self.rows.waiting(),
            tuple(self.rows.fallback()),
        )

    def abandon(self) -> None:
        """In the child of a fork: let go of the parent's files without writing."""
        self.rows.abandon()
        self._heartbeat.close()

    def _describe(self) -> dict[str, Any]:
        return {
            "writer": self.writer,
            **self._activity(),
            "rows_at_risk": sum(self.rows.waiting().values()),
            "rows_lost": sum(self.rows.rows_lost.values()),
        }

    def _counters(self, counters: Mapping[str, int]) -> dict[str, int]:
        own = {
            "plans evicted": self.plans.evictions,
            "background jobs failed": self._background.failures + self._beats.failures,
            "writes over 100 ms": self.rows.slow_writes,
        }
        return {**counters, **{name: times for name, times in own.items() if times}}

    def _complete(self, reason: str, counters: Mapping[str, int]) -> None:
        """What `end` has not to wait for; goes on behind it where that takes longer."""
        if self.rows.waiting():
            self.rows.finish(None)
        # before the seals: a copy that misses an open form which is sealed just then has the end to miss it by
        told: dict[str, int] | None = None
        with suppress(OSError):  # tried again below
            told = self._write_end(reason, counters)
        self.rows.seal_all()
        if self.rows.rows_lost != told:
            self._write_end(reason, counters)
        self.rows.remove_open_forms()
        self._heartbeat.beat()
        self._heartbeat.close()

    def _write_end(self, reason: str, counters: Mapping[str, int]) -> dict[str, int]:
        """Write the end record; the lost rows that it tells of."""
        lost = dict(self.rows.rows_lost)
        end = {
            "writer": self.writer,
            "ended": time_text(now_utc()),
            "reason": text_of(reason),
            "last_seq": self.rows.last_seqs(),
            "rows_lost": lost,
            "counters": self._counters(counters),
        }
        make_folder(self.layout.writers)  # someone may have removed it
        write_durably(self.layout.end(self.writer), encode_document(end))
        return lost
