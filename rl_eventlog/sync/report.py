"""What a sync did, or would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from rl_eventlog.run.info import Gap
from rl_eventlog.sinks.base import Sink

from .ledger import Ledger
from .plan import Plan
from .record import Record
from .source import Source


@dataclass(frozen=True, slots=True)
class SeriesCount:
    """Points of one series that were planned in this sync."""

    table: str
    """`metrics` or `timings`."""
    role: str
    series: str
    """Its name at the target."""
    axis: str | None
    points: int
    corrections: int
    """Of `points`, those that replace another value at the target."""


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of a role that wait, and why."""

    role: str
    reason: Literal["incomplete", "checkpoint"]
    """`incomplete`: a writer may still add to the step. `checkpoint`: beyond the newest checkpoint of a
    live attempt, which a restart would log again."""
    points: int
    samples: int
    first_step: int | None
    """The lowest step among them."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """One sync of one run to one target."""

    path: Path
    run_uid: str
    name: str
    kind: str
    address: str
    location: str | None
    """Where a person finds the run; None in a dry run."""
    dry_run: bool
    commits: int
    """Commits sent, or to be sent in a dry run; so are all counts."""
    points: int
    corrections: int
    """Of `points`, those that replace another value at the target."""
    params: int
    samples: int
    resent: int
    """Of `commits`, those that an earlier sync planned and did not finish."""
    series: tuple[SeriesCount, ...]
    """What was planned in this sync, without what was sent again."""
    held: tuple[Held, ...]
    hidden: int
    """Points that stay at the target though the latest view has them no longer."""
    unplaced: int
    """Points without a step, in series that have steps: not sent."""
    not_sent: Mapping[str, int]
    """Rows as logged that no target gets yet: `distributions`, `artifacts`, `gpu_samples`, `markers` and
    `rollout_samples` (those of other splits than validation); what there is none of is left out."""
    gaps: tuple[Gap, ...]
    damaged: tuple[str, ...]
    """Files of the run that could not be used, or not wholly, each with the reason."""
    warnings: tuple[str, ...]
    """What went wrong with the copy of our record."""

    @property
    def up_to_date(self) -> bool:
        """Whether there was nothing to send."""
        return self.commits == 0

    @property
    def held_points(self) -> int:
        """Points that wait."""
        return sum(held.points for held in self.held)


def make_report(
    source: Source,
    sink: Sink,
    ledger: Ledger,
    sent: Sequence[Record],
    plan: Plan | None,
    *,
    resent: int,
    dry_run: bool,
) -> SyncReport:
    """Put the report together.

    Args:
        source: the run.
        sink: the target.
        ledger: our record of it.
        sent: commits sent, or to be sent.
        plan: what was planned; None where there was nothing new.
        resent: how many of `sent` an earlier sync planned.
        dry_run: whether nothing was done.
    """
    description, state = source.description, plan.state if plan else ledger.state
    return SyncReport(
        path=source.path,
        run_uid=source.run_uid,
        name=description.name,
        kind=sink.kind,
        address=sink.address,
        location=None if dry_run else sink.location,
        dry_run=dry_run,
        commits=len(sent),
        points=sum(record.points for record in sent),
        corrections=sum(record.corrections for record in sent),
        params=sum(record.params for record in sent),
        samples=sum(record.samples for record in sent),
        resent=resent,
        series=_count_series(plan) if plan else (),
        held=_count_held(plan) if plan else (),
        # with nothing held back, what is carried is what the view no longer has
        hidden=plan.hidden if plan else len(state.carried) if state else 0,
        unplaced=state.unplaced if state else 0,
        not_sent=source.not_sent(),
        gaps=source.gaps(),
        damaged=tuple(source.problems),
        warnings=tuple(ledger.warnings),
    )


def _count_series(plan: Plan) -> tuple[SeriesCount, ...]:
    keys = ["table", "role", "series", "axis"]
    counts = plan.points.group_by(keys).agg(points=pl.len(), corrections=pl.col("correction").sum()).sort(keys)
    return tuple(SeriesCount(**row) for row in counts.to_dicts())


def _count_held(plan: Plan) -> tuple[Held, ...]:
    keys = ["role", "reason"]
    rows = pl.concat(
        [
            plan.held.select(*keys, "step", sample=pl.lit(value=False)),
            plan.held_samples.select(*keys, "step", sample=pl.lit(value=True)),
        ]
    )
    counts = rows.group_by(keys).agg(
        points=(~pl.col("sample")).sum(), samples=pl.col("sample").sum(), first_step=pl.col("step").min()
    )
    return tuple(Held(**row) for row in counts.sort(keys).to_dicts())
