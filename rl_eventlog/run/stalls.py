"""Who holds a role up: ranks that are stalled or lost, told together, and how many wait because of them.

One `Stall` a role and state, however many ranks it is: what a node takes with it is one thing to know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Literal

from rl_eventlog.types import Span, Spans

if TYPE_CHECKING:
    from .info import RankInfo


@dataclass(frozen=True, slots=True)
class Stall:
    """The ranks of a role that do not go on, all stalled or all lost."""

    role: str
    attempt: int
    state: Literal["stalled", "lost"]
    ranks: tuple[int, ...]
    """Their numbers; processes without one are in `processes`."""
    processes: tuple[str, ...]
    """Those without a rank, by actor and pid where known."""
    nodes: tuple[str, ...]
    """Where they run or ran, sorted."""
    timers: tuple[str, ...]
    """What they were timing at their last heartbeats, what most of them were first."""
    since: datetime
    """The earliest time, UTC, since which one of them does not go on; see `Judgement.since`."""
    first_step: int | None
    """The last step of the one that is farthest behind; None where none logged a step."""
    last_step: int | None
    """The last step of the one that is farthest ahead."""
    waiting: int
    """Ranks of the role that wait because of them."""


def find_stalls(ranks: Sequence[RankInfo]) -> tuple[Stall, ...]:
    """The stalls of a run, by role, those that are stalled before those that are lost."""
    waiting = Counter(rank.role for rank in ranks if rank.state == "waiting")
    states: tuple[Literal["stalled", "lost"], ...] = ("stalled", "lost")
    return tuple(
        _stall(state, still, waiting[role])
        for role in sorted({rank.role for rank in ranks})
        for state in states
        if (still := [rank for rank in ranks if (rank.role, rank.state) == (role, state)])
    )


def numbers(ranks: Iterable[int]) -> str:
    """Some rank numbers in words: `0, 4 to 7 and 1023`."""
    spans = [
        f"{span.first} to {span.last}" if len(span) > 1 else f"{span.first}"
        for span in Spans(Span(rank, rank) for rank in ranks)
    ]
    return " and ".join(filter(None, (", ".join(spans[:-1]), spans[-1])))


def _stall(state: Literal["stalled", "lost"], ranks: Sequence[RankInfo], waiting: int) -> Stall:
    steps = [rank.last_step for rank in ranks if rank.last_step is not None]
    timers = Counter(chain.from_iterable(rank.open_timers for rank in ranks))
    return Stall(
        role=ranks[0].role,
        attempt=ranks[0].attempt,
        state=state,
        ranks=tuple(sorted(rank.rank for rank in ranks if rank.rank is not None)),
        processes=tuple(_process(rank) for rank in ranks if rank.rank is None),
        nodes=tuple(sorted({rank.node for rank in ranks})),
        timers=tuple(label for label, _ in timers.most_common()),
        since=min(rank.since for rank in ranks),
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        waiting=waiting,
    )


def _process(rank: RankInfo) -> str:
    actor = "" if rank.actor is None else f"actor {rank.actor}"
    pid = "" if rank.pid is None else f"pid {rank.pid}"
    return " ".join(filter(None, (actor, pid))) or f"writer {rank.writer}"
