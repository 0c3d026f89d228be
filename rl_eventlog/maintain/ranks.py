"""What is wrong with the writers of a run: missing, silent, gone, with rows that nobody will see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

import polars as pl

from rl_eventlog.reader import RunFiles, WriterFacts
from rl_eventlog.run import Run, RunInfo
from rl_eventlog.run.stalls import numbers
from rl_eventlog.run.state import last_sign
from rl_eventlog.types import Span, Spans

from .findings import Finding
from .gone import is_gone

CLOCK_JUMP = timedelta(minutes=1)
"""A clock that goes back by more, or is ahead of ours by more, is named."""


def find_in_ranks(run: Run, info: RunInfo) -> Iterator[Finding]:
    """Ranks that are not there or not well, and rows that a writer still holds, or lost."""
    files = run.files
    yield from _rows_not_there(files)
    yield from _fallbacks(run)
    for role in info.roles:
        if role.ranks_missing:
            detail = (
                f"of {role.ranks_expected} ranks, {numbers(role.ranks_missing)} never wrote in attempt {role.attempt}"
            )
            yield Finding("warning", "never wrote", role.role, detail)
    for rank in info.ranks:
        if rank.state not in ("finished", "running"):
            yield Finding("warning", rank.state, name(files.writers[rank.writer]), rank.reason)
    yield from _same_ranks(files)
    yield from _ends(info, files)


def find_in_clocks(files: RunFiles, now: datetime) -> Iterator[Finding]:
    """Times of a writer that go back or come from the future, and launches whose clocks contradict the disk.

    Args:
        files: the run.
        now: when the files were read, by the clock of this machine.
    """
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
            place = f"{table} of {name_of(files, writer)}"
            yield Finding("warning", "clock", place, f"its clock went back by {back}")
    for facts in files.writers.values():
        sign = facts.end.ended if facts.end else last_sign(facts)
        if (ahead := sign - now) > CLOCK_JUMP:
            detail = f"its last sign is {ahead.total_seconds():.0f} s later than now by the clock of this machine"
            yield Finding("warning", "clock", name(facts), detail)
    for earlier, later in pairwise(files.launches):
        if later.started < earlier.started:
            detail = f"began at {later.started}, before attempt {earlier.attempt}; the order on disk counts"
            yield Finding("warning", "clock", f"attempt {later.attempt}", detail)


def name(facts: WriterFacts) -> str:
    """A writer so that a person finds its process."""
    rank = facts.role if facts.rank is None else f"{facts.role} {facts.rank}"
    pid = "" if facts.pid is None else f", pid {facts.pid}"
    return f"{rank} on {facts.node}{pid} (writer {facts.writer})"


def name_of(files: RunFiles, writer: str) -> str:
    """The same by id: of a writer that entered after the look, no more is known."""
    facts = files.writers.get(writer)
    return f"writer {writer}" if facts is None else name(facts)


def _rows_not_there(files: RunFiles) -> Iterator[Finding]:
    """Rows that writers say they lost, or had in memory at their last beat."""
    for facts in files.writers.values():
        if facts.end:
            lost = ", ".join(f"{rows} {table}" for table, rows in sorted(facts.end.rows_lost.items()) if rows)
            if lost:
                yield Finding("error", "rows lost", name(facts), f"rows that could not be written: {lost}")
            continue
        if facts.beat and facts.beat.rows_lost:
            detail = f"{facts.beat.rows_lost} rows could not be written, by its last heartbeat"
            yield Finding("error", "rows lost", name(facts), detail)
        if facts.beat and facts.beat.rows_at_risk:
            waiting = f"{facts.beat.rows_at_risk} rows waited in memory at its last heartbeat"
            if is_gone(facts, assume_dead=False):
                detail = f"{waiting}, and its process is gone: lost, unless written in between"
                yield Finding("error", "rows at risk", name(facts), detail)
            else:
                yield Finding("warning", "rows at risk", name(facts), waiting)


def _fallbacks(run: Run) -> Iterator[Finding]:
    """Rows that lie in a folder outside the run, as a marker says, and did not come home."""
    files = run.files
    said = run.markers("fallback").select("writer", "fields").sort("writer", "fields").collect()
    for writer, fields in said.iter_rows():
        try:
            moved = json.loads(fields or "")
            table, first = str(moved["table"]), int(moved["first_seq"])
            covered = files.table(table).coverage.covered.get(writer, Spans())
            away = bool(covered.missing_from(Span(first, first)))
        except (KeyError, TypeError, ValueError):  # someone's own marker of that name
            continue
        if away:
            gone = is_gone(files.writers.get(writer), assume_dead=False)
            detail = f"{table} from seq {first} on lie on {moved.get('host')}: {moved.get('path')}"
            yield Finding("error" if gone else "warning", "fallback", name_of(files, writer), detail)


def _same_ranks(files: RunFiles) -> Iterator[Finding]:
    """Processes that were one rank at the same time: the rows of the later one hide those of the other."""
    members = files.identities().sort("incarnation").group_by("attempt", "role", "rank_key", maintain_order=True)
    for _, incarnations in members:
        facts = [files.writers[writer] for writer in incarnations.unique("incarnation", maintain_order=True)["writer"]]
        for earlier, later in pairwise(facts):
            sign = earlier.end.ended if earlier.end else last_sign(earlier)
            if earlier.pid != later.pid and sign - later.opened > CLOCK_JUMP:
                detail = f"is the same rank at the same time as {name(earlier)}, whose rows it hides"
                yield Finding("warning", "same rank", name(later), detail)


def _ends(info: RunInfo, files: RunFiles) -> Iterator[Finding]:
    """Writers that nobody waits for any more: a later attempt or incarnation took their place."""
    standing = {rank.writer for rank in info.ranks}
    for writer, facts in files.writers.items():
        if writer not in standing and facts.end is None:
            detail = "it wrote no end record: rows missing at its end could not be seen"
            yield Finding("note", "no end", name(facts), detail)
