"""Numbers for the points of a merge, so that a value a point is a place in an array.

- A series (name, axis) and a point (series, position) have numbers from 0 in the order in which they first came.
- Ranks that logged the same points in the same order, as most do, are recognised and cost a comparison.
- Positions are compared as numbers: 0.0 is -0.0, one NaN is another; null is a position of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NULL_POSITION = np.int64(0x7FF8_0000_0000_0001)
"""Bits of a NaN that no sum makes: the position of a row that has none."""


def position_keys(positions: Array, *, known: Array | None) -> Array:
    """Positions as integers that are equal where the positions are.

    Args:
        positions: [n] float64.
        known: [n] whether each is not null; None: all are.
    """
    plain = positions + 0.0  # -0.0 becomes 0.0
    plain[np.isnan(plain)] = np.nan
    keys = plain.view(np.int64)
    if known is not None:
        keys[~known] = NULL_POSITION
    return keys


def positions_of(keys: Array) -> tuple[Array, Array]:
    """[n] float64 and [n] whether each is known: what `position_keys` was given."""
    return keys.view(np.float64), keys != NULL_POSITION


class Numbering:
    """Distinct integers, numbered in the order in which they first came."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.int64)
        self._numbers = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._sorted)

    def find(self, keys: Array) -> Array:
        """[n] the numbers of the keys [n]; -1 for a key that has none."""
        if not len(self):
            return np.full(len(keys), -1, np.int64)
        places = np.minimum(np.searchsorted(self._sorted, keys), len(self) - 1)
        return np.where(self._sorted[places] == keys, self._numbers[places], -1)

    def of(self, keys: Array) -> Array:
        """[n] the numbers of the keys [n]; new keys are added."""
        numbers = self.find(keys)
        if len(new := keys[numbers < 0]):
            distinct, first = np.unique(new, return_index=True)
            added = np.empty(len(distinct), np.int64)
            added[np.argsort(first)] = np.arange(len(self), len(self) + len(distinct))
            places = np.searchsorted(self._sorted, distinct)
            self._sorted = np.insert(self._sorted, places, distinct)
            self._numbers = np.insert(self._numbers, places, added)
            numbers = self.find(keys)
        return numbers


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Which rows of one rank hold, and where: each point at most once. Ranks with the same rows share it."""

    rows: slice | Array
    points: slice | Array

    def of(self, values: Array) -> Array:
        """Of one value a row those of the rows that hold."""
        held: Array = values[self.rows]
        return held


class _Model:
    """The rows that most ranks are expected to have: each a point of its own, as the longest rank so far had them."""

    def __init__(self, series: Array, keys: Array, points: Array, placed: Placed) -> None:
        self._series = series
        self._keys = keys
        self.points = points
        self.placed = placed

    def beginning_of(self, series: Array, keys: Array) -> int:
        """How many rows of a rank, from the first on, are these."""
        length = min(len(series), len(self._series))
        differs = (series[:length] != self._series[:length]) | (keys[:length] != self._keys[:length])
        return int(differs.argmax()) if differs.any() else length


class Points:
    """The points of one attempt of a role, numbered.

    Args:
        newer: points of attempts that replace those of this one.

    Attributes:
        series: [points] the series of each.
        keys: [points] the position key of each.
    """

    def __init__(self, newer: Sequence[Points] = ()) -> None:
        nothing = np.empty(0, np.int64)
        self.series = np.empty(0, np.int32)
        self.keys = nothing
        self._newer = newer
        self._replaced = np.empty(0, bool)
        self._positions = Numbering()
        self._pairs = Numbering()
        self._model = _Model(self.series, nothing, nothing, Placed(slice(None), nothing))

    def __len__(self) -> int:
        return len(self._pairs)

    def has(self, series: Array, keys: Array) -> Array:
        """[n] whether each of the points is among these."""
        positions = self._positions.find(keys)
        found: Array = self._pairs.find(_pairs(series, positions)) >= 0
        return found & (positions >= 0)

    def place(self, series: Array, keys: Array) -> Placed:
        """Find the points of a rank's rows; of the rows of one point the last holds.

        Args:
            series: [n] series of each row, oldest row first.
            keys: [n] position keys.
        """
        like = self._model.beginning_of(series, keys)
        if like == len(series) == len(self._model.points):
            return self._model.placed
        points = np.concatenate([self._model.points[:like], self._number(series[like:], keys[like:])])
        last = np.empty(len(self), np.int64)
        last[points] = np.arange(len(points))
        is_last = last[points] == np.arange(len(points))
        held = is_last & ~self._replaced[points]
        whole = bool(held.all())
        rows = slice(None) if whole else np.flatnonzero(held)
        placed = Placed(rows, _as_slice(points if whole else points[held]))
        if len(points) > len(self._model.points) and is_last.all():
            self._model = _Model(series, keys, points, placed)
        return placed

    def _number(self, series: Array, keys: Array) -> Array:
        before = len(self)
        points = self._pairs.of(_pairs(series, self._positions.of(keys)))
        if len(self) > before:
            new, first = np.unique(points, return_index=True)
            first = first[new >= before]
            self.series = np.append(self.series, series[first])
            self.keys = np.append(self.keys, keys[first])
            replaced = [other.has(series[first], keys[first]) for other in self._newer]
            self._replaced = np.append(self._replaced, np.any([np.zeros(len(first), bool), *replaced], axis=0))
        return points


def _pairs(series: Array, positions: Array) -> Array:
    return series.astype(np.int64) << 40 | positions


def _as_slice(points: Array) -> slice | Array:
    """The same places, as a slice where they follow one another: copying those is several times faster."""
    if len(points) and points[-1] - points[0] == len(points) - 1 and np.all(np.diff(points) == 1):
        return slice(int(points[0]), int(points[-1]) + 1)
    return points
