"""What state each rank is in: finished, running, waiting, stalled or lost.

- *finished*: it wrote its end record.
- *lost*: no heartbeat for `lost_after`, or its process is provably dead: it ran on this host and boot,
  and no live process has its pid and start time. Silence alone is never proof.
- *stalled*: the heartbeat is older than `missed_beats` intervals; or it beats but made no call for
  `idle_steps` median steps of its role (and at least one interval) while no rank of its role is
  behind it.
- *waiting*: it made no call for that long, and another rank of its role is behind it, stalled or lost.
- *running*: everything else.

All is judged as of the time the files were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from rl_eventlog import host
from rl_eventlog.reader import WriterFacts

State = Literal["finished", "running", "waiting", "stalled", "lost"]

#: From good to bad: the state of a role or run is the worst of its ranks.
SEVERITY: tuple[State, ...] = ("finished", "running", "waiting", "stalled", "lost")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When silence becomes a finding."""

    missed_beats: float = 3.0
    """Heartbeat intervals without a beat, after which a rank is stalled."""
    idle_steps: float = 10.0
    """Median step times without a call, after which a rank is stalled or waiting."""
    lost_after: timedelta = timedelta(minutes=10)
    """Time without a beat, after which a rank is lost."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state of a rank and why."""

    state: State
    reason: str
    since: datetime
    """Of a silent rank its last sign of life, of one that only beats its last call: from then on it does not go on."""


def worst(states: Iterable[State]) -> State | None:
    """The worst of several states; None of none."""
    return max(states, key=SEVERITY.index, default=None)


def is_provably_dead(facts: WriterFacts) -> bool:
    """Whether the writer's process is known to be gone: proof exists only on its own host and boot."""
    return host.is_provably_dead(_process_facts(facts))


def is_provably_alive(facts: WriterFacts) -> bool:
    """Whether the writer's process is seen to run on this host."""
    return host.is_provably_alive(_process_facts(facts))


def _process_facts(facts: WriterFacts) -> dict[str, Any]:
    names = ("host", "boot_id", "pid_namespace", "pid", "process_start")
    return {name: getattr(facts, name) for name in names}


def judge(
    ranks: Sequence[WriterFacts], *, now: datetime, thresholds: Thresholds, step_seconds: Callable[[], float | None]
) -> list[Judgement]:
    """Judge the ranks of one role.

    Args:
        ranks: the writer that stands for each rank.
        now: when their files were read.
        thresholds: when silence becomes a finding.
        step_seconds: median step time of the role; called only if a rank made no call for an interval.

    Returns:
        One judgement a rank, in their order.
    """
    by_beat = [_by_beat(facts, now, thresholds) for facts in ranks]
    idle = [
        found.state == "running" and (_idle_seconds(facts) or 0.0) >= facts.beat_seconds
        for facts, found in zip(ranks, by_beat, strict=True)
    ]
    median = step_seconds() if any(idle) else None
    if median is None:
        return by_beat
    troubled = any(found.state in ("stalled", "lost") for found in by_beat)
    steps = [_step(facts) for facts, found in zip(ranks, by_beat, strict=True) if found.state != "finished"]
    slowest = min(steps, default=0)
    return [
        _by_calls(facts, limit=thresholds.idle_steps * median, excused=troubled or slowest < _step(facts)) or found
        if is_idle
        else found
        for facts, found, is_idle in zip(ranks, by_beat, idle, strict=True)
    ]


def _by_beat(facts: WriterFacts, now: datetime, thresholds: Thresholds) -> Judgement:
    if facts.end is not None:
        return Judgement("finished", f"ended: {facts.end.reason}", facts.end.ended)
    since = last_sign(facts)
    if is_provably_dead(facts):
        return Judgement("lost", f"process {facts.pid} is gone and wrote no end{_inside(facts)}", since)
    silence = now - since
    if silence > thresholds.lost_after:
        return Judgement("lost", f"no heartbeat for {_duration(silence.total_seconds())}{_inside(facts)}", since)
    if silence.total_seconds() > thresholds.missed_beats * facts.beat_seconds:
        return Judgement("stalled", f"no heartbeat for {_duration(silence.total_seconds())}{_inside(facts)}", since)
    return Judgement("running", "beats", since)


def _by_calls(facts: WriterFacts, *, limit: float, excused: bool) -> Judgement | None:
    idle = _idle_seconds(facts) or 0.0
    if idle <= limit:
        return None
    since = last_sign(facts) - timedelta(seconds=idle)
    if excused:
        because = "another rank of its role is behind or silent"
        return Judgement("waiting", f"no call for {_duration(idle)}, {because}{_inside(facts)}", since)
    because = "and no rank of its role is behind it"
    return Judgement("stalled", f"no call for {_duration(idle)}, {because}{_inside(facts)}", since)


def _duration(seconds: float) -> str:
    """In seconds as long as a person can read them."""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _inside(facts: WriterFacts) -> str:
    """Which timers ran at its last beat: what it was doing."""
    timers = facts.beat.open_timers if facts.beat else ()
    return f"; it was timing {', '.join(timers)}" if timers else ""


def last_sign(facts: WriterFacts) -> datetime:
    """When the writer last said that it lives."""
    return facts.beat.time if facts.beat else facts.opened


def _idle_seconds(facts: WriterFacts) -> float | None:
    return facts.beat.idle_seconds if facts.beat else None


def _step(facts: WriterFacts) -> int:
    """The last step it logged; one that logged none is behind all others."""
    step = facts.beat.step if facts.beat else None
    return -(2**63) if step is None else step
