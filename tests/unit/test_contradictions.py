from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from rl_eventlog.layout import sha16
from rl_eventlog.reader import Beat, End, WriterFacts
from rl_eventlog.reader.attempts import order_launches
from rl_eventlog.reader.contradictions import contradictions
from rl_eventlog.types import Identity

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def writer(launch: str, begin: float, end: float | None, **fields: Any) -> WriterFacts:
    """One that lived from so many seconds after noon on; without an end, it left no end record."""
    identity = Identity("u", "", launch, fields.pop("role", "trainer"), fields.pop("rank", 0), None, "n")
    seen = tuple(sha16(other.encode()) for other in fields.pop("seen", ()))
    ended = None if end is None else End(NOON + timedelta(seconds=end), "closed", {}, {}, {})
    given = {"host": "n", "boot_id": "b", "end": ended, "launches_seen": seen} | fields
    return WriterFacts(identity, "r", NOON + timedelta(seconds=begin), **given)


def found(*writers: WriterFacts) -> list[tuple[str, str | None, str]]:
    by_id = {f"w{number}": facts for number, facts in enumerate(writers)}
    return [tuple(one) for one in contradictions(by_id, order_launches(by_id))]  # type: ignore[misc]


def test_launches_one_after_the_other_contradict_nothing() -> None:
    assert found() == []
    assert found(writer("a", 0, 100), writer("b", 100, 200, seen="a"), writer("c", 203, 300, seen="ab")) == []


def test_a_few_seconds_in_which_a_job_ends_are_no_overlap() -> None:
    assert found(writer("a", 0, 104), writer("b", 100, 200, seen="a")) == []


def test_launches_of_a_role_that_lived_at_once_are_named_with_how_long() -> None:
    ((kind, role, detail),) = found(writer("a", 0, 100), writer("b", 70, 200, seen="a"))
    assert (kind, role) == ("launches_overlap", "trainer")
    assert detail == (
        "attempts 1 (a) and 2 (b) ran at once, for 25 s or more; where both have rows, the later attempt counts"
    )


def test_a_long_launch_overlaps_with_one_that_is_not_the_next() -> None:
    kinds = found(writer("a", 0, 100), writer("b", 95, 96, seen="a"), writer("c", 40, 90, seen="ab"))
    assert [(kind, detail[:23]) for kind, _, detail in kinds] == [("launches_overlap", "attempts 1 (a) and 3 (c")]


def test_roles_beside_one_another_are_no_overlap() -> None:
    assert found(writer("a", 0, 100), writer("b", 10, 90, role="eval", seen="a")) == []


def test_clocks_of_two_machines_may_differ_by_a_minute() -> None:
    assert found(writer("a", 0, 100), writer("b", 50, 200, host="m", boot_id="c", seen="a")) == []
    ((kind, _, detail),) = found(writer("a", 0, 100), writer("b", 10, 200, host="m", boot_id="c", seen="a"))
    assert kind == "launches_overlap"
    assert "for 30 s or more" in detail


def test_a_rank_without_an_end_lived_until_its_last_sign() -> None:
    assert found(writer("a", 0, None), writer("b", 50, 200, seen="a")) == []
    beat = Beat(NOON + timedelta(seconds=90), 7, None, (), 0, 0)
    ((kind, _, detail),) = found(writer("a", 0, None, beat=beat), writer("b", 50, 200, seen="a"))
    assert kind == "launches_overlap"
    assert "for 35 s or more" in detail


def test_restart_counters_against_the_order_on_disk_are_reported() -> None:
    first, second = writer("j-r1", 0, 9, restart_count=1), writer("j-r0", 10, 20, restart_count=0, seen=["j-r1"])
    assert found(first, second) == [
        (
            "restart_order",
            None,
            "attempt 2 (j-r0) counts 0 restarts, attempt 1 (j-r1) 1; the order on disk counts",
        )
    ]
    assert found(first, writer("k-r0", 10, 20, restart_count=0, seen=["j-r1"])) == []


def test_a_process_of_a_launch_that_begins_after_the_next_is_reported_once() -> None:
    again = [writer("a", 20, 30, rank=rank, seen="b") for rank in (0, 1)]
    assert found(writer("a", 0, 9), writer("b", 10, 19, seen="a"), *again) == [
        (
            "launch_again",
            "trainer",
            "attempt 1 (a) had a process begin after attempt 2 (b) had, which hides it where both have rows",
        ),
        (
            "launches_overlap",
            "trainer",
            "attempts 1 (a) and 2 (b) ran at once, for 4 s or more; where both have rows, the later attempt counts",
        ),
    ]


def test_a_process_of_another_role_may_begin_whenever_it_likes() -> None:
    late = writer("a", 20, 30, role="rollout", seen="b")
    assert found(writer("a", 0, 9), writer("b", 10, 19, role="trainer", seen="a"), late) == []
