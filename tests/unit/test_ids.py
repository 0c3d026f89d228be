"""ULIDs: their form, their time, their order."""

from __future__ import annotations

import time

import pytest

from rl_eventlog.ids import ULID, new_ulid, ulid_milliseconds


def test_a_ulid_has_26_characters_of_its_alphabet() -> None:
    assert all(ULID.fullmatch(new_ulid()) for _ in range(1000))


def test_ulids_differ() -> None:
    assert len({new_ulid() for _ in range(10_000)}) == 10_000


def test_a_ulid_tells_when_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    made = ulid_milliseconds(new_ulid())
    assert before <= made <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("milliseconds", [0, 1, 1_738_324_800_000, 2**48 - 1])
def test_ulids_sort_by_time(milliseconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: milliseconds * 1_000_000)
    ulid = new_ulid()
    assert ULID.fullmatch(ulid)
    assert ulid_milliseconds(ulid) == milliseconds
    assert "00000000000000000000000000" < ulid <= "7zzzzzzzzzzzzzzzzzzzzzzzzz"


def test_the_known_example_is_read() -> None:
    # the specification's own example, in lower case
    assert ulid_milliseconds("01arz3ndektsv4rrffq69g5fav") == 1_469_922_850_259


@pytest.mark.parametrize(
    "text", ["", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "81arz3ndektsv4rrffq69g5fav", "01arz3ndektsv4rrffq69g5fai", "0" * 27]
)
def test_what_is_no_ulid_is_not_taken_for_one(text: str) -> None:
    assert not ULID.fullmatch(text)
