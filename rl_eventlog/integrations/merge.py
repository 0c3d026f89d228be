"""Merging what ranks hand over while they train, as reading would merge what they log.

- The rules are those of `Run.metrics()`: what is null, NaN, weighted, counted once a replica, left out.
- Values are added up in rank order: the digits are those that are read later, but for the last of `std` and quantiles.
- A list of values gives the quantiles `<key>/p50`, `p90`, `p95`, `p99`, over all ranks' values.
- Plain Python: no polars and no framework is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_eventlog.errors import OptionError

from .values import RankValues, Scalar, values_of

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def merge_ranks(
    per_rank: Sequence[Mapping[str, Any]],
    *,
    reduce: str | Mapping[str, str] | None = None,
    weight: float | Mapping[str, float] | None = None,
    data_ranks: Sequence[int | None] | None = None,
) -> dict[str, float | None]:
    """Merge the metrics of many ranks, say those that Ray actors returned.

    Args:
        per_rank: one mapping a rank, in rank order; `{}` for a rank that has nothing. A key that only
            some ranks have is merged over those.
        reduce: reduction by key or glob, or one for all, as in `log_metrics`; `mean` where none is
            given. The value types (`Mean`, `Sum`, ...) declare their own.
        weight: weight by key or glob, or one for all. `Mean` has its own.
        data_ranks: `[R]`, where several ranks see the same data: a data rank counts once in `mean`,
            `sum`, `std` and lists of values. None is a rank of its own.

    Returns:
        A value a key; None where no rank has a value that counts. Keys whose reduction is `none` or
        unknown are left out, as they are not merged.

    Raises:
        OptionError: `data_ranks` has another length than `per_rank`.
    """
    if data_ranks is not None and len(data_ranks) != len(per_rank):
        raise OptionError(f"data_ranks: {len(data_ranks)} of {len(per_rank)} ranks")
    values = [values_of(metrics, reduce, weight) for metrics in per_rank]
    return merge_values(values, data_ranks or [None] * len(values))


def merge_values(ranks: Sequence[RankValues], data_ranks: Sequence[int | None]) -> dict[str, float | None]:
    """As `merge_ranks`, of values looked at before."""
    merged: dict[str, float | None] = {}
    rows: dict[str, list[_Row]] = {}
    many: dict[str, list[tuple[int | None, list[float]]]] = {}
    for values, data_rank in zip(ranks, data_ranks, strict=True):
        for key, scalar in values.scalars.items():
            rows.setdefault(key, []).append(_Row(scalar, data_rank))
        for key, given in values.many.items():
            many.setdefault(key, []).append((data_rank, given))
    for key, found in rows.items():
        merge = _MERGES.get(next((row.scalar.reduction for row in found if row.scalar.reduction is not None), "mean"))
        if merge is not None:
            merged[key] = merge([row for row in found if row.scalar.value is not None])
    for key, lists in many.items():
        values_of_key = sorted(_of_each_replica(lists), key=_nan_last)
        merged |= {f"{key}/{name}": _quantile(values_of_key, q) for name, q in QUANTILES.items()}
    return merged


class _Row(NamedTuple):
    scalar: Scalar
    data_rank: int | None


def _values(rows: Sequence[_Row]) -> list[float]:
    return [row.scalar.value for row in rows if row.scalar.value is not None]


def _counted(rows: Sequence[_Row]) -> list[_Row]:
    """Of each data rank the row of its lowest rank; rows come in rank order and have a value."""
    seen: set[int] = set()
    counted = []
    for row in rows:
        if row.data_rank is None:
            counted.append(row)
        elif row.data_rank not in seen:
            seen.add(row.data_rank)
            counted.append(row)
    return counted


def _of_each_replica(lists: Sequence[tuple[int | None, list[float]]]) -> list[float]:
    """The values of each data rank's lowest rank that has any."""
    seen: set[int] = set()
    found: list[float] = []
    for data_rank, given in lists:
        if not given or data_rank in seen:
            continue
        if data_rank is not None:
            seen.add(data_rank)
        found += given
    return found


def _weighted(rows: Sequence[_Row]) -> tuple[list[float], list[float]]:
    """Values and weights of the rows whose weight is usable and not 0."""
    values, weights = [], []
    for row in _counted(rows):
        weight = 1.0 if row.scalar.weight is None else row.scalar.weight
        if row.scalar.value is not None and math.isfinite(weight) and weight > 0:
            values.append(row.scalar.value)
            weights.append(weight)
    return values, weights


def _total(values: Sequence[float]) -> float:
    """Added up one after the other: `sum` compensates since Python 3.12, and reading does not."""
    total = values[0]
    for value in values[1:]:
        total += value
    return total


def _mean_of(values: Sequence[float], weights: Sequence[float]) -> float:
    return _total([value * weight for value, weight in zip(values, weights, strict=True)]) / _total(weights)


def _mean(rows: Sequence[_Row]) -> float | None:
    values, weights = _weighted(rows)
    return _mean_of(values, weights) if values else None


def _std(rows: Sequence[_Row]) -> float | None:
    values, weights = _weighted(rows)
    if not values:
        return None
    mean = _mean_of(values, weights)
    # a product, since `** 2` raises where it overflows
    return math.sqrt(_mean_of([(value - mean) * (value - mean) for value in values], weights))


def _sum(rows: Sequence[_Row]) -> float | None:
    values = _values(_counted(rows))
    return _total(values) if values else None


def _last(rows: Sequence[_Row]) -> float | None:
    return rows[0].scalar.value if rows else None


def _extreme(choose: Callable[[list[float]], float]) -> Callable[[Sequence[_Row]], float | None]:
    def merge(rows: Sequence[_Row]) -> float | None:
        values = _values(rows)
        if any(map(math.isnan, values)):
            return math.nan
        return choose(values) if values else None

    return merge


def _quantiles(q: float) -> Callable[[Sequence[_Row]], float | None]:
    return lambda rows: _quantile(sorted(_values(rows), key=_nan_last), q)


def _nan_last(value: float) -> tuple[bool, float]:
    return math.isnan(value), value


def _quantile(ordered: Sequence[float], q: float) -> float | None:
    """The linear quantile of sorted values, as numpy's; NaN if one is NaN; an infinity is a value."""
    if not ordered:
        return None
    if math.isnan(ordered[-1]):
        return math.nan
    place = q * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    share = place - math.floor(place)
    if low == high:
        return low
    if math.isinf(low) or math.isinf(high):
        return low + high
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


#: reduction -> the merged value of the rows of one key that have a value, in rank order
_MERGES: dict[str, Callable[[Sequence[_Row]], float | None]] = {
    "mean": _mean,
    "sum": _sum,
    "min": _extreme(min),
    "max": _extreme(max),
    "last": _last,
    "std": _std,
    **{name: _quantiles(q) for name, q in QUANTILES.items()},
}
