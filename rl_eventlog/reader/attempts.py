"""Launches in the order in which they are attempts of the run, and which writers are one rank.

The order comes from what each launch found on the disk when it began, which no clock can spoil. Only
launches that did not see one another are ordered by restart counter, then by the time of the launch: the
file system's, else their machines'. A launch of which no document is left stands where its time puts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import polars as pl

from rl_eventlog.layout import sha16

from .facts import WriterFacts

_Moment = tuple[datetime, datetime]  # of WriterFacts.moment


class Standing(NamedTuple):
    """Where one writer stands in its run."""

    writer: str
    role: str
    rank: int | None
    data_rank: int | None
    node: str
    launch: str
    attempt: int
    """From 1."""
    rank_key: str
    """Equal for the writers that are one rank of the role."""
    incarnation: int
    """From 0, within a rank of an attempt."""
    resume_step: int | None


IDENTITIES = pl.Schema(
    {
        "writer": pl.String(),
        "role": pl.String(),
        "rank": pl.Int32(),
        "data_rank": pl.Int32(),
        "node": pl.String(),
        "launch": pl.String(),
        "attempt": pl.Int32(),
        "rank_key": pl.String(),
        "incarnation": pl.Int32(),
        "resume_step": pl.Int64(),
    }
)
"""Standings as a frame, in the order of their fields."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of the run."""

    id: str
    attempt: int
    """Its number among the launches of the run, from 1."""
    started: datetime
    """When its first writer was opened, by that machine's clock."""
    restart_count: int | None


def order_launches(writers: Mapping[str, WriterFacts]) -> list[Launch]:
    """Number the launches of all writers."""
    by_launch: dict[str, list[WriterFacts]] = {}
    for facts in writers.values():
        by_launch.setdefault(facts.launch, []).append(facts)
    started = {launch: min(facts.moment for facts in members) for launch, members in by_launch.items()}
    seen = _older_launches(by_launch, started)
    restarts = {
        launch: next((facts.restart_count for facts in members if facts.restart_count is not None), None)
        for launch, members in by_launch.items()
    }
    # Launches of one launcher stand where its first stands.
    launcher = {launch: launcher_of(launch, restarts[launch]) for launch in by_launch}
    begun: dict[tuple[int, str], _Moment] = {}
    for launch in by_launch:
        group = (seen[launch], launcher[launch])
        begun[group] = min(begun.get(group, started[launch]), started[launch])

    def key(launch: str) -> tuple[int, _Moment, str, int, _Moment, str]:
        group = (seen[launch], launcher[launch])
        return seen[launch], begun[group], launcher[launch], restarts[launch] or 0, started[launch], launch

    return [
        Launch(launch, attempt, min(facts.opened for facts in by_launch[launch]), restarts[launch])
        for attempt, launch in enumerate(sorted(by_launch, key=key), start=1)
    ]


def launcher_of(launch: str, restart_count: int | None) -> str:
    """What launches have in common whose restart counters can be compared."""
    return launch if restart_count is None else launch.rpartition("-r")[0] or launch


def _older_launches(by_launch: Mapping[str, list[WriterFacts]], started: Mapping[str, _Moment]) -> dict[str, int]:
    """How many launches each found on the disk; by the clock where no document of it is left."""
    known = {sha16(launch.encode()) for launch in by_launch}
    older = {}
    for launch, members in by_launch.items():
        # Later writers of a launch may have seen younger launches; its first has seen only older ones.
        counts = [len(known.intersection(facts.launches_seen)) for facts in members if facts.launches_seen is not None]
        older[launch] = min(counts) if counts else sum(other < started[launch] for other in started.values())
    return older


def standings(writers: Mapping[str, WriterFacts], launches: list[Launch]) -> list[Standing]:
    """Of each writer its attempt, which rank it is, and which incarnation of it.

    Writers with one (attempt, role, rank_key) are one rank; the later incarnation wins. A fork is
    its parent's rank and incarnation; an unknown rank is that of its process, or of its Ray actor.
    """
    attempts = {launch.id: launch.attempt for launch in launches}
    roots = {writer: _root(writer, writers) for writer in writers}
    keys = {writer: _rank_key(writers[root]) for writer, root in roots.items()}
    incarnations: dict[str, int] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for facts in sorted(writers.values(), key=lambda facts: (facts.moment, facts.writer)):
        if roots[facts.writer] == facts.writer:
            rank = (facts.launch, facts.role, keys[facts.writer])
            incarnations[facts.writer] = counts.get(rank, 0)
            counts[rank] = incarnations[facts.writer] + 1
    return [
        Standing(
            facts.writer,
            facts.role,
            facts.rank,
            facts.data_rank,
            facts.node,
            facts.launch,
            attempts[facts.launch],
            keys[facts.writer],
            incarnations[roots[facts.writer]],
            facts.resume_step,
        )
        for facts in writers.values()
    ]


def _root(writer: str, writers: Mapping[str, WriterFacts]) -> str:
    """The writer at the beginning of this one's line of forks; of a circle, which only damage makes, each its own."""
    start, seen = writer, {writer}
    while (parent := writers[writer].forked_from) and parent in writers and parent not in seen:
        if writers[parent].launch != writers[writer].launch or writers[parent].role != writers[writer].role:
            break
        writer = parent
        seen.add(writer)
    return start if writers[writer].forked_from in seen else writer


def _rank_key(facts: WriterFacts) -> str:
    if facts.rank is not None:
        return f"rank {facts.rank}"
    if facts.actor:
        return f"actor {facts.actor}"
    if facts.boot_id is None or facts.pid is None or facts.process_start is None:
        return f"writer {facts.writer}"
    # a notebook that opens the run again in the same process is one rank, not two to be averaged
    return f"process {facts.boot_id} {facts.pid_namespace} {facts.pid} {facts.process_start}"
