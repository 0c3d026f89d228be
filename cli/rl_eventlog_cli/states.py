"""States in words: with the exceptions by which ranks ended, which count as finished."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_eventlog.run import RankInfo
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
