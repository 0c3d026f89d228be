"""What is kept of each point while rank after rank is merged into it.

- Null values are ignored. A NaN among the counted values makes every reduction but `last` NaN; the
  infinities are values like others (`inf + -inf` is NaN).
- Weights count in `mean` and `std` only: null is 1, a row of weight 0 is left out, and so is one whose
  weight is negative, NaN or infinite.
- `mean`, `sum` and `std` count one row a data-parallel replica: that of its first rank with a value. `min`,
  `max`, `last` and the quantiles use every rank.
- Nothing to count gives null, never 0.
- A few numbers a point, whatever the number of ranks; quantiles alone keep their values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import polars as pl

from .expressions import QUANTILES, linear_quantile
from .points import Array, Placed, Points, positions_of
from .rank_rows import NO_STEP, RankRows, SeriesTable

_COLUMNS = {
    "step": (np.int64, NO_STEP),
    "time": (np.int64, -(2**63)),
    "ranks": (np.int32, 0),
    "ranks_nan": (np.int32, 0),
    "value": (np.float64, 0.0),
    "weight": (np.float64, 0.0),  # of the values counted so far; their number, where weights do not count
    "squares": (np.float64, 0.0),  # of the distances from the mean, for std
}


_COUNTED_ONCE = ("mean", "sum", "std")


class _Replica:
    """By point what the first rank with a value logged, of several that see the same data."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.float64)
        self._known = np.empty(0, bool)
        self.differs = np.empty(0, bool)

    def add(self, at: slice | Array, values: Array, known: Array, points: int) -> Array:
        """[n] which of a rank's values [n] are the first at their points."""
        self._values = _longer(self._values, points, 0.0)
        self._known, self.differs = (_longer(one, points, empty=False) for one in (self._known, self.differs))
        before, other = self._known[at], self._values[at]
        same = (values == other) | (np.isnan(values) & np.isnan(other))
        self.differs[at] |= known & before & ~same
        first = known & ~before
        self._values[at] = np.where(first, values, other)
        self._known[at] |= known
        return first


class States:
    """The points of one attempt of a role.

    Args:
        series: of the role.
        points: of the attempt.
        data_ranks: that of each rank to come, None where it has none.
    """

    def __init__(self, series: SeriesTable, points: Points, data_ranks: Iterable[int | None]) -> None:
        self._series = series
        self._points = points
        self._columns = {name: np.empty(0, kind) for name, (kind, _) in _COLUMNS.items()}
        self._ranks_to_come = Counter(rank for rank in data_ranks if rank is not None)
        self._replicas: dict[int, _Replica] = {}
        self._bad_weights = np.empty(0, np.int64)
        self._differing: list[Array] = []
        self._values: dict[str, list[tuple[Array, Array]]] = {name: [] for name in QUANTILES}
        self._last: tuple[Placed | None, int, dict[str, tuple[Array, Array]]] = (None, 0, {})

    def add(self, rows: RankRows, placed: Placed, data_rank: int | None) -> None:
        """Merge the rows of one rank, each rank once, the lowest first."""
        self._grow(len(self._points))
        at, columns = placed.points, self._columns
        for name, given in (("step", rows.step), ("time", rows.time)):
            columns[name][at] = np.maximum(columns[name][at], placed.of(given))
        columns["ranks"][at] += 1
        values = placed.of(rows.value)
        known = np.ones(len(values), bool) if rows.known is None else placed.of(rows.known)
        if (nan := np.isnan(values) & known).any():
            columns["ranks_nan"][at] += nan
        with np.errstate(all="ignore"):
            self._merge(placed, rows, self._counted(at, values, known, data_rank), known)

    def result(self) -> pl.DataFrame:
        """One row a merged point: `name, axis, step, position, time, value, ranks, ranks_nan`."""
        self._grow(len(self._points))
        series = self._points.series
        positions, have_position = positions_of(self._points.keys)
        names, axes = self._series.names()
        columns = {name: column[: len(series)] for name, column in self._columns.items()}
        merged = np.zeros(len(series), bool)
        for reduction, at in self._series.by_reduction(series).items():
            merged[at] = True
            if reduction in QUANTILES:
                self._finish_quantile(reduction, columns)
            elif reduction in _FINISHED:
                given = (columns[name][at] for name in ("value", "weight", "squares"))
                with np.errstate(all="ignore"):
                    columns["value"][at] = _FINISHED[reduction](*given)
        return pl.DataFrame(
            {
                "name": pl.Series(names, dtype=pl.String).gather(series),
                "axis": pl.Series(axes, dtype=pl.String).gather(series),
                "step": _or_null(columns["step"], columns["step"] != NO_STEP),
                "position": _or_null(positions, have_position),
                "time": pl.Series(columns["time"]).cast(pl.Datetime("us", "UTC")),
                "value": _or_null(columns["value"], columns["weight"] > 0),
                "ranks": columns["ranks"],
                "ranks_nan": columns["ranks_nan"],
            }
        ).filter(pl.Series(merged & (columns["ranks"] > 0)))

    def bad_weights(self) -> Counter[str]:
        """By name the rows that were left out because of a negative, NaN or infinite weight."""
        return self._by_name(self._bad_weights)

    def differing_replicas(self) -> Counter[str]:
        """By name the positions at which ranks of one data rank logged different values and one was counted."""
        points = np.concatenate([np.empty(0, np.int64), *self._differing])
        series = self._points.series[points]
        once = [places for name, places in self._series.by_reduction(series).items() if name in _COUNTED_ONCE]
        return self._by_name(np.bincount(series[np.concatenate([np.empty(0, np.int64), *once])]))

    def _by_name(self, counts: Array) -> Counter[str]:
        names, _ = self._series.names()
        found: Counter[str] = Counter()
        for series in np.flatnonzero(counts).tolist():
            found[names[series]] += int(counts[series])
        return found

    def _grow(self, points: int) -> None:
        if points > len(self._columns["value"]):
            for name, (_, empty) in _COLUMNS.items():
                self._columns[name] = _longer(self._columns[name], points, empty)

    def _counted(self, at: slice | Array, values: Array, known: Array, data_rank: int | None) -> Array:
        """Which rows count where a replica counts once."""
        if data_rank is None:
            return known
        self._ranks_to_come[data_rank] -= 1
        replica = self._replicas.pop(data_rank, None)
        if replica is None:
            if not self._ranks_to_come[data_rank]:
                return known  # it is the replica's only rank
            replica = _Replica()
        counted = replica.add(at, values, known, len(self._points))
        if self._ranks_to_come[data_rank]:
            self._replicas[data_rank] = replica
        else:
            self._differing.append(np.flatnonzero(replica.differs))
        return counted

    def _merge(self, placed: Placed, given: RankRows, counted: Array, known: Array) -> None:
        values = placed.of(given.value)
        weights = np.ones(len(values)) if given.weight is None else placed.of(given.weight)
        usable = (weights >= 0) & np.isfinite(weights)
        if not usable.all():
            bad = np.bincount(placed.of(given.series)[~usable])
            self._bad_weights = _longer(self._bad_weights, len(bad), 0)
            self._bad_weights[: len(bad)] += bad
        weighted = counted & usable & (weights > 0)
        use = {"mean": weighted, "std": weighted, "sum": counted}
        for reduction, (at, points) in self._by_reduction(placed, given.series).items():
            used = use.get(reduction, known)[at]
            rows, to = (at, points) if used.all() else (at[used], points[used])
            if reduction in QUANTILES:
                self._values[reduction].append((to, values[rows]))
                self._columns["weight"][to] += 1
            else:
                _ADD[reduction](self._columns, to, values[rows], weights[rows])

    def _by_reduction(self, placed: Placed, series: Array) -> dict[str, tuple[Array, Array]]:
        """Of the rows that hold, by reduction: their places among these, and their points."""
        if self._last[:2] != (placed, self._series.version):
            at = placed.points
            points = np.arange(at.start, at.stop, dtype=np.int32) if isinstance(at, slice) else at.astype(np.int32)
            chosen = self._series.by_reduction(placed.of(series)).items()
            self._last = (placed, self._series.version, {name: (rows, points[rows]) for name, rows in chosen})
        return self._last[2]

    def _finish_quantile(self, name: str, columns: dict[str, Array]) -> None:
        if kept := self._values[name]:
            points, values = (np.concatenate(parts) for parts in zip(*kept, strict=True))
            found = (
                pl.LazyFrame({"point": points, "value": values})
                .group_by("point")
                .agg(value=linear_quantile(pl.col("value"), QUANTILES[name]))
                .collect()
            )
            columns["value"][found["point"].to_numpy()] = found["value"].to_numpy()


Columns = dict[str, Array]


def _add_mean(columns: Columns, at: Array, values: Array, weights: Array) -> None:
    columns["value"][at] += values * weights
    columns["weight"][at] += weights


def _add_sum(columns: Columns, at: Array, values: Array, _: Array) -> None:
    columns["value"][at] += values
    columns["weight"][at] += 1


def _add_extreme(choose: np.ufunc) -> Callable[[Columns, Array, Array, Array], None]:
    def add(columns: Columns, at: Array, values: Array, _: Array) -> None:
        columns["value"][at] = np.where(columns["weight"][at] > 0, choose(columns["value"][at], values), values)
        columns["weight"][at] += 1

    return add


def _add_last(columns: Columns, at: Array, values: Array, _: Array) -> None:
    first = columns["weight"][at] == 0
    columns["value"][at[first]] = values[first]
    columns["weight"][at] += 1


def _add_std(columns: Columns, at: Array, values: Array, weights: Array) -> None:
    """West, Updating mean and variance estimates, CACM 22 (1979): `value` is the mean so far."""
    total = columns["weight"][at] + weights
    distance = values - columns["value"][at]
    mean = columns["value"][at] + distance * (weights / total)
    columns["squares"][at] += weights * distance * (values - mean)
    columns["value"][at], columns["weight"][at] = mean, total


#: reduction -> adds the rows of one rank, each point at most once
_ADD: dict[str, Callable[[Columns, Array, Array, Array], None]] = {
    "mean": _add_mean,
    "sum": _add_sum,
    "min": _add_extreme(np.minimum),
    "max": _add_extreme(np.maximum),
    "last": _add_last,
    "std": _add_std,
}
#: reduction -> the merged value of `value`, `weight` and `squares`; of the others it is `value`
_FINISHED: dict[str, Callable[[Array, Array, Array], Array]] = {
    "mean": lambda value, weight, _: value / weight,
    "std": lambda _, weight, squares: np.sqrt(squares / weight),
}


def _longer(column: Array, length: int, empty: float | np.int64 | bool) -> Array:
    """With room for twice as many points, so that growing costs little in all."""
    if length <= len(column):
        return column
    longer = np.full(max(length, 2 * len(column)), empty, column.dtype)
    longer[: len(column)] = column
    return longer


def _or_null(values: Array, known: Array) -> pl.Series:
    found = pl.Series(values)
    return found if known.all() else found.set(~pl.Series(known), None)
