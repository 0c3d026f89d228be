"""Launches that contradict the order in which they are attempts. Nothing is decided here; it is only said.

Times are compared where one machine took them, give or take `_LINGER`; across machines, whose clocks
may differ, give or take `_CLOCKS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from rl_eventlog.layout import sha16

from .attempts import Launch, launcher_of
from .facts import WriterFacts

_LINGER = timedelta(seconds=5)
"""What is left of a job may take this long to end after the next has begun."""
_CLOCKS = timedelta(minutes=1)


class Contradiction(NamedTuple):
    """What is odd about a launch.

    Kinds: `restart_order`, `launch_again`, `launches_overlap`.
    """

    kind: str
    role: str | None
    detail: str


class _Life(NamedTuple):
    """From the first writer's opening to the last sign of life."""

    begin: datetime
    end: datetime


def contradictions(writers: Mapping[str, WriterFacts], launches: list[Launch]) -> list[Contradiction]:
    """All of them, in a stable order."""
    return [
        *_restart_order(launches),
        *sorted(set(_launch_again(writers, launches))),
        *sorted(_launches_overlap(writers, launches)),
    ]


def _restart_order(launches: list[Launch]) -> Iterator[Contradiction]:
    """A launch came after one of its launcher that counts more restarts: it found that one on the disk."""
    by_launcher: dict[str, list[Launch]] = {}
    for launch in launches:
        if launch.restart_count is not None:
            by_launcher.setdefault(launcher_of(launch.id, launch.restart_count), []).append(launch)
    for of_one in by_launcher.values():
        for older, younger in pairwise(of_one):
            if (older.restart_count or 0) > (younger.restart_count or 0):
                yield Contradiction(
                    "restart_order",
                    None,
                    f"attempt {younger.attempt} ({younger.id}) counts {younger.restart_count} restarts, attempt "
                    f"{older.attempt} ({older.id}) {older.restart_count}; the order on disk counts",
                )


def _launch_again(writers: Mapping[str, WriterFacts], launches: list[Launch]) -> Iterator[Contradiction]:
    """A writer of a launch opened when a younger launch of its role was there: a launch id was used again."""
    roles: dict[str, set[str]] = {}
    for facts in writers.values():
        roles.setdefault(facts.launch, set()).add(facts.role)
    by_name = {sha16(launch.id.encode()): launch for launch in launches}
    attempts = {launch.id: launch.attempt for launch in launches}
    for facts in writers.values():
        attempt = attempts[facts.launch]
        seen = filter(None, map(by_name.get, facts.launches_seen or ()))
        younger = [other for other in seen if other.attempt > attempt and facts.role in roles[other.id]]
        if younger and not facts.forked_from:
            yield Contradiction(
                "launch_again",
                facts.role,
                f"attempt {attempt} ({facts.launch}) had a process begin after attempt {younger[0].attempt} "
                f"({younger[0].id}) had, which hides it where both have rows",
            )


def _launches_overlap(writers: Mapping[str, WriterFacts], launches: list[Launch]) -> Iterator[Contradiction]:
    """Two launches of one role lived at the same time: is it one job twice, or one job that fell apart?"""
    lives: dict[str, dict[str, dict[str, _Life]]] = {}
    for facts in writers.values():
        machines = lives.setdefault(facts.role, {}).setdefault(facts.launch, {})
        begin, end = facts.opened, max(_last_sign(facts), facts.opened)
        known = machines.get(machine := f"{facts.host or facts.node} {facts.boot_id}", _Life(begin, end))
        machines[machine] = _Life(min(known.begin, begin), max(known.end, end))
    attempts = {launch.id: launch.attempt for launch in launches}
    for role, by_launch in lives.items():
        older, *rest = sorted(by_launch, key=attempts.__getitem__)
        for younger in rest:
            seconds = _together(by_launch[older], by_launch[younger]).total_seconds()
            if seconds > 0:
                yield Contradiction(
                    "launches_overlap",
                    role,
                    f"attempts {attempts[older]} ({older}) and {attempts[younger]} ({younger}) ran at once, for "
                    f"{seconds:.0f} s or more; where both have rows, the later attempt counts",
                )
            older = max(older, younger, key=lambda launch: _whole(by_launch[launch]).end)


def _last_sign(facts: WriterFacts) -> datetime:
    return max(facts.end.ended if facts.end else facts.opened, facts.beat.time if facts.beat else facts.opened)


def _together(one: Mapping[str, _Life], other: Mapping[str, _Life]) -> timedelta:
    """How long both lived at once beyond doubt; not above 0 where they need not have."""
    here = [_common(one[machine], other[machine]) - _LINGER for machine in one.keys() & other.keys()]
    return max([*here, _common(_whole(one), _whole(other)) - _CLOCKS])


def _whole(machines: Mapping[str, _Life]) -> _Life:
    return _Life(min(life.begin for life in machines.values()), max(life.end for life in machines.values()))


def _common(one: _Life, other: _Life) -> timedelta:
    return min(one.end, other.end) - max(one.begin, other.begin)
