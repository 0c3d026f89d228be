"""What a run is and how it fares: `run.info`.

Everything in it is as of the time the files were read; `run.refresh()` looks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import polars as pl

from rl_eventlog.reader import Problem, RunFiles, WriterFacts
from rl_eventlog.schema import TABLES

from .counts import Count, add_up, count_rows
from .stalls import Stall, find_stalls
from .state import Judgement, State, Thresholds, judge, last_sign, worst

_STEPS_FOR_MEDIAN = 100


@dataclass(frozen=True, slots=True)
class Gap:
    """Rows that were written and that no usable file holds."""

    table: str
    writer: str
    first: int
    last: int
    """Last missing seq, inclusive."""


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One launch of the run, as the reader orders them."""

    attempt: int
    """From 1."""
    launch: str
    started: datetime
    last_row: datetime | None
    """Time of its last row, UTC; None without rows."""
    last_step: int | None
    roles: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One rank of a role in the role's latest attempt."""

    role: str
    rank: int | None
    data_rank: int | None
    node: str
    writer: str
    attempt: int
    state: State
    reason: str
    """Why it is in that state."""
    last_step: int | None
    """The highest of its rows and its last heartbeat."""
    last_sign: datetime
    """Its end, else its last heartbeat, else when it was opened, UTC."""
    beat_seconds: float
    """Interval of its heartbeat."""
    since: datetime
    """Since when it is in that state, as far as can be seen, UTC: its end, last call or last sign of life."""
    open_timers: tuple[str, ...]
    """What it was timing at its last heartbeat."""
    pid: int | None
    actor: str | None
    """Id of its Ray actor."""


@dataclass(frozen=True, slots=True)
class RoleInfo:
    """One role in its latest attempt."""

    role: str
    attempt: int
    state: State
    """The worst of its ranks."""
    ranks_seen: int
    ranks_expected: int | None
    """World size as its writers say; None where unknown."""
    ranks_missing: tuple[int, ...]
    """Numbers below the world size that nobody has."""
    nodes: tuple[str, ...]
    last_step: int | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as a whole."""

    path: Path
    run_uid: str
    name: str
    project: str | None
    group: str | None
    tags: tuple[str, ...]
    notes: str | None
    state: State | None
    """The worst of its roles; None where nobody wrote yet."""
    started: datetime | None
    """When its first writer was opened, UTC."""
    last_seen: datetime | None
    """Its last row, heartbeat or end record, UTC."""
    attempts: tuple[AttemptInfo, ...]
    roles: tuple[RoleInfo, ...]
    ranks: tuple[RankInfo, ...]
    stalls: tuple[Stall, ...]
    """Its ranks that are stalled or lost, together by role and state."""
    nodes: tuple[str, ...]
    """Of all attempts."""
    rows: dict[str, int]
    """Rows by table, of all attempts; tables without rows are left out."""
    gaps: tuple[Gap, ...]
    problems: tuple[Problem, ...]
    """Files that could not be used, or not wholly."""
    rows_at_risk: int
    """Accepted and not yet written, as the last heartbeats say."""
    rows_lost: int
    """That could not be written, as end records and heartbeats say."""
    read: datetime
    """When the files were read, UTC."""
    thresholds: Thresholds


def describe(files: RunFiles, *, read: datetime, thresholds: Thresholds) -> RunInfo:
    """Look at all tables and writers of a run.

    Args:
        files: the run.
        read: when its writers' files were read.
        thresholds: when silence becomes a finding.
    """
    rows_by_table, counts = count_rows(files)
    ranks = _ranks(files, counts, read, thresholds)
    roles = tuple(_role(role, ranks, counts, files) for role in sorted({rank.role for rank in ranks}))
    writers = files.writers.values()
    signs = [facts.end.ended if facts.end else last_sign(facts) for facts in writers]
    return RunInfo(
        path=files.path,
        run_uid=files.run_uid,
        name=files.name,
        project=files.project,
        group=files.group,
        tags=files.tags,
        notes=files.notes,
        state=worst(role.state for role in roles),
        started=min((facts.opened for facts in writers), default=None),
        last_seen=max([*signs, *(count.last_row for count in counts.values() if count.last_row)], default=None),
        attempts=_attempts(files, counts),
        roles=roles,
        ranks=ranks,
        stalls=find_stalls(ranks),
        nodes=tuple(sorted({facts.node for facts in writers})),
        rows=rows_by_table,
        gaps=tuple(
            Gap(table, writer, span.first, span.last)
            for table in TABLES
            for writer, spans in files.gaps(table).items()
            for span in spans
        ),
        problems=tuple(files.problems),
        rows_at_risk=sum(facts.beat.rows_at_risk for facts in writers if facts.beat and not facts.end),
        rows_lost=sum(map(_rows_lost, writers)),
        read=read,
        thresholds=thresholds,
    )


def _attempts(files: RunFiles, counts: Mapping[str, Count]) -> tuple[AttemptInfo, ...]:
    found = []
    for launch in files.launches:
        members = [facts for facts in files.writers.values() if facts.launch == launch.id]
        its = add_up(counts[facts.writer] for facts in members if facts.writer in counts)
        roles = tuple(sorted({facts.role for facts in members}))
        found.append(
            AttemptInfo(launch.attempt, launch.id, launch.started, its.last_row, its.last_step, roles, its.rows)
        )
    return tuple(found)


def _ranks(
    files: RunFiles, counts: Mapping[str, Count], read: datetime, thresholds: Thresholds
) -> tuple[RankInfo, ...]:
    """The ranks of each role in its latest attempt: of a rank the last incarnation, of forks the parent."""
    every = sorted(files.standings(), key=lambda one: one.writer, reverse=True)
    newest: dict[str, int] = {}
    for one in every:
        newest[one.role] = max(newest.get(one.role, 0), one.attempt)
    last_wins = sorted(every, key=lambda one: one.incarnation)
    standing = {(one.role, one.rank_key): one for one in last_wins if one.attempt == newest[one.role]}
    found: list[RankInfo] = []
    for role in sorted(newest):
        members = [one for one in standing.values() if one.role == role]
        ordered = sorted(members, key=lambda one: (one.rank is None, one.rank or 0, one.writer))
        facts = [files.writers[one.writer] for one in ordered]
        step_seconds = partial(_median_step_seconds, files, facts)
        judgements = judge(facts, now=read, thresholds=thresholds, step_seconds=step_seconds)
        found += [
            _rank(of_rank, newest[role], judgement, counts.get(of_rank.writer, Count()).last_step)
            for of_rank, judgement in zip(facts, judgements, strict=True)
        ]
    return tuple(found)


def _rank(facts: WriterFacts, attempt: int, judgement: Judgement, row_step: int | None) -> RankInfo:
    steps = [step for step in (row_step, facts.beat.step if facts.beat else None) if step is not None]
    return RankInfo(
        role=facts.role,
        rank=facts.rank,
        data_rank=facts.data_rank,
        node=facts.node,
        writer=facts.writer,
        attempt=attempt,
        state=judgement.state,
        reason=judgement.reason,
        last_step=max(steps, default=None),
        last_sign=facts.end.ended if facts.end else last_sign(facts),
        beat_seconds=facts.beat_seconds,
        since=judgement.since,
        open_timers=facts.beat.open_timers if facts.beat and not facts.end else (),
        pid=facts.pid,
        actor=facts.actor,
    )


def _role(role: str, all_ranks: Iterable[RankInfo], counts: Mapping[str, Count], files: RunFiles) -> RoleInfo:
    ranks = [rank for rank in all_ranks if rank.role == role]
    facts = [files.writers[rank.writer] for rank in ranks]
    expected = max((one.world_size for one in facts if one.world_size is not None), default=None)
    launch = facts[0].launch
    members = [one for one in files.writers.values() if (one.role, one.launch) == (role, launch)]
    return RoleInfo(
        role=role,
        attempt=ranks[0].attempt,
        state=worst(rank.state for rank in ranks) or "lost",
        ranks_seen=len(ranks),
        ranks_expected=expected,
        ranks_missing=tuple(sorted(set(range(expected or 0)) - {rank.rank for rank in ranks})),
        nodes=tuple(sorted({rank.node for rank in ranks})),
        last_step=add_up(counts[one.writer] for one in members if one.writer in counts).last_step,
    )


def _median_step_seconds(files: RunFiles, ranks: Sequence[WriterFacts]) -> float | None:
    """Median time between the first rows of successive steps, of the last hundred of the first rank with two steps."""
    tables = files.rows_by_writer("metrics", [facts.writer for facts in ranks], columns=["step", "time"])
    with closing(tables):
        for table in tables:
            rows = pl.DataFrame(table).lazy().filter(pl.col("step").is_not_null())
            steps = rows.group_by("step").agg(pl.col("time").min()).sort("step").tail(_STEPS_FOR_MEDIAN)
            seconds = steps.select(pl.col("time").diff().dt.total_microseconds().abs().median() / 1e6).collect()
            if (median := seconds.item()) is not None:
                return float(median)
    return None


def _rows_lost(facts: WriterFacts) -> int:
    if facts.end:
        return sum(facts.end.rows_lost.values())
    return facts.beat.rows_lost if facts.beat else 0
