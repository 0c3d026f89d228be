"""States in words.

- With the exceptions by which ranks ended, which count as finished.
- Ranks that hold their role up are one sentence a role and state, however many they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rl_eventlog_cli import output

if TYPE_CHECKING:
    from rl_eventlog.run import RankInfo, RunInfo, Stall, Thresholds
    from rl_eventlog.run.state import State

_ENDED = "ended: "
_NAMED = 8  # ranks, processes or timers that a sentence names; of more it says how many


def ended_by(ranks: Iterable[RankInfo]) -> list[str]:
    """Why ranks wrote their end, other than that the training was over: names of exceptions, mostly."""
    reasons = {rank.reason.removeprefix(_ENDED) for rank in ranks if rank.reason.startswith(_ENDED)}
    return sorted(reasons - {"finished"})


def in_words(state: State | None, ranks: Iterable[RankInfo]) -> str:
    """`finished`, `finished: ValueError`, or `lost; others ended by ValueError`; empty where nobody wrote yet."""
    reasons = ", ".join(ended_by(ranks))
    if state is None or not reasons:
        return state or ""
    return f"{state}: {reasons}" if state == "finished" else f"{state}; others ended by {reasons}"


def limits(thresholds: Thresholds) -> str:
    """When silence becomes a finding."""
    stalled = f"{thresholds.missed_beats:g} missed heartbeats or {thresholds.idle_steps:g} step times without a call"
    return f"stalled after {stalled}, lost after {output.duration(thresholds.lost_after.total_seconds())} of silence"


def limits_document(thresholds: Thresholds) -> dict[str, float]:
    """The same in JSON."""
    return {
        "missed_beats": thresholds.missed_beats,
        "idle_steps": thresholds.idle_steps,
        "lost_after_seconds": thresholds.lost_after.total_seconds(),
    }


def stalls_in_words(info: RunInfo, *, utc: bool) -> list[str]:
    """Who holds the run up, a sentence each.

    ``rank 5 (node) stalled in `policy_training` since 12:03, step 183; 7 ranks waiting``
    """
    several = len(info.roles) > 1
    return [_sentence(stall, info.read, name_role=several, utc=utc) for stall in info.stalls]


def _sentence(stall: Stall, now: datetime, *, name_role: bool, utc: bool) -> str:
    inside = f" in {_timers(stall.timers)}" if stall.timers else ""
    step = "" if stall.first_step is None else f", step {stall.first_step}"
    if stall.first_step != stall.last_step:
        step = f", steps {stall.first_step} to {stall.last_step}"
    waiting = ""
    if stall.waiting:
        kind = "rank" if stall.ranks else "process"
        waiting = f"; {_count(stall.waiting, kind)} waiting"
    role = f"{stall.role} " if name_role or stall.processes else ""
    since = _time_of_day(stall.since, now, utc=utc)
    return f"{role}{_who(stall)} ({_where(stall)}) {stall.state}{inside} since {since}{step}{waiting}"


def _who(stall: Stall) -> str:
    from rl_eventlog.run.stalls import numbers

    named = []
    if stall.ranks:
        shown = numbers(stall.ranks)
        few = shown.count(",") + 2 <= _NAMED
        many = f"ranks {shown}" if few else f"{len(stall.ranks)} ranks"
        named.append(f"rank {shown}" if len(stall.ranks) == 1 else many)
    if len(stall.processes) > _NAMED:
        named.append(f"{len(stall.processes)} processes")
    else:
        named += stall.processes
    return _listed(named)


def _where(stall: Stall) -> str:
    return stall.nodes[0] if len(stall.nodes) == 1 else f"{len(stall.nodes)} nodes"


def _timers(labels: tuple[str, ...]) -> str:
    named = [f"`{label}`" for label in labels[:_NAMED]]
    return _listed(named if len(labels) <= _NAMED else [*named, f"{len(labels) - _NAMED} more"])


def _time_of_day(moment: datetime, now: datetime, *, utc: bool) -> str:
    """`12:03`, with the day where it is not today's, and with the zone where it is not the local one."""
    zone = timezone.utc if utc else None
    moment, now = moment.astimezone(zone), now.astimezone(zone)
    day = "" if moment.date() == now.date() else "%Y-%m-%d "
    return f"{moment:{day}%H:%M}{' UTC' if utc else ''}"


def _count(number: int, kind: str) -> str:
    many = f"{kind}es" if kind.endswith("s") else f"{kind}s"
    return f"{number} {kind if number == 1 else many}"


def _listed(parts: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
