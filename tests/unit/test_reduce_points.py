"""Numbering the points of a merge: the same whatever the order and repeats of the rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from rl_eventlog.reduce.points import NULL_POSITION, Array, Numbering, Points, position_keys, positions_of

KEYS = st.lists(st.integers(-5, 5), max_size=12)
RANK = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=8)


@given(st.lists(KEYS, max_size=5))
def test_keys_are_numbered_as_they_first_come(calls: list[list[int]]) -> None:
    numbering, seen = Numbering(), dict[int, int]()
    for keys in calls:
        expected = [seen.setdefault(key, len(seen)) for key in keys]
        assert numbering.of(np.array(keys, np.int64)).tolist() == expected
    assert len(numbering) == len(seen)
    assert numbering.find(np.array([99])).tolist() == [-1]


@given(older=st.lists(RANK, max_size=5), newer=st.lists(RANK, max_size=3))
def test_the_last_row_of_each_point_holds_unless_a_newer_attempt_has_the_point(
    older: list[list[tuple[int, int]]], newer: list[list[tuple[int, int]]]
) -> None:
    replacing = Points()
    for rank in newer:
        replacing.place(*arrays(rank))
    replaced = {point for rank in newer for point in rank}
    points, numbers = Points((replacing,)), dict[tuple[int, int], int]()
    for rank in [*older, *older]:  # the second time every rank is known
        placed = points.place(*arrays(rank))
        held = {point: row for row, point in enumerate(rank) if point not in replaced}
        rows = np.arange(len(rank))[placed.rows].tolist()
        assert sorted(rows) == sorted(held.values())
        at = np.arange(len(points))[placed.points].tolist()
        for row, number in zip(rows, at, strict=True):
            assert numbers.setdefault(rank[row], number) == number
    assert len(set(numbers.values())) == len(numbers)
    for (series, key), number in numbers.items():
        assert (points.series[number], points.keys[number]) == (series, key)


def arrays(rank: list[tuple[int, int]]) -> tuple[Array, Array]:
    return np.array([s for s, _ in rank], np.int32), np.array([k for _, k in rank], np.int64)


def test_positions_are_compared_as_numbers_and_null_is_one_of_its_own() -> None:
    other_nan = np.array([0x7FF8_0000_0000_0001], np.int64).view(np.float64)[0]
    given_positions = np.array([0.0, -0.0, np.nan, other_nan, 1.5, 7.0])
    known = np.array([True, True, True, True, True, False])
    keys = position_keys(given_positions, known=known)
    assert keys[0] == keys[1]
    assert keys[2] == keys[3] != NULL_POSITION == keys[5]
    positions, have = positions_of(keys)
    assert have.tolist() == known.tolist()
    assert positions[4] == 1.5
