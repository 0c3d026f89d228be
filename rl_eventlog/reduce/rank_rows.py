"""The rows of one rank as arrays, and the series that they belong to.

- Series are numbered for a whole role, so that a reduction declared in one attempt holds in all.
- The reduction that holds is that of the first rows shown that declare one: show the newest attempt first,
  there the lowest rank. Of one rank's rows the last decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rl_eventlog.types import REDUCTIONS

from .points import Array, position_keys, positions_of

READ_COLUMNS = ("name", "axis", "axis_value", "step", "time", "value", "weight", "reduction")
"""What is needed of each row. Texts as dictionaries, each column in one chunk."""

NO_STEP = np.int64(-(2**63))
MERGED = tuple(name for name in REDUCTIONS if name != "none")
_UNDECLARED, _UNSEEN = -1, -2


@dataclass(frozen=True, slots=True)
class RankRows:
    """Rows of one rank, oldest first: arrays [n]."""

    series: Array
    position_keys: Array
    step: Array
    """int64; `NO_STEP` where there is none."""
    time: Array
    """int64, microseconds."""
    value: Array
    known: Array | None
    """Whether each value is not null; None: all are."""
    weight: Array | None
    """float64, 1.0 where null; None: all are."""
    reduction: Array
    """Codes of the `SeriesTable`."""

    def __len__(self) -> int:
        return len(self.series)

    def take(self, rows: Array) -> RankRows:
        """The rows at these places."""
        return RankRows(
            series=self.series[rows],
            position_keys=self.position_keys[rows],
            step=self.step[rows],
            time=self.time[rows],
            value=self.value[rows],
            known=None if self.known is None else self.known[rows],
            weight=None if self.weight is None else self.weight[rows],
            reduction=self.reduction[rows],
        )

    def last_of_series(self) -> RankRows:
        """Of each series the rows with a value at its highest position; those without position are the lowest."""
        positions, have = positions_of(self.position_keys)
        places = np.where(have & ~np.isnan(positions), positions, -np.inf)
        known = np.ones(len(self), bool) if self.known is None else self.known
        highest = np.full(int(self.series.max(initial=-1)) + 1, -np.inf)
        np.maximum.at(highest, self.series[known], places[known])
        return self.take(np.flatnonzero(known & (places == highest[self.series])))


class SeriesTable:
    """The series of one role and their reductions.

    Reductions are numbered too: those that are merged first, then others as they come.

    Attributes:
        declared_late: whether a series turned out to be declared after rows of it were used as undeclared.
        version: rises where a series is declared.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str | None], int] = {}
        self._codes = {name: code for code, name in enumerate(MERGED)}
        self._reductions = np.empty(0, np.int16)
        self._first = np.empty(0, np.int16)
        self._all: dict[int, set[int]] = {}
        self._used = np.empty(0, bool)
        self._last: tuple[list[str], list[str], Array, Array] = ([], [], np.empty(0), np.empty(0, np.int32))
        self._last_declared = (np.empty(0, np.int32), np.empty(0, np.int16))
        self.declared_late = False
        self.version = 0

    def names(self) -> tuple[list[str], list[str | None]]:
        """[series] their names and axes."""
        return [name for name, _ in self._numbers], [axis for _, axis in self._numbers]

    def by_reduction(self, series: Array) -> dict[str, Array]:
        """Places in [n] series of those that each reduction merges; those that none merges are in no array."""
        codes = np.where(self._reductions == _UNDECLARED, self._codes["mean"], self._reductions)
        present, of_rows = set(codes.tolist()), codes[series]
        return {name: np.flatnonzero(of_rows == self._codes[name]) for name in MERGED if self._codes[name] in present}

    def reduction_codes(self, column: pa.DictionaryArray) -> Array:
        """[n] the codes of the declarations of rows."""
        codes = [self._codes.setdefault(name, len(self._codes)) for name in column.dictionary.to_pylist()]
        of_rows: Array = np.array([*codes, _UNDECLARED], np.int16)[pc.fill_null(column.indices, len(codes)).to_numpy()]
        return of_rows

    def declarations(self) -> Iterator[tuple[str, list[str], str]]:
        """Of each series its name, what its rows declare (undeclared is `mean`), sorted, and what holds."""
        names = {code: name for name, code in self._codes.items()} | {_UNDECLARED: "mean"}
        for (name, _), series in self._numbers.items():
            codes = {int(self._first[series]), *self._all.get(series, ())} - {_UNSEEN}
            holds = names[int(self._reductions[series])]
            yield name, sorted({names[code] for code in codes}), holds if holds in MERGED else "none"

    def number(self, names: pa.DictionaryArray, axes: pa.DictionaryArray) -> Array:
        """[n] int32, the series of each row."""
        known_names, known_axes = names.dictionary.to_pylist(), axes.dictionary.to_pylist()
        pairs = names.indices.to_numpy()
        if axes.null_count < len(axes):
            pairs = pairs.astype(np.int64) * (len(known_axes) + 1)
            pairs += pc.fill_null(axes.indices, len(known_axes)).to_numpy()
        else:
            known_axes = []
        if self._last[:2] != (known_names, known_axes) or not np.array_equal(self._last[2], pairs):
            self._last = (known_names, known_axes, pairs, self._number(known_names, [*known_axes, None], pairs))
        return self._last[3]

    def _number(self, names: list[str], axes: list[str | None], pairs: Array) -> Array:
        numbers = np.zeros(len(names) * len(axes), np.int32)
        used = np.zeros(len(numbers), bool)
        used[pairs] = True
        for pair in np.flatnonzero(used).tolist():
            series = names[pair // len(axes)], axes[pair % len(axes)]
            numbers[pair] = self._numbers.setdefault(series, len(self._numbers))
        if new := len(self._numbers) - len(self._used):
            self._reductions = np.append(self._reductions, np.full(new, _UNDECLARED, np.int16))
            self._first = np.append(self._first, np.full(new, _UNSEEN, np.int16))
            self._used = np.append(self._used, np.zeros(new, bool))
        found: Array = numbers[pairs]
        return found

    def declare(self, series: Array, reductions: Array) -> None:
        """Take in what the rows of a rank declare: series [n] and codes [n]."""
        if np.array_equal(reductions, self._last_declared[1]) and np.array_equal(series, self._last_declared[0]):
            return  # as the rank before
        self._last_declared = (series, reductions)
        news = np.flatnonzero((self._reductions[series] == _UNDECLARED) & (reductions != _UNDECLARED))
        if len(news):
            self.version += 1
            self._reductions[series[news]] = reductions[news]  # of several the last stays
            late = series[news][self._used[series[news]]]
            self.declared_late |= bool(np.any(self._reductions[late] != self._codes["mean"]))
        self._used[series] = True
        if (unseen := self._first[series] == _UNSEEN).any():
            self._first[series[unseen]] = reductions[unseen]
        for row in np.flatnonzero(self._first[series] != reductions):
            self._all.setdefault(int(series[row]), set()).add(int(reductions[row]))


def rank_rows(table: pa.Table, series: SeriesTable, *, before_step: int | None = None) -> RankRows:
    """Rows of one rank as arrays.

    Args:
        table: `READ_COLUMNS`, oldest row first.
        series: numbers the series.
        before_step: rows at this step or beyond it are left out; None: all count.
    """
    steps = pc.fill_null(_only_chunk(table["step"]), int(NO_STEP)).to_numpy()
    if before_step is not None and (steps >= before_step).any():
        chosen = np.flatnonzero(steps < before_step)
        table, steps = table.take(chosen), steps[chosen]
    axes = _only_chunk(table["axis"])
    values, weights, times = (_only_chunk(table[name]) for name in ("value", "weight", "time"))
    return RankRows(
        series=series.number(_only_chunk(table["name"]), axes),
        position_keys=_position_keys(axes, _only_chunk(table["axis_value"]), steps),
        step=steps,
        time=times.cast(pa.int64()).to_numpy(),
        value=values.to_numpy(zero_copy_only=False),
        known=values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None,
        weight=None if weights.null_count == len(weights) else pc.fill_null(weights, 1.0).to_numpy(),
        reduction=series.reduction_codes(_only_chunk(table["reduction"])),
    )


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _position_keys(axes: pa.DictionaryArray, axis_values: pa.Array, steps: Array) -> Array:
    positions = steps.astype(np.float64)
    known = steps != NO_STEP
    if axes.null_count < len(axes):
        on_axis = axes.is_valid().to_numpy(zero_copy_only=False)
        positions = np.where(on_axis, axis_values.to_numpy(zero_copy_only=False), positions)
        known = np.where(on_axis, axis_values.is_valid().to_numpy(zero_copy_only=False), known)
    return position_keys(positions, known=None if known.all() else known)
