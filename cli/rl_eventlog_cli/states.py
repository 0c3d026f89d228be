"""States in words: with the exceptions by which ranks ended, which count as finished."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rl_eventlog_cli import output

if TYPE_CHECKING:
    from rl_eventlog.run import RankInfo, Thresholds
    from rl_eventlog.run.state import State

_ENDED = "ended: "


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
